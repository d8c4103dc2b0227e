"""A killed directory merge is complete or has no effect after recovery."""

import json
import os
import signal
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from faults.directory_merges import AFTER, BEFORE, prepare, rows, run
from penstock import failpoints
from penstock.core.progress import Progress
from penstock.errors import Conflict, Invalid, Unavailable
from penstock.service import directory_merge
from penstock.storage import directory_swap
from support.process_pool import ChildProcess

UNDONE = ("swap.locked", "swap.staged")
FINISHED = ("swap.journaled", "swap.moved", "swap.removed", "swap.done")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    prepare(tmp_path / "data")
    return tmp_path / "data"


def kill_at_step(target: Path, strategy: str, step: str, n: int = 1, engine: str = "pyarrow") -> bool:
    """Kill a merge process at the n-th occurrence of a step; return False if the process ends before."""
    child = ChildProcess("faults.directory_merges", json.dumps([str(target), strategy, engine, step, n]))
    _, err = child.communicate(timeout=120)
    assert child.returncode in (0, -signal.SIGKILL), err
    return child.returncode == -signal.SIGKILL


def test_every_failpoint_is_tested() -> None:
    assert {*UNDONE, *FINISHED} == set(failpoints.SWAP_STEPS)


def assert_nothing_is_left(target: Path) -> None:
    assert [p.name for p in target.parent.iterdir()] == [target.name]
    assert not [p for p in target.rglob("*") if p.name.startswith(".")]
    assert (target / "_SUCCESS").exists()
    assert (target / "notes.txt").read_text() == "not ours"


@pytest.mark.parametrize("strategy", AFTER)
@pytest.mark.parametrize("step", UNDONE)
def test_merge_killed_before_its_journal_is_undone(target: Path, strategy: str, step: str) -> None:
    assert kill_at_step(target, strategy, step)
    assert rows(target) == BEFORE  # also before recovery
    assert directory_merge.recover(target) == ("undone" if step == "swap.staged" else None)
    assert rows(target) == BEFORE
    assert_nothing_is_left(target)


@pytest.mark.parametrize("strategy", AFTER)
@pytest.mark.parametrize("step", FINISHED)
def test_merge_killed_after_its_journal_is_finished_by_recovery(target: Path, strategy: str, step: str) -> None:
    n = 0
    while kill_at_step(target, strategy, step, n := n + 1):
        assert directory_merge.recover(target) == "finished"
        assert rows(target) == AFTER[strategy]
        assert_nothing_is_left(target)
        for name in target.rglob("*.parquet"):
            name.unlink()
        prepare(target)
    assert n > 1 or (step == "swap.removed" and strategy != "full_merge")  # only a full merge removes files
    assert rows(target) == AFTER[strategy]


@pytest.mark.parametrize("step", failpoints.SWAP_STEPS)
def test_next_merge_recovers_an_interrupted_merge(target: Path, step: str) -> None:
    assert kill_at_step(target, "full_merge", step)
    empty = pa.table({"id": pa.array([], pa.int64()), "word": pa.array([], pa.string())})
    stats = penstock.merge_parquet_dataset_pyarrow(empty, target, "id")
    expected = BEFORE if step in UNDONE else AFTER["full_merge"]
    assert stats["total"] == len(expected)
    assert rows(target) == expected
    assert_nothing_is_left(target)


def test_killed_recovery_can_be_repeated(target: Path) -> None:
    for strategy, steps in (
        ("upsert", ["swap.moved", "swap.moved", "swap.done"]),
        ("full_merge", ["swap.moved", "swap.removed", "swap.removed", "swap.done"]),
    ):
        assert kill_at_step(target, strategy, "swap.journaled")
        for n, step in enumerate(steps):
            # it first finishes the interrupted merge
            assert kill_at_step(target, "upsert", step, 1 + (n == 1 and step == "swap.moved"))
        directory_merge.recover(target)
        assert rows(target) == AFTER[strategy]
    assert_nothing_is_left(target)


def test_dry_run_does_not_recover(target: Path) -> None:
    assert kill_at_step(target, "upsert", "swap.journaled")
    with pytest.raises(Unavailable, match="--recover"):
        directory_merge.merge(pa.table({"id": [1], "word": ["x"]}), target, "id", dry_run=True)
    assert directory_merge.recover(target) == "finished"


def test_failed_merge_changes_no_file(target: Path) -> None:
    before = {p: p.read_bytes() for p in target.rglob("*") if p.is_file()}

    def fail() -> None:
        raise OSError(28, "No space left on device")

    for step in UNDONE:
        with failpoints.armed(step, fail), pytest.raises(OSError, match="No space"):
            run(target, "upsert")
        assert {p: p.read_bytes() for p in target.rglob("*") if p.is_file()} == before
        assert_nothing_is_left(target)


