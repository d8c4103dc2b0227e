"""The first rows of an answer: as many as are asked for, and as fit."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.result_schema.field import is_list
from penstock.errors import Invalid
from penstock.service.queries.sandbox import Rows

_VALUE = 4  # bytes that a value counts for at least, however small: written as text it takes more


class Page:
    """Goes through an answer once. When it has enough it stops, and the process that answers is ended."""

    def __init__(self, rows: Rows, top: float, most_bytes: int | None) -> None:
        self._rows, self._top, self._room = rows, top, most_bytes
        self.more = False  # are there rows after these? Known at the end

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        top, room, empty = self._top, self._room, True
        for batch in self._rows:
            fitting = batch.num_rows if room is None else _fitting(batch, room)
            count = int(min(top, fitting))
            if count < batch.num_rows:
                if empty and fitting == 0 < top:
                    raise _too_large(self._room)
                self.more = True
                self._rows.close()
                if count:
                    yield _copied(batch.slice(0, count))
                return
            yield batch
            empty = empty and not count
            top -= count
            room = None if room is None else room - weight(batch)


def weight(batch: pa.RecordBatch) -> int:
    """How much it is to write down as text: its bytes, and something for each value."""
    return int(batch.nbytes) + _VALUE * sum(map(_values, batch.columns))


def _values(column: pa.Array) -> int:
    if is_list(column.type):
        return len(column) + _values(column.flatten())
    if pt.is_map(column.type):
        ends = column.offsets
        first, count = ends[0].as_py(), ends[-1].as_py() - ends[0].as_py()
        return len(column) + sum(_values(inner.slice(first, count)) for inner in (column.keys, column.items))
    if pt.is_struct(column.type):
        return len(column) + sum(map(_values, column.flatten()))
    return len(column)


def _fitting(batch: pa.RecordBatch, room: int) -> int:
    """How many of its first rows have room."""
    if weight(batch) <= room:
        return int(batch.num_rows)
    low, high = 0, batch.num_rows  # so many have room; so many have none
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if weight(batch.slice(0, middle)) <= room else (low, middle)
    return low


def _copied(part: pa.RecordBatch) -> pa.RecordBatch:
    """Without the rest of the batch that it is a part of."""
    return pa.ipc.read_record_batch(part.serialize(), part.schema)


def _too_large(limit: int | None) -> Invalid:
    told = f"one row has more than {limit:,} bytes; ask for fewer fields, or for the rows as Arrow"
    return Invalid("query_too_large", told)
