"""Find rows of data files by row id, read them, and rewrite files with rows replaced or deleted."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.bounded_cache import BoundedCache
from penstock.core.dataset.deletion_vector import remaining
from penstock.core.dataset.row_ids import RowIds
from penstock.core.merge import BATCH_ROWS, FileSink, OutputFile, TargetFile
from penstock.core.names import STORED_ROW_ID_COLUMN
from penstock.engines.arrow.parquet_io import (
    ROW_ID,
    RowPicker,
    WorkerThreads,
    read_batches,
    read_positions,
    read_row_group_runs,
    replace_values,
    write_files,
)

OnOldRows = Callable[[Any, pa.RecordBatch], None]  # receives the indices of the ids, and the old rows with their ids

_NULLABLE_ROW_ID = ROW_ID.with_nullable(True)  # the scanner yields nullable columns
_MAX_CACHED_ROWS = 4096
# The row ids of files that small edits have written: an edit looks for its rows in all whose ranges of ids contain them.
_SMALL_FILE_ROW_IDS = BoundedCache[Any](16 << 20)
_NO_IDS = np.zeros(0, dtype=np.int64)
_MAX_NEW_ROWS_BYTES = 64 << 20  # new rows in memory for one batch


@dataclass(frozen=True, slots=True)
class RowMatches:
    """The requested rows of one file."""

    file: TargetFile
    positions: Any  # numpy, ascending
    id_indices: Any  # index of each row's id in the requested ids

    def __len__(self) -> int:
        return len(self.positions)

    def without_deleted(self) -> "RowMatches":
        """Leave out the rows that the deletion vector of the file contains."""
        if self.file.deleted is None:
            return self
        is_live = ~self.file.deleted.contains(self.positions)
        return RowMatches(self.file, self.positions[is_live], self.id_indices[is_live])


def find_rows(files: Sequence[TargetFile], ids: RowIds) -> list[RowMatches]:
    """Locate row ids in files; files without a match are omitted.

    The ids of a new file follow from its first row id; a rewritten file stores them in a column. The bounds of a file
    give its lowest and highest id.
    """
    candidates = [(file, file_ids) for file in files if len(file_ids := ids.between(*_row_id_range(file)))]
    matches = [
        RowMatches(file, file_ids.values - file.first_row_id, file_ids.positions)
        for file, file_ids in candidates
        if file.first_row_id is not None
    ]
    stored_id_files = [(file, file_ids) for file, file_ids in candidates if file.first_row_id is None]
    matches += WorkerThreads().map(lambda pair: _match_stored_ids(*pair), stored_id_files, 2)
    return [live for file_matches in matches if len(live := file_matches.without_deleted())]


def files_to_read(files: Sequence[TargetFile], ids: RowIds) -> list[TargetFile]:
    """Return the files that `find_rows` reads: those that store row ids and may contain one of these."""
    return [file for file in files if file.first_row_id is None and len(ids.between(*_row_id_range(file)))]


def rewrite_files(
    matches: Sequence[RowMatches], rows: pa.Table | None, sink: FileSink, on_old_rows: OnOldRows | None = None
) -> Iterator[OutputFile]:
    """Write new versions of the files, in order, with the matched rows replaced by `rows` or, if None, deleted.

    The replacement of a match is the row of `rows` at its id index. A file without remaining rows has no new version.
    """
    workers = WorkerThreads()
    picker = None if rows is None else RowPicker(rows)

    def write_file(file_matches: RowMatches) -> OutputFile | None:
        if picker is None and on_old_rows is None and len(file_matches) == file_matches.file.live_rows:
            return None
        batches = _edited_batches(file_matches, picker, on_old_rows, workers)
        return next(write_files([batches], {}, file_matches.file.layout, sink, single_file=True), None)

    return (output for output in workers.map(write_file, matches) if output)


def read_rows(matches: Sequence[RowMatches], on_old_rows: OnOldRows) -> None:
    """Pass the matched rows to the callback. Only row groups with such rows are read."""
    for file_matches in matches:
        first = 0
        for batch in _read_matched(file_matches):
            on_old_rows(file_matches.id_indices[first : first + len(batch)], batch)
            first += len(batch)


def read_row_ids(path: str, positions: Any) -> Any:
    """Return the row ids that a file stores at ascending positions."""
    batches = read_positions(path, pa.schema([ROW_ID]), [STORED_ROW_ID_COLUMN], BATCH_ROWS, positions)
    return np.concatenate([_NO_IDS, *(batch.column(STORED_ROW_ID_COLUMN).to_numpy() for batch in batches)])


def _read_matched(matches: RowMatches) -> Iterator[pa.RecordBatch]:
    """Yield the matched rows of a file with their row ids."""
    file, positions = matches.file, matches.positions
    schema, first_row_id = file.layout.schema, file.first_row_id
    if first_row_id is None:
        yield from read_positions(file.path, schema, schema.names, BATCH_ROWS, positions)
        return
    names = [name for name in schema.names if name != STORED_ROW_ID_COLUMN]
    first = 0
    for batch in read_positions(file.path, schema, names, BATCH_ROWS, positions):
        ids = positions[first : first + len(batch)] + first_row_id
        yield batch.append_column(_NULLABLE_ROW_ID, pa.array(ids))
        first += len(batch)


def _match_stored_ids(file: TargetFile, ids: RowIds) -> RowMatches:
    """Match ids in a file that stores row ids, skipping row groups by their statistics."""
    if file.rows <= _MAX_CACHED_ROWS:
        stored_positions, own_positions = ids.lookup(_small_file_row_ids(file.path))
        return RowMatches(file, stored_positions, ids.positions[own_positions])
    low, high = int(ids.values[0]), int(ids.values[-1])
    where = (pc.field(STORED_ROW_ID_COLUMN) >= low) & (pc.field(STORED_ROW_ID_COLUMN) <= high)
    positions, id_indices = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for start, batches in read_row_group_runs(
        file.path, pa.schema([ROW_ID]), [STORED_ROW_ID_COLUMN], BATCH_ROWS, where
    ):
        for batch in batches:
            batch_positions, indices = ids.lookup(batch.column(STORED_ROW_ID_COLUMN).to_numpy())
            positions.append(batch_positions + start)
            id_indices.append(ids.positions[indices])
            start += batch.num_rows
    return RowMatches(file, np.concatenate(positions), np.concatenate(id_indices))


def _small_file_row_ids(path: str) -> Any:
    """Return the row ids of a small file. Files never change, so that each is read once while the cache holds it."""
    stored = _SMALL_FILE_ROW_IDS.get(path)
    if stored is None:
        batches = read_batches(path, pa.schema([ROW_ID]), [STORED_ROW_ID_COLUMN], BATCH_ROWS)
        stored = np.concatenate([_NO_IDS, *(batch.column(STORED_ROW_ID_COLUMN).to_numpy() for batch in batches)])
        _SMALL_FILE_ROW_IDS.put(path, stored, stored.nbytes)
    return stored


def _row_id_range(file: TargetFile) -> tuple[int, int]:
    low, high = file.bounds[STORED_ROW_ID_COLUMN]
    assert isinstance(low, int)
    assert isinstance(high, int)
    return low, high


def _edited_batches(
    matches: RowMatches, picker: RowPicker | None, on_old_rows: OnOldRows | None, workers: WorkerThreads
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the file after the edit, in order and with their ids."""
    position, deleted = 0, matches.file.deleted
    for stored_batch in _read_with_ids(matches.file):
        if workers.is_stopped:
            return
        rows = len(stored_batch)
        first, last = np.searchsorted(matches.positions, [position, position + rows])
        batch_positions, id_indices = matches.positions[first:last] - position, matches.id_indices[first:last]
        batch = remaining(stored_batch, position, deleted)
        if deleted and len(batch) < rows:  # count the deleted rows before each position
            batch_positions = batch_positions - np.searchsorted(deleted.between(position, rows), batch_positions)
        position += rows
        if not len(batch_positions):
            yield batch
            continue
        if on_old_rows:
            on_old_rows(id_indices, batch.take(pa.array(batch_positions)))
        if picker:
            yield from _replace_rows(batch, batch_positions, id_indices, picker)
        else:
            remains = np.ones(len(batch), dtype=bool)
            remains[batch_positions] = False
            yield batch.filter(pa.array(remains))


