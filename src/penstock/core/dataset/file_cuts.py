"""Cut a stream of rows into files of equal size, without dividing rows of equal keys between two files."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

_MAX_EXTRA_ROWS = 0.25  # share of a file's rows by which a file may grow, to keep rows of equal keys together


class FileCutter:
    """Assign rows to files. With key columns the rows must be sorted by them.

    Args:
        file_rows: number of rows of a file
        key_columns: rows that are equal in these columns are kept together, unless there are too many of them
    """

    def __init__(self, file_rows: int, key_columns: Sequence[str] = ()) -> None:
        self._file_rows, self._max_rows = file_rows, file_rows + int(file_rows * _MAX_EXTRA_ROWS)
        self._key_columns = list(key_columns)
        self._rows = 0  # of the current file
        self._last: pa.RecordBatch | None = None  # the last row

    def cut(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """Yield the parts of a batch, and for each whether it begins the next file."""
        while batch.num_rows:
            begins_file = False
            count = min(self._file_rows - self._rows, batch.num_rows)
            if count <= 0:
                count = self._count_equal(batch.slice(0, max(self._max_rows - self._rows, 0)))
            if not count:
                begins_file, self._rows = True, 0
                count = min(self._file_rows, batch.num_rows)
            part, batch = batch.slice(0, count), batch.slice(count)
            self._rows += count
            self._last = part.slice(count - 1)
            yield part, begins_file

    def _count_equal(self, batch: pa.RecordBatch) -> int:
        """Count the first rows that have the key of the last row."""
        if self._last is None or not self._key_columns or not batch.num_rows:
            return 0
        is_equal = pa.array([True] * batch.num_rows)
        for name in self._key_columns:
            column, value = batch.column(name), self._last.column(name)[0]
            same = pc.fill_null(pc.equal(column, value), False) if value.is_valid else pc.is_null(column)
            is_equal = pc.and_(is_equal, same)
        first_other = pc.index(is_equal, False).as_py()
        return batch.num_rows if first_other < 0 else int(first_other)
