"""Check that names and prose follow the glossary: no banned identifiers, no clause as a docstring, no class name twice.

usage: python -m tools.words [PATH ...]     default: source, tests, documentation and build files
"""

import argparse
import ast
import collections
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = ("src", "tools", "bench", "examples", "tests")
PROSE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs", "examples")
BUILD = ("pyproject.toml", "Makefile", "Containerfile", "tools/system-packages", ".ci/run", ".github", ".pre-commit-config.yaml")  # fmt: skip
PATTERNS = ("*.py", "*.md", "*.proto", "*.toml", "*.js", "*.css", "*.yml", "*.yaml")

# An identifier may not contain one of these words between underscores.
IDENTIFIERS = {
    "told", "tells", "said", "says", "heard", "hear", "hears", "asked", "given", "kept", "shown", "place", "places", "placed",
    "known", "met", "wanted", "spoken", "brought", "somebody", "nobody", "whoever", "trouble", "refusal", "stranger",
    "strays", "newcomer", "picture", "tidy", "bury", "doomed", "hampered", "patience", "stuck", "strike",
}  # fmt: skip
NAMES = {"there", "mine", "theirs", "who", "what", "made"}  # not as a whole name
CLAUSES = {"What", "Who", "Whose", "Whom", "Where", "Which", "How", "Whether", "Whatever", "Whoever", "Those", "Such"}
# Phrases of comments, docstrings, messages and documentation that have a plain equivalent.
PHRASES = (
    r"\b[Ss]omebody\b", r"\b[Nn]obody\b", r"\b[Ww]hoever\b", r"\bmends?\b", r"\bmended\b", r"\bhears?\b", r"\bheard\b", r"\btold\b",
    r"\bis asked for\b", r"\bare asked for\b", r"\bby itself alone\b", r"\bnot missed\b", r"\bstands? (?:in|there|twice|once)\b", r"\blets? go of\b",
    r"\bthere is no such\b", r"\bis no [a-z]+;", r"\bcan be had\b", r"\bwithout a word\b", r"\bwhat is there\b", r"\bcomes? back to\b", r"\bin words\b",
    r"\bwho (?:asks|comes|waits)\b", r"(?<!s )\bwho may\b", r"\b[Ww]hat (?:is|was|it|there|goes|comes)\b", r"\bfalls? silent\b", r"\bsigns? of life\b",
    r"\bunder way\b", r"\bin vain\b", r"\bgo(?:es)? on\b", r"(?<!there )(?<!There )\bis no (?!longer\b)[a-z]+", r"\btold apart\b",
)  # fmt: skip
ALLOWED_CLASSES = {"Meta"}
ALLOWED_STRINGS = {'"nobody"'}  # the Unix account


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    paths = [path.resolve() for path in parser.parse_args().paths] or [
        ROOT / name for name in dict.fromkeys((*CODE, *PROSE, *BUILD))
    ]
    findings = [finding for path in _files(paths) for finding in _check(path)]
    findings += _repeated_classes()
    for finding in findings:
        sys.stdout.write(f"{finding}\n")
    if findings:
        sys.stderr.write(f"{len(findings)} findings: see docs/concepts.md for the terms to use\n")
    return 1 if findings else 0


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_file():
            yield path
            continue
        for pattern in PATTERNS:
            yield from (file for file in sorted(path.rglob(pattern)) if not file.name.endswith("_pb2.py"))


def _check(path: Path) -> Iterator[str]:
    text, relative = path.read_text("utf-8"), path.relative_to(ROOT).as_posix()
    if path == Path(__file__):
        return
    if path.suffix != ".py":
        yield from (f"{relative}:{line}: phrase {phrase!r}" for line, phrase in _phrases(text, 1))
        return
    tree, is_test = ast.parse(text), path.name.startswith("test_")
    for line, name in sorted({(line, name) for line, name in _names(tree) if _is_banned(name)}):
        yield f"{relative}:{line}: identifier {name!r}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_test and re.match("test[a-z]", node.name):
            yield f"{relative}:{node.lineno}: test name {node.name!r} does not begin with test_"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            docstring = ast.get_docstring(node)
            first = docstring.split("\n")[0] if docstring else ""
            if first and (first.split()[0].strip(",.:;") in CLAUSES or first.endswith("?")):
                yield f"{relative}:{getattr(node, 'lineno', 1)}: docstring {first[:80]!r}"
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            if token.string in ALLOWED_STRINGS:
                continue
            for line, phrase in _phrases(token.string, token.start[0]):
                yield f"{relative}:{line}: phrase {phrase!r}"


def _phrases(text: str, first_line: int) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), first_line):
        for pattern in PHRASES:
            for match in re.finditer(pattern, line):
                yield number, match[0]


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name


def _is_banned(name: str) -> bool:
    words = re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())
    return name in NAMES or any(word in IDENTIFIERS for word in words)


def _repeated_classes() -> list[str]:
    defined = collections.defaultdict(set)
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name not in ALLOWED_CLASSES:
                defined[node.name].add(str(path.relative_to(ROOT)))
    return [
        f"{', '.join(sorted(paths))}: class {name} twice" for name, paths in sorted(defined.items()) if len(paths) > 1
    ]


if __name__ == "__main__":
    raise SystemExit(main())
