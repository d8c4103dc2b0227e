"""Datasets of the Python API: `Dataset` (the current state, and writes) and `DatasetVersion` (one immutable version)."""

import html
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from penstock.core.dataset.changes import DataFile, Receipt
from penstock.core.dataset.compaction import CompactionResult
from penstock.core.dataset.row_ids import parse_row_ids
from penstock.core.dataset.snapshot import DatasetVersionInfo, Snapshot
from penstock.core.formatting import format_bytes, format_count
from penstock.core.merge import BATCH_ROWS, MergeResult
from penstock.core.progress import ProgressCallback
from penstock.core.schema.compatibility import cast_batch, check_fits
from penstock.core.schema.type_names import parse_type
from penstock.errors import Unsupported
from penstock.service.datasets import alter, compact, merge, read, row_edits, row_source, write
from penstock.service.datasets.row_edits import EditResult

if TYPE_CHECKING:
    from penstock.lake import Lake


class DatasetVersion:
    """One immutable version of a dataset. Arrow-compatible libraries read it as a stream.

    Attributes:
        snapshot: the version's metadata

    Example:
        >>> import pyarrow as pa
        >>> pa.table(people.at(1)).num_rows
        2
    """

    def __init__(self, lake: "Lake", snapshot: Snapshot) -> None:
        self._lake, self.snapshot = lake, snapshot

    @property
    def id(self) -> UUID:
        """Id of the dataset."""
        return self.snapshot.dataset

    @property
    def name(self) -> str:
        """Namespace and name of the dataset."""
        return str(self.snapshot.name)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the version."""
        return self.snapshot.schema

    @property
    def version(self) -> int:
        """Number of the version, from 1."""
        return self.snapshot.version.number

    @property
    def num_rows(self) -> int:
        """Number of rows of the version."""
        return self.snapshot.version.rows

    def scan(
        self, columns: Sequence[str] | None = None, where: str | None = None, *, row_ids: bool = False
    ) -> pa.RecordBatchReader:
        """Stream rows as record batches, in bounded memory.

        Args:
            columns: names of the columns; by default all
            where: a filter expression, as in `"amount > 100 AND region = 'EMEA'"`
            row_ids: add the row ids as the last column, `rowid`

        Returns:
            a reader over the rows

        Raises:
            Invalid: a column does not exist, or the filter expression is invalid
            NotFound: the version's files were removed by `penstock sweep`
            Unsupported: `row_ids` is set, and the dataset has no row ids

        Example:
            >>> sum(batch.num_rows for batch in people.at(1).scan(["name"], "id > 1"))
            1
        """
        lake = self._lake
        return read.scan_rows(
            lake._workspace, lake.caller, self.snapshot, columns=columns, where=where, row_ids=row_ids
        )

    def to_arrow(
        self, columns: Sequence[str] | None = None, where: str | None = None, *, row_ids: bool = False
    ) -> pa.Table:
        """Read rows into an Arrow table.

        Args:
            columns: names of the columns; by default all
            where: a filter expression, as in `"amount > 100 AND region = 'EMEA'"`
            row_ids: add the row ids as the last column, `rowid`

        Raises:
            Invalid: a column does not exist, or the filter expression is invalid
            NotFound: the version's files were removed by `penstock sweep`

        Example:
            >>> people.at(1).to_arrow(row_ids=True).column_names
            ['id', 'name', 'rowid']
        """
        return self.scan(columns, where, row_ids=row_ids).read_all()

    def to_pandas(self, columns: Sequence[str] | None = None, where: str | None = None) -> Any:
        """Read rows into a pandas data frame.

        Args:
            columns: names of the columns; by default all
            where: a filter expression, as in `"amount > 100 AND region = 'EMEA'"`

        Raises:
            Invalid: a column does not exist, or the filter expression is invalid
            NotFound: the version's files were removed by `penstock sweep`
            ModuleNotFoundError: pandas is not installed

        Example:
            >>> people.at(1).to_pandas(["name"]).name.tolist()
            ['Ada', 'Grace']
        """
        return self.to_arrow(columns, where).to_pandas()

    def files(self, where: str | None = None) -> list[DataFile]:
        """List the data files of the version.

        Args:
            where: a filter expression; files whose statistics exclude a matching row are left out

        Returns:
            path, rows, bytes, checksum, statistics and deletion vector of each file

        Raises:
            Invalid: the filter expression is invalid

        Example:
            >>> [file.rows for file in people.at(1).files()]
            [2]
            >>> people.at(1).files("id > 100")
            []
        """
        return read.files(self._lake._workspace, self._lake.caller, self.snapshot, where)

    def paths(self, where: str | None = None) -> list[str]:
        """List the paths of the data files, for Spark, DuckDB or Polars to read directly.

        Give the reader the schema of the version: a compacted or edited file has an additional column `_rowid`, and an
        older file may lack columns or have narrower types. `scan` handles all of this.

        If the data files are in a bucket, these are URIs for readers with access to it, such as `s3a://bucket/lake/data/…`
        for Spark. The local copies are not listed, because they may be removed while they are read.

        Args:
            where: as in `files`

        Raises:
            Invalid: the filter expression is invalid
            Unsupported: a file contains deleted rows, which only Penstock leaves out

        Example:
            >>> import pyarrow.parquet as pq
            >>> pq.read_table(people.at(1).paths()[0]).column_names
            ['id', 'name']
        """
        files = self.files(where)
        if marked := [file for file in files if file.deleted]:
            rows = sum(len(file.deleted) for file in marked if file.deleted)
            raise Unsupported("deleted_rows_in_files", {"name": self.snapshot.name, "rows": rows, "files": len(marked)})
        store = self._lake._workspace.store_of(self._lake.caller)
        return [store.uri(file.path) for file in files]

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
    """A dataset: reads return the current version, and each write creates the next one.

    Every write takes rows as a dict of columns, a list of dicts, an Arrow table, batch or reader, a pandas, Polars or
    Spark data frame, or the path of a file.

    Attributes:
        id: id of the dataset
    """

    def __init__(self, lake: "Lake", dataset: UUID) -> None:
        self._lake, self.id = lake, dataset
        self._target = (lake._workspace, lake.caller, dataset)

    @property
    def name(self) -> str:
        """Namespace and name."""
        return self.current().name

    @property
    def schema(self) -> pa.Schema:
        """Columns of the current version."""
        return self.current().schema

    @property
    def version(self) -> int:
        """Number of the current version."""
        return self.current().version

    @property
    def num_rows(self) -> int:
        """Number of rows of the current version."""
        return self.current().num_rows

    def current(self) -> DatasetVersion:
        """Return the current version as an immutable snapshot.

        Raises:
            NotFound: the dataset was dropped

        Example:
            >>> people.current().version
            2
        """
        return DatasetVersion(self._lake, read.find(*self._target))

    def at(
        self, version: int | None = None, *, commit_no: int | None = None, time: datetime | None = None
    ) -> DatasetVersion:
        """Return an earlier version, chosen by exactly one argument.

        Args:
            version: number of the version
            commit_no: number of a commit: the version as of that commit
            time: the version as of that time

        Raises:
            NotFound: the version does not exist, or was removed by `penstock sweep`
            Invalid: more than one argument, or none

        Example:
            >>> people.at(1).num_rows
            2
        """
        return DatasetVersion(
            self._lake, read.find_version(*self._target, version=version, commit_no=commit_no, time=time)
        )

    def history(self, limit: int = 100, *, before: int | None = None) -> list[DatasetVersionInfo]:
        """List versions with author, time, operation and counts, the newest first.

        Args:
            limit: maximum number of versions
            before: only versions with a lower number

        Raises:
            Invalid: the limit is not between 1 and the maximum
            NotFound: the dataset was dropped

        Example:
            >>> [(version.number, version.operation) for version in people.history()]
            [(2, 'append'), (1, 'create')]
        """
        return read.versions(*self._target, limit=limit, before=before)

    def append(
        self, rows: Any, *, idempotency_key: str | None = None, progress: ProgressCallback | None = None
    ) -> Receipt:
        """Append rows.

        Args:
            rows: the rows
            idempotency_key: a repeated call with the same key and rows appends the rows once
            progress: called with a `Progress` as rows are written; an exception stops the write

        Returns:
            the receipt of the commit

        Raises:
            Invalid: a column or a value does not fit the dataset's schema
            AlreadyExists: another request used the key
            Unsupported: the dataset is read-only
            NotFound: the dataset was dropped

        Example:
            >>> people.append([{"id": 6, "name": "Tony"}], idempotency_key="tony").version
            3
            >>> people.append([{"id": 6, "name": "Tony"}], idempotency_key="tony").replayed
            True
        """
        return write.append(*self._target, self._reader(rows), key=idempotency_key, progress=progress)

    def overwrite(
        self,
        rows: Any,
        *,
        expect: int | None = None,
        idempotency_key: str | None = None,
        progress: ProgressCallback | None = None,
    ) -> Receipt:
        """Replace all rows.

        Args:
            rows: the new rows
            expect: the version that must still be the current one
            idempotency_key: a repeated call with the same key and rows replaces the rows once
            progress: called with a `Progress` as rows are written; an exception stops the write

        Returns:
            the receipt of the commit

        Raises:
            Conflict: the dataset is at another version than `expect`
            Invalid: a column or a value does not fit the dataset's schema
            AlreadyExists: another request used the key
            Unsupported: the dataset is read-only
            NotFound: the dataset was dropped

        Example:
            >>> people.overwrite({"id": [1, 2], "name": ["Ada", "Grace"]}, expect=3).version
            4
        """
        return write.overwrite(*self._target, self._reader(rows), base=expect, key=idempotency_key, progress=progress)

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
        progress: ProgressCallback | None = None,
        idempotency_key: str | None = None,
    ) -> MergeResult:
        """Merge rows into the dataset by key.

        Args:
            rows: the source rows
            key_columns: the column, or columns, that identify a row
            strategy: `upsert`, `insert`, `update`, `full_merge` or `deduplicate`
            dedup_order_by: with `deduplicate`: of several source rows with one key, the highest value wins
            add_columns: add columns that only the source has; by default they are an error
            engine: `auto`, `pyarrow`, `duckdb` or `spark`; the result is the same
            batch_rows: number of target rows in memory at once
            spark: the Spark session for the engine `spark`; by default the active one
            dry_run: return the result without a commit
            progress: called with a `Progress` as the merge proceeds; an exception stops the merge
            idempotency_key: a repeated call with the same key and rows is committed once

        Returns:
            the counts (`stats`), the changed files, and the receipt of the commit

        Raises:
            Invalid: the strategy, a key column, a column or a value is invalid, or source keys are duplicate
            Conflict: other writers kept changing the same rows
            Unsupported: the dataset is read-only, or the engine is not installed
            NotFound: the dataset was dropped

        Example:
            >>> people.merge({"id": [2, 3], "name": ["Grace H.", "Edsger"]}, "id").stats
            {'inserted': 1, 'updated': 1, 'deleted': 0, 'total': 3}
        """
        request = merge.MergeRequest(key_columns, strategy, dedup_order_by, add_columns, engine, batch_rows, spark)
        source = row_source.open_source(rows, like=lambda: self.current().schema)
        if dry_run:
            return merge.preview(*self._target, source, request, progress=progress)
        return merge.merge(*self._target, source, request, key=idempotency_key, progress=progress)

    def update(
        self, row_ids: Any, rows: Any, *, returning: bool = False, idempotency_key: str | None = None
    ) -> EditResult:
        """Replace the row with id `row_ids[i]` by `rows[i]`: all rows, or none.

        Args:
            row_ids: row ids, as `to_arrow(row_ids=True)` returns them in the column `rowid`
            rows: one new row for each id
            returning: return the new rows with their ids
            idempotency_key: a repeated call with the same key and rows is committed once

        Returns:
            the number of updated rows (`affected`), the rows if `returning` is set, and the receipt of the commit

        Raises:
            NotFound: a row id does not exist, or the dataset was dropped
            Invalid: a row id or a value is invalid
            Unsupported: the dataset is read-only, or has no row ids

        Example:
            >>> ids = people.to_arrow(where="id = 3", row_ids=True)["rowid"]
            >>> people.update(ids, [{"id": 3, "name": "Edsger D."}]).affected
            1
        """
        table = cast_rows(self._reader(rows), self.schema)
        return row_edits.update(*self._target, parse_row_ids(row_ids), table, returning=returning, key=idempotency_key)

    def delete(self, row_ids: Any, *, returning: bool = False, idempotency_key: str | None = None) -> EditResult:
        """Delete rows by id. Unknown ids are ignored.

        Args:
            row_ids: row ids, as `to_arrow(row_ids=True)` returns them in the column `rowid`
            returning: return the deleted rows with their ids
            idempotency_key: a repeated call with the same key and ids is committed once

        Returns:
            the number of deleted rows (`affected`), the rows if `returning` is set, and the receipt of the commit

        Raises:
            Invalid: the list of ids is empty, or an id is not a 64-bit integer
            Unsupported: the dataset is read-only, or has no row ids
            NotFound: the dataset was dropped

        Example:
            >>> people.delete(ids).affected
            1
        """
        return row_edits.delete(*self._target, parse_row_ids(row_ids), returning=returning, key=idempotency_key)

    def alter(
        self,
        *,
        add: pa.Schema | dict[str, str] | None = None,
        widen: dict[str, str | pa.DataType] | None = None,
        cluster_by: str | Sequence[str] | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Add nullable columns, widen column types and set the cluster key, without rewriting files.

        Args:
            add: new columns with their types; existing rows have NULL in them
            widen: columns with a type that holds all values of the present one
            cluster_by: the columns, at most four, that `compact` sorts the rows by; an empty list removes the cluster key
            idempotency_key: a repeated call with the same key and columns is committed once

        Returns:
            the receipt of the commit

        Raises:
            Invalid: a column exists already, does not exist, a type is not wider, or the cluster key is invalid

        Example:
            >>> people.alter(add={"born": "int32"}).version
            8
            >>> people.alter(widen={"born": "int64"}, cluster_by=["born", "id"]).version
            9
        """
        added = pa.schema([(name, _data_type(type)) for name, type in add.items()]) if isinstance(add, dict) else add
        widened = {name: _data_type(type) for name, type in (widen or {}).items()}
        return alter.alter(*self._target, add=added, widen=widened, cluster_by=cluster_by, key=idempotency_key)

    def compact(
        self, *, idempotency_key: str | None = None, progress: ProgressCallback | None = None
    ) -> CompactionResult:
        """Rewrite many small files into few large ones, without deleted rows, sorted by the cluster key.

        Rows and row ids stay the same. Each step, of about four large files, is a commit, and other writers are not
        delayed. A step whose files another writer changes at the same time is planned again.

        Args:
            idempotency_key: a repeated call with the same key does nothing if the compaction was complete, else it
                continues
            progress: called with a `Progress` as rows are rewritten; an exception stops the compaction. Steps that are
                committed stay

        Returns:
            the number of steps, files, rows, deleted rows and bytes

        Raises:
            Unsupported: the dataset is read-only
            NotFound: the dataset was dropped

        Example:
            >>> result = people.compact()
            >>> result.lost_steps
            0
        """
        return compact.compact(*self._target, key=idempotency_key, progress=progress)

    def drop(self, *, force: bool = False) -> None:
        """Drop the dataset and free its name. `penstock sweep` removes its files later.

        Args:
            force: drop the dataset even if registered queries read it; they fail afterwards

        Raises:
            Unsupported: registered queries read the dataset, and `force` is not set

        Example:
            >>> lake.create("demo.scratch", {"id": [1]}).drop()
        """
        alter.drop(*self._target, force=force)

    def scan(
        self, columns: Sequence[str] | None = None, where: str | None = None, *, row_ids: bool = False
    ) -> pa.RecordBatchReader:
        """Stream rows of the current version as record batches, in bounded memory.

        Args:
            columns: names of the columns; by default all
            where: a filter expression, as in `"amount > 100 AND region = 'EMEA'"`
            row_ids: add the row ids as the last column, `rowid`

        Returns:
            a reader over the rows

        Raises:
            Invalid: a column does not exist, or the filter expression is invalid
            NotFound: the dataset was dropped
            Unsupported: `row_ids` is set, and the dataset has no row ids

        Example:
            >>> people.scan(["name"], "id = 1").read_all().to_pylist()
            [{'name': 'Ada'}]
        """
        return self.current().scan(columns, where, row_ids=row_ids)

    def to_arrow(
        self, columns: Sequence[str] | None = None, where: str | None = None, *, row_ids: bool = False
    ) -> pa.Table:
        """Read rows of the current version into an Arrow table.

        Args:
            columns: names of the columns; by default all
            where: a filter expression, as in `"amount > 100 AND region = 'EMEA'"`
            row_ids: add the row ids as the last column, `rowid`

        Raises:
            Invalid: a column does not exist, or the filter expression is invalid
            NotFound: the dataset was dropped

        Example:
            >>> people.to_arrow(["name"], "id = 1").to_pylist()
            [{'name': 'Ada'}]
        """
        return self.current().to_arrow(columns, where, row_ids=row_ids)

    def to_pandas(self, columns: Sequence[str] | None = None, where: str | None = None) -> Any:
        """Read rows of the current version into a pandas data frame.

        Args:
            columns: names of the columns; by default all
            where: a filter expression, as in `"amount > 100 AND region = 'EMEA'"`

        Raises:
            Invalid: a column does not exist, or the filter expression is invalid
            NotFound: the dataset was dropped
            ModuleNotFoundError: pandas is not installed

        Example:
            >>> people.to_pandas(["name"], "id = 1").name.tolist()
            ['Ada']
        """
        return self.current().to_pandas(columns, where)

    def _reader(self, rows: Any) -> row_source.SourceReader:
        return row_source.open_reader(rows, like=lambda: self.current().schema)

    def __arrow_c_schema__(self) -> object:
        return self.current().__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.current().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return repr(self.current())

    def _repr_html_(self) -> str:
        return self.current()._repr_html_()


def cast_rows(rows: row_source.SourceReader, schema: pa.Schema) -> pa.Table:
    """Read rows into a table with the column types of a dataset."""
    check_fits(rows.schema, schema)
    return pa.Table.from_batches([cast_batch(batch, schema) for batch in rows], schema)


def _title(snapshot: Snapshot) -> str:
    version = snapshot.version
    facts = [
        str(snapshot.name),
        f"version {version.number}",
        format_count(version.rows, "row"),
        format_count(version.files, "file"),
        format_bytes(version.bytes),
    ]
    if version.vector_files:
        facts.append(
            f"{format_count(version.deleted_rows, 'deleted row')} in {format_count(version.vector_files, 'file')}"
        )
    if snapshot.cluster_by:
        facts.append(f"clustered by {', '.join(snapshot.cluster_by)}")
    return " · ".join(facts)


def _data_type(data_type: str | pa.DataType) -> pa.DataType:
    return parse_type(data_type) if isinstance(data_type, str) else data_type
