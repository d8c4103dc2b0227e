"""Rows from outside, as a stream of sound Arrow batches within the limits."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.schema.canonical import conform
from penstock.errors import Invalid, NotFound
from penstock.service.workspace import Limits
from penstock.storage import parquet_directory as directory
from penstock.storage.import_files import Incoming, cut, incoming

_PIECE_BYTES = 64 << 20
_PIECE_ROWS = 256 << 10


class Source(Protocol):
    """A schema, and batches that fit it. Every Arrow reader is one."""

    @property
    def schema(self) -> pa.Schema: ...
    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


def reader(source: Any, like: Callable[[], pa.Schema] | None = None) -> Source:
    """A stream over anything that holds rows: tables, batches, readers, frames, lists of dicts, paths of files.

    `like` gives the types for a text file, which leaves them open.
    """
    if isinstance(source, str | Path):
        return incoming([Path(source)], like=like and like())
    stream: Source = _reader(source)
    return stream


def opened(source: Any, like: Callable[[], pa.Schema] | None = None) -> "Rows":
    """A source as rows that can be read once, and as a frame of Spark's where it is one.

    `like` gives the types for a text file, which leaves them open.
    """
    if is_spark_frame(source):
        from penstock.engines.spark.merge import schema_of

        return Rows(schema_of(source), lambda: iter(source.toArrow().to_batches()), source)
    if isinstance(source, str | Path) and Path(source).is_dir():
        return _folder(Path(source))
    stream = reader(source, like)
    return Rows(stream.schema, lambda: iter(stream))


@dataclass(frozen=True, slots=True)
class Rows:
    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]
    frame: Any = None


def _folder(path: Path) -> Rows:
    there = directory.read(path.absolute(), ())
    if there.schema is None:
        raise NotFound("no_such_file", f"there are no Parquet files in {path}", path=str(path))
    types = directory.part_types(there, pa.schema([]))
    names = [name for name in there.schema.names if name not in types.names]
    stored = pa.schema([there.schema.field(name).with_nullable(True) for name in names])

    def batches() -> Iterator[pa.RecordBatch]:
        for file in there.files:
            values = directory.part_values(file.parts, types)
            for batch in incoming([Path(there.located(file))]):
                for field in types:
                    told = pa.repeat(pa.scalar(values[field.name], field.type), batch.num_rows)
                    batch = batch.append_column(field, told)
                yield batch

    return Rows(pa.schema([*stored, *types]), batches)


def is_spark_frame(source: Any) -> bool:
    """A frame of Spark's. Asking does not load Spark."""
    return "pyspark" in sys.modules and type(source).__module__.startswith("pyspark.sql")


def _reader(source: Any) -> Any:
    match source:
        case pa.RecordBatchReader() | Incoming():
            return source
        case pa.Table():
            return Incoming(source.schema, cut(source.to_batches()))
        case pa.RecordBatch():
            return Incoming(source.schema, cut([source]))
        case dict() | list():
            return _reader(_from_python(source))
    if hasattr(source, "__arrow_c_stream__"):
        stream = pa.RecordBatchReader.from_stream(source)
        return Incoming(stream.schema, cut(stream))
    if hasattr(source, "to_reader"):
        return source.to_reader()
    if hasattr(source, "scanner"):
        return source.scanner().to_reader()
    raise Invalid(
        "no_rows",
        f"a {type(source).__name__} holds no rows that can be read; give an Arrow table, a pandas or Polars frame, "
        "a DuckDB relation, a dict of columns, a list of dicts, or the path of a file",
    )


def checked(
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    limits: Limits,
    heard: Callable[[pa.RecordBatch], None] = lambda _: None,
) -> Iterator[pa.RecordBatch]:
    """The batches, proven sound and brought to the dataset's schema. A bad one ends the stream with an error.

    `heard` gets the rows as they came, once they are known to be sound.
    """
    check = Check(schema, limits, heard)
    while (batch := _next(batches, check.row)) is not None:
        yield from check(batch)


