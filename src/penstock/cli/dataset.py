"""Commands for datasets: create, import, list, show, history, profile, read, export, alter, compact, drop."""

import re
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.context import CliContext, Group, standard_options
from penstock.cli.options import FORMATS, NUMBER, FilePath, idempotency_key_option, selection_options, version_options
from penstock.cli.output import align_table, format_cell, print_json
from penstock.core.progress import Progress, ProgressTracker

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.core.dataset.compaction import CompactionResult
    from penstock.lake import Dataset, DatasetVersion, Lake

_PREVIEW_ROWS = 20  # that `read` prints on a terminal
_MAX_BAR_LENGTH = 40  # characters of the longest bar of a histogram
_COLUMN_NAME = re.compile(r"\s*(`(?:[^`]|``)+`)\s*(?:,|\Z)|([^,]+)")


@click.group(cls=Group)
def dataset() -> None:
    """Create, write, read and change datasets."""


@dataset.command()
@click.argument("name")
@click.option("-c", "--column", "columns", multiple=True, metavar="NAME:TYPE[!]", help="A column; ! means NOT NULL.")
@click.option("--like", type=FilePath(), help="Take the columns from this file.")
@click.option("--no-row-ids", is_flag=True, help="Do not give rows ids. Rows cannot be updated or deleted by id.")
@click.option("--read-only", is_flag=True, help="Reject every later write.")
@click.option("--cluster-by", metavar="COLUMNS", help="Columns that compaction sorts the rows by, at most 4.")
@idempotency_key_option("A repeated command with the same key creates the dataset once.")
@standard_options(
    """
    penstock dataset create finance.budget -c account:string! -c amount:decimal(12,2) -c posted:date
    penstock dataset create finance.archive --like transactions.parquet --cluster-by account,posted
    """
)
def create(
    context: CliContext,
    name: str,
    columns: tuple[str, ...],
    like: Path | None,
    no_row_ids: bool,
    read_only: bool,
    cluster_by: str | None,
    idempotency_key: str | None,
) -> None:
    """Create an empty dataset NAME (namespace.name)."""
    from penstock.service.datasets.files import read_files

    if bool(columns) == bool(like):
        raise click.UsageError("Define the columns with either --column or --like FILE.")
    schema = read_files([like]).schema if like else _parse_schema(columns)
    with context.lake() as lake:
        created = lake.create(
            name,
            schema=schema,
            row_ids=not no_row_ids,
            read_only=read_only,
            cluster_by=_parse_columns(cluster_by, "--cluster-by") or (),
            idempotency_key=idempotency_key,
        ).current()
    context.report(created.snapshot.as_dict(), f"{created.name} was created with {len(created.schema)} columns")


@dataset.command("import")
@click.argument("name")
@click.argument("files", nargs=-1, required=True, type=FilePath())
@click.option("--format", type=FORMATS, help="Format of the files.  [default: by their names]")
@click.option("--type", "types", multiple=True, metavar="COLUMN=TYPE", help="Type of a column of CSV or JSON files.")
@click.option(
    "--null", "nulls", multiple=True, metavar="TEXT", help="Read this text of CSV files as NULL, like an empty field."
)
@click.option("--replace", is_flag=True, help="Replace all rows of the dataset.")
@idempotency_key_option("A repeated import with the same key is committed once.", "--key")
@standard_options(
    """
    penstock dataset import finance.transactions transactions.csv --type amount=decimal(12,2)
    penstock dataset import finance.transactions exports/*.parquet
    penstock dataset import finance.transactions march.csv --idempotency-key march
    """
)
def import_(
    context: CliContext,
    name: str,
    files: tuple[Path, ...],
    format: str | None,
    types: tuple[str, ...],
    nulls: tuple[str, ...],
    replace: bool,
    idempotency_key: str | None,
) -> None:
    """Append the rows of FILES to the dataset NAME in one commit. Create the dataset if it does not exist.

    Reads Parquet (files and folders), CSV, TSV and JSON lines (also compressed: .gz, .zst, .bz2), and Arrow.
    """
    from penstock.core.formatting import format_count
    from penstock.core.names import DatasetName
    from penstock.service.datasets.create_or_append import create_or_append
    from penstock.service.datasets.files import read_files

    column_types = dict(_parse_column(text, "=") for text in types)
    with context.session() as session, context.progress(f"importing {name}") as line:
        receipt = create_or_append(
            session.workspace,
            session.caller,
            DatasetName.parse(name),
            lambda schema: read_files(files, format=format, types=column_types, nulls=nulls, like=schema),
            replace=replace,
            key=idempotency_key,
            progress=line.on_progress,
        )
    (commit,) = receipt.written
    replay = " (already imported; nothing changed)" if receipt.replayed else ""
    imported = format_count(commit.inserted, "row")
    context.report(
        receipt.as_dict(),
        f"{commit.name} version {commit.version}: {imported} imported, {commit.rows:,} in total{replay}",
    )


