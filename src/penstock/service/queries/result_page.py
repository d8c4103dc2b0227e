"""Cut a query result into a page: the first rows, up to a number of rows and a size."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.result_schema.field import is_list
from penstock.errors import Invalid
from penstock.service.queries.sandbox import ResultStream

_MIN_VALUE_BYTES = 4  # counted for each value, because even a small one takes more as text than in Arrow


class ResultPage:
    """Iterate over the first rows of a result once. At the end of the page the result and its process are closed."""

    def __init__(self, rows: ResultStream, top: float, max_bytes: int | None) -> None:
        """Cut a page of at most `top` rows and `max_bytes` estimated bytes of text."""
        self._rows, self._top, self._max_bytes = rows, top, max_bytes
        self.has_more = False  # the result has rows after the page; valid at the end of the iteration

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        top, available_bytes, is_empty = self._top, self._max_bytes, True
        for batch in self._rows:
            fitting_rows = batch.num_rows if available_bytes is None else _count_fitting_rows(batch, available_bytes)
            count = int(min(top, fitting_rows))
            if count < batch.num_rows:
                if is_empty and fitting_rows == 0 < top:
                    raise Invalid("query_too_large.row", {"limit": self._max_bytes})
                self.has_more = True
                self._rows.close()
                if count:
                    yield _copy(batch.slice(0, count))
                return
            yield batch
            is_empty = is_empty and not count
            top -= count
            available_bytes = None if available_bytes is None else available_bytes - estimated_text_bytes(batch)


def estimated_text_bytes(batch: pa.RecordBatch) -> int:
    """Estimate the size of a batch as text: its bytes and a constant for each value."""
    return int(batch.nbytes) + _MIN_VALUE_BYTES * sum(map(_count_values, batch.columns))


def _count_values(column: pa.Array) -> int:
    if is_list(column.type):
        return len(column) + _count_values(column.flatten())
    if pt.is_map(column.type):
        offsets = column.offsets
        first, count = offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py()
        return len(column) + sum(_count_values(inner.slice(first, count)) for inner in (column.keys, column.items))
    if pt.is_struct(column.type):
        return len(column) + sum(map(_count_values, column.flatten()))
    return len(column)


def _count_fitting_rows(batch: pa.RecordBatch, available_bytes: int) -> int:
    """Return the number of leading rows that fit, by binary search."""
    if estimated_text_bytes(batch) <= available_bytes:
        return int(batch.num_rows)
    low, high = 0, batch.num_rows  # `low` rows fit, `high` rows do not
    while high - low > 1:
        middle = (low + high) // 2
        fits = estimated_text_bytes(batch.slice(0, middle)) <= available_bytes
        low, high = (middle, high) if fits else (low, middle)
    return low


def _copy(part: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a slice, so that the rest of its batch can be freed."""
    return pa.ipc.read_record_batch(part.serialize(), part.schema)
