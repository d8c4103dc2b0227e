"""The Python front: open a workspace, read its datasets, write to them, ask its queries."""

import getpass
import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import UUID

import pyarrow as pa

from penstock import config
from penstock.catalog import migrate as upgrade
from penstock.catalog.database import Database
from penstock.core.registry import gts
from penstock.core import odata
from penstock.core.pipeline import definition as pipelines
from penstock.core.caller import Caller, local
from penstock.core.dataset.changes import DataFile, Receipt
from penstock.core.dataset.snapshot import Snapshot, Version
from penstock.core.merge import BATCH_ROWS, Merged
from penstock.core.merge import Progress as MergeProgress
from penstock.core.names import DatasetName
from penstock.core.registry.query import Query as Registered
from penstock.core.dataset.row_ids import given_ids
from penstock.core.pipeline.run import Progress, Run
from penstock.core.schema.canonical import check_fits, conform, parse_type
from penstock.engines.duckdb.odata_sql import kinds
from penstock.errors import Invalid, PenstockError
from penstock.service.datasets import alter
from penstock.service.datasets import compact
from penstock.service.datasets import row_edits as edits
from penstock.service.datasets import merge
from penstock.service.pipelines import execution as pipeline
from penstock.service.queries import definitions as queries
from penstock.service.datasets import read
from penstock.service.pipelines import planning as readiness
from penstock.service.pipelines import run_worker as runs
from penstock.service.queries import sandbox
from penstock.service.registry import schemas
from penstock.service.datasets import row_source as source
from penstock.service.transactions import local as transaction
from penstock.service.datasets import write
from penstock.service.datasets.row_edits import Edited
from penstock.service.queries.execution import Asked, Opened, Result, Results
from penstock.service.workspace import Cluster, Limits, Workspace
from penstock.storage.data_files import Shape
from penstock.storage.file_store import LocalStore

_ALL_ROWS = 2**31  # more than a query may answer with


def open(
    where: str | Path | None = None,
    *,
    create: bool = False,
    caller: Caller | None = None,
    settings: config.Settings | None = None,
) -> "Lake":
    """Open a workspace: a folder, or the URL of a shared catalog (its files are then in PENSTOCK_WORKSPACE).

    >>> lake = penstock.open("workspace", create=True)
    >>> lake.create("demo.people", {"name": ["Ada", "Grace"]})
    """
    chosen = settings or config.settings()
    if isinstance(where, str) and "://" in where:
        chosen = replace(chosen, database_url=where)
    elif where is not None:
        chosen = replace(chosen, workspace=Path(where))
    home = config.make_home(chosen.workspace) if create else config.home(chosen.workspace)
    ws = workspace(chosen, home)
    try:
        if create:
            upgrade.migrate(ws.db)
        upgrade.assert_current(ws.db)
    except BaseException:
        ws.db.close()
        raise
    return Lake(ws, caller or local(home.tenant, _login()), home, results(chosen, ws))


def workspace(settings: config.Settings, home: config.Home) -> Workspace:
    """What the services stand on, as the settings say."""
    return Workspace(
        Database(settings.database_url or home.catalog, durable=settings.durable),
        LocalStore(home.folder, durable=settings.durable),
        Shape(file_bytes=settings.file_bytes, group_rows=settings.group_rows),
        Limits(write_bytes=settings.write_bytes, batch_bytes=settings.batch_bytes),
        Cluster(settings.spark_master, settings.spark_conf or {}),
    )


def results(settings: config.Settings, ws: Workspace) -> Results:
    """What queries answer, within the limits that the settings say. No process is started before one runs."""
    limits = sandbox.Limits(
        seconds=settings.query_seconds,
        cpu_seconds=settings.query_cpu_seconds,
        memory=settings.query_memory,
        threads=settings.query_threads,
        rows=settings.query_rows,
        bytes=settings.query_bytes,
    )
    cells = sandbox.Sandbox(ws.data, limits, at_once=settings.queries_at_once)
    return Results(ws, cells, settings.query_cache_bytes)


