"""Commands for queries: `query` asks one, `queries` keeps them."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.dataset import File
from penstock.cli.context import Command, Frame, Group, aligned, cell, printable, report, shared
from penstock.cli.input_files import content, document
from penstock.errors import Invalid, PenstockError

if TYPE_CHECKING:
    from penstock.lake import Answer

_SCREEN, _FILES = ("table", "csv", "json", "arrow", "parquet"), ("csv", "arrow", "parquet")
_SHOWN = 20  # rows of a table, unless more are asked for
_MAX_BYTES = 4 << 20  # of a file that holds a query
_PLACE = click.IntRange(0, 2**31)  # of a row: what $top and $skip can say
_NUMBER = re.compile(r"[0-9]{1,18}")


@click.command(cls=Command)
@click.argument("name", required=False)
@click.option("--sql", help="In place of NAME: a SELECT that is not registered. Its first 1,000 rows, unchecked.")
@click.option("-p", "--param", "parameters", multiple=True, metavar="NAME=VALUE", help="The value of a parameter.")
@click.option("--filter", help="Only such rows: \"total gt 100 and region eq 'EMEA'\".")
@click.option("--orderby", help='In this order: "total desc, region".')
@click.option("--top", type=_PLACE, help="At most so many rows.  [20 in a table, else all]")
@click.option("--skip", type=_PLACE, help="Leave out the first so many.")
@click.option("--select", help="Only these fields, separated by commas.")
@click.option("--count", is_flag=True, help="Tell how many rows there are in all.")
@click.option(
    "--version", "versions", multiple=True, metavar="DATASET=N", help="Read that version; the newest unless given."
)
@click.option(
    "--format", type=click.Choice(_SCREEN),
    help="How to write the rows.  [a table on a terminal, else csv; json with --json; to a file as its name tells]",
)  # fmt: skip
@click.option("-o", "--output", "file", type=File(), help="Write the rows to this file (csv, arrow, parquet).")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@shared(
    """
    penstock query totals --param region=EMEA --filter "total gt 100" --top 10
    penstock query totals --param region=EMEA --version finance.transactions=3 -o march.parquet
    penstock query --sql "SELECT region, sum(amount) AS total FROM finance.transactions GROUP BY region"
    """
)
def query(
    frame: Frame,
    name: str | None,
    sql: str | None,
    parameters: tuple[str, ...],
    versions: tuple[str, ...],
    format: str | None,
    file: Path | None,
    force: bool,
    **options: Any,
) -> None:
    """Run the registered query NAME (or id). If a row does not fit the query's schema, none is written.

    Which versions of datasets were read is told on standard error.
    """
    if (name is None) == (sql is None):
        raise click.UsageError("name a query, or give a SELECT with --sql")
    given, pinned = _pairs("--param", parameters), _versions(versions)
    asked = {f"${option}": value for option, value in options.items() if value is not None and value is not False}
    if sql is not None and (asked or pinned):
        raise click.UsageError("--sql goes with --param only; the SELECT itself can say the rest")
    format = _format(frame, format, file)
    if name is not None and format == "table":
        asked.setdefault("$top", _SHOWN)
    with frame.lake() as lake, _in_full(frame):
        answer = lake.sql(sql, **given) if sql is not None else lake.query(str(name)).at(pinned).run(asked, **given)
        if file is not None:
            _to_file(frame, answer, file, format, force)
        else:
            _to_screen(frame, answer, format)


@click.group(cls=Group)
def queries() -> None:
    """Register queries, and look at what is registered."""


@queries.command()
@click.argument("file", type=File())
@shared("penstock queries create totals.yaml")
def create(frame: Frame, file: Path) -> None:
    """Register the query in FILE (JSON or YAML; - for standard input).

    It has a name, the sql (one SELECT), a returns_schema_id, and parameters if the sql has any. It is not run, but
    refused if its columns can never fit the schema.
    """
    from penstock.service.queries import definitions as registered

    with frame.lake() as lake, _in_full(frame):
        made = registered.create(lake.workspace, lake.caller, _value(file), lake.results.inspected(lake.caller))
    frame.tell(made.as_json(), f"{printable(made.draft.name)} is there: {made.id}")


@queries.command("list")
@click.option("--filter", "condition", help="Only such queries: \"state eq 'ACTIVE' and contains(name, 'total')\".")
@click.option("--top", type=click.IntRange(1, 200), default=50, show_default=True, help="So many.")
@click.option("--skip", type=_PLACE, default=0, help="Leave out the first so many.")
@shared("penstock queries list --filter \"startswith(name, 'monthly')\"")
def list_(frame: Frame, condition: str | None, top: int, skip: int) -> None:
    """List queries, the newest first."""
    from penstock.core import odata
    from penstock.service.queries import definitions as registered

    asked = [("$filter", condition)] if condition else []
    options = odata.options([*asked, ("$skip", str(skip))], registered.FIELDS, default_top=top, max_top=200)
    with frame.lake() as lake:
        page = registered.search(lake.workspace, lake.caller, options)
    rows = [each.as_json() for each in page.items]
    for row in () if frame.json else rows:
        row["name"] = printable(row["name"])
        row["parameters"] = ", ".join(each["name"] for each in row["parameters"])
    columns = {name: name for name in ("name", "state", "version", "parameters", "id")}
    frame.table(rows, columns, "there are no such queries; `penstock queries create FILE` makes one")


@queries.command()
@click.argument("name")
@shared("penstock queries show totals > totals.json")
def show(frame: Frame, name: str) -> None:
    """Show the query NAME (or id), as JSON."""
    from penstock.service.queries import definitions as registered

    with frame.lake() as lake:
        frame.print_json(registered.show(lake.workspace, lake.caller, name).as_json())


@queries.command()
@click.argument("name")
@click.argument("file", type=File())
@shared("penstock queries replace totals totals.json")
def replace(frame: Frame, name: str, file: Path) -> None:
    """Put the query in FILE in place of NAME (or id). Its version says which one is meant to be replaced."""
    from penstock.service.queries import definitions as registered

    with frame.lake() as lake, _in_full(frame):
        look = lake.results.inspected(lake.caller)
        made = registered.replace_with(lake.workspace, lake.caller, name, _value(file), None, look)
    frame.tell(made.as_json(), f"{printable(made.draft.name)} is at version {made.version}")


@queries.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared("penstock queries delete totals --yes")
def delete(frame: Frame, name: str, yes: bool) -> None:
    """Delete the query NAME (or id), and free its name."""
    from penstock.service.queries import definitions as registered

    with frame.lake() as lake:
        found = registered.show(lake.workspace, lake.caller, name)
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError("this asks before it deletes; say --yes where nobody can answer")
            click.confirm(f"delete the query {printable(found.draft.name)}?", abort=True, err=True)
        registered.remove(lake.workspace, lake.caller, str(found.id), None)
    facts = {"deleted": found.draft.name, "id": str(found.id)}
    frame.tell(facts, f"{printable(found.draft.name)} is deleted")


# -- what is asked ----------------------------------------------------------------------------------------------------


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    found = dict[str, str]()
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise click.UsageError(f"{option} {text!r}: write it as NAME=VALUE")
        if name in found:
            raise click.UsageError(f"{option} {name!r} is given twice")
        found[name] = value
    return found


def _versions(texts: Sequence[str]) -> dict[str, int]:
    pairs = _pairs("--version", texts)
    if wrong := next((f"{name}={text}" for name, text in pairs.items() if not _NUMBER.fullmatch(text)), None):
        raise click.UsageError(f"--version {wrong!r}: write a number, as in finance.transactions=3")
    return {name: int(text) for name, text in pairs.items()}


def _format(frame: Frame, format: str | None, file: Path | None) -> str:
    if file is not None:
        from penstock.storage.file_formats import ENDINGS, ending, format_of

        if (found := format or format_of(file)) not in _FILES:
            raise click.UsageError(f"a file can be one of {', '.join(_FILES)}; use > {file} for JSON")
        if (named := ENDINGS.get(ending(file), found)) != found:
            raise click.UsageError(f"the name {file} says {named}, and --format {found}; drop one or change it")
        return found
    if format in ("parquet", "arrow") and sys.stdout.isatty():
        raise click.UsageError(f"a terminal cannot show {format}; send it to a file with -o FILE")
    return format or ("json" if frame.json else "table" if sys.stdout.isatty() else "csv")


def _value(file: Path) -> Any:
    return document(file, content(file, _MAX_BYTES)).value


# -- what is answered -------------------------------------------------------------------------------------------------


def _to_file(frame: Frame, answer: "Answer", file: Path, format: str, force: bool) -> None:
    from penstock.storage.export_files import outgoing

    with _written_as(format):
        rows = outgoing(answer.to_arrow().to_reader(), file, format=format, replace=force)
    frame.tell({"file": str(file), "rows": rows, **_facts(answer)}, f"{file} holds {_sentence(answer)}")


def _to_screen(frame: Frame, answer: "Answer", format: str) -> None:
    from penstock.rest.responses import row_encoding as rows
    from penstock.storage.export_files import WRITERS

    with _written_as(format):
        match format:
            case "table":
                click.echo(_table(answer))
            case "json":  # numbers with all their digits
                click.echo(rows.as_json(answer.to_arrow().to_batches()).encode())
            case _:
                WRITERS[format](answer.to_arrow().to_reader(), sys.stdout.buffer)
                sys.stdout.buffer.flush()
    click.echo(json.dumps(_facts(answer)) if frame.json else _sentence(answer), err=True)


@contextmanager
def _written_as(format: str) -> Iterator[None]:
    """SQL that nobody checked may answer with anything."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowNotImplementedError, OverflowError) as cause:
        problem = f"these rows cannot be written as {format}, unless the SELECT casts a column to VARCHAR: {cause}"
        raise Invalid("not_in_format", problem, format=format) from None


