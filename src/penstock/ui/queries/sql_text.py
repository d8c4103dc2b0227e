"""SQL text: find parameters, quote identifiers, and describe positions."""

import re
from collections.abc import Sequence

# Tokens in which $ has no meaning come first, so that no parameter is found inside them.
_TOKEN = re.compile(
    r"""
      [eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)      # text with escapes
    | '(?:[^']|'')*(?:'|\Z)                # text
    | "(?:[^"]|"")*(?:"|\Z)                # a name
    | --[^\n]*                             # a comment
    | /\*.*?(?:\*/|\Z)
    | \$(?P<tag>[^\W\d]\w*|)\$.*?\$(?P=tag)\$
    | (?<![\w$])\$(?P<name>[^\W\d]\w*)
    """,
    re.VERBOSE | re.DOTALL,
)
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED_WORDS = (  # reserved words of DuckDB
    "all|analyse|analyze|and|any|array|as|asc|asymmetric|both|case|cast|check|collate|column|constraint|"
    "create|default|deferrable|desc|describe|distinct|do|else|end|except|false|fetch|for|foreign|from|group|"
    "having|in|initially|intersect|into|lambda|lateral|leading|limit|not|null|offset|on|only|or|order|pivot|"
    "pivot_longer|pivot_wider|placing|primary|qualify|references|returning|select|show|some|summarize|"
    "symmetric|table|then|to|trailing|true|union|unique|unpivot|using|variadic|when|where|window|with"
)
_RESERVED = re.compile(RESERVED_WORDS, re.IGNORECASE)


def find_parameters(sql: str) -> list[str]:
    """Return the names of the parameters in their order, each once. DuckDB ignores their case."""
    names: dict[str, str] = {}
    for token in _TOKEN.finditer(sql):
        if name := token["name"]:
            names.setdefault(name.lower(), name)
    return list(names.values())


def quote_identifier(name: str) -> str:
    """Quote a column name if SQL requires it."""
    if _PLAIN.fullmatch(name) and not _RESERVED.fullmatch(name):
        return name
    return '"' + name.replace('"', '""') + '"'


def quote_path(parts: Sequence[str]) -> str:
    """Quote the parts of a qualified name: `finance.report`."""
    return ".".join(map(quote_identifier, parts))


def describe_position(sql: str, position: int) -> str:
    """Describe a position that is given in bytes: `line 2, column 8`."""
    before = sql.encode()[:position].decode(errors="ignore")
    line = before.count("\n") + 1
    return f"line {line}, column {len(before) - before.rfind(chr(10))}"
