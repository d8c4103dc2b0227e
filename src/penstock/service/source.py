"""Rows from outside, as a stream of sound Arrow batches within the limits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.schema import conform
from penstock.errors import Invalid
from penstock.service.workspace import Limits
from penstock.storage.formats import Incoming, cut, incoming


class Source(Protocol):
    """A schema, and batches that fit it. Every Arrow reader is one."""

    @property
    def schema(self) -> pa.Schema: ...
    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


def reader(source: Any) -> Source:
    """A stream over anything that holds rows: tables, batches, readers, frames, lists of dicts, paths of files."""
    stream: Source = _reader(source)
    return stream


def _reader(source: Any) -> Any:
    match source:
        case pa.RecordBatchReader() | Incoming():
            return source
        case str() | Path():
            return incoming([Path(source)])
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


def checked(batches: Iterator[pa.RecordBatch], schema: pa.Schema, limits: Limits) -> Iterator[pa.RecordBatch]:
    """The batches, proven sound and brought to the dataset's schema. A bad one ends the stream with an error."""
    total = row = 0
    while (batch := _next(batches, row)) is not None:
        try:
            # Without the full check a wild offset in a string column ends the process.
            batch.validate(full=True)
        except (pa.ArrowInvalid, pa.ArrowIndexError) as cause:
            raise Invalid("broken_batch", f"the rows from {row:,} on are broken: {str(cause)[:200]}", row=row) from None
        _check_size(batch, row, limits)
        for piece in _pieces(batch, row, limits):
            try:
                fitting = conform(piece, schema)
            except Invalid as refusal:
                raise Invalid(
                    refusal.reason,
                    f"rows {row:,} to {row + piece.num_rows - 1:,}: {refusal.message}",
                    **refusal.context,
                ) from None
            total += fitting.nbytes
            if total > limits.write_bytes:
                raise Invalid(
                    "write_too_large", f"one write may bring {limits.write_bytes:,} bytes of rows; split it", row=row
                )
            yield fitting
            row += piece.num_rows


def _pieces(batch: pa.RecordBatch, row: int, limits: Limits) -> Iterator[pa.RecordBatch]:
    """The batch in parts that stay small when every row has values of its own, instead of sharing them."""
    width = sum(map(_shared_bytes, batch.columns))
    if width > limits.row_bytes:
        raise _row_too_large(row, limits)
    rows = min(_PIECE_ROWS, max(1, _PIECE_BYTES // max(width, 1)))
    yield from (batch.slice(at, rows) for at in range(0, batch.num_rows, rows))


def _shared_bytes(column: pa.Array) -> int:
    """The size of the largest value that rows of the column may have in common; 0 where each brings its own."""
    kind = column.type
    if not len(column):
        return 0
    if pt.is_dictionary(kind):
        return _value_bytes(column.dictionary)
    if pt.is_string_view(kind) or pt.is_binary_view(kind):
        return _value_bytes(column)
    if pt.is_list_view(kind) or pt.is_large_list_view(kind):
        longest = pc.max(pc.list_value_length(column)).as_py() or 0
        return int(longest) * max(_value_bytes(column.values), 1)
    if pt.is_struct(kind):
        return sum(map(_shared_bytes, column.flatten()))
    return _shared_bytes(column.values) if pt.is_nested(kind) and hasattr(column, "values") else 0


def _value_bytes(values: pa.Array) -> int:
    """At least the size of the largest value."""
    kind = values.type
    if any(test(kind) for test in _TEXTS):
        return pc.max(pc.binary_length(values)).as_py() or 0
    return _shared_bytes(values) or int(values.nbytes)


def _next(batches: Iterator[pa.RecordBatch], row: int) -> pa.RecordBatch | None:
    try:
        return next(batches, None)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as cause:
        raise Invalid(
            "broken_source", f"the source cannot be read after row {row:,}: {str(cause)[:300]}", row=row
        ) from None


def _check_size(batch: pa.RecordBatch, row: int, limits: Limits) -> None:
    if max(batch.nbytes, batch.num_rows) > limits.batch_bytes:  # rows of nothing but NULL may take no bytes
        raise Invalid(
            "batch_too_large", f"the batch at row {row:,} holds more than {limits.batch_bytes:,} bytes", row=row
        )
    if batch.nbytes > limits.row_bytes * max(batch.num_rows, 1):
        raise _row_too_large(row, limits)


def _row_too_large(row: int, limits: Limits) -> Invalid:
    return Invalid("row_too_large", f"the rows from {row:,} on hold more than {limits.row_bytes:,} bytes each", row=row)


def _from_python(source: dict[str, Any] | list[Any]) -> Any:
    try:
        table = pa.table(source) if isinstance(source, dict) else pa.Table.from_pylist(source)
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as cause:
        raise Invalid("no_rows", f"these values make no table: {str(cause)[:200]}") from None
    return table.to_reader()
