"""Commands for queries: `query` runs one, `queries` manages the registered ones."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.context import CliContext, Command, Group, standard_options
from penstock.cli.input_files import parse_input, read_input
from penstock.cli.options import FilePath
from penstock.cli.output import align_table, format_cell, print_error, print_json, printable
from penstock.errors import Invalid, PenstockError

if TYPE_CHECKING:
    from penstock.lake import QueryResult

_OUTPUT_FORMATS = ("table", "csv", "json", "arrow", "parquet")
_FILE_FORMATS = ("csv", "arrow", "parquet")
_TABLE_ROWS = 20  # of a table, unless --top is set
_MAX_QUERY_BYTES = 4 << 20
_ROW_COUNT = click.IntRange(0, 2**31)  # range of $top and $skip
_NUMBER = re.compile(r"[0-9]{1,18}")


@click.command(cls=Command)
@click.argument("name", required=False)
@click.option(
    "--sql", help="Instead of NAME: a SELECT that is not registered. Prints its first 1,000 rows, not validated."
)
@click.option("-p", "--param", "parameters", multiple=True, metavar="NAME=VALUE", help="Value of a parameter.")
@click.option("--filter", help="OData filter: \"total gt 100 and region eq 'EMEA'\".")
@click.option("--orderby", help='Order of the rows: "total desc, region".')
@click.option("--top", type=_ROW_COUNT, help="Maximum number of rows.  [default: 20 in a table, else all]")
@click.option("--skip", type=_ROW_COUNT, help="Number of rows to skip.")
@click.option("--select", help="Fields, separated by commas.  [default: all]")
@click.option("--count", is_flag=True, help="Print the number of all matching rows.")
@click.option(
    "--version",
    "versions",
    multiple=True,
    metavar="DATASET=N",
    help="Version of a dataset.  [default: the current one]",
)
@click.option(
    "--format", type=click.Choice(_OUTPUT_FORMATS),
    help="Output format.  [default: a table on a terminal, else csv; json with --json; for a file, by its name]",
)  # fmt: skip
@click.option("-o", "--output", "file", type=FilePath(), help="Write the rows to this file (csv, arrow, parquet).")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@standard_options(
    """
    penstock query totals --param region=EMEA --filter "total gt 100" --top 10
    penstock query totals --param region=EMEA --version finance.transactions=3 -o march.parquet
    penstock query --sql "SELECT region, sum(amount) AS total FROM finance.transactions GROUP BY region"
    """
)
def query(
    context: CliContext,
    name: str | None,
    sql: str | None,
    parameters: tuple[str, ...],
    versions: tuple[str, ...],
    format: str | None,
    file: Path | None,
    force: bool,
    **options: Any,
) -> None:
    """Run the registered query NAME (or id). If a row violates the result schema, no row is printed.

    Prints the dataset versions that were read to standard error.
    """
    if (name is None) == (sql is None):
        raise click.UsageError("Pass either the NAME of a query or a SELECT with --sql.")
    values, pinned = _parse_pairs("--param", parameters), _parse_versions(versions)
    odata_options = {
        f"${option}": value for option, value in options.items() if value is not None and value is not False
    }
    if sql is not None and (odata_options or pinned):
        raise click.UsageError("--sql can be combined with --param only.")
    format = _choose_format(context, format, file)
    if name is not None and format == "table":
        odata_options.setdefault("$top", _TABLE_ROWS)
    with context.lake() as lake, _detailed_errors(context):
        result = (
            lake.sql(sql, **values)
            if sql is not None
            else lake.query(str(name)).at(pinned).run(odata_options, **values)
        )
        if file is not None:
            _write_file(context, result, file, format, force)
        else:
            _write_stdout(context, result, format)


@click.group(cls=Group)
def queries() -> None:
    """Manage registered queries."""


@queries.command()
@click.argument("file", type=FilePath())
@standard_options("penstock queries create totals.yaml")
def create(context: CliContext, file: Path) -> None:
    """Register the query in FILE (JSON or YAML; - for standard input).

    Its members are name, sql (one SELECT), returns_schema_id, and parameters if the SELECT has any. The query is not
    run, but rejected if its columns can never match the result schema.
    """
    from penstock.service.queries import definitions as query_definitions

    with context.session() as session, _detailed_errors(context):
        created = query_definitions.create(
            session.workspace, session.caller, _read_definition(file), session.query_executor.inspector(session.caller)
        )
    context.report(created.as_json(), f"{printable(created.draft.name)} was registered: {created.id}")


@queries.command("list")
@click.option("--filter", "condition", help="OData filter: \"state eq 'ACTIVE' and contains(name, 'total')\".")
@click.option("--top", type=click.IntRange(1, 200), default=50, show_default=True, help="Maximum number of queries.")
@click.option("--skip", type=_ROW_COUNT, default=0, help="Number of queries to skip.")
@standard_options("penstock queries list --filter \"startswith(name, 'monthly')\"")
def list_(context: CliContext, condition: str | None, top: int, skip: int) -> None:
    """List queries, the newest first."""
    from penstock.core import odata
    from penstock.service.queries import definitions as query_definitions

    pairs = [("$filter", condition)] if condition else []
    options = odata.options([*pairs, ("$skip", str(skip))], query_definitions.FIELDS, default_top=top, max_top=200)
    with context.session() as session:
        page = query_definitions.search(session.workspace, session.caller, options)
    rows = [item.as_json() for item in page.items]
    for row in () if context.json else rows:
        row["name"] = printable(row["name"])
        row["parameters"] = ", ".join(parameter["name"] for parameter in row["parameters"])
    columns = {name: name for name in ("name", "state", "version", "parameters", "id")}
    context.table(rows, columns, "No such queries. Register one with `penstock queries create FILE`")


@queries.command()
@click.argument("name")
@standard_options("penstock queries show totals > totals.json")
def show(context: CliContext, name: str) -> None:
    """Print the query NAME (or id) as JSON."""

    from penstock.service.queries import definitions as query_definitions

    with context.session() as session:
        print_json(query_definitions.show(session.workspace, session.caller, name).as_json())


@queries.command()
@click.argument("name")
@click.argument("file", type=FilePath())
@standard_options("penstock queries replace totals totals.json")
def replace(context: CliContext, name: str, file: Path) -> None:
    """Replace the query NAME (or id) by the one in FILE. Its member version must be the current version."""

    from penstock.service.queries import definitions as query_definitions

    with context.session() as session, _detailed_errors(context):
        inspector = session.query_executor.inspector(session.caller)
        replaced = query_definitions.replace_with(
            session.workspace, session.caller, name, _read_definition(file), None, inspector
        )
    context.report(replaced.as_json(), f"{printable(replaced.draft.name)} is at version {replaced.version}")


@queries.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@standard_options("penstock queries delete totals --yes")
def delete(context: CliContext, name: str, yes: bool) -> None:
    """Delete the query NAME (or id) and free its name. `penstock queries undelete` undoes it."""

    from penstock.service.queries import definitions as query_definitions

    with context.session() as session:
        definition = query_definitions.show(session.workspace, session.caller, name)
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError("This command asks for confirmation. Pass --yes to run it without a terminal.")
            click.confirm(f"Delete the query {printable(definition.draft.name)}?", abort=True, err=True)
        query_definitions.delete(session.workspace, session.caller, str(definition.id), None)
    facts = {"deleted": definition.draft.name, "id": str(definition.id)}
    context.report(facts, f"{printable(definition.draft.name)} was deleted")


@queries.command()
@click.argument("name")
@standard_options("penstock queries undelete totals")
def undelete(context: CliContext, name: str) -> None:
    """Undo the deletion of the query NAME (or id). Of several with this name, the one that was deleted last."""

    from penstock.service.queries import definitions as query_definitions

    with context.session() as session:
        undeleted = query_definitions.undelete(session.workspace, session.caller, name, None)
    context.report(undeleted.as_json(), f"{printable(undeleted.draft.name)} is at version {undeleted.version}")


# -- input -----------------------------------------------------------------------------------------------------------


def _parse_pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    pairs = dict[str, str]()
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise click.UsageError(f"Invalid {option} {text!r}. Write it as NAME=VALUE.")
        if name in pairs:
            raise click.UsageError(f"Duplicate {option} {name!r}.")
        pairs[name] = value
    return pairs


def _parse_versions(texts: Sequence[str]) -> dict[str, int]:
    pairs = _parse_pairs("--version", texts)
    if invalid := next((f"{name}={text}" for name, text in pairs.items() if not _NUMBER.fullmatch(text)), None):
        raise click.UsageError(
            f"Invalid --version {invalid!r}. Write it as DATASET=N, for example finance.transactions=3."
        )
    return {name: int(text) for name, text in pairs.items()}


def _choose_format(context: CliContext, format: str | None, file: Path | None) -> str:
    if file is not None:
        from penstock.service.datasets.files import SUFFIX_FORMATS, format_of, format_suffix

        if (file_format := format or format_of(file)) not in _FILE_FORMATS:
            raise click.UsageError(f"A file has one of the formats {', '.join(_FILE_FORMATS)}. Use > {file} for JSON.")
        if (suffix_format := SUFFIX_FORMATS.get(format_suffix(file), file_format)) != file_format:
            raise click.UsageError(f"The name {file} means {suffix_format}, but --format is {file_format}.")
        return file_format
    if format in ("parquet", "arrow") and sys.stdout.isatty():
        raise click.UsageError(f"Cannot print {format} on a terminal. Write it to a file with -o FILE.")
    return format or ("json" if context.json else "table" if sys.stdout.isatty() else "csv")


def _read_definition(file: Path) -> Any:
    return parse_input(file, read_input(file, _MAX_QUERY_BYTES)).value


# -- output ---------------------------------------------------------------------------------------------------------


def _write_file(context: CliContext, result: "QueryResult", file: Path, format: str, force: bool) -> None:
    from penstock.service.datasets.files import write_file

    with _format_errors(format):
        rows = write_file(result.to_arrow().to_reader(), file, format=format, replace=force)
    context.report({"file": str(file), "rows": rows, **_facts(result)}, f"{file} contains {_describe(result)}")


def _write_stdout(context: CliContext, result: "QueryResult", format: str) -> None:
    from penstock.service.datasets.files import WRITERS, rows_to_json

    with _format_errors(format):
        match format:
            case "table":
                click.echo(_format_table(result))
            case "json":  # exact numbers
                click.echo(rows_to_json(result.to_arrow().to_batches()).encode())
            case _:
                WRITERS[format](result.to_arrow().to_reader(), sys.stdout.buffer)
                sys.stdout.buffer.flush()
    click.echo(json.dumps(_facts(result)) if context.json else _describe(result), err=True)


@contextmanager
def _format_errors(format: str) -> Iterator[None]:
    """Translate errors of types that a format cannot hold, which an unregistered SELECT may return."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowNotImplementedError, OverflowError) as cause:
        raise Invalid("unwritable_rows", {"cause": cause}, format=format) from None