class Lake:
    """All datasets of one tenant."""

    def __init__(self, ws: Workspace, caller: Caller, home: config.Home, results: Results | None = None) -> None:
        self.workspace, self.caller, self.home = ws, caller, home
        self.runner = runs.Runner(ws, takes=False)  # of pipelines; it does nothing until it is asked to
        self.results = results or Results(ws)  # of queries; likewise

    def dataset(self, name: str | UUID) -> "Dataset":
        """The dataset of that name (`schema.table`) or id."""
        return Dataset(self, read.find(self.workspace, self.caller, _named(name)).dataset)

    def datasets(self) -> "list[DatasetAt]":
        return [DatasetAt(self, snapshot) for snapshot in read.everything(self.workspace, self.caller)]

    def create(
        self,
        name: str,
        rows: Any = None,
        *,
        schema: pa.Schema | None = None,
        row_ids: bool = True,
        read_only: bool = False,
        idempotency_key: str | None = None,
    ) -> "Dataset":
        """Make a dataset from rows, from a schema, or from both."""
        reader = None if rows is None else source.reader(rows)
        if schema is None and reader is None:
            raise Invalid("no_schema", f"{name} needs rows or a schema to be made from")
        receipt = write.create(
            self.workspace,
            self.caller,
            DatasetName.parse(name),
            reader.schema if schema is None and reader is not None else schema,
            reader,
            row_ids=row_ids,
            read_only=read_only,
            key=idempotency_key,
        )
        return Dataset(self, receipt.written[0].dataset)

    def transaction(self, *, idempotency_key: str | None = None) -> "Transaction":
        """Writes to several datasets that happen together: `with lake.transaction() as tx: tx.append("a.b", rows)`."""
        return Transaction(self, idempotency_key)

    def pipeline(self, definition: Mapping[str, Any]) -> "Pipeline":
        """A pipeline: `lake.pipeline({"name": …, "working": {"dataset_id": …}, "operations": […]}).run()`."""
        return Pipeline(self, definition)

    def query(self, name: str | UUID) -> "Query":
        """The registered query of that name or id: `lake.query("totals").run(region="EMEA").to_arrow()`."""
        return Query(self, queries.show(self.workspace, self.caller, str(name)).id)

    def register(
        self,
        name: str,
        sql: str,
        returns: UUID | Sequence[Mapping[str, Any]],
        parameters: Sequence[Mapping[str, Any]] = (),
    ) -> "Query":
        """A new query, and what its rows promise: the id of a schema, or fields, which become a schema of that name.

        `lake.register("totals", "SELECT region, sum(amount) AS total FROM finance.sales GROUP BY region",
        [{"name": "region", "type": "string"}, {"name": "total", "type": "number"}])`
        """
        ws, caller = self.workspace, self.caller
        known = isinstance(returns, UUID)
        promise = {"name": name, "type_id": gts.QUERY_RETURNS, "fields": returns}
        schema = str(returns if known else schemas.create(ws, caller, promise).id)
        payload = {"name": name, "sql": sql, "returns_schema_id": schema, "parameters": list(parameters)}
        try:
            return Query(self, queries.create(ws, caller, payload, self.results.inspected(caller)).id)
        except PenstockError:
            if not known:  # nobody else has heard of it
                schemas.delete(ws, caller, schema, None)
            raise

    def sql(self, sql: str, /, **parameters: Any) -> "Answer":
        """The first 1,000 rows of a SELECT that nobody has registered: `lake.sql("SELECT * FROM demo.people")`."""
        return Answer(self.results.preview(self.caller, sql, parameters))

    def snapshot(self, commit_no: int | None = None) -> "LakeAt":
        """All datasets at one moment: now, or right after an earlier commit."""
        return LakeAt(self, read.moment(self.workspace, self.caller, commit_no))

    def close(self) -> None:
        self.runner.close()
        self.results.close()
        self.workspace.close()

    def __enter__(self) -> "Lake":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<penstock.Lake at {self.home.folder}, tenant {self.caller.tenant}>"


class LakeAt:
    """All datasets of one tenant as they were at one commit: a reader of several never sees half a write."""

    def __init__(self, lake: Lake, commit_no: int) -> None:
        self._lake, self.commit_no = lake, commit_no

    def dataset(self, name: str) -> "DatasetAt":
        lake = self._lake
        return DatasetAt(lake, read.find_then(lake.workspace, lake.caller, DatasetName.parse(name), self.commit_no))


