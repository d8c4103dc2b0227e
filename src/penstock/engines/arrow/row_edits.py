"""Replace or drop rows of files by their ids: a touched file is read once, and its successor written as it is read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.merge import BATCH_ROWS, Output, Sink, TargetFile
from penstock.core.names import CARRIED
from penstock.core.dataset.row_ids import RowIds
from penstock.engines.arrow.parquet_io import ROW_ID, Pieces, Workers, batches, replaced, stretches, written

Seen = Callable[[Any, pa.RecordBatch], None]  # hears rows as they were, with their ids, and the places of those ids

_READ_ID = ROW_ID.with_nullable(True)  # as it is read, whatever is known of it
_BROUGHT = 64 << 20  # bytes of new rows that are held for one batch


@dataclass(frozen=True, slots=True)
class Hits:
    """The rows of a file that are asked for."""

    file: TargetFile
    positions: Any  # numpy, ascending
    places: Any  # of their ids, in the list that was given

    def __len__(self) -> int:
        return len(self.positions)


def find(files: Sequence[TargetFile], ids: RowIds) -> list[Hits]:
    """Where the ids are; files without any are left out. What a fresh file holds is known; others tell by one column.

    A file's bounds say between which ids its rows lie.
    """
    near = [(file, part) for file in files if len(part := ids.within(*_ids(file)))]
    found = [
        Hits(file, part.values - file.first_row_id, part.places) for file, part in near if file.first_row_id is not None
    ]
    carried = [(file, part) for file, part in near if file.first_row_id is None]
    return [*found, *(hits for hits in Workers().each(lambda each: _carried(*each), carried, 2) if len(hits))]


def rewrite(hits: Sequence[Hits], rows: pa.Table | None, sink: Sink, seen: Seen | None = None) -> Iterator[Output]:
    """Write the successors of the files, in their order, with `rows` in place of what was hit, or (None) without it.

    Of `rows` those at the hits' places are taken. A file of which nothing is left has no successor.
    """
    workers = Workers()
    new = None if rows is None else Pieces(rows)

    def successor(each: Hits) -> Output | None:
        if new is None and seen is None and len(each) == each.file.rows:
            return None
        made = _successor(each, new, seen, workers)
        return next(written([made], {}, each.file.layout, sink, one=True), None)

    return (output for output in workers.each(successor, hits) if output)


def pick(hits: Sequence[Hits], seen: Seen) -> None:
    """Read what was hit, and write nothing."""
    for each in hits:
        for _ in _successor(each, None, seen, Workers()):
            pass


def _carried(file: TargetFile, near: RowIds) -> Hits:
    """Row groups whose statistics say that they hold none of the ids are not read."""
    low, high = int(near.values[0]), int(near.values[-1])
    where = (pc.field(CARRIED) >= low) & (pc.field(CARRIED) <= high)
    positions, places = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for start, stretch in stretches(file.path, pa.schema([ROW_ID]), [CARRIED], BATCH_ROWS, where):
        for batch in stretch:
            at, which = near.meet(batch.column(CARRIED).to_numpy())
            positions.append(at + start)
            places.append(near.places[which])
            start += batch.num_rows
    return Hits(file, np.concatenate(positions), np.concatenate(places))


def _ids(file: TargetFile) -> tuple[int, int]:
    low, high = file.bounds[CARRIED]
    assert isinstance(low, int)
    assert isinstance(high, int)
    return low, high


def _successor(hits: Hits, new: Pieces | None, seen: Seen | None, workers: Workers) -> Iterator[pa.RecordBatch]:
    """The file's rows, in their order and with their ids, as they are afterwards."""
    position = 0
    for batch in _with_ids(hits.file):
        if workers.stopped:
            return
        first, last = np.searchsorted(hits.positions, [position, position + len(batch)])
        here, places = hits.positions[first:last] - position, hits.places[first:last]
        position += len(batch)
        if not len(here):
            yield batch
            continue
        if seen:
            seen(places, batch.take(pa.array(here)))
        if new:
            yield from _replaced(batch, here, places, new)
        else:
            stays = np.ones(len(batch), dtype=bool)
            stays[here] = False
            yield batch.filter(pa.array(stays))


def _with_ids(file: TargetFile) -> Iterator[pa.RecordBatch]:
    schema, first = file.layout.schema, file.first_row_id
    if first is None:
        yield from batches(file.path, schema, schema.names, BATCH_ROWS)
        return
    for batch in batches(file.path, schema, [name for name in schema.names if name != CARRIED], BATCH_ROWS):
        yield batch.append_column(_READ_ID, pa.arange(first, first + len(batch)))
        first += len(batch)


def _replaced(batch: pa.RecordBatch, here: Any, places: Any, new: Pieces) -> Iterator[pa.RecordBatch]:
    """The batch with the new rows; where those are large, in halves of halves."""
    brought = new.take(places)
    if brought.nbytes <= _BROUGHT or len(here) == 1:
        yield replaced(batch, here, brought, brought.column_names)
        return
    half = len(here) // 2
    cut = int(here[half])
    yield from _replaced(batch.slice(0, cut), here[:half], places[:half], new)
    yield from _replaced(batch.slice(cut), here[half:] - cut, places[half:], new)