def _format_table(result: "QueryResult") -> str:
    from penstock.service.datasets.files import plain_json

    rows = [[format_cell(plain_json(value)) for value in row.values()] for row in result.rows]
    return align_table(rows, [format_cell(name) for name in result.schema.names])


def _facts(result: "QueryResult") -> dict[str, Any]:
    return {"versions": result.versions, "more": result.has_more, "count": result.count}


def _describe(result: "QueryResult") -> str:
    total = "" if result.count is None else f"; {result.count:,} in total"
    return f"{result!r}{total}{'; more rows exist' if result.has_more else ''}"


@contextmanager
def _detailed_errors(context: CliContext) -> Iterator[None]:
    """Print an error of rows, parameters or a query with each of its parts."""
    try:
        yield
    except PenstockError as error:
        errors = error.context.get("errors", ())
        if context.json or not errors:
            raise
        print_error(error, as_json=False)
        remaining = error.context.get("error_count", len(errors)) - len(errors)
        for line in [*map(_describe_violation, errors), *([f"and {remaining:,} more"] if remaining else [])]:
            click.echo(f"  {printable(line)}", err=True)
        raise SystemExit(1) from None


def _describe_violation(error: dict[str, Any]) -> str:
    position = f"row {error['row']}" if "row" in error else error.get("pointer", "")
    types = [f"{word} {error[key]}" for word, key in (("expected", "expected"), ("got", "actual")) if error.get(key)]
    return ": ".join(part for part in (position, error["message"], ", ".join(types)) if part)
