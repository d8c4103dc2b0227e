"""Sort rows by key columns in bounded memory: DuckDB spills sorted runs to a temporary directory."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager

import pyarrow as pa

from penstock.engines.duckdb.connection import connect, execute, open_result, translate_errors
from penstock.engines.duckdb.table_take import without_nested_offsets

_MEMORY_LIMIT = "512MB"
_THREADS = 2  # each thread needs a part of the memory


def sort_batches(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    order_by: Sequence[str],
    *,
    temp_directory: str,
    batch_rows: int,
    memory_limit: str = _MEMORY_LIMIT,
) -> Iterator[pa.RecordBatch]:
    """Yield rows in ascending order: texts by code points, NaN after all numbers, NULL last.

    Args:
        batches: the rows; an error of the iterator is raised as it is
        schema: their columns, of canonical types
        order_by: the columns to sort by
        temp_directory: folder for the rows that exceed the memory limit
        batch_rows: maximum number of rows of a batch
        memory_limit: memory of DuckDB
    """
    source = _SortSource(batches)
    # Columns are named by position, because DuckDB ignores the case of names, and are nullable, because DuckDB does not
    # return NOT NULL.
    nullable = pa.schema([pa.field(f"c{index}", field.type) for index, field in enumerate(schema)])
    reader = pa.RecordBatchReader.from_batches(nullable, source.read(nullable))
    keys = ", ".join(f"c{schema.names.index(name)} ASC NULLS LAST" for name in order_by)
    with closing(connect(memory_limit, temp_directory)) as db, source.raise_errors(), translate_errors():
        execute(db, "SET threads = $threads", threads=_THREADS)
        db.register("source", reader)
        for batch in open_result(db, f"SELECT * FROM source ORDER BY {keys}", batch_rows):
            columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


class _SortSource:
    """Feed rows to DuckDB, and keep the error of their iterator, which DuckDB would replace by one of its own."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self._error: Exception | None = None

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._batches:
                rows = pa.Table.from_batches([pa.RecordBatch.from_arrays(batch.columns, schema=schema)])
                yield from without_nested_offsets(rows).to_batches()
        except Exception as error:
            self._error = error
            raise

    @contextmanager
    def raise_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            if self._error is not None:
                raise self._error from None
            raise
