"""Print JSON, tables and errors. Text from outside never controls the terminal."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click

from penstock.errors import PenstockError

_MAX_CELL_LENGTH = 40  # characters of a value in a table


def print_json(facts: Any) -> None:
    """Print facts as JSON to standard output."""
    # As bytes: JSON is UTF-8 whatever the terminal's encoding is, and a lone surrogate becomes its JSON escape.
    click.echo(json.dumps(facts, indent=2, default=str, ensure_ascii=False).encode("utf-8", "backslashreplace"))


def print_error(error: PenstockError, *, as_json: bool) -> None:
    """Print an error to standard error: as JSON for programs, or its message."""
    if as_json:
        click.echo(json.dumps({"error": error.as_dict()}, default=str), err=True)
    else:
        click.echo(f"{click.style('penstock:', fg='red')} {printable(error.message)}", err=True)


def printable(text: str) -> str:
    """Replace characters that would control a terminal."""
    return "".join(c if c.isprintable() else "·" for c in text)


def format_cell(value: Any) -> str:
    """Return a value from outside as the text of a table cell, truncated."""
    text = printable("" if value is None else str(value))
    return text if len(text) <= _MAX_CELL_LENGTH else text[: _MAX_CELL_LENGTH - 1] + "…"


def format_table_value(value: Any) -> str:
    """Return a value of Penstock's own as the text of a table cell."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def align_table(rows: Iterable[Sequence[str]], headers: Sequence[str]) -> str:
    """Return a table of plain text: columns of numbers are aligned to the right, others to the left."""
    lines = [list(headers), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    is_numeric = [all(_is_number(line[i]) for line in lines[1:]) for i in range(len(headers))]

    def format_row(line: Sequence[str]) -> str:
        cells = (
            text.rjust(width) if numeric else text.ljust(width)
            for text, width, numeric in zip(line, widths, is_numeric, strict=True)
        )
        return "  ".join(cells).rstrip()

    return "\n".join([format_row(lines[0]), format_row(["─" * width for width in widths]), *map(format_row, lines[1:])])


def _is_number(text: str) -> bool:
    return not text or text.lstrip("-").replace(",", "").replace(".", "", 1).isdigit()
