"""SQL as an editor looks at it: the parameters it names, how a name is spelled in it, and where a place in it is."""

import re
from collections.abc import Sequence

# What a $ means nothing in comes first, so that it is gone before a parameter is looked for.
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
RESERVED = (  # words that SQL takes for its own
    "all|analyse|analyze|and|any|array|as|asc|asymmetric|both|case|cast|check|collate|column|constraint|"
    "create|default|deferrable|desc|describe|distinct|do|else|end|except|false|fetch|for|foreign|from|group|"
    "having|in|initially|intersect|into|lambda|lateral|leading|limit|not|null|offset|on|only|or|order|pivot|"
    "pivot_longer|pivot_wider|placing|primary|qualify|references|returning|select|show|some|summarize|"
    "symmetric|table|then|to|trailing|true|union|unique|unpivot|using|variadic|when|where|window|with"
)
_RESERVED = re.compile(RESERVED, re.IGNORECASE)


def placeholders(sql: str) -> list[str]:
    """The parameters in their order, each once: DuckDB does not mind their case."""
    found: dict[str, str] = {}
    for token in _TOKEN.finditer(sql):
        if name := token["name"]:
            found.setdefault(name.lower(), name)
    return list(found.values())


def identifier(name: str) -> str:
    """A column's name as SQL has it: with quotes, where it needs them."""
    if _PLAIN.fullmatch(name) and not _RESERVED.fullmatch(name):
        return name
    return '"' + name.replace('"', '""') + '"'


def path(parts: Sequence[str]) -> str:
    """`finance.report`."""
    return ".".join(map(identifier, parts))


def place(sql: str, position: int) -> str:
    """A place that is told in bytes from the start, as people find it: `line 2, column 8`."""
    before = sql.encode()[:position].decode(errors="ignore")
    line = before.count("\n") + 1
    return f"line {line}, column {len(before) - before.rfind(chr(10))}"