class DatasetAt:
    """One version of a dataset. It never changes, and reads as an Arrow stream."""

    def __init__(self, lake: Lake, snapshot: Snapshot) -> None:
        self._lake, self.snapshot = lake, snapshot

    id = property(lambda self: self.snapshot.dataset)
    name = property(lambda self: str(self.snapshot.name))
    schema = property(lambda self: self.snapshot.schema)
    version = property(lambda self: self.snapshot.version.number)
    num_rows = property(lambda self: self.snapshot.version.rows)

    def scan(
        self, columns: Sequence[str] | None = None, where: str | None = None, *, row_ids: bool = False
    ) -> pa.RecordBatchReader:
        """A stream of batches, in bounded memory. `where`: as in "amount > 100 AND region = 'EMEA'"."""
        lake = self._lake
        return read.rows(lake.workspace, lake.caller, self.snapshot, columns=columns, where=where, row_ids=row_ids)

    def to_arrow(
        self, columns: Sequence[str] | None = None, where: str | None = None, *, row_ids: bool = False
    ) -> pa.Table:
        return self.scan(columns, where, row_ids=row_ids).read_all()

    def to_pandas(self, columns: Sequence[str] | None = None, where: str | None = None) -> Any:
        return self.to_arrow(columns, where).to_pandas()

    def files(self, where: str | None = None) -> list[DataFile]:
        """The Parquet files of this version; with `where`, those that may hold such rows."""
        return read.files(self._lake.workspace, self._lake.caller, self.snapshot, where)

    def paths(self, where: str | None = None) -> list[str]:
        """Where those files are, for Spark, DuckDB or Polars to read as they are.

        A compacted or edited file has a column `_rowid` besides.
        """
        return [self._lake.workspace.store.locate(file.path) for file in self.files(where)]

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.scan().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        width = max(map(len, self.schema.names))
        columns = [f"  {f.name:<{width}}  {f.type}{'' if f.nullable else ' not null'}" for f in self.schema]
        return "\n".join([_title(self.snapshot), *columns])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td style='text-align:left'>{html.escape(f.name)}</td><td style='text-align:left'>"
            f"{html.escape(str(f.type))}{'' if f.nullable else ' not null'}</td></tr>"
            for f in self.schema
        )
        return f"<table><caption>{html.escape(_title(self.snapshot))}</caption>{rows}</table>"


