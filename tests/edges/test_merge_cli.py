"""`penstock merge` as people use it: datasets, directories, dry runs, and what goes wrong."""

import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli_runner import Shell


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory of two files, and changes to it."""
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"id": [1, 2], "word": ["one", "two"]}), tmp_path / "data" / "a.parquet")
    pq.write_table(pa.table({"id": [10], "word": ["ten"]}), tmp_path / "data" / "b.parquet")
    (tmp_path / "changes.csv").write_text("id,word\n2,zwei\n3,drei\n")
    return tmp_path / "data"


def rows(folder: Path) -> dict[int, str]:
    return {row["id"]: row["word"] for row in pq.read_table(folder).to_pylist()}


def test_a_dry_run_names_the_counts_and_the_files(shell: Shell, data: Path) -> None:
    with shell.untouched():
        said = shell("merge", "changes.csv", "data", "--key", "id", "--dry-run")
    assert "1 row would be inserted, 1 updated, 0 deleted; 4 in all" in said.err
    assert "a.parquet (rewritten)" in said.err
    assert "1 left as they are" in said.err
    assert "nothing was written" in said.err
    told = shell("merge", "changes.csv", "./data", "-k", "id", "--dry-run", "--json").json
    assert told["files_rewritten"] == ["a.parquet"]
    assert (told["files_removed"], told["files_kept"], told["dry_run"]) == ([], 1, True)


def test_a_directory_is_merged_into(shell: Shell, data: Path) -> None:
    said = shell("merge", "changes.csv", "data", "--key", "id", "--json").json
    assert {name: said[name] for name in ("inserted", "updated", "deleted", "total")} == {
        "inserted": 1, "updated": 1, "deleted": 0, "total": 4,
    }  # fmt: skip
    assert rows(data) == {1: "one", 2: "zwei", 3: "drei", 10: "ten"}
    shell("merge", "changes.csv", data, "-k", "id", "-s", "full_merge", "--engine", "duckdb", "--yes")
    assert rows(data) == {2: "zwei", 3: "drei"}
    assert sorted(p.name for p in data.parent.iterdir()) == ["changes.csv", "data", "lake"]


@pytest.mark.parametrize("target", ["", " ", "/", "file://"])
def test_merge_blank_or_root_target_is_rejected(
    shell: Shell, data: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)
    with shell.untouched():
        for flags in ([], ["--yes"], ["--dry-run"]):
            refused = shell("merge", "changes.csv", target, "-k", "id", "-s", "full_merge", *flags, code=1)
            assert "The target path is empty" in refused.err or "root directory" in refused.err
        shell("merge", "--recover", target, code=1)
    assert rows(data) == {1: "one", 2: "two", 10: "ten"}


def test_full_merge_into_foreign_files_requires_yes(shell: Shell, data: Path) -> None:
    with shell.untouched():
        refused = shell.apart("merge", "changes.csv", "data", "-k", "id", "-s", "full_merge", stdin=subprocess.DEVNULL)
        assert (refused.code, refused.out) == (2, b"")
        assert "2 of its files, such as a.parquet, were not created by Penstock" in refused.err
        assert "--yes" in refused.err
    shell("merge", "changes.csv", "new", "-k", "id")
    shell("merge", "changes.csv", "new", "-k", "id", "-s", "full_merge")  # its own files: no question
    assert rows(data.parent / "new") == {2: "zwei", 3: "drei"}


def test_a_dataset_is_merged_into(shell: Shell, orders: str) -> None:
    Path("changes.csv").write_text("id,word\n4,vier\n6,sechs\n")
    with shell.untouched():
        told = shell("merge", "changes.csv", orders, "-k", "id", "--dry-run", "--json").json
    assert (told["inserted"], told["updated"], len(told["files_rewritten"]), told["files_kept"]) == (1, 1, 1, 1)
    said = shell("merge", "changes.csv", orders, "-k", "id", "--idempotency-key", "today")
    assert "1 row inserted, 1 updated, 0 deleted; 6 in all (version 3)" in said.err
    again = shell("merge", "changes.csv", orders, "-k", "id", "--idempotency-key", "today", "--json").json
    assert (again["version"], again["replayed"]) == (3, True)
    assert shell("dataset", "read", orders, "--where", "id = 4", "--format", "jsonl").rows == [
        {"id": 4, "word": "vier"}
    ]
    assert shell("dataset", "history", orders, "--json").json[0]["operation"] == "merge"


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["changes.csv", "data"], 2, "--key"),
        (["changes.csv"], 2, "SOURCE and a TARGET"),
        (["changes.csv", "data", "-k", "id", "-s", "sideways"], 2, "sideways"),
        (["changes.csv", "data", "-k", "id", "--engine", "steam"], 2, "steam"),
        (["changes.csv", "data", "-k", "id", "--batch-rows", "0"], 2, "0"),
        (["changes.csv", "data", "-k", "nr"], 1, "key columns are missing in the source: 'nr'; it has 'id', 'word'"),
        (["nowhere.csv", "data", "-k", "id"], 1, "there is no file nowhere.csv"),
        (["changes.csv", "no.such", "-k", "id"], 1, "there is no dataset 'no.such'"),
        (["changes.csv", "changes.csv", "-k", "id"], 1, "is a file"),
        (["changes.csv", "data", "-k", "id", "--compression", "zip"], 1, "'zip' is no compression"),
        (["changes.csv", "data", "-k", "id", "--dedup-order-by", "word"], 1, "strategy 'deduplicate'"),
        (["changes.csv", "data", "-k", "id", "--idempotency-key", "x"], 2, "goes with a dataset"),
        (["--recover", "data", "other"], 2, "TARGET alone"),
        (["s3://bucket/x.parquet", "s3://bucket/data", "-k", "id"], 1, "no local directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_wrong_is_told(shell: Shell, data: Path, args: list[str], code: int, words: str) -> None:
    with shell.untouched():
        assert words in shell("merge", *args, code=code).err
        if code == 1:
            error = json.loads(shell("merge", *args, "--json", code=1).err)["error"]
            assert words in error["message"]


def test_recovering_says_what_it_did(shell: Shell, data: Path) -> None:
    assert "no merge was interrupted there" in shell("merge", "--recover", "data").err
    before = "from penstock import failpoints as faults; import os; armed = faults.armed('{step}', lambda: os.kill(os.getpid(), 9)); armed.__enter__()"
    for step, what in (("swap.staged", "undone"), ("swap.journaled", "finished")):
        killed = shell.apart("merge", "changes.csv", "data", "-k", "id", before=before.format(step=step))
        assert killed.code == -9, killed
        assert shell("merge", "--recover", "data", "--json").json["recovered"] == what
    assert rows(data) == {1: "one", 2: "zwei", 3: "drei", 10: "ten"}
