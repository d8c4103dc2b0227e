"""The cost of planning a merge over many files."""

import pyarrow as pa
import pytest

from penstock.core.dataset.edit_policy import EditMode, EditPolicy
from penstock.core.merge import FileLayout, MatchCounts, TargetFile, plan_merge, plan_rewrite

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
FILES = 500
MAX_HASHES_PER_FILE = 10


class CountedPath(str):
    """A path that counts how often it is hashed."""

    hashes = 0

    def __hash__(self) -> int:
        CountedPath.hashes += 1
        return super().__hash__()


@pytest.mark.parametrize(
    ("strategy", "whole", "policy"),
    [
        ("upsert", False, EditPolicy(EditMode.MARK)),
        ("upsert", False, None),
        ("upsert", True, None),
        ("full_merge", True, None),
    ],
)
def test_plan_rewrite_of_many_files_takes_linear_time(strategy: str, whole: bool, policy: EditPolicy | None) -> None:
    plan = plan_merge(SCHEMA, SCHEMA, "id", strategy, row_ids=True)
    files = [TargetFile(CountedPath(f"{number}.parquet"), 100, FileLayout(SCHEMA)) for number in range(FILES)]
    match = MatchCounts({file.path: 1 for file in files[::2]}, new=0, rows=FILES // 2)
    CountedPath.hashes = 0
    plan_rewrite(plan, files, match, before=100 * FILES, whole=whole, policy=policy)
    assert CountedPath.hashes <= MAX_HASHES_PER_FILE * FILES