def _table(answer: "Answer") -> str:
    from penstock.storage.export_files import plain_json

    rows = [[cell(plain_json(value)) for value in row.values()] for row in answer.rows]
    return aligned(rows, [cell(name) for name in answer.schema.names])


def _facts(answer: "Answer") -> dict[str, Any]:
    return {"versions": answer.versions, "more": answer.more, "count": answer.count}


def _sentence(answer: "Answer") -> str:
    of_all = "" if answer.count is None else f"; {answer.count:,} in all"
    return f"{answer!r}{of_all}{'; there are more' if answer.more else ''}"


@contextmanager
def _in_full(frame: Frame) -> Iterator[None]:
    """What is wrong with rows, parameters or a query, with every part that is told of it."""
    try:
        yield
    except PenstockError as refusal:
        errors = refusal.context.get("errors", ())
        if frame.json or not errors:
            raise
        report(refusal, as_json=False)
        left = refusal.context.get("error_count", len(errors)) - len(errors)
        for line in [*map(_line, errors), *([f"and {left:,} more"] if left else [])]:
            click.echo(f"  {printable(line)}", err=True)
        raise SystemExit(1) from None


def _line(error: dict[str, Any]) -> str:
    where = f"row {error['row']}" if "row" in error else error.get("pointer", "")
    kinds = [f"{word} {error[key]}" for word, key in (("expected", "expected"), ("got", "actual")) if error.get(key)]
    return ": ".join(part for part in (where, error["message"], ", ".join(kinds)) if part)
