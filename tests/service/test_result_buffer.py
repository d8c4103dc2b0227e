"""Results share a memory budget; results over the budget are buffered in files."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.core.caller import LOCAL_CALLER
from penstock.service.memory_budget import MemoryBudget
from penstock.service.queries.result_buffer import ResultBuffer

TABLE = pa.table({"n": pa.array(range(10_000), pa.int64())})
SIZE = TABLE.nbytes


def collect(budget: MemoryBudget, table: pa.Table = TABLE, **options: int) -> pa.Table:
    return ResultBuffer(budget, **options).collect(LOCAL_CALLER, table.schema, table.to_batches(max_chunksize=1_000))


def is_mapped() -> int:
    return Path("/proc/self/maps").read_text().count("penstock-result-")


def test_collect_releases_budget_with_the_table() -> None:
    budget = MemoryBudget(SIZE * 50)
    first = collect(budget)
    before = budget.used_bytes
    assert first == TABLE
    assert before >= SIZE
    reader = first.to_reader()
    second = collect(budget)
    assert budget.used_bytes > before
    del second
    gc.collect()
    assert budget.used_bytes == before
    del first, reader
    gc.collect()
    assert budget.used_bytes == 0


def test_collect_over_budget_uses_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for budget, options in (
        (MemoryBudget(SIZE // 2), dict[str, int]()),
        (MemoryBudget(SIZE * 50), {"max_result_bytes": SIZE // 2}),
    ):
        before = is_mapped()
        table = collect(budget, **options)
        assert table == TABLE
        assert is_mapped() > before
        assert budget.used_bytes == 0
        assert os.listdir(tmp_path) == []
        del table
        gc.collect()
        assert is_mapped() == before


def test_collect_with_failing_source_releases_budget() -> None:
    def fail_after_three() -> Iterator[pa.RecordBatch]:
        yield from TABLE.to_batches(max_chunksize=1_000)[:3]
        raise ValueError("broken")

    budget = MemoryBudget(SIZE * 50)
    with pytest.raises(ValueError, match="broken"):
        ResultBuffer(budget).collect(LOCAL_CALLER, TABLE.schema, fail_after_three())
    assert budget.used_bytes == 0


def test_collect_accepts_no_rows_and_no_columns() -> None:
    budget = MemoryBudget(0)
    assert collect(budget, TABLE.slice(0, 0)) == TABLE.slice(0, 0)
    no_columns = [TABLE.to_batches()[0].select([])]
    assert ResultBuffer(budget).collect(LOCAL_CALLER, pa.schema([]), no_columns).num_rows == 10_000
