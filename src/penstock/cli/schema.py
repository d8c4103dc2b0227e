"""Commands for the registry: infer, create, list, show, validate, archive."""

from pathlib import Path
from typing import Any
from uuid import UUID

import click

from penstock.cli.dataset import NUMBER, File
from penstock.cli.context import Frame, Group, printable, shared
from penstock.cli.input_files import content


@click.group(cls=Group)
def schema() -> None:
    """Say what queries return: schemas, their states and their past."""


@schema.command()
@click.argument("source", required=False)
@click.option("--sql", help="Instead of SOURCE: a SELECT, of whose rows the schema is to be.")
@click.option("--name", help="The schema's name; else that of the source.")
@click.option("--version", type=NUMBER, help="Of a dataset: that version; the newest unless given.")
@shared(
    """
    penstock schema infer finance.transactions > transactions.json
    penstock schema infer sample.csv --name "Monthly totals"
    penstock schema infer --sql "SELECT region, sum(amount) AS total FROM finance.transactions GROUP BY region"
    """
)
def infer(frame: Frame, source: str | None, sql: str | None, name: str | None, version: int | None) -> None:
    """Propose a schema for SOURCE: a dataset, or a sample in a CSV, JSON lines, Parquet or Arrow file; or for a SELECT.

    What it prints can be changed, and made an entry of the registry with `penstock schema create`.
    """
    from penstock.core.registry import gts
    from penstock.service.registry import inference as infers
    from penstock.storage.import_files import incoming

    if (source is None) is (sql is None):
        raise click.UsageError("say what the schema is of: SOURCE, or --sql and a SELECT")
    if sql is not None:
        if version is not None:
            raise click.UsageError("--version is for a dataset; in SQL write AT (VERSION => 3)")
        with frame.lake() as lake:
            fields = lake.results.inferred(lake.caller, sql)
    elif source is not None and Path(source).is_file():
        fields = infers.of_sample(incoming([Path(source)]))
    else:
        assert source is not None
        with frame.lake() as lake:
            fields = infers.of_dataset(lake.workspace, lake.caller, source, version)
    named = name or (Path(source).stem if source else "query")
    frame.print_json({"name": named, "type_id": gts.QUERY_RETURNS, "fields": [each.as_json() for each in fields]})


@schema.command()
@click.argument("file", type=File())
@shared("penstock schema create transactions.json")
def create(frame: Frame, file: Path) -> None:
    """Make an entry of the registry from a JSON FILE (- for standard input)."""
    from penstock.service.registry import schemas

    with frame.lake() as lake:
        entry = schemas.create(lake.workspace, lake.caller, _json(file))
    frame.tell(entry.as_json(), f"{printable(entry.draft.name)} is there: {entry.id}")


@schema.command("list")
@click.option("--filter", "condition", help="Only such schemas: \"state eq 'ACTIVE' and contains(name, 'order')\".")
@click.option("--top", type=click.IntRange(1, 200), default=50, show_default=True, help="So many.")
@click.option("--skip", type=NUMBER, default=0, help="Leave out the first so many.")
@shared("penstock schema list --filter \"fields/any(f: f/name eq 'order_id')\"")
def list_(frame: Frame, condition: str | None, top: int, skip: int) -> None:
    """List schemas, the newest first."""
    from penstock.core import odata
    from penstock.service.registry import schemas

    asked = [("$filter", condition)] if condition else []
    options = odata.options(
        [*asked, ("$top", str(top)), ("$skip", str(skip))], schemas.FIELDS, default_top=top, max_top=200
    )
    with frame.lake() as lake:
        page = schemas.search(lake.workspace, lake.caller, options)
    rows = [entry.as_json() for entry in page.items]
    for row in () if frame.json else rows:
        row |= {"name": printable(row["name"]), "fields": len(row["fields"])}
    columns = {"name": "name", "state": "state", "version": "version", "fields": "fields", "id": "id"}
    frame.table(rows, columns, "there are no such schemas; `penstock schema create FILE` makes one")


@schema.command()
@click.argument("id")
@click.option("--json-schema", is_flag=True, help="As a JSON Schema of one row.")
@shared("penstock schema show 7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d --json-schema")
def show(frame: Frame, id: str, json_schema: bool) -> None:
    """Show the schema ID, as JSON."""
    from penstock.service.registry import schemas

    with frame.lake() as lake:
        here = (lake.workspace, lake.caller, id)
        frame.print_json(schemas.json_schema(*here) if json_schema else schemas.show(*here).as_json())


@schema.command()
@click.argument("id")
@click.argument("file", type=File())
@click.option("--strict", is_flag=True, help="Refuse fields that the schema does not have.")
@shared("penstock schema validate 7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d rows.json")
def validate(frame: Frame, id: str, file: Path, strict: bool) -> None:
    """Check the rows in FILE (a JSON array of objects; - for standard input) against the schema ID."""
    from penstock.service.registry import schemas

    with frame.lake() as lake:
        verdict = schemas.validate(lake.workspace, lake.caller, id, _json(file), strict=strict)
    lines = [f"row {each['row']}: {each['message']}" if "row" in each else each["message"] for each in verdict.errors]
    said = "all rows fit" if verdict.valid else "\n".join([f"{verdict.count} errors", *map(printable, lines)])
    frame.tell(verdict.as_json(), said)
    if not verdict.valid:
        raise SystemExit(1)


@schema.command()
@click.option("--tenant", type=click.UUID, help="For this tenant; else for the workspace's own.")
@shared("penstock schema archive")
def archive(frame: Frame, tenant: UUID | None) -> None:
    """Archive what was deprecated PENSTOCK_ARCHIVE_AFTER_DAYS ago (90 days), if no query refers to it any more.

    `penstock serve` does the same every hour, for each tenant that has called it since it started.
    """
    from penstock.service.registry import schemas

    days = frame.settings().archive_after_days
    with frame.lake() as lake:
        done = schemas.archive(lake.workspace, schemas.archiver(tenant or lake.caller.tenant), days=days)
    facts = {
        "archived": [str(entry.id) for entry in done.archived],
        "referenced": [{"id": str(entry.id), "query_count": count} for entry, count in done.referenced],
    }
    still = f"; {len(done.referenced)} still referenced by queries" if done.referenced else ""
    frame.tell(facts, f"{len(done.archived)} archived{still}")


def _json(file: Path) -> Any:
    from penstock.core.payload import documents as text

    return text.from_json(content(file), str(file))