@dataset.command("list")
@standard_options("penstock dataset list")
def list_(context: CliContext) -> None:
    """List all datasets with their current version, rows and size."""
    from penstock.core.formatting import format_bytes

    with context.lake() as lake:
        rows = [version.snapshot.as_dict() for version in lake.datasets()]
    for row in rows:
        row["size"] = format_bytes(row["bytes"])
        row["changed"] = row["at"][:19].replace("T", " ")
    columns = {"name": "dataset", "version": "version", "rows": "rows", "files": "files", "size": "size",
               "changed": "changed", "author": "by"}  # fmt: skip
    context.table(rows, columns, "No datasets. Create one with `penstock dataset import NAME FILE`")


@dataset.command()
@click.argument("name")
@version_options
@standard_options(
    """
    penstock dataset show finance.transactions
    penstock dataset show finance.transactions --version 3 --json
    """
)
def show(context: CliContext, name: str, **version: Any) -> None:
    """Show the columns of a dataset, its version, rows, deleted rows, size and cluster key."""
    with context.lake() as lake:
        dataset_version = _find_version(lake, name, **version)
    if context.json:
        print_json(dataset_version.snapshot.as_dict())
    else:
        click.echo(repr(dataset_version))


@dataset.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum number of versions.")
@click.option("--before", type=NUMBER, help="Only versions before this one.")
@standard_options("penstock dataset history finance.transactions --limit 5")
def history(context: CliContext, name: str, limit: int, before: int | None) -> None:
    """List versions with author, time, operation and counts, the newest first."""
    with context.lake() as lake:
        rows = [version.as_dict() for version in lake.dataset(name).history(limit, before=before)]
    for row in rows:
        row["when"] = row["at"].replace("+00:00", "Z")  # in full, so that it can be passed to --time
        row["operation"] += " (swept)" if row["swept"] else ""
    columns = ["version", "when", "operation", "inserted", "updated", "deleted", "rows", "files", "author"]
    headings = {column: "by" if column == "author" else column for column in columns}
    context.table(rows, headings, "No versions before that one")


@dataset.command()
@click.argument("name")
@version_options
@click.option("--column", help="Print a histogram of this column.")
@standard_options("penstock dataset profile finance.transactions --column amount")
def profile(context: CliContext, name: str, column: str | None, **version: Any) -> None:
    """Print the number of NULLs, the minimum and the maximum of every column. ? means unknown.

    A histogram is computed from a sample of at most a million rows.
    """
    from penstock.service.datasets.profile import profile as compute_profile

    with context.session() as session:
        dataset_version = _find_version(session.lake, name, **version)
        result = compute_profile(session.workspace, session.caller, dataset_version.snapshot, column)
    columns = [
        {
            "column": profile.field.name,
            "type": str(profile.field.type),
            "nulls": profile.nulls,
            "min": _to_plain(profile.low),
            "max": _to_plain(profile.high),
        }
        for profile in result.columns
    ]
    histogram = result.histogram
    bins = [] if histogram is None else _list_bins(histogram.top if histogram.bins is None else histogram.bins)
    if context.json:
        facts: dict[str, Any] = {
            "name": dataset_version.name,
            "version": dataset_version.version,
            "rows": dataset_version.num_rows,
            "columns": columns,
        }
        if histogram:
            names = ("column", "rows", "sampled", "nulls", "not_finite")
            counts = {name: getattr(histogram, name) for name in names}
            facts["histogram"] = {**counts, "top" if histogram.bins is None else "bins": bins}
        print_json(facts)
        return
    cells = [["?" if value is None else format_cell(value) for value in column.values()] for column in columns]
    click.echo(align_table(cells, list(columns[0])))
    if histogram and bins:
        max_count = max(bin["count"] for bin in bins)
        lines = [
            [*map(format_cell, bin.values()), "━" * round(_MAX_BAR_LENGTH * bin["count"] / max_count)] for bin in bins
        ]
        click.echo(f"\n{align_table(lines, [*bins[0], format_cell(histogram.column)])}")
        if histogram.sampled:
            click.echo(f"sample of {histogram.rows:,} of {dataset_version.num_rows:,} rows", err=True)


