"""Commands for one dataset: create, import, list, show, history, profile, read, export, alter, compact, drop."""

import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.context import Frame, Group, aligned, cell, shared

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.lake import DatasetAt, Lake

FORMATS = click.Choice(["parquet", "csv", "jsonl", "arrow"])
NUMBER = click.IntRange(0, 2**63 - 1)
_PREVIEW = 20  # rows that `read` shows on a terminal
_BAR = 40  # characters of the longest bar that `profile` draws
_NAME = re.compile(r"\s*(`(?:[^`]|``)+`)\s*(?:,|\Z)|([^,]+)")


@click.group(cls=Group)
def dataset() -> None:
    """Make, fill, read and change datasets."""


class File(click.Path):
    """A path. An empty one, as an unset variable leaves it, is not the folder that one happens to be in."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("the name of a file is empty", param, ctx)
        return super().convert(value, param, ctx)


class Time(click.ParamType[datetime]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is no time; write it like 2026-01-31, 2026-01-31T10:30 or 2026-01-31T10:30Z", param, ctx
            )
        return time if time.tzinfo else time.replace(tzinfo=UTC)


def moment(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose an older version."""
    for option in (
        click.option("--time", type=Time(), help="As it was at that time (ISO 8601; UTC unless it says otherwise)."),
        click.option("--commit", "commit_no", type=NUMBER, help="As it was after that commit of the workspace."),
        click.option("--version", type=NUMBER, help="That version; the newest unless given."),
    ):
        function = option(function)
    return function


