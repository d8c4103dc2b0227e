"""Context of a command: the workspace, the output format, the options of every command, and error output.

Data goes to standard output, everything else to standard error. Exit codes: 0 success, 1 failure, 2 wrong usage.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli import output
from penstock.cli.progress import ProgressLine, show_progress
from penstock.errors import PenstockError
from penstock.extras import translate_missing_extra

if TYPE_CHECKING:
    from penstock.config import Settings
    from penstock.core.caller import Caller
    from penstock.lake import Lake
    from penstock.service.queries.execution import QueryExecutor
    from penstock.service.workspace import Workspace

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class CliSession:
    """An open workspace: its Python API, and the arguments of the functions in `service`."""

    lake: "Lake"
    workspace: "Workspace"
    caller: "Caller"
    query_executor: "QueryExecutor"


@contextmanager
def open_cli_session(settings: "Settings", *, create: bool = False) -> Iterator[CliSession]:
    """Open a workspace, and close it at the end of the block."""
    from penstock import bootstrap
    from penstock.lake import Lake

    session = bootstrap.open_session(settings, create=create)
    with Lake(session.workspace, session.caller, session.folder, session.query_executor) as lake:
        yield CliSession(lake, session.workspace, session.caller, session.query_executor)


@dataclass(frozen=True)
class CliContext:
    """The options `--workspace` and `--json` of a command, and what every command does with them."""

    workspace: Path | None
    json: bool

    def settings(self) -> "Settings":
        """Read the settings; the option `--workspace` takes precedence."""
        from penstock import config

        return config.load_settings(workspace=self.workspace)

    @contextmanager
    def lake(self) -> "Iterator[Lake]":
        """Open the workspace for the Python API, and close it at the end of the block."""
        with open_cli_session(self.settings()) as session:
            yield session.lake

    def session(self) -> AbstractContextManager[CliSession]:
        """Open the workspace for functions of `service`; it is closed at the end of the block."""
        return open_cli_session(self.settings())

    def report(self, facts: Any, message: str) -> None:
        """Print the result of a command: facts as JSON to standard output, or a message to standard error."""
        if self.json:
            output.print_json(facts)
        else:
            click.echo(message, err=True)

    def table(self, rows: Sequence[dict[str, Any]], columns: dict[str, str], empty_message: str) -> None:
        """Print rows as JSON, or the columns as a table with their headings."""
        if self.json:
            output.print_json(list(rows))
        elif rows:
            cells = [[output.format_table_value(row[name]) for name in columns] for row in rows]
            click.echo(output.align_table(cells, list(columns.values())))
        else:
            click.echo(empty_message, err=True)

    def progress(self, title: str = "") -> AbstractContextManager[ProgressLine]:
        """Show progress events on a terminal. Without one, print a line per operation of a pipeline, unless as JSON."""
        return show_progress(title, print_operations=not self.json)


def standard_options(examples: str) -> Callable[[F], F]:
    """Add the options of every command, its error output, and examples at the end of its help."""

    def decorate(function: F) -> F:
        @click.option(
            "-w", "--workspace", type=click.Path(path_type=Path),
            help="Folder of the workspace.  [default: PENSTOCK_WORKSPACE, else: workspace]",
        )  # fmt: skip
        @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
        @wraps(function)
        def run(workspace: Path | None, as_json: bool, **options: Any) -> None:
            try:
                with translate_missing_extra():
                    function(CliContext(workspace, as_json), **options)
            except PenstockError as error:
                output.print_error(error, as_json=as_json)
                raise SystemExit(1) from None
            except BrokenPipeError:  # the pipe is closed
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise SystemExit(0) from None

        run.__epilog__ = examples  # type: ignore[attr-defined]
        return run  # type: ignore[return-value]

    return decorate


class Command(click.Command):
    """A command whose help ends with examples."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        examples = getattr(self.callback, "__epilog__", "")
        with formatter.section("Examples"):
            for line in examples.strip().splitlines():
                formatter.write(f"  {line.strip()}\n")


class Group(click.Group):
    """A group of commands whose help ends with examples."""

    command_class = Command
