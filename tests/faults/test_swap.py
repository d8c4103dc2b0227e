"""A merge into a plain directory is whole or absent, wherever it is killed, once the next call has looked at it."""

import json
import os
import signal
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from process_pool import Child
from faults.merging import AFTER, BEFORE, prepare, rows, run
from penstock import failpoints as faults
from penstock.errors import Conflict, Invalid, Unavailable
from penstock.service import directory_merge as directories
from penstock.storage import directory_swap as swap

UNDONE = ("swap.locked", "swap.staged")
FINISHED = ("swap.journaled", "swap.moved", "swap.removed", "swap.done")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    prepare(tmp_path / "data")
    return tmp_path / "data"


def killed(target: Path, strategy: str, step: str, n: int = 1, engine: str = "pyarrow") -> bool:
    """Run the merge in a process of its own that dies at a step; False if it never came there that often."""
    child = Child("faults.merging", json.dumps([str(target), strategy, engine, step, n]))
    _, err = child.communicate(timeout=120)
    assert child.returncode in (0, -signal.SIGKILL), err
    return child.returncode == -signal.SIGKILL


def test_the_steps_are_all_tried() -> None:
    assert {*UNDONE, *FINISHED} == set(faults.SWAP_STEPS)


def assert_nothing_is_left(target: Path) -> None:
    assert [p.name for p in target.parent.iterdir()] == [target.name]
    assert not [p for p in target.rglob("*") if p.name.startswith(".")]
    assert (target / "_SUCCESS").exists()
    assert (target / "notes.txt").read_text() == "not ours"


@pytest.mark.parametrize("strategy", AFTER)
@pytest.mark.parametrize("step", UNDONE)
def test_a_merge_killed_before_its_journal_never_was(target: Path, strategy: str, step: str) -> None:
    assert killed(target, strategy, step)
    assert rows(target) == BEFORE  # also for whoever reads before anything is recovered
    assert directories.recover(target) == ("undone" if step == "swap.staged" else None)
    assert rows(target) == BEFORE
    assert_nothing_is_left(target)


@pytest.mark.parametrize("strategy", AFTER)
@pytest.mark.parametrize("step", FINISHED)
def test_a_merge_killed_after_its_journal_is_finished(target: Path, strategy: str, step: str) -> None:
    n = 0
    while killed(target, strategy, step, n := n + 1):
        assert directories.recover(target) == "finished"
        assert rows(target) == AFTER[strategy]
        assert_nothing_is_left(target)
        for name in target.rglob("*.parquet"):
            name.unlink()
        prepare(target)
    assert n > 1 or (step == "swap.removed" and strategy != "full_merge")  # only a full merge removes files
    assert rows(target) == AFTER[strategy]


@pytest.mark.parametrize("step", faults.SWAP_STEPS)
def test_the_next_merge_recovers_by_itself(target: Path, step: str) -> None:
    assert killed(target, "full_merge", step)
    empty = pa.table({"id": pa.array([], pa.int64()), "word": pa.array([], pa.string())})
    stats = penstock.merge_parquet_dataset_pyarrow(empty, target, "id")
    expected = BEFORE if step in UNDONE else AFTER["full_merge"]
    assert stats["total"] == len(expected)
    assert rows(target) == expected
    assert_nothing_is_left(target)


def test_a_recovery_may_be_killed_too(target: Path) -> None:
    for strategy, steps in (
        ("upsert", ["swap.moved", "swap.moved", "swap.done"]),
        ("full_merge", ["swap.moved", "swap.removed", "swap.removed", "swap.done"]),
    ):
        assert killed(target, strategy, "swap.journaled")
        for n, step in enumerate(steps):
            assert killed(target, "upsert", step, 1 + (n == 1 and step == "swap.moved"))  # it finishes that one first
        directories.recover(target)
        assert rows(target) == AFTER[strategy]
    assert_nothing_is_left(target)


def test_who_looks_does_not_recover(target: Path) -> None:
    assert killed(target, "upsert", "swap.journaled")
    with pytest.raises(Unavailable, match="--recover"):
        directories.merge(pa.table({"id": [1], "word": ["x"]}), target, "id", dry_run=True)
    assert directories.recover(target) == "finished"


def test_a_failing_merge_leaves_every_byte(target: Path) -> None:
    before = {p: p.read_bytes() for p in target.rglob("*") if p.is_file()}

    def fail() -> None:
        raise OSError(28, "No space left on device")

    for step in UNDONE:
        with faults.armed(step, fail), pytest.raises(OSError, match="No space"):
            run(target, "upsert")
        assert {p: p.read_bytes() for p in target.rglob("*") if p.is_file()} == before
        assert_nothing_is_left(target)


def test_an_interrupted_merge_leaves_every_byte(target: Path) -> None:
    before = rows(target)

    def interrupt(stage: str, _done: int, _total: int) -> None:
        if stage == "write":
            raise KeyboardInterrupt

    for merge in (penstock.merge_parquet_dataset_pyarrow, penstock.merge_parquet_dataset_duckdb):
        with pytest.raises(KeyboardInterrupt):
            merge(pa.table({"id": [2, 99], "word": ["x", "y"]}), target, "id", progress_callback=interrupt)
        assert rows(target) == before
        assert_nothing_is_left(target)