class Check:
    """Proves batches that come one by one sound, and brings them to the dataset's schema."""

    def __init__(
        self, schema: pa.Schema, limits: Limits, heard: Callable[[pa.RecordBatch], None] = lambda _: None
    ) -> None:
        self._schema, self._limits, self._heard = schema, limits, heard
        self.bytes = self.row = 0  # so far

    def __call__(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch, in pieces if it is large."""
        row, limits = self.row, self._limits
        try:
            batch.validate()  # before anything, even its size, is asked of it
            _check_size(batch, row, limits)
            batch.validate(full=True)  # without the full check a wild offset in a string column ends the process
        except (pa.ArrowInvalid, pa.ArrowIndexError) as cause:
            raise Invalid("broken_batch", f"the rows from {row:,} on are broken: {str(cause)[:200]}", row=row) from None
        for piece in _pieces(batch, row, limits):
            yield self._fitting(piece)

    def _fitting(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        row, limits = self.row, self._limits
        try:
            fitting = conform(piece, self._schema)
            self._heard(piece)
        except Invalid as refusal:
            raise Invalid(
                refusal.reason,
                f"rows {row:,} to {row + piece.num_rows - 1:,}: {refusal.message}",
                **refusal.context,
            ) from None
        self.bytes += fitting.nbytes
        if self.bytes > limits.write_bytes:
            raise Invalid(
                "write_too_large", f"one write may bring {limits.write_bytes:,} bytes of rows; split it", row=row
            )
        self.row += piece.num_rows
        return fitting


def _pieces(batch: pa.RecordBatch, row: int, limits: Limits) -> Iterator[pa.RecordBatch]:
    """The batch in halves of halves, until they stay small even when rows no longer share their values."""
    size, rows = sum(map(_unshared_bytes, batch.columns)), batch.num_rows
    if rows == 1 and size > limits.row_bytes:
        raise _row_too_large(row, limits)
    if rows <= 1 or (size <= _PIECE_BYTES and rows <= _PIECE_ROWS):
        yield batch
    else:
        yield from _pieces(batch.slice(0, rows // 2), row, limits)
        yield from _pieces(batch.slice(rows // 2), row + rows // 2, limits)


def _unshared_bytes(column: pa.Array) -> int:
    """At least the size of the column when each row has its values to itself. A dictionary's, or a view's, are shared."""
    kind = column.type
    if pt.is_dictionary(kind) and _is_text(kind.value_type):
        return _sum(pc.take(pc.binary_length(column.dictionary), column.indices))
    if _is_view(kind):
        return _sum(_view_lengths(column))
    if pt.is_dictionary(kind):
        return len(column) * int(column.dictionary.nbytes)
    if pt.is_list_view(kind) or pt.is_large_list_view(kind):
        return _sum(pc.list_value_length(column)) * _unshared_bytes(column.values)
    if pt.is_list(kind) or pt.is_large_list(kind):
        return int(column.nbytes) + _unshared_bytes(column.flatten())
    if pt.is_struct(kind):
        return sum(map(_unshared_bytes, column.flatten()))
    return int(column.nbytes)


def _view_lengths(column: pa.Array) -> pa.Array:
    """Each view is four numbers, of which the first is its length. (`binary_length` has not heard of views.)"""
    numbers = pa.Array.from_buffers(pa.int32(), 4 * (column.offset + len(column)), [None, column.buffers()[1]])
    lengths = pc.list_element(pa.FixedSizeListArray.from_arrays(numbers, 4).slice(column.offset), 0)
    return pc.if_else(column.is_valid(), lengths, 0)


def _is_view(kind: pa.DataType) -> bool:
    return bool(pt.is_string_view(kind) or pt.is_binary_view(kind))


def _is_text(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pt.is_string, pt.is_binary, pt.is_large_string, pt.is_large_binary))


def _sum(numbers: pa.Array) -> int:
    return int(pc.sum(numbers).as_py() or 0)


def _next(batches: Iterator[pa.RecordBatch], row: int) -> pa.RecordBatch | None:
    try:
        return next(batches, None)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as cause:
        raise Invalid(
            "broken_source", f"the source cannot be read after row {row:,}: {str(cause)[:300]}", row=row
        ) from None


def _check_size(batch: pa.RecordBatch, row: int, limits: Limits) -> None:
    viewed = sum(_sum(_view_lengths(column)) for column in batch.columns if _is_view(column.type))
    size = batch.nbytes
    if max(size, batch.num_rows, viewed) > limits.batch_bytes:  # NULL and views may take next to no bytes
        raise Invalid(
            "batch_too_large", f"the batch at row {row:,} holds more than {limits.batch_bytes:,} bytes", row=row
        )
    if size > limits.row_bytes * max(batch.num_rows, 1):
        raise _row_too_large(row, limits)


def _row_too_large(row: int, limits: Limits) -> Invalid:
    return Invalid("row_too_large", f"the rows from {row:,} on hold more than {limits.row_bytes:,} bytes each", row=row)


def _from_python(source: dict[str, Any] | list[Any]) -> pa.Table:
    try:
        table = pa.table(source) if isinstance(source, dict) else pa.Table.from_pylist(source)
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as cause:
        raise Invalid("no_rows", f"these values make no table: {str(cause)[:200]}") from None
    return table
