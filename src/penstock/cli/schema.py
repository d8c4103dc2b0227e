"""Commands for result schemas: infer, create, list, show, validate, archive."""

from pathlib import Path
from typing import Any
from uuid import UUID

import click

from penstock.cli.context import CliContext, Group, standard_options
from penstock.cli.input_files import read_input
from penstock.cli.options import NUMBER, FilePath
from penstock.cli.output import print_json, printable


@click.group(cls=Group)
def schema() -> None:
    """Manage the result schemas of registered queries."""


@schema.command()
@click.argument("source", required=False)
@click.option("--sql", help="Instead of SOURCE: a SELECT.")
@click.option("--name", help="Name of the schema.  [default: the name of the source]")
@click.option("--version", type=NUMBER, help="Version of the dataset.  [default: the current one]")
@standard_options(
    """
    penstock schema infer finance.transactions > transactions.json
    penstock schema infer sample.csv --name "Monthly totals"
    penstock schema infer --sql "SELECT region, sum(amount) AS total FROM finance.transactions GROUP BY region"
    """
)
def infer(context: CliContext, source: str | None, sql: str | None, name: str | None, version: int | None) -> None:
    """Infer a result schema from SOURCE (a dataset, or a CSV, JSON lines, Parquet or Arrow file) or from a SELECT.

    Prints the schema as JSON, for `penstock schema create`.
    """
    from penstock.core.registry import gts
    from penstock.service.datasets.files import read_files
    from penstock.service.registry import inference

    if (source is None) is (sql is None):
        raise click.UsageError("Pass either SOURCE or a SELECT with --sql.")
    if sql is not None:
        if version is not None:
            raise click.UsageError("--version requires a dataset as SOURCE. In SQL, write AT (VERSION => 3).")
        with context.session() as session:
            fields = session.query_executor.infer_fields(session.caller, sql)
    elif source is not None and Path(source).is_file():
        fields = inference.infer_from_file(read_files([Path(source)]))
    else:
        assert source is not None
        with context.session() as session:
            fields = inference.infer_from_dataset(session.workspace, session.caller, source, version)
    schema_name = name or (Path(source).stem if source else "query")
    print_json({"name": schema_name, "type_id": gts.QUERY_RETURNS, "fields": [field.as_json() for field in fields]})


@schema.command()
@click.argument("file", type=FilePath())
@standard_options("penstock schema create transactions.json")
def create(context: CliContext, file: Path) -> None:
    """Create a result schema from a JSON FILE (- for standard input)."""
    from penstock.service.registry import schemas

    with context.session() as session:
        entry = schemas.create(session.workspace, session.caller, _read_json(file))
    context.report(entry.as_json(), f"{printable(entry.draft.name)} was created: {entry.id}")


@schema.command("list")
@click.option("--filter", "condition", help="OData filter: \"state eq 'ACTIVE' and contains(name, 'order')\".")
@click.option("--top", type=click.IntRange(1, 200), default=50, show_default=True, help="Maximum number of schemas.")
@click.option("--skip", type=NUMBER, default=0, help="Number of schemas to skip.")
@standard_options("penstock schema list --filter \"fields/any(f: f/name eq 'order_id')\"")
def list_(context: CliContext, condition: str | None, top: int, skip: int) -> None:
    """List result schemas, the newest first."""
    from penstock.core import odata
    from penstock.service.registry import schemas

    pairs = [("$filter", condition)] if condition else []
    options = odata.options(
        [*pairs, ("$top", str(top)), ("$skip", str(skip))], schemas.SEARCH_FIELDS, default_top=top, max_top=200
    )
    with context.session() as session:
        page = schemas.search(session.workspace, session.caller, options)
    rows = [entry.as_json() for entry in page.items]
    for row in () if context.json else rows:
        row |= {"name": printable(row["name"]), "fields": len(row["fields"])}
    columns = {"name": "name", "state": "state", "version": "version", "fields": "fields", "id": "id"}
    context.table(rows, columns, "No such schemas. Create one with `penstock schema create FILE`")


@schema.command()
@click.argument("id")
@click.option("--json-schema", is_flag=True, help="Print a JSON Schema of one row.")
@standard_options("penstock schema show 7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d --json-schema")
def show(context: CliContext, id: str, json_schema: bool) -> None:
    """Print the result schema ID as JSON."""
    from penstock.service.registry import schemas

    with context.session() as session:
        target = (session.workspace, session.caller, id)
        print_json(schemas.export_json_schema(*target) if json_schema else schemas.show(*target).as_json())


@schema.command()
@click.argument("id")
@click.argument("file", type=FilePath())
@click.option("--strict", is_flag=True, help="Reject fields that the schema does not have.")
@standard_options("penstock schema validate 7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d rows.json")
def validate(context: CliContext, id: str, file: Path, strict: bool) -> None:
    """Validate the rows in FILE (a JSON array of objects; - for standard input) against the result schema ID."""
    from penstock.service.registry import schemas

    with context.session() as session:
        report = schemas.validate(session.workspace, session.caller, id, _read_json(file), strict=strict)
    lines = [
        f"row {error['row']}: {error['message']}" if "row" in error else error["message"] for error in report.errors
    ]
    message = "All rows are valid" if report.valid else "\n".join([f"{report.count} errors", *map(printable, lines)])
    context.report(report.as_json(), message)
    if not report.valid:
        raise SystemExit(1)


@schema.command()
@click.option("--tenant", type=click.UUID, help="Tenant of the schemas.  [default: the workspace's own]")
@standard_options("penstock schema archive")
def archive(context: CliContext, tenant: UUID | None) -> None:
    """Archive result schemas that have been deprecated for PENSTOCK_ARCHIVE_AFTER_DAYS (90) and that no query uses.

    `penstock serve` does this every hour for each tenant that has called it since it started.
    """
    from penstock.service.registry import schemas

    days = context.settings().archive_after_days
    with context.session() as session:
        result = schemas.archive_deprecated(
            session.workspace, schemas.archive_caller(tenant or session.caller.tenant), days=days
        )
    facts = {
        "archived": [str(entry.id) for entry in result.archived],
        "referenced": [{"id": str(entry.id), "query_count": count} for entry, count in result.referenced],
    }
    in_use = f"; {len(result.referenced)} still used by queries" if result.referenced else ""
    context.report(facts, f"{len(result.archived)} archived{in_use}")


def _read_json(file: Path) -> Any:
    from penstock.core.payload import documents

    return documents.parse_json(read_input(file), str(file))