@dataset.command()
@click.argument("name")
@version_options
@selection_options
@click.option(
    "--limit", type=click.IntRange(min=0), help="Maximum number of rows.  [default: 20 on a terminal, else all]"
)
@click.option("--row-ids", is_flag=True, help="Add the row ids as the last column, rowid.")
@click.option(
    "--format", type=FORMATS, help="Output format.  [default: a table on a terminal, else csv; jsonl with --json]"
)
@standard_options(
    """
    penstock dataset read finance.transactions --where "amount > 100" --columns account,amount
    penstock dataset read finance.transactions --version 3 --format parquet > march.parquet
    """
)
def read(
    context: CliContext,
    name: str,
    columns: str | None,
    where: str | None,
    limit: int | None,
    row_ids: bool,
    format: str | None,
    **version: Any,
) -> None:
    """Print rows of any version to standard output."""
    from penstock.service.datasets.files import WRITERS

    if format in ("parquet", "arrow") and sys.stdout.isatty():
        raise click.UsageError(f"Cannot print {format} on a terminal. Redirect the output with > FILE.")
    format = format or ("jsonl" if context.json else None if sys.stdout.isatty() else "csv")
    with context.lake() as lake:
        dataset_version = _find_version(lake, name, **version)
        rows = dataset_version.scan(_parse_columns(columns), where, row_ids=row_ids)
        if format:
            WRITERS[format](_take(rows, limit), sys.stdout.buffer)
            sys.stdout.buffer.flush()
        else:
            max_rows = _PREVIEW_ROWS if limit is None else limit
            _print_rows(rows, max_rows, total=None if where else dataset_version.num_rows)


@dataset.command()
@click.argument("name")
@click.argument("file", type=FilePath())
@version_options
@selection_options
@click.option("--format", type=FORMATS, help="Format of the file.  [default: by its name]")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@standard_options(
    """
    penstock dataset export finance.transactions march.parquet --version 3
    penstock dataset export finance.transactions emea.csv --where "region = 'EMEA'" --force
    """
)
def export(
    context: CliContext,
    name: str,
    file: Path,
    columns: str | None,
    where: str | None,
    format: str | None,
    force: bool,
    **version: Any,
) -> None:
    """Write rows of any version to FILE. The file appears only when it is complete."""
    from penstock.core.formatting import format_count
    from penstock.service.datasets.files import write_file

    with context.lake() as lake:
        dataset_version = _find_version(lake, name, **version)
        total = None if where else dataset_version.num_rows
        with context.progress(f"exporting {name}") as line:
            tracker = ProgressTracker(line.on_progress, Progress(total=total))
            rows = _with_progress(dataset_version.scan(_parse_columns(columns), where), tracker)
            count = write_file(rows, file, format=format, replace=force)
    facts = {
        "dataset": dataset_version.name,
        "version": dataset_version.version,
        "rows": count,
        "file": str(file),
    }
    source = f"{dataset_version.name} version {dataset_version.version}"
    context.report(facts, f"{file} contains {format_count(count, 'row')} of {source}")


