"""Killed merges into a plain directory, and the rows after complete merges."""

import json
import os
import signal
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock import failpoints
from penstock.service.directory_merge import merge

FILES = {"a.parquet": [1, 2, 3], "b.parquet": [10, 11], "deep/c.parquet": [20, 21]}
BEFORE = {n: "old" for ids in FILES.values() for n in ids}

# strategy → rows afterwards; each rewrites files and adds one, the last also removes some
SOURCE = {2: "new", 21: "new", 30: "new"}
AFTER = {
    "upsert": BEFORE | SOURCE,
    "insert": BEFORE | {30: "new"},
    "full_merge": SOURCE,
}


def prepare(target: Path) -> None:
    for name, ids in FILES.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": ids, "word": ["old"] * len(ids)}), target / name)
    (target / "_SUCCESS").touch()
    (target / "notes.txt").write_text("not ours")


def rows(target: Path) -> dict[int, str]:
    """Read every row of the directory and assert that no key is duplicated."""
    words_by_id: dict[int, str] = {}
    for name in sorted(target.rglob("*.parquet")):
        for row in pq.ParquetFile(name).read().to_pylist():
            assert row["id"] not in words_by_id, f"{row['id']} is there twice"
            words_by_id[row["id"]] = row["word"]
    return words_by_id


def run(target: Path, strategy: str, engine: str = "pyarrow") -> dict[str, int]:
    source = pa.table({"id": list(SOURCE), "word": list(SOURCE.values())})
    return merge(source, target, "id", strategy, engine=engine).stats


def main() -> None:
    """Merge, and kill this process when it reaches a step for the n-th time."""
    target, strategy, engine, step, n = json.loads(sys.argv[1])
    remaining = [n]

    def die() -> None:
        remaining[0] -= 1
        if not remaining[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    with failpoints.armed(step, die):
        run(Path(target), strategy, engine)


if __name__ == "__main__":
    main()
