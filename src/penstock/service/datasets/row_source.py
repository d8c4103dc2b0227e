"""Open sources of rows, and validate their Arrow batches against the schema and the limits of a write."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.merge import unify_schemas
from penstock.core.schema.compatibility import cast_batch
from penstock.errors import Invalid, NotFound
from penstock.service.workspace import WriteLimits
from penstock.storage import parquet_directory
from penstock.storage.import_files import FileRows, read_files, split_batches

_MAX_PIECE_BYTES = 64 << 20
_MAX_PIECE_ROWS = 256 << 10


class SourceReader(Protocol):
    """Iterate over batches of one schema. Every Arrow reader implements this protocol."""

    @property
    def schema(self) -> pa.Schema: ...
    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


def open_reader(source: Any, like: Callable[[], pa.Schema] | None = None) -> SourceReader:
    """Open a reader for tables, batches, readers, frames, lists of dicts, and paths of files.

    Args:
        source: the object that contains the rows
        like: returns the schema that types the columns of a text file

    Raises:
        Invalid: the object does not contain rows
    """
    if isinstance(source, str | Path):
        return read_files([Path(source)], like=like and like())
    if is_spark_frame(source):
        rows = _open_frame(source)
        return FileRows(rows.schema, split_batches(rows.batches()))
    stream: SourceReader = _reader(source)
    return stream


def open_source(source: Any, like: Callable[[], pa.Schema] | None = None) -> "RowSource":
    """Open a source of a merge: rows that can be read once, and the Spark frame if the source is one.

    Args:
        source: as for `open_reader`, or a Spark frame, or a folder of Parquet files
        like: returns the schema that types the columns of a text file
    """
    if is_spark_frame(source):
        return _open_frame(source)
    if isinstance(source, str | Path) and Path(source).is_dir():
        return _open_folder(Path(source))
    stream = open_reader(source, like)
    return RowSource(stream.schema, lambda: iter(stream))


@dataclass(frozen=True, slots=True)
class RowSource:
    """The rows of a merge. `batches` can be called once; `frame` is the Spark frame, if there is one."""

    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]
    frame: Any = None


def _open_frame(frame: Any) -> RowSource:
    from penstock.engines.spark.frame_batches import collect_batches
    from penstock.engines.spark.types import arrow_schema

    return RowSource(arrow_schema(frame), lambda: collect_batches(frame), frame)


def _open_folder(path: Path) -> RowSource:
    directory = parquet_directory.read_directory(path.absolute(), ())
    if directory.schema is None:
        raise NotFound("file_not_found.parquet_folder", {"folder": path}, path=str(path))
    types = parquet_directory.partition_types(directory, pa.schema([]))
    names = [name for name in directory.schema.names if name not in types.names]
    stored = pa.schema([directory.schema.field(name).with_nullable(True) for name in names])

    def batches() -> Iterator[pa.RecordBatch]:
        for file in directory.files:
            values = parquet_directory.partition_values(file.parts, types)
            for batch in read_files([Path(directory.located(file))]):
                batch = batch.select([name for name in batch.schema.names if name not in types.names])
                for field in types:
                    column = pa.repeat(pa.scalar(values[field.name], field.type), batch.num_rows)
                    batch = batch.append_column(field, column)
                yield batch

    return RowSource(pa.schema([*stored, *types]), batches)


def is_spark_frame(source: Any) -> bool:
    """Return True for a Spark frame, without importing Spark."""
    return "pyspark" in sys.modules and type(source).__module__.startswith("pyspark.sql")


def _reader(source: Any) -> Any:
    match source:
        case pa.RecordBatchReader() | FileRows():
            return source
        case pa.Table():
            return FileRows(source.schema, split_batches(source.to_batches()))
        case pa.RecordBatch():
            return FileRows(source.schema, split_batches([source]))
        case dict() | list():
            return _reader(_from_python(source))
    if hasattr(source, "__arrow_c_stream__"):
        stream = pa.RecordBatchReader.from_stream(source)
        return FileRows(stream.schema, split_batches(stream))
    if hasattr(source, "to_reader"):
        return source.to_reader()
    if hasattr(source, "scanner"):
        return source.scanner().to_reader()
    raise Invalid(
        "unsupported_source.type",
        {"source_type": type(source).__name__},
    )


def validated_batches(
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    limits: WriteLimits,
    on_batch: Callable[[pa.RecordBatch], None] = lambda _: None,
) -> Iterator[pa.RecordBatch]:
    """Validate batches and cast them to the schema of the dataset. The first invalid batch raises an error.

    Args:
        batches: the batches of the source
        schema: the schema of the dataset
        limits: the limits of the write
        on_batch: receives each validated batch with its original types
    """
    validate = BatchValidator(schema, limits, on_batch)
    while (batch := _next_batch(batches, validate.row)) is not None:
        yield from validate(batch)


def validate_batch(batch: pa.RecordBatch, check_size: Callable[[pa.RecordBatch], None] = lambda _: None) -> None:
    """Validate the buffers of an untrusted batch; raise ArrowInvalid or ArrowIndexError if they are broken."""
    batch.validate()  # before any other access, even to its size
    check_size(batch)
    batch.validate(full=True)  # without the full check an invalid offset in a string column crashes the process


class BatchValidator:
    """Validate batches that arrive one by one, and cast them to the schema of the dataset."""

    def __init__(
        self, schema: pa.Schema, limits: WriteLimits, on_batch: Callable[[pa.RecordBatch], None] = lambda _: None
    ) -> None:
        self._schema, self._limits, self._on_batch = schema, limits, on_batch
        self.bytes = self.row = 0  # totals of the validated batches

    def __call__(self, batch: pa.RecordBatch, *, validated: bool = False) -> Iterator[pa.RecordBatch]:
        """Validate a batch, unless `validated`, and yield it, split into pieces if it is large."""
        row, limits = self.row, self._limits
        try:
            if validated:
                _check_size(batch, row, limits)
            else:
                validate_batch(batch, lambda batch: _check_size(batch, row, limits))
        except (pa.ArrowInvalid, pa.ArrowIndexError) as cause:
            raise Invalid("broken_batch", {"cause": str(cause)[:200]}, row=row) from None
        for piece in _split(batch, row, limits):
            yield self._cast_piece(piece)

    def _cast_piece(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        row, limits = self.row, self._limits
        try:
            cast = cast_batch(piece, self._schema)
            self._on_batch(piece)
        except Invalid as error:
            raise Invalid(
                error.reason,
                f"Rows {row:,} to {row + piece.num_rows - 1:,}: {error.message}",
                **error.context,
            ) from None
        self.bytes += cast.nbytes
        if self.bytes > limits.write_bytes:
            raise Invalid("write_too_large", {"max_bytes": limits.write_bytes}, row=row)
        self.row += piece.num_rows
        return cast


def _split(batch: pa.RecordBatch, row: int, limits: WriteLimits) -> Iterator[pa.RecordBatch]:
    """Split a batch in halves until each piece is small, even when its rows no longer share values."""
    size, rows = sum(map(_unshared_bytes, batch.columns)), batch.num_rows
    if rows == 1 and size > limits.row_bytes:
        raise _row_too_large(row, limits)
    if rows <= 1 or (size <= _MAX_PIECE_BYTES and rows <= _MAX_PIECE_ROWS):
        yield batch
    else:
        yield from _split(batch.slice(0, rows // 2), row, limits)
        yield from _split(batch.slice(rows // 2), row + rows // 2, limits)


def _unshared_bytes(column: pa.Array) -> int:
    """Return a lower bound of the column's size if its rows shared no values, as dictionaries and views do."""
    data_type = column.type
    if pt.is_dictionary(data_type) and _is_text(data_type.value_type):
        return _sum(pc.take(pc.binary_length(column.dictionary), column.indices))
    if _is_view(data_type):
        return _sum(_view_lengths(column))
    if pt.is_dictionary(data_type):
        return len(column) * int(column.dictionary.nbytes)
    if pt.is_list_view(data_type) or pt.is_large_list_view(data_type):
        return _sum(pc.list_value_length(column)) * _unshared_bytes(column.values)
    if pt.is_list(data_type) or pt.is_large_list(data_type):
        return int(column.nbytes) + _unshared_bytes(column.flatten())
    if pt.is_struct(data_type):
        return sum(map(_unshared_bytes, column.flatten()))
    return int(column.nbytes)