@dataset.command()
@click.argument("name")
@click.option("--add", multiple=True, metavar="NAME:TYPE", help="Add a column; existing rows have NULL in it.")
@click.option(
    "--widen", multiple=True, metavar="NAME:TYPE", help="Change a column to a type that holds all its values."
)
@click.option("--cluster-by", metavar="COLUMNS", help="Columns that compaction sorts the rows by, at most 4.")
@click.option("--no-cluster-by", is_flag=True, help="Remove the cluster key.")
@idempotency_key_option("A repeated command with the same key is committed once.")
@standard_options(
    """
    penstock dataset alter finance.transactions --add note:string --widen amount:decimal(18,2)
    penstock dataset alter finance.transactions --cluster-by account,posted
    """
)
def alter(
    context: CliContext,
    name: str,
    add: tuple[str, ...],
    widen: tuple[str, ...],
    cluster_by: str | None,
    no_cluster_by: bool,
    idempotency_key: str | None,
) -> None:
    """Add columns, widen column types or set the cluster key, as a new version. No file is rewritten."""
    if not (add or widen or cluster_by or no_cluster_by):
        raise click.UsageError("Pass --add, --widen, --cluster-by or --no-cluster-by.")
    if cluster_by and no_cluster_by:
        raise click.UsageError("Pass either --cluster-by or --no-cluster-by.")
    with context.lake() as lake:
        ds = lake.dataset(name)
        receipt = ds.alter(
            add=_parse_schema(add) if add else None,
            widen=dict(_parse_column(text) for text in widen),
            cluster_by=[] if no_cluster_by else _parse_columns(cluster_by, "--cluster-by"),
            idempotency_key=idempotency_key,
        )
        description = repr(ds)
    context.report(receipt.as_dict(), description)


@dataset.command()
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Print the steps without executing them.")
@idempotency_key_option("A repeated command with the same key does nothing if the compaction was complete.")
@standard_options(
    """
    penstock dataset compact finance.transactions
    penstock dataset compact finance.transactions --dry-run
    """
)
def compact(context: CliContext, name: str, dry_run: bool, idempotency_key: str | None) -> None:
    """Rewrite small files, files with deleted rows and, with a cluster key, files with overlapping keys.

    Rows and row ids stay the same. Each step rewrites a few files, as a new version, and does not delay other writers.
    """
    with context.lake() as lake:
        ds = lake.dataset(name)
        if dry_run:
            _print_compaction_plan(context, ds)
            return
        with context.progress(f"compacting {name}") as line:
            result = ds.compact(idempotency_key=idempotency_key, progress=line.on_progress)
        full_name = ds.name
    context.report(result.as_dict(), f"{full_name} version {result.version}: {_describe_compaction(result)}")


def _print_compaction_plan(context: CliContext, ds: "Dataset") -> None:
    from penstock.core.formatting import format_bytes
    from penstock.service.datasets import compact as compaction

    target, steps = compaction.plan(*ds._target)
    rows = [
        {"step": number, **step.as_dict(), "size": format_bytes(step.bytes)} for number, step in enumerate(steps, 1)
    ]
    columns = {"step": "step", "files": "files", "rows": "rows", "deleted_rows": "deleted rows", "size": "size"}
    context.table(rows, columns, f"{target.name} version {target.version.number}: nothing to compact")


def _describe_compaction(result: "CompactionResult") -> str:
    from penstock.core.formatting import format_bytes, format_count

    if result.replayed:
        return "already compacted; nothing changed"
    facts = ["nothing to compact"]
    if result.steps:
        facts = [
            f"{format_count(result.files_before, 'file')} compacted to {result.files_after:,} "
            f"in {format_count(result.steps, 'step')}",
            format_count(result.rows, "row"),
            f"{format_bytes(result.bytes_before)} to {format_bytes(result.bytes_after)}",
        ]
    if result.deleted_rows:
        facts.append(f"{format_count(result.deleted_rows, 'deleted row')} removed")
    if result.lost_steps:
        facts.append(f"{format_count(result.lost_steps, 'step')} lost to other writers")
    return ", ".join(facts)


