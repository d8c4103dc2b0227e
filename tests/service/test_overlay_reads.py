"""Reads return the same rows with and without read-ahead, and with and without row ids."""

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock.config import Settings
from penstock.lake import Lake
from penstock.service.datasets import read

ROWS = 1_000
TABLE = pa.table(
    {
        "n": pa.array(range(ROWS)),
        "part": pa.array([None if i % 7 == 0 else i // 100 for i in range(ROWS)], pa.int32()),
        "price": pa.array([Decimal(i) / 4 for i in range(ROWS)], pa.decimal128(12, 2)),
        "ratio": pa.array([float("nan") if i % 11 == 0 else i / 3 for i in range(ROWS)]),
        "word": pa.array([f"w{i:04}" for i in range(ROWS)]),
        "is_even": pa.array([i % 2 == 0 for i in range(ROWS)]),
    }
)
FILTERS = {
    "n = 501": 1,
    "n >= 250 and n < 260": 10,
    "part = 9": 86,
    "part is null": 143,
    "price > 249.5": 1,
    "ratio < 1": 2,
    "word = 'w0007' or word = 'w0993'": 2,
    "is_even and n < 10": 5,
    "n < 0": 0,
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder: Path = tmp_path_factory.mktemp("reading") / "lake"
    lake = penstock.open(create=True, settings=Settings(workspace=folder, durable=False, group_rows=10))
    lake.create("a.b", TABLE.slice(0, 600)).append(TABLE.slice(600))
    lake.dataset("a.b").merge(
        TABLE.slice(300, 3), "n", "upsert", engine="pyarrow"
    )  # creates a file with stored row ids
    return lake


@pytest.mark.parametrize(("condition", "count"), FILTERS.items(), ids=list(FILTERS))
def test_filter_returns_same_rows_and_ids_in_every_read_mode(lake: Lake, condition: str, count: int) -> None:
    snapshot, opened, caller = lake.dataset("a.b").current().snapshot, lake._workspace, lake.caller
    streamed = read.scan_rows(opened, caller, snapshot, where=condition).read_all()
    on_demand = read.scan_rows(opened, caller, snapshot, where=condition, read_ahead=False, batch_rows=7).read_all()
    with_ids = read.scan_rows(opened, caller, snapshot, where=condition, row_ids=True, batch_rows=7).read_all()
    all_rows = read.scan_rows(opened, caller, snapshot, row_ids=True).read_all()
    ids = dict(zip(all_rows["n"].to_pylist(), all_rows["rowid"].to_pylist(), strict=True))
    assert sorted(ids.values()) == list(range(1, ROWS + 1))
    assert streamed.num_rows == count
    numbers = sorted(streamed["n"].to_pylist())
    assert sorted(on_demand["n"].to_pylist()) == numbers
    assert {n: ids[n] for n in numbers} == dict(
        zip(with_ids["n"].to_pylist(), with_ids["rowid"].to_pylist(), strict=True)
    )
