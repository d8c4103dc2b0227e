"""Batches of a data file with their positions, and the read-ahead of a scan."""

import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock.core.dataset.changes import DataFile
from penstock.core.names import STORED_ROW_ID_COLUMN
from penstock.errors import Unavailable
from penstock.storage.data_file_reader import MAX_BATCH_BYTES, RowGroupFilter, read_positions
from penstock.storage.local_store import LocalStore
from penstock.storage.read_ahead import read_ahead
from penstock.storage.scan import scan

ROWS = pa.table({"n": pa.array(range(100), pa.int32()), "word": [f"w{number}" for number in range(100)]})
SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string()), ("added", pa.float64())])
BETWEEN = (pc.field("n") >= 25) & (pc.field("n") < 28) | (pc.field("n") == 71)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def data_file(store: LocalStore, rows: pa.Table, name: str = "a", *, first_row_id: int | None = 0) -> DataFile:
    """Write a file with ten rows in each row group."""
    pq.write_table(rows, store.root / f"{name}.parquet", row_group_size=10)
    return DataFile(
        path=f"{name}.parquet", rows=rows.num_rows, bytes=0, checksum="", stats={}, first_row_id=first_row_id
    )


@pytest.mark.parametrize("batch_rows", [1, 3, 7, 10, 64, 1000])
def test_read_positions_returns_position_of_first_row_of_every_batch(store: LocalStore, batch_rows: int) -> None:
    batches = list(read_positions(store, data_file(store, ROWS), ["n"], batch_rows))
    assert all(batch.column("n").to_pylist()[0] == position for position, batch in batches)
    assert [n for _, batch in batches for n in batch.column("n").to_pylist()] == list(range(100))
    assert max(batch.num_rows for _, batch in batches) <= batch_rows


def test_read_positions_with_pruned_groups_returns_positions_in_file(store: LocalStore) -> None:
    prune = RowGroupFilter(BETWEEN, SCHEMA)
    batches = list(read_positions(store, data_file(store, ROWS), ["n", "added"], 5, prune))
    assert [position for position, _ in batches] == [20, 25, 70, 75]
    assert all(batch.column("n").to_pylist() == list(range(first, first + 5)) for first, batch in batches)


def test_read_positions_with_wide_rows_returns_small_batches(store: LocalStore) -> None:
    texts = pa.table({"text": [f"{number:08}" * (256 << 10) for number in range(20)]})  # 2 MiB each
    pq.write_table(texts, store.root / "a.parquet", use_dictionary=False)
    file = DataFile(path="a.parquet", rows=20, bytes=0, checksum="", stats={}, first_row_id=0)
    batches = [batch for _, batch in read_positions(store, file, ["text"], 1000)]
    assert sum(batch.num_rows for batch in batches) == 20
    assert max(batch.nbytes for batch in batches) <= MAX_BATCH_BYTES


@pytest.mark.parametrize("can_read_ahead", [True, False])
@pytest.mark.parametrize("condition", [None, BETWEEN])
def test_scan_returns_row_ids_of_fresh_and_rewritten_files(
    store: LocalStore, condition: pc.Expression | None, can_read_ahead: bool
) -> None:
    rewritten = ROWS.append_column(STORED_ROW_ID_COLUMN, pa.array(range(500, 600)))
    files = [data_file(store, ROWS, first_row_id=1000), data_file(store, rewritten, "b", first_row_id=None)]
    options = {} if condition is None else {"where": condition, "filter_columns": ["n"]}
    rows = scan(
        store, files, SCHEMA, columns=["added"], row_ids=True, batch_rows=3, read_ahead=can_read_ahead, **options
    ).read_all()
    positions = list(range(100)) if condition is None else [25, 26, 27, 71]
    assert rows["rowid"].to_pylist() == [first + position for first in (1000, 500) for position in positions]
    assert rows["added"].null_count == rows.num_rows


def test_scan_of_missing_second_file_returns_rows_before_error(store: LocalStore) -> None:
    files = [data_file(store, ROWS), DataFile(path="gone.parquet", rows=1, bytes=0, checksum="", stats={})]
    reader, rows = scan(store, files, SCHEMA, batch_rows=10), 0
    with pytest.raises(Unavailable):
        for batch in reader:
            rows += batch.num_rows
    assert rows == 100


class CountedBatches:
    """Batches of 8,000 bytes, with the number of the batches that were read."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count, self.error = count, error
        self.read, self.is_closed = 0, False

    def generate(self) -> Generator[pa.RecordBatch]:
        try:
            for number in range(self.count):
                self.read += 1
                yield pa.record_batch({"n": [number] * 1000})
            if self.error:
                raise self.error
        finally:
            self.is_closed = True


def test_read_ahead_with_slow_consumer_stops_at_limit_without_thread() -> None:
    source = CountedBatches(100)
    batches = read_ahead(source.generate(), 40_000)
    next(batches)
    assert source.read == 1
    next(batches)
    eventually(lambda: not threads())
    assert source.read <= 7  # two batches were consumed, five batches are 40,000 bytes
    assert [batch.column("n")[0].as_py() for batch in batches] == list(range(2, 100))
    assert source.is_closed


@pytest.mark.parametrize("consumed", [0, 1, 2, 50])
def test_read_ahead_closed_early_closes_source(consumed: int) -> None:
    source = CountedBatches(100)
    generator = source.generate()
    batches = read_ahead(generator, 16_000)
    for _ in range(consumed):
        next(batches)
    del batches
    eventually(lambda: not threads() and (source.is_closed or not consumed))
    assert source.read <= consumed + 3


def test_read_ahead_raises_error_after_the_batches_before_it() -> None:
    batches, numbers = read_ahead(CountedBatches(5, Unavailable("file_unreadable")).generate(), 1 << 20), []
    with pytest.raises(Unavailable):
        for batch in batches:
            numbers.append(batch.column("n")[0].as_py())
    assert numbers == [0, 1, 2, 3, 4]


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "scan-read-ahead"]


def eventually(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.01)
