"""`penstock merge`: datasets, directories, dry runs and errors."""

import json
import os
import pty
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.cli_runner import CliRunner


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write a directory of two files, and a file of changes."""
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"id": [1, 2], "word": ["one", "two"]}), tmp_path / "data" / "a.parquet")
    pq.write_table(pa.table({"id": [10], "word": ["ten"]}), tmp_path / "data" / "b.parquet")
    (tmp_path / "changes.csv").write_text("id,word\n2,zwei\n3,drei\n")
    return tmp_path / "data"


def rows(folder: Path) -> dict[int, str]:
    return {row["id"]: row["word"] for row in pq.read_table(folder).to_pylist()}


def test_merge_dry_run_prints_counts_and_files(cli: CliRunner, data: Path) -> None:
    with cli.assert_unchanged():
        message = cli("merge", "changes.csv", "data", "--key", "id", "--dry-run")
    assert "1 row would be inserted, 1 updated, 0 deleted; 4 in total" in message.err
    assert "a.parquet (rewritten)" in message.err
    assert "1 unchanged" in message.err
    assert "Nothing was written" in message.err
    response = cli("merge", "changes.csv", "./data", "-k", "id", "--dry-run", "--json").json
    assert response["files_rewritten"] == ["a.parquet"]
    assert (response["files_removed"], response["files_kept"], response["dry_run"]) == ([], 1, True)


def test_merge_into_a_directory(cli: CliRunner, data: Path) -> None:
    message = cli("merge", "changes.csv", "data", "--key", "id", "--json").json
    assert {name: message[name] for name in ("inserted", "updated", "deleted", "total")} == {
        "inserted": 1, "updated": 1, "deleted": 0, "total": 4,
    }  # fmt: skip
    assert rows(data) == {1: "one", 2: "zwei", 3: "drei", 10: "ten"}
    cli("merge", "changes.csv", data, "-k", "id", "-s", "full_merge", "--engine", "duckdb", "--yes")
    assert rows(data) == {2: "zwei", 3: "drei"}
    assert sorted(p.name for p in data.parent.iterdir()) == ["changes.csv", "data", "lake"]


@pytest.mark.parametrize("target", ["", " ", "/", "file://"])
def test_merge_blank_or_root_target_is_rejected(
    cli: CliRunner, data: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)
    with cli.assert_unchanged():
        for flags in ([], ["--yes"], ["--dry-run"]):
            rejected = cli("merge", "changes.csv", target, "-k", "id", "-s", "full_merge", *flags, code=1)
            assert "The target path is empty" in rejected.err or "root directory" in rejected.err
        cli("merge", "--recover", target, code=1)
    assert rows(data) == {1: "one", 2: "two", 10: "ten"}


def test_full_merge_into_foreign_files_requires_yes(cli: CliRunner, data: Path) -> None:
    with cli.assert_unchanged():
        rejected = cli.run_subprocess(
            "merge", "changes.csv", "data", "-k", "id", "-s", "full_merge", stdin=subprocess.DEVNULL
        )
        assert (rejected.code, rejected.out) == (2, b"")
        assert "2 files in it, such as a.parquet, were not created by Penstock" in rejected.err
        assert "--yes" in rejected.err
    cli("merge", "changes.csv", "new", "-k", "id")
    cli("merge", "changes.csv", "new", "-k", "id", "-s", "full_merge")  # files of Penstock need no confirmation
    assert rows(data.parent / "new") == {2: "zwei", 3: "drei"}


@pytest.mark.parametrize(("reply", "after"), [("n", {1: "one", 2: "two", 10: "ten"}), ("y", {2: "zwei", 3: "drei"})])
def test_full_merge_on_a_terminal_asks_for_confirmation(
    cli: CliRunner, data: Path, reply: str, after: dict[int, str]
) -> None:
    terminal, stdin = pty.openpty()
    process = cli.process("merge", "changes.csv", "data", "-k", "id", "-s", "full_merge", stdin=stdin)
    os.write(terminal, f"{reply}\n".encode())
    _, err = process.communicate(timeout=60)
    os.close(stdin)
    os.close(terminal)
    assert "Continue?" in err.decode()
    assert rows(data) == after


def test_merge_into_a_dataset(cli: CliRunner, orders_dataset: str) -> None:
    Path("changes.csv").write_text("id,word\n4,vier\n6,sechs\n")
    with cli.assert_unchanged():
        response = cli("merge", "changes.csv", orders_dataset, "-k", "id", "--dry-run", "--json").json
    assert (response["inserted"], response["updated"], len(response["files_rewritten"]), response["files_kept"]) == (
        1,
        1,
        1,
        1,
    )
    message = cli("merge", "changes.csv", orders_dataset, "-k", "id", "--idempotency-key", "today")
    assert "1 row inserted, 1 updated, 0 deleted; 6 in total (version 3)" in message.err
    repeated = cli("merge", "changes.csv", orders_dataset, "-k", "id", "--idempotency-key", "today", "--json").json
    assert (repeated["version"], repeated["replayed"]) == (3, True)
    assert cli("dataset", "read", orders_dataset, "--where", "id = 4", "--format", "jsonl").rows == [
        {"id": 4, "word": "vier"}
    ]
    assert cli("dataset", "history", orders_dataset, "--json").json[0]["operation"] == "merge"


@pytest.mark.parametrize(
    ("args", "code", "arguments"),
    [
        (["changes.csv", "data"], 2, "--key"),
        (["changes.csv"], 2, "SOURCE and a TARGET"),
        (["changes.csv", "data", "-k", "id", "-s", "sideways"], 2, "sideways"),
        (["changes.csv", "data", "-k", "id", "--engine", "steam"], 2, "steam"),
        (["changes.csv", "data", "-k", "id", "--batch-rows", "0"], 2, "0"),
        (["changes.csv", "data", "-k", "nr"], 1, "The source does not have the key columns 'nr'. It has 'id', 'word'"),
        (["nowhere.csv", "data", "-k", "id"], 1, "File nowhere.csv not found"),
        (["changes.csv", "no.such", "-k", "id"], 1, "Dataset 'no.such' not found"),
        (["changes.csv", "changes.csv", "-k", "id"], 1, "is a file"),
        (["changes.csv", "data", "-k", "id", "--compression", "zip"], 1, "Unknown compression 'zip'"),
        (["changes.csv", "data", "-k", "id", "--dedup-order-by", "word"], 1, "strategy 'deduplicate'"),
        (["changes.csv", "data", "-k", "id", "--idempotency-key", "x"], 2, "requires a dataset"),
        (["--recover", "data", "other"], 2, "only a TARGET"),
        (["s3://bucket/x.parquet", "s3://bucket/data", "-k", "id"], 1, "only local directories are supported"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_merge_with_invalid_arguments_changes_nothing(
    cli: CliRunner, data: Path, args: list[str], code: int, arguments: str
) -> None:
    with cli.assert_unchanged():
        assert arguments in cli("merge", *args, code=code).err
        if code == 1:
            error = json.loads(cli("merge", *args, "--json", code=1).err)["error"]
            assert arguments in error["message"]


def test_merge_recover_reports_the_outcome(cli: CliRunner, data: Path) -> None:
    assert "no interrupted merge" in cli("merge", "--recover", "data").err
    before = "from penstock import failpoints as faults; import os; armed = faults.armed('{step}', lambda: os.kill(os.getpid(), 9)); armed.__enter__()"
    for step, outcome in (("swap.staged", "undone"), ("swap.journaled", "finished")):
        killed = cli.run_subprocess("merge", "changes.csv", "data", "-k", "id", before=before.format(step=step))
        assert killed.code == -9, killed
        assert cli("merge", "--recover", "data", "--json").json["recovered"] == outcome
    assert rows(data) == {1: "one", 2: "zwei", 3: "drei", 10: "ten"}