@dataset.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--force", is_flag=True, help="Drop the dataset even if registered queries read it.")
@standard_options("penstock dataset drop finance.scratch --yes")
def drop(context: CliContext, name: str, yes: bool, force: bool) -> None:
    """Drop a dataset and free its name. `penstock sweep --keep-days N` removes its files later."""
    with context.lake() as lake:
        ds = lake.dataset(name)
        current = ds.current()
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError("This command asks for confirmation. Pass --yes to run it without a terminal.")
            size = f"{current.num_rows:,} rows and {current.version} versions"
            click.confirm(f"Drop {current.name} with {size}?", abort=True, err=True)
        ds.drop(force=force)
    context.report({"dropped": current.name, "id": str(current.id)}, f"{current.name} was dropped")


def _find_version(
    lake: "Lake", name: str, *, version: int | None, commit_no: int | None, time: datetime | None
) -> "DatasetVersion":
    if (version, commit_no, time) == (None, None, None):
        return lake.dataset(name).current()
    return lake.dataset(name).at(version, commit_no=commit_no, time=time)


def _parse_schema(columns: Sequence[str]) -> "pa.Schema":
    import pyarrow as pa

    fields = []
    for text in columns:
        name, data_type = _parse_column(text.removesuffix("!"))
        fields.append(pa.field(name, data_type, nullable=not text.endswith("!")))
    return pa.schema(fields)


def _parse_column(text: str, separator: str = ":") -> "tuple[str, pa.DataType]":
    from penstock.core.schema.type_names import parse_type

    # A type may contain "=" (timestamp[us, tz=UTC]); a name may contain either separator.
    split = text.partition("=") if separator == "=" and text.endswith("]") else text.rpartition(separator)
    name, mark, data_type = split
    if not mark or not name:
        raise click.UsageError(f"Invalid column {text!r}. Write it as NAME{separator}TYPE.")
    return name, parse_type(data_type)


def _parse_columns(columns: str | None, option: str = "--columns") -> list[str] | None:
    if columns is None:
        return None
    matches = _COLUMN_NAME.findall(columns)
    names = [quoted[1:-1].replace("``", "`") if quoted else plain.strip() for quoted, plain in matches]
    if not any(names):
        raise click.UsageError(f"{option} contains no column name.")
    return [name for name in names if name]


def _list_bins(bins: "pa.RecordBatch") -> list[dict[str, Any]]:
    names = [name for name in bins.schema.names if name != "cut"]
    return [{name: _to_plain(bins.column(name)[row]) for name in names} for row in range(bins.num_rows)]


def _to_plain(value: "pa.Scalar | None") -> Any:
    import pyarrow as pa

    from penstock.service.datasets.files import plain_json

    if value is None:
        return None
    if pa.types.is_temporal(value.type):  # dates of Python end with the year 9999
        return value.cast(pa.string()).as_py()
    return plain_json(value.as_py())


def _take(rows: "pa.RecordBatchReader", limit: int | None) -> "pa.RecordBatchReader":
    import pyarrow as pa

    if limit is None:
        return rows

    def batches() -> Any:
        remaining = limit
        while remaining > 0 and (batch := next(iter(rows), None)) is not None:
            yield batch.slice(0, remaining)
            remaining -= batch.num_rows

    return pa.RecordBatchReader.from_batches(rows.schema, batches())


def _with_progress(rows: "pa.RecordBatchReader", tracker: ProgressTracker) -> "pa.RecordBatchReader":
    import pyarrow as pa

    def batches() -> Any:
        for batch in rows:
            yield batch
            tracker.add(batch.num_rows)

    return pa.RecordBatchReader.from_batches(rows.schema, batches())


def _print_rows(rows: "pa.RecordBatchReader", max_rows: int, *, total: int | None) -> None:
    from penstock.service.datasets.files import plain_json

    printed = [row for batch in _take(rows, max_rows) for row in batch.to_pylist()]
    names = [format_cell(name) for name in rows.schema.names]
    click.echo(align_table([[format_cell(plain_json(value)) for value in row.values()] for row in printed], names))
    if total is not None and total > len(printed):
        click.echo(f"{len(printed):,} of {total:,} rows; use --limit for more", err=True)
    elif total is None and len(printed) == max_rows:
        click.echo(f"the first {max_rows:,} rows; use --limit for more", err=True)
