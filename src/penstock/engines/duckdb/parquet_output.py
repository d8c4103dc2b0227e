"""Write query results to Parquet files."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.core.dataset.row_groups import split_row_groups
from penstock.core.merge import FileLayout
from penstock.engines.duckdb.connection import Connection, copy_to_file, open_result, translate_errors
from penstock.engines.duckdb.types import as_nullable, footer_metadata, has_required_fields
from penstock.errors import PenstockError, Unavailable

_CODEC_NAMES = {"none": "uncompressed", "lz4": "lz4_raw"}  # pyarrow codec → DuckDB codec, where they differ


def write_parquet(db: Connection, rows: str, path: str, layout: FileLayout, **values: Any) -> int:
    """Write the result of a query to a new Parquet file, in order, and return the number of rows."""
    if layout.stores_required and has_required_fields(layout.schema):
        return _write_required(db, rows, path, layout, **values)
    return copy_to_file(
        db,
        rows,
        path=path,
        codec=_CODEC_NAMES.get(layout.codec.lower(), layout.codec.lower()),
        group_rows=layout.group_rows,
        footer=footer_metadata(layout.schema),
        **values,
    )


def _write_required(db: Connection, rows: str, path: str, layout: FileLayout, **values: Any) -> int:
    """Write with PyArrow, because DuckDB stores every column as nullable."""
    count = 0
    options = {"compression": layout.codec, **layout.options}
    reader = open_result(db, rows, layout.group_rows, **values)
    batches = (_to_stored_types(batch, layout.schema) for batch in reader)
    try:
        with translate_errors(), pq.ParquetWriter(path, layout.schema, **options) as writer:
            for group in split_row_groups(_required(batches, layout.schema), layout.schema, layout.group_rows):
                writer.write_table(group, row_group_size=group.num_rows)
                count += group.num_rows
    except (OSError, pa.ArrowException) as cause:  # also an error of DuckDB while the reader runs
        if isinstance(cause, PenstockError):
            raise
        message = str(cause).partition("\n")[0][:300]
        raise Unavailable("storage_failed.duckdb", {"cause": message}) from None
    return count


def _to_stored_types(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert the columns of a result to the stored types, with every field nullable."""
    fields = [as_nullable(field) for field in schema]
    columns = []
    for column, field in zip(batch.columns, fields, strict=True):
        if pt.is_dictionary(field.type):
            column = column.dictionary_encode()
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _required(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Declare the same buffers as NOT NULL where the schema does; Arrow casts no nested field to NOT NULL."""
    for batch in batches:
        yield pa.RecordBatch._import_from_c_capsule(schema.__arrow_c_schema__(), batch.__arrow_c_array__()[1])