def _read_with_ids(file: TargetFile) -> Iterator[pa.RecordBatch]:
    schema, row_id = file.layout.schema, file.first_row_id
    if row_id is None:
        yield from read_batches(file.path, schema, schema.names, BATCH_ROWS)
        return
    for batch in read_batches(
        file.path, schema, [name for name in schema.names if name != STORED_ROW_ID_COLUMN], BATCH_ROWS
    ):
        yield batch.append_column(_NULLABLE_ROW_ID, pa.arange(row_id, row_id + len(batch)))
        row_id += len(batch)


def _replace_rows(
    batch: pa.RecordBatch, positions: Any, id_indices: Any, picker: RowPicker
) -> Iterator[pa.RecordBatch]:
    """Replace rows of a batch; split the batch recursively while its new rows exceed the memory limit."""
    new_rows = picker.take(id_indices)
    if new_rows.nbytes <= _MAX_NEW_ROWS_BYTES or len(positions) == 1:
        yield replace_values(batch, positions, new_rows, new_rows.column_names)
        return
    half = len(positions) // 2
    split = int(positions[half])
    yield from _replace_rows(batch.slice(0, split), positions[:half], id_indices[:half], picker)
    yield from _replace_rows(batch.slice(split), positions[half:] - split, id_indices[half:], picker)
