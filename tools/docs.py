"""Write the pages that can be worked out from the code: errors, settings, commands. `--check` only compares."""

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import click

from penstock import config, errors
from penstock.cli import cli
from penstock.core import operations

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "penstock"
PLUMBING = {"str", "len", "join", "map", "ascii", "type", "__name__", "isoformat", "strerror", "or"}
NOTE = "<!-- Written by `make docs`; do not edit. -->\n\n"


@dataclass(frozen=True, order=True)
class Raised:
    kind: str
    reason: str
    sentence: str
    module: str


def raised() -> list[Raised]:
    """Every error that the source can raise, found by reading it."""
    found = {entry for path in sorted(SOURCE.rglob("*.py")) for entry in _raised_in(path)}
    return sorted(found)


def _raised_in(path: Path) -> Iterator[Raised]:
    tree = ast.parse(path.read_text("utf-8"))
    module = str(path.relative_to(SOURCE).with_suffix(""))
    kinds = {kind.__name__ for kind in errors.KINDS}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds):
            continue
        match node.args:
            case [ast.Constant(value=str(reason)), sentence, *_]:
                yield Raised(node.func.id, reason, _text(sentence), module)
            case [ast.Starred()]:  # Kind(*TABLE[…]): the module keeps its reasons and sentences in tables
                for pair in ast.walk(tree):
                    match pair:
                        case ast.Tuple(elts=[ast.Constant(value=str(reason)), ast.Constant(value=str(sentence))]):
                            if re.fullmatch(r"[a-z]+(_[a-z]+)+", reason):
                                yield Raised(node.func.id, reason, sentence, module)


def _text(node: ast.expr) -> str:
    """A message as a reader would write it down: names in braces where values will stand."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_text, parts))
        case ast.FormattedValue(value=value):
            words = [word for word in re.findall(r"[A-Za-z_]\w*", ast.unparse(value)) if word not in PLUMBING]
            return "{" + (words[-1] if words else "…") + "}"
        case _:
            return "…"


def errors_page() -> str:
    tree = inspect.getdoc(errors) or ""
    rows = [f"| `{e.reason}` | {e.kind} | {_cell(e.sentence)} | `{e.module}` |" for e in raised()]
    return "\n".join(
        [
            "# Errors\n",
            NOTE + "```text",
            tree,
            "```\n",
            "| reason | kind | what it says | raised in |",
            "| --- | --- | --- | --- |",
            *rows,
            "\n## Operations\n",
            "Operations of a pipeline answer with codes of their own, and these sentences.\n",
            "| code | message |",
            "| --- | --- |",
            *(f"| `{reason.upper()}` | {message} |" for reason, message in operations.MESSAGES.items()),
            f"| `APPEND_006` | {operations.NO_SUCH_COLUMN} |",
            "",
        ]
    )


def settings_page() -> str:
    rows = []
    for each in fields(config.Settings):
        facts = each.metadata
        shown = "unset" if each.default is None else f"`{each.default}`"
        secret = " Never shown." if facts["secret"] else ""
        rows.append(f"| `{facts['variable']}` | {shown} | {_cell(facts['meaning'])}{secret} |")
    return "\n".join(
        ["# Settings\n", NOTE + (inspect.getdoc(config.Settings) or "") + "\n", "| variable | default | meaning |",
         "| --- | --- | --- |", *rows, ""]
    )  # fmt: skip


def commands_page() -> str:
    parts = ["# Commands\n", NOTE.rstrip("\n")]
    for path, command in _commands(cli, ["penstock"]):
        shape = {**cli.context_settings, "terminal_width": 100, "max_content_width": 100}
        with click.Context(command, info_name=" ".join(path), **shape) as context:
            parts.append(f"\n## {' '.join(path)}\n\n```text\n{command.get_help(context)}\n```")
    return "\n".join([*parts, ""])


def _commands(command: click.Command, path: list[str]) -> Iterator[tuple[list[str], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in sorted(command.commands.items()):
            yield from _commands(inner, [*path, name])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


PAGES = {"errors.md": errors_page, "settings.md": settings_page, "commands.md": commands_page}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a page is not current")
    check = parser.parse_args().check
    for name, page in PAGES.items():
        path, text = ROOT / "docs" / name, page()
        if not check:
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            sys.exit(f"docs/{name} is not current; run `make docs`")


if __name__ == "__main__":
    main()