def selection(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose columns and rows."""
    for option in (
        click.option("--where", help="Only such rows: \"amount > 100 AND region = 'EMEA'\"."),
        click.option("--columns", help="Only these columns, separated by commas; odd names in `backquotes`."),
    ):
        function = option(function)
    return function


@dataset.command()
@click.argument("name")
@click.option("-c", "--column", "columns", multiple=True, metavar="NAME:TYPE[!]", help="A column; ! forbids NULL.")
@click.option("--like", type=File(), help="Take the columns from this file.")
@click.option("--no-row-ids", is_flag=True, help="Rows get no ids: no edits of single rows later.")
@click.option("--read-only", is_flag=True, help="Refuse every later write.")
@shared("penstock dataset create finance.budget -c account:string! -c amount:decimal(12,2) -c posted:date")
def create(
    frame: Frame, name: str, columns: tuple[str, ...], like: Path | None, no_row_ids: bool, read_only: bool
) -> None:
    """Make an empty dataset NAME (schema.table)."""
    from penstock.storage.import_files import incoming

    if bool(columns) == bool(like):
        raise click.UsageError("say the columns with --column, or with --like FILE")
    schema = incoming([like]).schema if like else _schema(columns)
    with frame.lake() as lake:
        made = lake.create(name, schema=schema, row_ids=not no_row_ids, read_only=read_only).now()
    frame.tell(made.snapshot.facts(), f"{made.name} is there, with {len(made.schema)} columns and no rows")


@dataset.command("import")
@click.argument("name")
@click.argument("files", nargs=-1, required=True, type=File())
@click.option("--format", type=FORMATS, help="The files' format, where their names do not tell.")
@click.option(
    "--type", "types", multiple=True, metavar="COLUMN=TYPE", help="Read a column of CSV or JSON as this type."
)
@click.option("--null", "nulls", multiple=True, metavar="TEXT", help="In CSV this means NULL, as an empty field does.")
@click.option("--replace", is_flag=True, help="Put the rows in place of those that are there.")
@click.option("--key", help="An idempotency key: the same import, sent again, happens only once.")
@shared(
    """
    penstock dataset import finance.transactions transactions.csv --type amount=decimal(12,2)
    penstock dataset import finance.transactions exports/*.parquet
    """
)
def import_(
    frame: Frame,
    name: str,
    files: tuple[Path, ...],
    format: str | None,
    types: tuple[str, ...],
    nulls: tuple[str, ...],
    replace: bool,
    key: str | None,
) -> None:
    """Append the rows of FILES to the dataset NAME; make it first if it is not there. All or nothing.

    Reads Parquet (files and folders), CSV, TSV and JSON lines (also packed: .gz, .zst, .bz2), and Arrow.
    """
    from penstock.core.names import DatasetName
    from penstock.lake import counted
    from penstock.service.datasets.create_or_append import load
    from penstock.storage.import_files import incoming

    given = dict(_typed(text, "=") for text in types)
    with frame.lake() as lake, frame.progress(f"importing {name}") as progress:
        receipt = load(
            lake.workspace,
            lake.caller,
            DatasetName.parse(name),
            lambda schema: incoming(files, format=format, types=given, nulls=nulls, like=schema),
            replace=replace,
            key=key,
            progress=progress,
        )
    (written,) = receipt.written
    again = " (done before: nothing changed)" if receipt.replayed else ""
    frame.tell(
        receipt.facts(),
        f"{written.name} version {written.version}: {counted(written.inserted, 'row')} imported, {written.rows:,} in all{again}",
    )


@dataset.command("list")
@shared("penstock dataset list")
def list_(frame: Frame) -> None:
    """All datasets, with their newest version, rows and size."""
    from penstock.lake import human_size

    with frame.lake() as lake:
        rows = [at.snapshot.facts() for at in lake.datasets()]
    for row in rows:
        row["size"] = human_size(row["bytes"])
        row["changed"] = row["at"][:19].replace("T", " ")
    shown = {"name": "dataset", "version": "version", "rows": "rows", "files": "files", "size": "size",
             "changed": "changed", "author": "by"}  # fmt: skip
    frame.table(rows, shown, "there are no datasets yet; `penstock dataset import NAME FILE` makes one")


@dataset.command()
@click.argument("name")
@moment
@shared("penstock dataset show finance.transactions")
def show(frame: Frame, name: str, **when: Any) -> None:
    """The columns of a dataset, its version, rows and size."""
    with frame.lake() as lake:
        at = _at(lake, name, **when)
    if frame.json:
        frame.print_json(at.snapshot.facts())
    else:
        click.echo(repr(at))


@dataset.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="The newest so many versions.")
@click.option("--before", type=NUMBER, help="Only versions before this one.")
@shared("penstock dataset history finance.transactions --limit 5")
def history(frame: Frame, name: str, limit: int, before: int | None) -> None:
    """Who changed a dataset, when, by which operation, with what counts. The newest first."""
    with frame.lake() as lake:
        rows = [version.facts() for version in lake.dataset(name).history(limit, before=before)]
    for row in rows:
        row["when"] = row["at"].replace("+00:00", "Z")  # all of it: what is shown here can be given to --time
        row["operation"] += " (swept)" if row["swept"] else ""
    columns = ["version", "when", "operation", "inserted", "updated", "deleted", "rows", "files", "author"]
    frame.table(rows, {c: "by" if c == "author" else c for c in columns}, "there are no versions before that one")


@dataset.command()
@click.argument("name")
@moment
@click.option("--column", help="Show how the values of this column are spread, too.")
@shared("penstock dataset profile finance.transactions --column amount")
def profile(frame: Frame, name: str, column: str | None, **when: Any) -> None:
    """What the columns are like: how many values are NULL, the lowest and the highest. What is not known is ?.

    How values are spread is told by at most a million rows, taken from everywhere.
    """
    from penstock.service.datasets.profile import profile as profiled

    with frame.lake() as lake:
        at = _at(lake, name, **when)
        found = profiled(lake.workspace, lake.caller, at.snapshot, column)
    columns = [
        {"column": c.field.name, "type": str(c.field.type), "nulls": c.nulls, "min": _said(c.low), "max": _said(c.high)}
        for c in found.columns
    ]
    spread = found.histogram
    parts = [] if spread is None else _listing(spread.top if spread.bins is None else spread.bins)
    if frame.json:
        facts: dict[str, Any] = {"name": at.name, "version": at.version, "rows": at.num_rows, "columns": columns}
        if spread:
            told = {each: getattr(spread, each) for each in ("column", "rows", "sampled", "nulls", "not_finite")}
            facts["histogram"] = {**told, "top" if spread.bins is None else "bins": parts}
        frame.print_json(facts)
        return
    click.echo(
        aligned([["?" if each is None else cell(each) for each in c.values()] for c in columns], list(columns[0]))
    )
    if spread and parts:
        most = max(part["count"] for part in parts)
        lines = [[*map(cell, part.values()), "━" * round(_BAR * part["count"] / most)] for part in parts]
        click.echo(f"\n{aligned(lines, [*parts[0], cell(spread.column)])}")
        if spread.sampled:
            click.echo(f"of {spread.rows:,} rows, taken from everywhere; there are {at.num_rows:,}", err=True)


@dataset.command()
@click.argument("name")
@moment
@selection
@click.option("--limit", type=click.IntRange(min=0), help="At most so many rows.  [20 on a terminal, else all]")
@click.option("--row-ids", is_flag=True, help="Show each row's id as a last column, rowid.")
@click.option(
    "--format", type=FORMATS, help="How to write the rows.  [a table on a terminal, else csv; jsonl with --json]"
)
@shared(
    """
    penstock dataset read finance.transactions --where "amount > 100" --columns account,amount
    penstock dataset read finance.transactions --version 3 --format parquet > march.parquet
    """
)
def read(
    frame: Frame,
    name: str,
    columns: str | None,
    where: str | None,
    limit: int | None,
    row_ids: bool,
    format: str | None,
    **when: Any,
) -> None:
    """Rows of any version, on standard output."""
    from penstock.storage.export_files import WRITERS

    if format in ("parquet", "arrow") and sys.stdout.isatty():
        raise click.UsageError(f"a terminal cannot show {format}; send it to a file with > FILE")
    format = format or ("jsonl" if frame.json else None if sys.stdout.isatty() else "csv")
    with frame.lake() as lake:
        at = _at(lake, name, **when)
        rows = at.scan(_listed(columns), where, row_ids=row_ids)
        if format:
            WRITERS[format](_first(rows, limit), sys.stdout.buffer)
            sys.stdout.buffer.flush()
        else:
            _print_rows(rows, limit=_PREVIEW if limit is None else limit, of=None if where else at.num_rows)


@dataset.command()
@click.argument("name")
@click.argument("file", type=File())
@moment
@selection
@click.option("--format", type=FORMATS, help="The file's format, where its name does not tell.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@shared("penstock dataset export finance.transactions march.parquet --version 3")
def export(
    frame: Frame,
    name: str,
    file: Path,
    columns: str | None,
    where: str | None,
    format: str | None,
    force: bool,
    **when: Any,
) -> None:
    """Write rows of any version to FILE, which appears only when it is complete."""
    from penstock.lake import counted
    from penstock.storage.export_files import outgoing

    with frame.lake() as lake:
        at = _at(lake, name, **when)
        total = None if where else at.num_rows
        with frame.progress(f"exporting {name}", total) as progress:
            rows = _heard(at.scan(_listed(columns), where), progress)
            count = outgoing(rows, file, format=format, replace=force)
    facts = {"dataset": at.name, "version": at.version, "rows": count, "file": str(file)}
    frame.tell(facts, f"{file} holds {counted(count, 'row')} of {at.name} version {at.version}")


@dataset.command()
@click.argument("name")
@click.option("--add", multiple=True, metavar="NAME:TYPE", help="Add a column; rows that exist have NULL in it.")
@click.option(
    "--widen", multiple=True, metavar="NAME:TYPE", help="Give a column a type that holds all its values and more."
)
@shared("penstock dataset alter finance.transactions --add note:string --widen amount:decimal(18,2)")
def alter(frame: Frame, name: str, add: tuple[str, ...], widen: tuple[str, ...]) -> None:
    """Let a dataset's schema grow, as a new version. No file is rewritten."""
    if not add and not widen:
        raise click.UsageError("say what to change with --add or --widen")
    with frame.lake() as lake:
        ds = lake.dataset(name)
        receipt = ds.alter(add=_schema(add) if add else None, widen=dict(_typed(text) for text in widen))
        at = ds.now()
    frame.tell(receipt.facts(), repr(at))


@dataset.command()
@click.argument("name")
@shared("penstock dataset compact finance.transactions")
def compact(frame: Frame, name: str) -> None:
    """Rewrite many small files into few, as a new version. Rows and row ids stay the same."""
    from penstock.lake import counted
    from penstock.service.datasets.compact import compact as compacting

    with frame.lake() as lake:
        ds = lake.dataset(name)
        before = ds.now()
        with frame.progress(f"compacting {name}", before.num_rows) as progress:
            receipt = compacting(lake.workspace, lake.caller, ds.id, progress=progress)
        after = ds.now()
    files = (before.snapshot.version.files, after.snapshot.version.files)
    said = (
        f"{counted(files[0], 'file')} became {files[1]:,}"
        if files[0] != files[1]
        else f"nothing to gain with {counted(files[0], 'file')}"
    )
    frame.tell(receipt.facts(), f"{after.name} version {after.version}: {said}")


@dataset.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared("penstock dataset drop finance.scratch --yes")
def drop(frame: Frame, name: str, yes: bool) -> None:
    """Take a dataset out of sight and free its name. Its files stay until `penstock sweep --keep-days N`."""
    with frame.lake() as lake:
        ds = lake.dataset(name)
        at = ds.now()
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError("this asks before it drops; say --yes where nobody can answer")
            click.confirm(f"drop {at.name} with {at.num_rows:,} rows in {at.version} versions?", abort=True, err=True)
        ds.drop()
    frame.tell({"dropped": at.name, "id": str(at.id)}, f"{at.name} is dropped")


def _at(lake: "Lake", name: str, *, version: int | None, commit_no: int | None, time: datetime | None) -> "DatasetAt":
    if (version, commit_no, time) == (None, None, None):
        return lake.dataset(name).now()
    return lake.dataset(name).at(version, commit_no=commit_no, time=time)


def _schema(columns: Sequence[str]) -> "pa.Schema":
    import pyarrow as pa

    fields = []
    for text in columns:
        name, kind = _typed(text.removesuffix("!"))
        fields.append(pa.field(name, kind, nullable=not text.endswith("!")))
    return pa.schema(fields)


def _typed(text: str, mark: str = ":") -> "tuple[str, pa.DataType]":
    from penstock.core.schema.canonical import parse_type

    name, found, kind = text.partition("=") if mark == "=" and text.endswith("]") else text.rpartition(mark)
    if not found or not name:
        raise click.UsageError(f"{text!r}: write a column and its type as NAME{mark}TYPE")
    return name, parse_type(kind)


def _listed(columns: str | None) -> list[str] | None:
    if columns is None:
        return None
    names = [quoted[1:-1].replace("``", "`") if quoted else plain.strip() for quoted, plain in _NAME.findall(columns)]
    if not any(names):
        raise click.UsageError("--columns names no column")
    return [name for name in names if name]


def _listing(parts: "pa.RecordBatch") -> list[dict[str, Any]]:
    names = [name for name in parts.schema.names if name != "cut"]
    return [{name: _said(parts.column(name)[row]) for name in names} for row in range(parts.num_rows)]


def _said(value: "pa.Scalar | None") -> Any:
    import pyarrow as pa

    from penstock.storage.export_files import plain_json

    if value is None:
        return None
    if pa.types.is_temporal(value.type):  # Python's dates end with the year 9999
        return value.cast(pa.string()).as_py()
    return plain_json(value.as_py())


def _first(rows: "pa.RecordBatchReader", limit: int | None) -> "pa.RecordBatchReader":
    import pyarrow as pa

    if limit is None:
        return rows

    def batches() -> Any:
        left = limit
        while left > 0 and (batch := next(iter(rows), None)) is not None:
            yield batch.slice(0, left)
            left -= batch.num_rows

    return pa.RecordBatchReader.from_batches(rows.schema, batches())


def _heard(rows: "pa.RecordBatchReader", progress: Callable[[int], None]) -> "pa.RecordBatchReader":
    import pyarrow as pa

    def batches() -> Any:
        for batch in rows:
            yield batch
            progress(batch.num_rows)

    return pa.RecordBatchReader.from_batches(rows.schema, batches())


def _print_rows(rows: "pa.RecordBatchReader", *, limit: int, of: int | None) -> None:
    from penstock.storage.export_files import plain_json

    shown = [row for batch in _first(rows, limit) for row in batch.to_pylist()]
    names = [cell(name) for name in rows.schema.names]
    click.echo(aligned([[cell(plain_json(v)) for v in row.values()] for row in shown], names))
    if of is not None and of > len(shown):
        click.echo(f"{len(shown):,} of {of:,} rows; --limit shows more", err=True)
    elif of is None and len(shown) == limit:
        click.echo(f"the first {limit:,} rows; --limit shows more", err=True)
