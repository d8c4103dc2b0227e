"""Read the data files of a dataset in a sandbox process, through Arrow: DuckDB has no access to the file system.

Files without a deletion vector are one Arrow dataset. Files with one are a second dataset, which reads them batch by
batch and removes the deleted rows. DuckDB passes columns and filters to both, and file statistics skip files of both.
"""

from base64 import b64decode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

# Arrow imports numpy.ma and pyarrow.acero when they are first used, which is too late in a restricted process.
import numpy.ma  # noqa: F401
import pyarrow as pa
import pyarrow.acero
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyarrow import fs

from penstock.core.dataset.column_stats import ColumnStats, stats_parser
from penstock.core.dataset.deletion_vector import DeletionVector, remaining
from penstock.core.schema.compatibility import cast_batch

_FILE_SYSTEM = fs.LocalFileSystem()
# No pre-buffering: local files are fast, and the first rows need not wait for the whole file.
_PARQUET = pads.ParquetFileFormat(default_fragment_scan_options=pads.ParquetFragmentScanOptions(pre_buffer=False))
_READ_AHEAD: dict[str, int] = {"batch_readahead": 2, "fragment_readahead": 2}
_MAX_SINGLE_THREAD_ROWS = 100_000  # one thread reads fewer rows faster than several
_LIVE_BATCH_ROWS = 64 << 10


OnScan = Callable[[Sequence[str]], None]  # receives the paths of the files that a scan is about to read


@dataclass(frozen=True, slots=True)
class _StoredFile:
    path: str
    rows: int
    stats_json: str  # column statistics
    deleted: DeletionVector | None

    @classmethod
    def decode(cls, path: str, rows: int, stats_json: str, deleted: str | None) -> "_StoredFile":
        return cls(path, rows, stats_json, DeletionVector.from_bytes(b64decode(deleted)) if deleted else None)


@dataclass(frozen=True, slots=True)
class RegisteredTable:
    """Schema and files of a dataset."""

    schema: pa.Schema
    files: Sequence[_StoredFile]
    on_scan: OnScan | None = None

    @classmethod
    def decode(
        cls, encoded: Mapping[str, Any], request_files: Callable[[Sequence[int]], None] = lambda _: None
    ) -> "RegisteredTable":
        """Decode a relation. Its files are requested by their numbers before a scan, if they have to be fetched."""
        exact = pa.ipc.read_schema(pa.py_buffer(b64decode(encoded["schema"])))
        # All columns become nullable: the scanner would reject an old file that lacks a required column.
        schema = pa.schema([column.with_nullable(True) for column in exact])
        files = [_StoredFile.decode(*values) for values in encoded["files"]]
        on_scan, first = None, encoded["first_file"]
        if first is not None:
            numbers = {file.path: number for number, file in enumerate(files, first)}

            def on_scan(paths: Sequence[str]) -> None:
                request_files([numbers[path] for path in paths])

        return cls(schema, [file for file in files if file.rows], on_scan)

    def prunable_columns(self, names: Collection[str]) -> frozenset[str]:
        """Return the columns among `names` whose statistics can exclude a file."""
        return frozenset(f.name for f in self.schema if _has_exact_bounds(f.type) and f.name.lower() in names)

    def sources(self, columns: frozenset[str]) -> list[pads.Dataset]:
        """Return Arrow datasets that together contain the rows: files without and files with deletion vectors.

        The bounds of `columns` let a scanner skip files without a match.
        """
        marked = [file for file in self.files if file.deleted]
        others = [file for file in self.files if not file.deleted]
        sources = [self._source(others, columns)] if others or not marked else []
        return sources + ([self._source(marked, columns)] if marked else [])

    def _source(self, files: Sequence[_StoredFile], columns: frozenset[str]) -> pads.Dataset:
        fields = {name: pc.field(name) for name in columns}
        parse_stats = stats_parser(pa.schema([self.schema.field(name) for name in columns]))
        bounds = [self._bounds(fields, f.rows, parse_stats(f.stats_json)) if fields else None for f in files]
        fragments = [
            _PARQUET.make_fragment(file.path, _FILE_SYSTEM, partition_expression=expression)
            for file, expression in zip(files, bounds, strict=True)
        ]
        is_small = sum(file.rows for file in files) <= _MAX_SINGLE_THREAD_ROWS
        vectors = {file.path: file.deleted for file in files if file.deleted}
        if vectors:
            source = _LiveRowsDataset(fragments, self.schema, _PARQUET, _FILE_SYSTEM)
            source.vectors, source.use_threads = vectors, not is_small
        else:
            source = (_SingleThreadDataset if is_small else _LimitedReadAheadDataset)(
                fragments, self.schema, _PARQUET, _FILE_SYSTEM
            )
        source.on_scan = self.on_scan
        return source

    def _bounds(
        self, fields: Mapping[str, pc.Expression], rows: int, stats_by_column: Mapping[str, ColumnStats]
    ) -> Any:
        """Return an expression that holds for every row of a file."""
        expression = None
        for name, column in fields.items():
            stats = stats_by_column.get(name)
            if stats is None or stats.nulls == rows:
                continue
            for bound, compare in ((stats.low, column.__ge__), (stats.high, column.__le__)):
                if bound is not None:
                    data_type = self.schema.field(name).type
                    condition = compare(pa.scalar(bool(bound) if pt.is_boolean(data_type) else bound, data_type))
                    condition = condition | column.is_null() if stats.nulls else condition
                    expression = condition if expression is None else expression & condition
        return expression


