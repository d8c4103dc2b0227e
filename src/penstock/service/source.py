"""Rows from outside, as a stream of sound Arrow batches within the limits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from penstock.core.schema import conform
from penstock.errors import Invalid
from penstock.service.workspace import Limits
from penstock.storage.formats import Incoming, incoming


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
            return source.to_reader()
        case pa.RecordBatch():
            return pa.RecordBatchReader.from_batches(source.schema, [source])
        case dict() | list():
            return _from_python(source)
    if hasattr(source, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(source)
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
        total += batch.nbytes
        if total > limits.write_bytes:
            raise Invalid(
                "write_too_large", f"one write may bring {limits.write_bytes:,} bytes of rows; split it", row=row
            )
        try:
            yield conform(batch, schema)
        except Invalid as refusal:
            raise Invalid(
                refusal.reason, f"rows {row:,} to {row + batch.num_rows - 1:,}: {refusal.message}", **refusal.context
            ) from None
        row += batch.num_rows


def _next(batches: Iterator[pa.RecordBatch], row: int) -> pa.RecordBatch | None:
    try:
        return next(batches, None)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as cause:
        raise Invalid(
            "broken_source", f"the source cannot be read after row {row:,}: {str(cause)[:300]}", row=row
        ) from None


def _check_size(batch: pa.RecordBatch, row: int, limits: Limits) -> None:
    if batch.nbytes > limits.batch_bytes:
        raise Invalid(
            "batch_too_large", f"the batch at row {row:,} holds more than {limits.batch_bytes:,} bytes", row=row
        )
    if batch.nbytes > limits.row_bytes * max(batch.num_rows, 1):
        raise Invalid(
            "row_too_large", f"the rows from {row:,} on hold more than {limits.row_bytes:,} bytes each", row=row
        )


def _from_python(source: dict[str, Any] | list[Any]) -> Any:
    try:
        table = pa.table(source) if isinstance(source, dict) else pa.Table.from_pylist(source)
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as cause:
        raise Invalid("no_rows", f"these values make no table: {str(cause)[:200]}") from None
    return table.to_reader()
