"""What every command shares: the workspace, --json, progress, and errors that say what to do.

Data goes to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.config import Settings
    from penstock.lake import Lake

F = TypeVar("F", bound=Callable[..., Any])

_SHOW_AFTER = 1.0  # seconds of work before a progress bar appears
_BAR = 24
_CELL = 40  # characters of a value that a table shows


@dataclass
class Frame:
    workspace: Path | None
    json: bool

    def settings(self) -> "Settings":
        from penstock import config

        return config.settings(workspace=self.workspace)

    @contextmanager
    def lake(self) -> "Iterator[Lake]":
        from penstock import lake

        with lake.open(settings=self.settings()) as opened:
            yield opened

    def tell(self, facts: Any, sentence: str) -> None:
        """The outcome of a command: JSON for programs, or a sentence for people."""
        if self.json:
            self.print_json(facts)
        else:
            click.echo(sentence, err=True)

    def table(self, rows: Sequence[dict[str, Any]], columns: dict[str, str], empty: str) -> None:
        """Rows as JSON, or as a table of the named columns."""
        if self.json:
            self.print_json(list(rows))
        elif rows:
            click.echo(aligned([[_shown(row[key]) for key in columns] for row in rows], list(columns.values())))
        else:
            click.echo(empty, err=True)

    def print_json(self, facts: Any) -> None:
        # As bytes: JSON is UTF-8 wherever it goes, and half a character becomes its JSON escape.
        click.echo(json.dumps(facts, indent=2, default=str, ensure_ascii=False).encode("utf-8", "backslashreplace"))

    @contextmanager
    def progress(self, title: str, total: int | None = None, unit: str = "rows") -> Iterator[Callable[[int], None]]:
        """A bar on the terminal while work takes longer than a second."""
        bar = _Bar(title, total, unit)
        try:
            yield bar.add
        finally:
            bar.clear()

    @contextmanager
    def stages(self, title: str) -> Iterator[Callable[[str, int, int], None]]:
        """The same for work in several stages, each with a length of its own."""
        bar, told = _Bar(title, None, "rows"), ""

        def heard(stage: str, done: int, total: int) -> None:
            nonlocal bar, told
            if stage != told:
                told = stage
                bar.turn(f"{title}: {stage}", total, "rows" if stage == "write" else "parts")
            bar.reach(done)

        try:
            yield heard
        finally:
            bar.clear()


class _Bar:
    def __init__(self, title: str, total: int | None, unit: str) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._done, self._start, self._drawn = 0, time.monotonic(), 0.0
        self._on = sys.stderr.isatty()

    def add(self, amount: int) -> None:
        self._done += amount
        now = time.monotonic()
        if self._on and now - self._start > _SHOW_AFTER and now - self._drawn > 0.1:
            self._drawn = now
            line = self._line(now - self._start)[: shutil.get_terminal_size().columns - 1]
            click.echo(f"\r\x1b[K{line}", err=True, nl=False)

    def reach(self, done: int) -> None:
        self.add(done - self._done)

    def turn(self, title: str, total: int, unit: str) -> None:
        """Go on with another stage."""
        self._title, self._total, self._unit, self._done = title, total, unit, 0

    def clear(self) -> None:
        if self._drawn:
            click.echo("\r\x1b[K", err=True, nl=False)

    def _line(self, seconds: float) -> str:
        said = f"{self._done:,} {self._unit} · {self._done / seconds:,.0f}/s · {seconds:,.0f} s"
        if not self._total:
            return f"{self._title}  {said}"
        part = min(self._done / self._total, 1.0)
        return f"{self._title}  {'━' * round(part * _BAR):<{_BAR}} {part:4.0%}  {said}"


def shared(example: str) -> Callable[[F], F]:
    """The options of every command, and an example at the end of its help."""

    def dress(function: F) -> F:
        @click.option(
            "-w", "--workspace", type=click.Path(path_type=Path),
            help="The workspace's folder.  [PENSTOCK_WORKSPACE; else: workspace]",
        )  # fmt: skip
        @click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
        @wraps(function)
        def run(workspace: Path | None, as_json: bool, **options: Any) -> None:
            frame = Frame(workspace, as_json)
            try:
                function(frame, **options)
            except PenstockError as error:
                report(error, as_json=as_json)
                raise SystemExit(1) from None
            except BrokenPipeError:  # the reader of a pipe had enough
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise SystemExit(0) from None

        run.__epilog__ = example  # type: ignore[attr-defined]
        return run  # type: ignore[return-value]

    return dress


class Command(click.Command):
    """A command whose help ends with an example."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        example = getattr(self.callback, "__epilog__", "")
        with formatter.section("Example"):
            for line in example.strip().splitlines():
                formatter.write(f"  {line.strip()}\n")


class Group(click.Group):
    command_class = Command


def report(error: PenstockError, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"error": error.facts()}, default=str), err=True)
    else:
        click.echo(f"{click.style('penstock:', fg='red')} {printable(error.message)}", err=True)


def printable(text: str) -> str:
    """Text from outside, without what would steer a terminal."""
    return "".join(c if c.isprintable() else "·" for c in text)


def cell(value: Any) -> str:
    """A value as a table shows it."""
    text = printable("" if value is None else str(value))
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"


def aligned(rows: Iterable[Sequence[str]], headers: Sequence[str]) -> str:
    """A plain table: numbers to the right, words to the left."""
    lines = [list(headers), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    right = [all(_is_number(line[i]) for line in lines[1:]) for i in range(len(headers))]

    def row(line: Sequence[str]) -> str:
        cells = (text.rjust(w) if r else text.ljust(w) for text, w, r in zip(line, widths, right, strict=True))
        return "  ".join(cells).rstrip()

    return "\n".join([row(lines[0]), row(["─" * w for w in widths]), *map(row, lines[1:])])


def _is_number(text: str) -> bool:
    return not text or text.lstrip("-").replace(",", "").replace(".", "", 1).isdigit()


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
