"""Options and parameter types that several commands share."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

FORMATS = click.Choice(["parquet", "csv", "jsonl", "arrow"])
NUMBER = click.IntRange(0, 2**63 - 1)
PORT = click.IntRange(0, 65_535)


class FilePath(click.Path):
    """A path that is not empty: an unset shell variable must not mean the current folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("The file name is empty.", param, ctx)
        return super().convert(value, param, ctx)


class TimeParam(click.ParamType[datetime]):
    """A time in ISO 8601, in UTC unless it has an offset."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"Invalid time {value!r}. Use 2026-01-31, 2026-01-31T10:30 or 2026-01-31T10:30Z.", param, ctx)
        return time if time.tzinfo else time.replace(tzinfo=UTC)


def version_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose an earlier version."""
    for option in (
        click.option(
            "--time", type=TimeParam(), help="Version as of this time (ISO 8601; UTC unless it has an offset)."
        ),
        click.option("--commit", "commit_no", type=NUMBER, help="Version as of this commit of the workspace."),
        click.option("--version", type=NUMBER, help="Number of the version.  [default: the current one]"),
    ):
        function = option(function)
    return function


def selection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose columns and rows."""
    for option in (
        click.option("--where", help="Filter expression: \"amount > 100 AND region = 'EMEA'\"."),
        click.option("--columns", help="Columns, separated by commas; special names in `backquotes`.  [default: all]"),
    ):
        function = option(function)
    return function


def idempotency_key_option(help: str, *aliases: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--idempotency-key`, with aliases that the help does not show."""
    return click.option("--idempotency-key", *aliases, cls=_OptionWithHiddenAliases, help=help)


class _OptionWithHiddenAliases(click.Option):
    """An option whose help shows only its first name."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names, self.opts = self.opts, self.opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names