def _view_lengths(column: pa.Array) -> pa.Array:
    """Return the lengths of string or binary views.

    A view consists of four 32-bit numbers, of which the first is the length. `binary_length` does not support views.
    """
    numbers = pa.Array.from_buffers(pa.int32(), 4 * (column.offset + len(column)), [None, column.buffers()[1]])
    lengths = pc.list_element(pa.FixedSizeListArray.from_arrays(numbers, 4).slice(column.offset), 0)
    return pc.if_else(column.is_valid(), lengths, 0)


def _is_view(data_type: pa.DataType) -> bool:
    return bool(pt.is_string_view(data_type) or pt.is_binary_view(data_type))


def _is_text(data_type: pa.DataType) -> bool:
    return any(test(data_type) for test in (pt.is_string, pt.is_binary, pt.is_large_string, pt.is_large_binary))


def _sum(numbers: pa.Array) -> int:
    return int(pc.sum(numbers).as_py() or 0)


def _next_batch(batches: Iterator[pa.RecordBatch], row: int) -> pa.RecordBatch | None:
    try:
        return next(batches, None)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as cause:
        raise Invalid("broken_source", {"cause": str(cause)[:300]}, row=row) from None


def _check_size(batch: pa.RecordBatch, row: int, limits: WriteLimits) -> None:
    view_bytes = sum(_sum(_view_lengths(column)) for column in batch.columns if _is_view(column.type))
    size = batch.nbytes
    if max(size, batch.num_rows, view_bytes) > limits.batch_bytes:  # NULL and views may take almost no bytes
        raise Invalid("batch_too_large.source", {"max_bytes": limits.batch_bytes}, row=row)
    if size > limits.row_bytes * max(batch.num_rows, 1):
        raise _row_too_large(row, limits)


