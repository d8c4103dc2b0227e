"""Test that the memory of a merge does not depend on the size of the target."""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

_MAX_BYTES = 1 << 30
_FILE_ROWS = 1_000_000
_SOURCE_ROWS = 100_000

_MERGE = """
import json, pathlib, sys
import numpy as np, pyarrow as pa
from penstock import merge_parquet_dataset_pyarrow

target, rows, source_rows, strategy = json.loads(sys.argv[1])
ids = np.unique(np.random.default_rng(7).integers(0, rows * 2, source_rows * 2))
ids = np.random.default_rng(8).permutation(ids)[:source_rows]
source = pa.table({"id": ids, "amount": np.ones(len(ids)), "word": pa.array(["changed"] * len(ids))})
stats = merge_parquet_dataset_pyarrow(source, target, "id", strategy)
stats["expected"] = int((ids < rows).sum())
# Not ru_maxrss: that also remembers the process that started this one.
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
stats["process_bytes"] = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
stats["arrow_bytes"] = pa.default_memory_pool().max_memory()
print(json.dumps(stats))
"""


class PeakMemory(NamedTuple):
    process_bytes: int
    arrow_bytes: int


def write_target(target: Path, files: int) -> int:
    """Write sorted keys, a million rows per file; return the size of all rows in memory."""
    target.mkdir()
    size = 0
    words = pa.array([f"word {n % 1000}" for n in range(_FILE_ROWS)])
    for n in range(files):
        ids = np.arange(n * _FILE_ROWS, (n + 1) * _FILE_ROWS)
        table = pa.table({"id": ids, "amount": ids * 0.5, "word": words})
        pq.write_table(table, target / f"{n:03d}.parquet", row_group_size=128 << 10, compression="snappy")
        size += table.nbytes
    return size


def measure_peak_memory(target: Path, rows: int, strategy: str) -> PeakMemory:
    task = json.dumps([str(target), rows, _SOURCE_ROWS, strategy])
    completed = subprocess.run([sys.executable, "-c", _MERGE, task], capture_output=True, text=True, timeout=1200)
    assert completed.returncode == 0, completed.stderr
    stats = json.loads(completed.stdout)
    if strategy == "upsert":
        assert stats["updated"] == stats["expected"]
        assert stats["total"] == rows + _SOURCE_ROWS - stats["expected"]
    else:
        assert stats["total"] == _SOURCE_ROWS
    return PeakMemory(stats["process_bytes"], stats["arrow_bytes"])


_INSERT = """
import sys
import pyarrow as pa
from penstock import merge_parquet_dataset_pyarrow

source = pa.table({"id": [3, -1], "word": ["x", "y"]})
before = pa.default_memory_pool().bytes_allocated()
stats = merge_parquet_dataset_pyarrow(source, sys.argv[1], "id", "insert", batch_rows=5_000)
print(stats["inserted"], pa.default_memory_pool().max_memory() - before)
"""


def test_match_memory_follows_the_batch_and_not_the_row_group(tmp_path: Path) -> None:
    rows = 8_000_000
    ids = np.random.default_rng(5).permutation(rows)
    table = pa.table({"id": ids, "word": pa.array(["word"] * rows).dictionary_encode()})
    (tmp_path / "target").mkdir()
    pq.write_table(table, tmp_path / "target" / "one.parquet", row_group_size=rows)
    assert pq.read_metadata(tmp_path / "target" / "one.parquet").num_row_groups == 1
    command = [sys.executable, "-c", _INSERT, str(tmp_path / "target")]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    inserted, peak = map(int, completed.stdout.split())
    assert inserted == 1
    assert peak < ids.nbytes / 2, f"{peak:,} bytes for a group whose keys have {ids.nbytes:,}"


@pytest.mark.parametrize("strategy", ["upsert", "full_merge"])
def test_merge_memory_does_not_grow_with_the_target(tmp_path: Path, soak: bool, strategy: str) -> None:
    """50 million rows with the full numbers; every file is touched."""
    small, large = (10, 50) if soak else (2, 6)
    sizes, peaks = list[int](), list[PeakMemory]()
    for files in (small, large):
        target = tmp_path / str(files)
        sizes.append(write_target(target, files))
        peaks.append(measure_peak_memory(target, files * _FILE_ROWS, strategy))
    report = f"{peaks[0]} for {small} million rows, {peaks[1]} for {large} million"
    added = sizes[1] - sizes[0]
    assert peaks[1].process_bytes < _MAX_BYTES, report
    assert peaks[1].arrow_bytes - peaks[0].arrow_bytes < added / 4, report
    # Allocators keep freed memory, more of it on a busy machine.
    assert peaks[1].process_bytes - peaks[0].process_bytes < added * 3 / 4, report
