"""Memory of a scan: bounded for a slow consumer of a large dataset, in a process with the allocator of the server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.storage.scan import READ_AHEAD_SCAN_BYTES, SCAN_BYTES

FILE_ROWS = 1_000_000
COLUMNS = [f"c{number}" for number in range(10)]

# Reads some batches slowly, and prints the largest growth of anonymous memory and the number of rows.
SLOW_CONSUMER = """
import json, sys, time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from penstock.core.dataset.changes import DataFile
from penstock.service.memory_release import anonymous_memory_bytes, release_free_memory
from penstock.storage.local_store import LocalStore
from penstock.storage.scan import scan

folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
files = [
    DataFile(path=path.name, rows=0, bytes=path.stat().st_size, checksum="", stats={}, first_row_id=0)
    for path in sorted(folder.glob("*.parquet"))
]
schema = pa.schema([(f"c{number}", pa.int64()) for number in range(10)])
where = pc.field("c0") >= 0 if options.pop("filters") else None

def read(files, batches, seconds):
    growth = rows = 0
    for number, batch in enumerate(scan(LocalStore(folder), files, schema, where=where, **options)):
        rows += batch.num_rows
        if number < batches:
            time.sleep(seconds)
        growth = max(growth, anonymous_memory_bytes() - base)
    return growth, rows

base = 0
list(scan(LocalStore(folder), files[:1], schema, columns=["c0"], read_ahead=False))  # loads modules, starts threads
release_free_memory()  # else the free blocks of the first scan would hide the growth
base = anonymous_memory_bytes()
print(json.dumps(read(files, 10, 0.2)))
"""


@pytest.fixture(scope="module")
def many_groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write six files of 80 MB in memory, in row groups as Penstock writes them."""
    return write_files(tmp_path_factory.mktemp("many_groups"), files=6, group_rows=128 << 10)


@pytest.fixture(scope="module")
def one_group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small file, and a file with one row group of 480 MB in memory."""
    folder = write_files(tmp_path_factory.mktemp("one_group"), files=1, group_rows=128 << 10)
    pq.write_table(rows_table(6), folder / "large.parquet", compression="zstd", row_group_size=6 * FILE_ROWS)
    return folder


def write_files(folder: Path, files: int, group_rows: int) -> Path:
    first = folder / "0.parquet"
    pq.write_table(rows_table(1), first, compression="zstd", row_group_size=group_rows)
    for number in range(1, files):
        (folder / f"{number}.parquet").hardlink_to(first)
    return folder


def rows_table(millions: int) -> pa.Table:
    column = pa.arange(0, millions * FILE_ROWS)
    return pa.table(dict.fromkeys(COLUMNS, column))


def measure(folder: Path, **options: object) -> tuple[int, int]:
    """Return the growth of memory in bytes, and the number of rows that were read."""
    arguments = [sys.executable, "-c", SLOW_CONSUMER, str(folder), json.dumps({"filters": False, **options})]
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "jemalloc"}  # as `penstock serve`
    completed = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert completed.returncode == 0, completed.stderr
    growth, rows = json.loads(completed.stdout)
    return growth, rows


CASES = {
    "all rows": {},
    "all rows with ids": {"row_ids": True},
    "filtered rows": {"filters": True, "filter_columns": ["c0"]},
    "small batches": {"batch_rows": 32 << 10},
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
def test_scan_with_slow_consumer_keeps_memory_bound(many_groups: Path, options: dict[str, object]) -> None:
    growth, rows = measure(many_groups, **options)
    assert rows == 6 * FILE_ROWS
    assert growth <= READ_AHEAD_SCAN_BYTES, f"{growth >> 20} MiB"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("read_ahead", [True, False])
def test_scan_of_one_large_row_group_keeps_memory_bound(one_group: Path, read_ahead: bool) -> None:
    growth, rows = measure(one_group, read_ahead=read_ahead)
    assert rows == 7 * FILE_ROWS
    assert growth <= (READ_AHEAD_SCAN_BYTES if read_ahead else SCAN_BYTES), f"{growth >> 20} MiB"