class Dataset:
    """A dataset as it goes on: reads see the newest version, writes make the next."""

    def __init__(self, lake: Lake, dataset: UUID) -> None:
        self._lake, self.id = lake, dataset
        self._at = (lake.workspace, lake.caller, dataset)

    def now(self) -> DatasetAt:
        """The newest version, held fast."""
        return DatasetAt(self._lake, read.find(*self._at))

    def at(
        self, version: int | None = None, *, commit_no: int | None = None, time: datetime | None = None
    ) -> DatasetAt:
        """An earlier version: by its number, as of a commit, or as of a time."""
        return DatasetAt(self._lake, read.at(*self._at, version=version, commit_no=commit_no, time=time))

    def history(self, limit: int = 100, *, before: int | None = None) -> list[Version]:
        """Versions, the newest first: who made them, when, by which operation, with what counts."""
        return read.versions(*self._at, limit=limit, before=before)

    def append(self, rows: Any, *, idempotency_key: str | None = None) -> Receipt:
        """Add rows. With an idempotency key, sending the same again adds them only once."""
        return write.append(*self._at, self._reader(rows), key=idempotency_key)

    def overwrite(self, rows: Any, *, expect: int | None = None, idempotency_key: str | None = None) -> Receipt:
        """Put rows in place of all that are there. `expect`: refuse unless this is still the newest version."""
        return write.overwrite(*self._at, self._reader(rows), base=expect, key=idempotency_key)

    def merge(
        self,
        rows: Any,
        key_columns: str | Sequence[str],
        strategy: str = "upsert",
        *,
        dedup_order_by: str | Sequence[str] | None = None,
        add_columns: bool = False,
        engine: str = "auto",
        batch_rows: int = BATCH_ROWS,
        spark: Any = None,
        dry_run: bool = False,
        progress: MergeProgress | None = None,
        idempotency_key: str | None = None,
    ) -> Merged:
        """Let rows meet those that are there on a key: `ds.merge(rows, "id", "upsert").stats`.

        Strategies: upsert, insert, update, full_merge, deduplicate. Engines: auto, pyarrow, duckdb, spark.
        `dry_run`: only say what it would do.
        """
        asked = merge.Asked(key_columns, strategy, dedup_order_by, add_columns, engine, batch_rows, spark)
        opened = source.opened(rows, like=lambda: self.now().schema)
        if dry_run:
            return merge.preview(*self._at, opened, asked, progress=progress)
        return merge.merge(*self._at, opened, asked, key=idempotency_key, progress=progress)

    def update(self, row_ids: Any, rows: Any, *, returning: bool = False, idempotency_key: str | None = None) -> Edited:
        """Put row i in place of the row with the i-th id (`to_arrow(row_ids=True)` shows them). All of them or none."""
        brought = _brought(self._reader(rows), self.schema)
        return edits.update(*self._at, given_ids(row_ids), brought, returning=returning, key=idempotency_key)

    def delete(self, row_ids: Any, *, returning: bool = False, idempotency_key: str | None = None) -> Edited:
        """Take out the rows with these ids; ids that are not there are not missed."""
        return edits.delete(*self._at, given_ids(row_ids), returning=returning, key=idempotency_key)

    def alter(
        self,
        *,
        add: pa.Schema | dict[str, str] | None = None,
        widen: dict[str, str | pa.DataType] | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Add nullable columns, widen types: `ds.alter(add={"note": "string"}, widen={"amount": "decimal(18,2)"})`."""
        added = pa.schema([(name, _type(kind)) for name, kind in add.items()]) if isinstance(add, dict) else add
        wider = {name: _type(kind) for name, kind in (widen or {}).items()}
        return alter.alter(*self._at, add=added, widen=wider, key=idempotency_key)

    def compact(self, *, idempotency_key: str | None = None) -> Receipt:
        """Rewrite many small files into few. The rows and their ids stay the same."""
        return compact.compact(*self._at, key=idempotency_key)

    def drop(self) -> None:
        alter.drop(*self._at)

    def _reader(self, rows: Any) -> source.Source:
        return source.reader(rows, like=lambda: self.now().schema)

    name = property(lambda self: self.now().name)
    schema = property(lambda self: self.now().schema)
    version = property(lambda self: self.now().version)
    num_rows = property(lambda self: self.now().num_rows)

    def scan(
        self, columns: Sequence[str] | None = None, where: str | None = None, *, row_ids: bool = False
    ) -> pa.RecordBatchReader:
        return self.now().scan(columns, where, row_ids=row_ids)

    def to_arrow(
        self, columns: Sequence[str] | None = None, where: str | None = None, *, row_ids: bool = False
    ) -> pa.Table:
        return self.now().to_arrow(columns, where, row_ids=row_ids)

    def to_pandas(self, columns: Sequence[str] | None = None, where: str | None = None) -> Any:
        return self.now().to_pandas(columns, where)

    def __arrow_c_schema__(self) -> object:
        return self.now().__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.now().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return repr(self.now())

    def _repr_html_(self) -> str:
        return self.now()._repr_html_()


class Transaction:
    """Writes to several datasets that become visible together when the `with` block ends without an error."""

    def __init__(self, lake: Lake, key: str | None) -> None:
        self._lake = lake
        self._writes = transaction.Transaction(lake.workspace, lake.caller, key=key)

    def append(self, dataset: "str | UUID | Dataset", rows: Any) -> None:
        self._writes.append(self._id(dataset), source.reader(rows))

    def overwrite(self, dataset: "str | UUID | Dataset", rows: Any, *, expect: int | None = None) -> None:
        self._writes.overwrite(self._id(dataset), source.reader(rows), base=expect)

    def merge(
        self,
        dataset: "str | UUID | Dataset",
        rows: Any,
        key_columns: str | Sequence[str],
        strategy: str = "upsert",
        *,
        dedup_order_by: str | Sequence[str] | None = None,
        add_columns: bool = False,
        engine: str = "auto",
    ) -> Merged:
        asked = merge.Asked(key_columns, strategy, dedup_order_by, add_columns, engine)
        return self._writes.merge(self._id(dataset), source.opened(rows), asked)

    def update(self, dataset: "str | UUID | Dataset", row_ids: Any, rows: Any, *, returning: bool = False) -> Edited:
        id = self._id(dataset)
        schema = self._writes.schema(id)
        return self._writes.edit(id, given_ids(row_ids), _brought(source.reader(rows), schema), returning=returning)

    def delete(self, dataset: "str | UUID | Dataset", row_ids: Any, *, returning: bool = False) -> Edited:
        return self._writes.edit(self._id(dataset), given_ids(row_ids), None, returning=returning)

    @property
    def receipt(self) -> Receipt | None:
        """What was written; there when the block has ended."""
        return self._writes.receipt

    def __enter__(self) -> "Transaction":
        self._writes.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writes.__exit__(kind, error, trace)

    def _id(self, dataset: "str | UUID | Dataset") -> UUID:
        return dataset.id if isinstance(dataset, Dataset) else self._lake.dataset(dataset).id


class Pipeline:
    """Operations on a working dataset that run on Spark, in order, and are committed once."""

    def __init__(self, lake: Lake, definition: Mapping[str, Any]) -> None:
        self._lake, self.definition = lake, pipelines.read(definition)

    def problems(self) -> list[dict[str, Any]]:
        """Everything that stands in the way of a run, each with its place. No row is read."""
        return readiness.problems(self._lake.workspace, self._lake.caller, self.definition.as_json())

    def preview(self, *, progress: Callable[[Progress], None] = lambda _: None) -> list[dict[str, Any]]:
        """What each operation would answer now. Nothing is written."""
        done = pipeline.preview(self._lake.workspace, self._lake.caller, self.definition, hear=progress)
        return list(done.results)

    def run(self, *, idempotency_key: str | None = None, progress: Callable[[Progress], None] = lambda _: None) -> Run:
        """Carry it out, and wait for its end. What went wrong is raised, and then nothing was written."""
        lake = self._lake
        ticket = lake.runner.submit(lake.caller, self.definition, key=idempotency_key, hear=progress, here=True)
        try:
            lake.runner.wait(ticket)
        except KeyboardInterrupt:
            lake.runner.cancel(lake.caller, ticket.run.id)
            lake.runner.wait(ticket)
            raise
        if ticket.error:
            raise ticket.error
        return runs.show(lake.workspace, lake.caller, ticket.run.id)


class Query:
    """A registered query as it goes on. What it answers fits its schema, or it is not answered."""

    def __init__(self, lake: Lake, query: UUID, versions: Mapping[str, int] | None = None) -> None:
        self._lake, self.id, self._versions = lake, query, versions or {}

    def now(self) -> Registered:
        """Its SQL, parameters, schema and state."""
        return queries.show(self._lake.workspace, self._lake.caller, str(self.id))

    def at(self, versions: Mapping[str, int]) -> "Query":
        """The same over such versions of its datasets: `query.at({"finance.tx": 3})`, `query.at(answer.versions)`."""
        return Query(self._lake, self.id, versions)

    def run(self, options: Mapping[str, Any] | None = None, /, **parameters: Any) -> "Answer":
        """All rows; or those that options mean: `query.run({"$filter": "total gt 100", "$top": 10}, region="EMEA")`.

        Rows come in the order of `$orderby`; with `$top` or `$skip` in one that never changes.
        """
        lake, options = self._lake, options or {}
        opened = lake.results.opened(lake.caller, str(self.id))
        pairs = [
            (name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in options.items()
        ]
        wanted = odata.options(pairs, kinds(opened.fields), default_top=_ALL_ROWS, max_top=_ALL_ROWS)
        whole = not {"$top", "$skip"} & set(options)
        asked = Asked(wanted, parameters, _pinned(opened, self._versions), whole)
        return Answer(lake.results.run(lake.caller, opened, asked))


class Answer:
    """What a query answered: rows that stay as they are, and the versions that they come from."""

    def __init__(self, result: Result) -> None:
        self._result = result

    versions = property(lambda self: dict(self._result.versions))  # by the datasets' names
    schema = property(lambda self: self._result.table.schema)
    num_rows = property(lambda self: self._result.table.num_rows)
    more = property(lambda self: self._result.more)  # are there rows after these?
    count = property(lambda self: self._result.count)  # of all rows that `$filter` keeps, where `$count` asks for it

    @property
    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._result.table.to_pylist()
        return found

    def to_arrow(self) -> pa.Table:
        return self._result.table

    def to_pandas(self) -> Any:
        return self._result.table.to_pandas()

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._result.table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        read = ", ".join(f"{name} version {version}" for name, version in self.versions.items())
        return counted(self.num_rows, "row") + (f" of {read}" if read else "")


def _pinned(opened: Opened, versions: Mapping[str, int]) -> dict[str, int]:
    """Versions by the names as they are compared. What the query does not read has none to choose."""
    known = {DatasetName(each.schema, each.table).key for each in opened.query.datasets}
    pinned = {DatasetName.parse(name).key: version for name, version in versions.items()}
    if unread := sorted(pinned.keys() - known):
        there = f"it reads {', '.join(sorted(known))}" if known else "it reads no dataset"
        raise Invalid("unread_dataset", f"the query does not read {unread[0]}; {there}", dataset=unread[0])
    return pinned


def _title(snapshot: Snapshot) -> str:
    version = snapshot.version
    return (
        f"{snapshot.name} · version {version.number} · {counted(version.rows, 'row')} · {counted(version.files, 'file')} · "
        f"{human_size(version.bytes)}"
    )


def counted(number: int, thing: str) -> str:
    """1 row, 2 rows."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def human_size(size: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"


def _named(name: str | UUID) -> DatasetName | UUID:
    if isinstance(name, UUID):
        return name
    try:
        return UUID(name)
    except ValueError:
        return DatasetName.parse(name)


def _brought(rows: source.Source, schema: pa.Schema) -> pa.Table:
    """Rows with the dataset's types."""
    check_fits(rows.schema, schema)
    return pa.Table.from_batches([conform(batch, schema) for batch in rows], schema)


def _type(kind: str | pa.DataType) -> pa.DataType:
    return parse_type(kind) if isinstance(kind, str) else kind


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"