def test_interrupted_merge_changes_no_file(target: Path) -> None:
    before = rows(target)

    def interrupt(phase: str, done: int, _total: int) -> None:
        if phase == "write" and done:
            raise KeyboardInterrupt

    for merge in (penstock.merge_parquet_dataset_pyarrow, penstock.merge_parquet_dataset_duckdb):
        with pytest.raises(KeyboardInterrupt):
            merge(pa.table({"id": [2, 99], "word": ["x", "y"]}), target, "id", progress_callback=interrupt)
        assert rows(target) == before
        assert_nothing_is_left(target)


def test_concurrently_changed_file_is_not_overwritten(target: Path) -> None:
    with pytest.raises(Conflict) as raised:
        directory_merge.merge(
            pa.table({"id": [2], "word": ["x"]}),
            target,
            "id",
            progress=lambda event: (
                os.utime(target / "a.parquet", (1, 1)) if event.phase == "write" and event.done else None
            ),
        )
    assert raised.value.reason == "directory_changed"
    assert rows(target) == BEFORE


def test_concurrent_merge_into_one_directory_waits_or_fails(target: Path) -> None:
    with (
        directory_swap.locked_swap(target),
        pytest.raises(Unavailable) as raised,
        directory_swap.locked_swap(target, wait=0.2),
    ):
        pass
    assert raised.value.reason == "directory_busy"
    others = [threading.Thread(target=run, args=(target, "upsert")) for _ in range(8)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert rows(target) == AFTER["upsert"]
    assert_nothing_is_left(target)


def test_journal_with_a_path_outside_is_rejected(target: Path, tmp_path: Path) -> None:
    work_folder = tmp_path / ".data.penstock"
    work_folder.mkdir()
    for name in ("../outside.parquet", "/etc/hosts"):
        journal = {"format": 1, "target": None, "moves": [], "removes": [name], "remove_directory": False}
        (work_folder / "journal.json").write_text(json.dumps(journal))
        with pytest.raises(Invalid) as raised:
            directory_merge.recover(target)
        assert raised.value.reason == "broken_journal"
    (work_folder / "journal.json").write_text("{")
    with pytest.raises(Invalid, match="Cannot read the journal"):
        directory_merge.recover(target)
    assert rows(target) == BEFORE


def test_recover_without_an_interrupted_merge_returns_none(target: Path, tmp_path: Path) -> None:
    assert directory_merge.recover(target) is None
    assert directory_merge.recover(tmp_path / "nowhere") is None
    assert list(tmp_path.iterdir()) == [target]


def test_impossible_swap_is_rejected_before_the_journal(tmp_path: Path) -> None:
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


def test_symbolic_link_and_its_target_are_one_directory(target: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(target)
    with (
        directory_swap.locked_swap(target),
        pytest.raises(Unavailable),
        directory_swap.locked_swap(Path(os.path.realpath(tmp_path / "link")), wait=0.1),
    ):
        pass
    run(tmp_path / "link", "upsert")
    assert rows(target) == AFTER["upsert"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "link"]


def test_journal_of_a_replaced_directory_is_not_applied(target: Path) -> None:
    assert kill_at_step(target, "upsert", "swap.journaled")
    target.rename(target.with_name("moved"))
    prepare(target)
    with pytest.raises(Conflict, match="the directory was replaced since"):
        run(target, "upsert")
    assert rows(target) == BEFORE


def test_files_keep_their_mode_and_staged_files_are_private(target: Path) -> None:
    (target / "a.parquet").chmod(0o600)
    modes = []

    def record_modes(progress: Progress) -> None:
        if progress.phase == "write" and progress.done:
            modes.append((target.parent / ".data.penstock").stat().st_mode & 0o777)

    directory_merge.merge(pa.table({"id": [2], "word": ["x"]}), target, "id", progress=record_modes)
    assert set(modes) == {0o700}
    assert (target / "a.parquet").stat().st_mode & 0o777 == 0o600


def test_directories_of_table_formats_are_rejected(target: Path) -> None:
    (target / "_delta_log").mkdir()
    with pytest.raises(Invalid, match="a Delta table"):
        run(target, "upsert")
    lake = penstock.open(target.parent / "lake", create=True)
    ds = lake.create("demo.one", {"id": [1], "word": ["x"]})
    with pytest.raises(Invalid, match="a Penstock workspace"):
        run(Path(ds.current().paths()[0]).parent, "upsert")
    lake.close()


def test_merge_removes_the_checksum_file_of_a_replaced_file(target: Path) -> None:
    for name in ("a", "b"):
        (target / f".{name}.parquet.crc").write_bytes(b"old")
    run(target, "upsert")
    assert [p.name for p in target.glob(".*")] == [".b.parquet.crc"]
