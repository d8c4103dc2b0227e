"""Write the generated pages: commands, routes, settings, errors, the Python API, and the semantics of the test cases.

`--check` compares the pages with the files and writes nothing.
"""

import argparse
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path

import click
from fastapi.routing import APIRoute

from penstock import config, errors
from penstock.cli import cli
from penstock.core.pipeline import responses
from penstock.reasons import REASONS
from penstock.rest.app import ROUTERS
from tools import python_api, semantics

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "penstock"
NOTE = "<!-- Written by `make docs`; do not edit. -->\n\n"

# An exception that is not a PenstockError, and responses of the HTTP framework.
INTERNAL_ERROR = "internal_error"
UNCLASSIFIED = (
    (f"`{INTERNAL_ERROR.upper()}`", "HTTP", "500: a bug in Penstock; the log has the traceback under the `request_id`"),
    (f"`{INTERNAL_ERROR.upper()}`", "Flight", "`INTERNAL`: the same; the message contains the request id"),
    (
        f"`{INTERNAL_ERROR.upper()}`",
        "pipeline run",
        "the run has failed; a caller that waits for an operation gets 500",
    ),
    ("the status as a word, such as `NOT_IMPLEMENTED`", "HTTP", "that status: an error of the HTTP framework itself"),
)


@dataclass(frozen=True, order=True)
class ErrorEntry:
    """A row of the page of errors."""

    reason: str
    kind: str
    message: str


def list_errors() -> list[ErrorEntry]:
    """List every error that Penstock raises."""
    return sorted({ErrorEntry(key.partition(".")[0], kind, message) for key, (kind, message) in REASONS.items()})


def build_errors_page() -> str:
    tree = inspect.getdoc(errors) or ""
    rows = [f"| `{e.reason}` | {e.kind} | {_cell(e.message)} |" for e in list_errors() if e.reason != INTERNAL_ERROR]
    return "\n".join(
        [
            "# Errors\n",
            NOTE + "```text",
            tree,
            "```\n",
            "Over HTTP the `code` is the reason in capitals. `{name}` stands for a value, `{count:row}` for a number with its noun.\n",
            "| reason | kind | message |",
            "| --- | --- | --- |",
            *rows,
            "\n## Operations\n",
            "Operations of a pipeline return codes of their own, with these messages.\n",
            "| code | message |",
            "| --- | --- |",
            *(f"| `{reason.upper()}` | {message} |" for reason, message in responses.MESSAGES.items()),
            f"| `APPEND_006` | {responses.COLUMN_NOT_FOUND_MESSAGE} |",
            "\n## Other errors\n",
            "| code | where | response |",
            "| --- | --- | --- |",
            *(f"| {code} | {where} | {response} |" for code, where, response in UNCLASSIFIED),
            "",
        ]
    )


def build_settings_page() -> str:
    rows = []
    for setting in fields(config.Settings):
        facts = setting.metadata
        value = setting.default.value if isinstance(setting.default, Enum) else setting.default
        default = "unset" if value is None else f"`{value}`"
        secret = " Never printed." if facts["secret"] else ""
        rows.append(f"| `{facts['variable']}` | {default} | {_cell(facts['meaning'])}{secret} |")
    return "\n".join(
        ["# Settings\n", NOTE + (inspect.getdoc(config.Settings) or "") + "\n", "| variable | default | meaning |",
         "| --- | --- | --- |", *rows, ""]
    )  # fmt: skip


def build_commands_page() -> str:
    parts = ["# Commands\n", NOTE.rstrip("\n")]
    for path, command in _commands(cli, ["penstock"]):
        layout = {**cli.context_settings, "terminal_width": 100, "max_content_width": 100}
        with click.Context(command, info_name=" ".join(path), **layout) as context:
            parts.append(f"\n## {' '.join(path)}\n\n```text\n{command.get_help(context)}\n```")
    return "\n".join([*parts, ""])


def _commands(command: click.Command, path: list[str]) -> Iterator[tuple[list[str], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, subcommand in sorted(command.commands.items()):
            yield from _commands(subcommand, [*path, name])


def build_routes_page() -> str:
    rows = [f"| {method} | `{path}` | {_cell(summary)} |" for path, method, summary in sorted(list_routes())]
    introduction = (
        "A running service documents parameters, bodies and responses at `/docs` and, for programs, at `/openapi.json`. "
        "[REST](../rest.md) has examples. `/ui` is the web page.\n"
    )
    return "\n".join(
        ["# Routes\n", NOTE + introduction, "| method | path | summary |", "| --- | --- | --- |", *rows, ""]
    )


def list_routes() -> Iterator[tuple[str, str, str]]:
    """Yield path, method and summary of every documented route."""
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.include_in_schema:
                yield from ((route.path, method, route.summary or "") for method in route.methods)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


PAGES = {
    "reference/errors.md": build_errors_page,
    "reference/settings.md": build_settings_page,
    "reference/commands.md": build_commands_page,
    "reference/routes.md": build_routes_page,
    "reference/semantics.md": lambda: semantics.build_page(NOTE),
    "python-api.md": lambda: python_api.build_page(NOTE),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a page is not current")
    check = parser.parse_args().check
    for name, build_page in PAGES.items():
        path, text = ROOT / "docs" / name, build_page()
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            sys.exit(f"docs/{name} is not current; run `make docs`")


if __name__ == "__main__":
    main()