def read_warm_up_rows(parquet: pa.Buffer, schema: pa.Schema) -> pads.Dataset:
    """Return a Parquet file in memory as a dataset."""
    return _SingleThreadDataset([_PARQUET.make_fragment(pa.BufferReader(parquet))], schema, _PARQUET)


def _has_exact_bounds(data_type: pa.DataType) -> bool:
    """Return False for floats, too: statistics ignore NaN, which DuckDB sorts above all numbers."""
    return not pt.is_floating(data_type) and not pt.is_nested(data_type)


class _RequestingDataset(pads.FileSystemDataset):  # type: ignore[misc]
    """Files that are requested before they are scanned, if they have to be fetched."""

    on_scan: OnScan | None = None

    def request_files(self, filter: pc.Expression | None) -> None:
        if self.on_scan:
            self.on_scan([fragment.path for fragment in self.get_fragments(filter=filter)])


class _LimitedReadAheadDataset(_RequestingDataset):
    """Files with less read-ahead than the default of Arrow: the first rows arrive sooner, and fewer are in memory."""

    def scanner(self, columns: list[str] | None = None, filter: pc.Expression | None = None) -> pads.Scanner:
        self.request_files(filter)
        return super().scanner(columns=columns, filter=filter, **_READ_AHEAD)


class _SingleThreadDataset(_RequestingDataset):
    """Files with few rows, read by one thread."""

    def scanner(self, columns: list[str] | None = None, filter: pc.Expression | None = None) -> pads.Scanner:
        self.request_files(filter)
        return super().scanner(columns=columns, filter=filter, use_threads=False)


class _LiveRowsDataset(_RequestingDataset):
    """Files with deletion vectors, without the deleted rows."""

    vectors: Mapping[str, DeletionVector]  # by path
    use_threads: bool

    def scanner(self, columns: list[str] | None = None, filter: pc.Expression | None = None) -> "_LiveRowsScanner":
        self.request_files(filter)
        return _LiveRowsScanner(self, self.schema.names if columns is None else columns, filter)


@dataclass(frozen=True, slots=True)
class _LiveRowsScanner:
    """The part of the interface of Arrow's scanner that DuckDB uses.

    A position counts all rows of a file, so the filter is applied after the deletion vector. Rows are read by the thread
    of DuckDB that requests them: a scanner of Arrow inside of another one would wait for a thread that waits for it.
    """

    dataset: _LiveRowsDataset
    columns: Sequence[str]
    where: pc.Expression | None

    @property
    def projected_schema(self) -> pa.Schema:
        return pa.schema([self.dataset.schema.field(name) for name in self.columns])

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for fragment in self.dataset.get_fragments(filter=self.where):
            deleted = self.dataset.vectors[fragment.path]
            for first, batch in self._stored_batches(fragment):
                rows = remaining(batch, first, deleted)
                rows = rows if self.where is None else rows.filter(self.where)
                if rows.num_rows:
                    yield rows.select(self.columns)

    def _stored_batches(self, fragment: pads.ParquetFileFragment) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of the row groups that can match, each batch with the position of its first row.

        Columns that the file lacks are NULL, and narrower types are cast.
        """
        schema = pa.schema([field for field in self.dataset.schema if field.name in self._needed_columns()])
        with pq.ParquetFile(fragment.path, filesystem=_FILE_SYSTEM, pre_buffer=False) as parquet:
            stored_columns = [name for name in schema.names if name in parquet.schema_arrow.names]
            group_rows = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
            starts = [0, *accumulate(group_rows)]
            for _, run in groupby(enumerate(self._matching_groups(fragment)), lambda pair: pair[1] - pair[0]):
                group_ids = [group_id for _, group_id in run]
                first = starts[group_ids[0]]
                if not stored_columns:
                    rows = starts[group_ids[-1] + 1] - first
                    yield first, pa.RecordBatch.from_arrays([pa.nulls(rows, f.type) for f in schema], schema=schema)
                    continue
                options = {"columns": stored_columns, "use_threads": self.dataset.use_threads}
                for batch in parquet.iter_batches(_LIVE_BATCH_ROWS, row_groups=group_ids, **options):
                    yield first, cast_batch(batch, schema)
                    first += batch.num_rows

    def _matching_groups(self, fragment: pads.ParquetFileFragment) -> list[int]:
        if self.where is not None:
            with suppress(pa.ArrowNotImplementedError):  # Arrow cannot compare the statistics of some types
                fragment = fragment.subset(self.where, schema=self.dataset.schema)
        return [group.id for group in fragment.row_groups]

    def _needed_columns(self) -> set[str]:
        """Return the requested columns and every column that the filter may name. DuckDB does not list the latter."""
        text = "" if self.where is None else str(self.where)
        return {*self.columns, *(name for name in self.dataset.schema.names if name in text)}
