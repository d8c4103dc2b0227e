"""Write the pages that can be worked out: errors, settings, commands and routes of the code, meaning of the tests' cases.

`--check` only compares.
"""

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import click
from fastapi.routing import APIRoute

from penstock import config, errors
from penstock.cli import cli
from penstock.core.pipeline import operations
from penstock.rest.app import ROUTERS
from tools import semantics

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "penstock"
PLUMBING = {"str", "len", "join", "map", "ascii", "type", "__name__", "isoformat", "strerror", "or"}
NOTE = "<!-- Written by `make docs`; do not edit. -->\n\n"
# What takes a reason to the place where it is raised: which of its arguments is the reason, and which the sentence.
CARRIERS = {
    "core/contract/promise": {"_Problem": (0, 2)},
    "core/parameters": {"refuse": (0, 2)},
    "core/query": {"error": (1, 2), "refuse": (0, 0)},
}


@dataclass(frozen=True, order=True)
class Raised:
    kind: str
    reason: str
    sentence: str
    module: str


# What reading does not find: a reason with a hole in it, and refusals of what is no request yet.
ALSO = (
    Raised("Invalid", "type_id_is_fixed", "type_id is {value} and cannot be changed here", "core/registry"),
    Raised("Invalid", "bad_request", "this is no HTTP request that can be read", "http/server"),
    Raised("Invalid", "headers_too_large", "the request's headers are too large", "http/server"),
)

# Anything else that escapes is a bug and of no kind, also where it has to be told as one. What the framework refuses by
# itself has none, either.
BUG = "internal_error"
OF_NO_KIND = (
    (f"`{BUG.upper()}`", "over HTTP", "500: a bug of Penstock's; the log has it under the answer's `request_id`"),
    (f"`{BUG.upper()}`", "over Flight", "`INTERNAL`: the same; the sentence names the request"),
    (
        f"`{BUG.upper()}`",
        "in a run",
        "the run has failed; who waits for an operation hears 500",
    ),
    ("a status in words, as `NOT_IMPLEMENTED`", "over HTTP", "that status: the framework has refused by itself"),
)


def raised() -> list[Raised]:
    """Every error that the source can raise, found by reading it."""
    found = {entry for path in sorted(SOURCE.rglob("*.py")) for entry in _raised_in(path)}
    return sorted(found | set(ALSO))


def _raised_in(path: Path) -> Iterator[Raised]:
    tree = ast.parse(path.read_text("utf-8"))
    module = str(path.relative_to(SOURCE).with_suffix(""))
    kinds, carriers, words = {kind.__name__ for kind in errors.KINDS}, CARRIERS.get(module, {}), _words(tree)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id in carriers:
            reason, sentence = (node.args[place] for place in carriers[node.func.id])
            if isinstance(reason, ast.Constant):
                yield Raised(
                    "Invalid", reason.value, "{pointer}: {message}" if sentence is reason else _text(sentence), module
                )
        if node.func.id not in kinds:
            continue
        match node.args:
            case [ast.Constant(value=str(reason)), sentence, *_]:
                yield Raised(node.func.id, reason, _text(sentence), module)
            case [ast.Name(id=name), sentence, *_] if name in words:
                yield Raised(node.func.id, words[name], _text(sentence), module)
            case [ast.Starred()]:  # Kind(*TABLE[…]): the module keeps its reasons and sentences in tables
                for pair in ast.walk(tree):
                    match pair:
                        case ast.Tuple(elts=[ast.Constant(value=str(reason)), ast.Constant(value=str(sentence))]):
                            if re.fullmatch(r"[a-z]+(_[a-z]+)+", reason):
                                yield Raised(node.func.id, reason, sentence, module)


def _words(tree: ast.Module) -> dict[str, str]:
    """The constants of a module that are text."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


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
    rows = [f"| `{e.reason}` | {e.kind} | {_cell(e.sentence)} | `{e.module}` |" for e in raised() if e.reason != BUG]
    return "\n".join(
        [
            "# Errors\n",
            NOTE + "```text",
            tree,
            "```\n",
            "Over HTTP a reason is the `code`, in capitals.\n",
            "| reason | kind | what it says | raised in |",
            "| --- | --- | --- | --- |",
            *rows,
            "\n## Operations\n",
            "Operations of a pipeline answer with codes of their own, and these sentences.\n",
            "| code | message |",
            "| --- | --- |",
            *(f"| `{reason.upper()}` | {message} |" for reason, message in operations.MESSAGES.items()),
            f"| `APPEND_006` | {operations.NO_SUCH_COLUMN} |",
            "\n## What is of no kind\n",
            "| code | where | what is answered |",
            "| --- | --- | --- |",
            *(f"| {code} | {where} | {told} |" for code, where, told in OF_NO_KIND),
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


def routes_page() -> str:
    rows = [f"| {method} | `{path}` | {_cell(summary)} |" for path, method, summary in sorted(routes())]
    return "\n".join(
        ["# Routes\n", NOTE + "Each with its parameters, bodies and answers at `/docs` of a service, which `/openapi.json` tells "
         "programs; with examples in [REST](rest.md). `/ui` is the page for people.\n", "| method | path | |", "| --- | --- | --- |", *rows, ""]
    )  # fmt: skip


def routes() -> Iterator[tuple[str, str, str]]:
    """Path, method and summary of what is served to programs."""
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.include_in_schema:
                yield from ((route.path, method, route.summary or "") for method in route.methods)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


PAGES = {
    "errors.md": errors_page,
    "settings.md": settings_page,
    "commands.md": commands_page,
    "routes.md": routes_page,
    "semantics.md": lambda: semantics.page(NOTE),
}


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