def test_a_file_that_somebody_else_changed_is_not_overwritten(target: Path) -> None:
    with pytest.raises(Conflict) as refusal:
        directories.merge(
            pa.table({"id": [2], "word": ["x"]}),
            target,
            "id",
            progress_callback=lambda stage, *_: os.utime(target / "a.parquet", (1, 1)) if stage == "write" else None,
        )
    assert refusal.value.reason == "directory_changed"
    assert rows(target) == BEFORE


def test_one_merge_at_a_time(target: Path) -> None:
    with swap.held(target), pytest.raises(Unavailable) as refusal, swap.held(target, wait=0.2):
        pass
    assert refusal.value.reason == "directory_busy"
    others = [threading.Thread(target=run, args=(target, "upsert")) for _ in range(8)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert rows(target) == AFTER["upsert"]
    assert_nothing_is_left(target)


def test_a_journal_that_leads_elsewhere_is_refused(target: Path, tmp_path: Path) -> None:
    place = tmp_path / ".data.penstock"
    place.mkdir()
    for name in ("../outside.parquet", "/etc/hosts"):
        journal = {"format": 1, "target": None, "moves": [], "removes": [name], "remove_directory": False}
        (place / "journal.json").write_text(json.dumps(journal))
        with pytest.raises(Invalid) as refusal:
            directories.recover(target)
        assert refusal.value.reason == "broken_journal"
    (place / "journal.json").write_text("{")
    with pytest.raises(Invalid, match="cannot be read"):
        directories.recover(target)
    assert rows(target) == BEFORE


def test_there_may_be_nothing_to_recover(target: Path, tmp_path: Path) -> None:
    assert directories.recover(target) is None
    assert directories.recover(tmp_path / "nowhere") is None
    assert list(tmp_path.iterdir()) == [target]


def test_what_cannot_be_carried_out_is_refused_before_the_journal(tmp_path: Path) -> None:
    target = tmp_path / "data"
    rows = pa.table({"id": [1], "k": ["a"]})
    (target / "k=a").mkdir(parents=True)
    pq.write_table(rows.drop(["k"]), target / "k=a" / "a.parquet")
    (target / "k=b").write_text("a file where a folder would be")
    for word in ("b", "x" * 300, "", "__HIVE_DEFAULT_PARTITION__"):
        with pytest.raises((Invalid, Unavailable)):
            run_one(target, pa.table({"id": [2], "k": [word]}))
        assert [p.name for p in tmp_path.iterdir()] == ["data"]
    run_one(target, pa.table({"id": [2], "k": ["c"]}))
    assert sorted(p.name for p in target.iterdir()) == ["k=a", "k=b", "k=c"]


def run_one(target: Path, source: pa.Table) -> None:
    penstock.merge_parquet_dataset_pyarrow(source, target, "id")


def test_a_link_and_what_it_leads_to_are_one_directory(target: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(target)
    with swap.held(target), pytest.raises(Unavailable), swap.held(Path(os.path.realpath(tmp_path / "link")), wait=0.1):
        pass
    run(tmp_path / "link", "upsert")
    assert rows(target) == AFTER["upsert"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "link"]


def test_a_journal_of_a_directory_that_was_replaced_is_not_carried_out(target: Path) -> None:
    assert killed(target, "upsert", "swap.journaled")
    target.rename(target.with_name("moved"))
    prepare(target)
    with pytest.raises(Conflict, match="another directory has taken its place"):
        run(target, "upsert")
    assert rows(target) == BEFORE


def test_files_keep_their_mode_and_staged_ones_are_private(target: Path) -> None:
    (target / "a.parquet").chmod(0o600)
    seen = []

    def look(stage: str, *_: int) -> None:
        if stage == "write":
            seen.append((target.parent / ".data.penstock").stat().st_mode & 0o777)

    directories.merge(pa.table({"id": [2], "word": ["x"]}), target, "id", progress_callback=look)
    assert set(seen) == {0o700}
    assert (target / "a.parquet").stat().st_mode & 0o777 == 0o600


def test_tables_of_others_are_not_plain_directories(target: Path) -> None:
    (target / "_delta_log").mkdir()
    with pytest.raises(Invalid, match="a Delta table"):
        run(target, "upsert")
    lake = penstock.open(target.parent / "lake", create=True)
    ds = lake.create("demo.one", {"id": [1], "word": ["x"]})
    with pytest.raises(Invalid, match="a Penstock workspace"):
        run(Path(ds.now().paths()[0]).parent, "upsert")
    lake.close()


def test_a_checksum_goes_with_its_file(target: Path) -> None:
    for name in ("a", "b"):
        (target / f".{name}.parquet.crc").write_bytes(b"old")
    run(target, "upsert")
    assert [p.name for p in target.glob(".*")] == [".b.parquet.crc"]