def _row_too_large(row: int, limits: WriteLimits) -> Invalid:
    return Invalid("row_too_large.source", {"max_bytes": limits.row_bytes}, row=row)


def _from_python(source: dict[str, Any] | list[Any]) -> pa.Table:
    try:
        if isinstance(source, dict):
            table = pa.table(source)
        elif source and all(isinstance(part, pa.Table | pa.RecordBatch) for part in source):
            table = _concat([part if isinstance(part, pa.Table) else pa.Table.from_batches([part]) for part in source])
        elif not all(isinstance(part, Mapping) for part in source):
            raise Invalid("unsupported_source.list")
        else:
            table = pa.Table.from_pylist(source)
    except Invalid:
        raise
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as cause:
        raise Invalid("unsupported_source.values", {"cause": str(cause)[:200]}) from None
    return table


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables in their common types, as a merge widens types. Columns that a table lacks are NULL."""
    schema = reduce(lambda whole, table: unify_schemas(table.schema, whole), tables[1:], tables[0].schema)
    in_all = set.intersection(*(set(table.column_names) for table in tables))
    fields = [field if field.name in in_all else field.with_nullable(True) for field in schema]
    parts = [
        table.cast(pa.schema([field for field in fields if field.name in table.column_names]))
        for table in (table.select([n for n in schema.names if n in table.column_names]) for table in tables)
    ]
    return pa.concat_tables(parts, promote_options="default").select(schema.names)
