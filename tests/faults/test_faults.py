"""Whatever fails, wherever: what was acknowledged is there once, what was refused is not there at all."""

import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from faults.failing import Countdown, FailingStore, failing_sql
from penstock import faults
from penstock.catalog.access import Database
from penstock.errors import Conflict, PenstockError, Unavailable, Undecided
from penstock.lake import Lake
from penstock.service.sweep import Keep, sweep
from places import Place, answer

COMMITTED = ("commit.sent", "commit.done")  # the steps after which the write has happened
SETS = ("demo.one", "demo.other")


def rows(lake: Lake, name: str) -> list[int]:
    return sorted(lake.dataset(name).to_arrow(["id"])["id"].to_pylist())


def prepare(lake: Lake) -> None:
    for name in SETS:
        lake.create(name, {"id": [1], "word": ["a"]}).append({"id": [2], "word": ["b"]})


def append(lake: Lake) -> Any:
    return lake.dataset("demo.one").append({"id": [99], "word": ["risky"]}, idempotency_key="k")


def pair(lake: Lake) -> Any:
    with lake.transaction(idempotency_key="k") as tx:
        tx.append("demo.one", {"id": [99], "word": ["risky"]})
        tx.overwrite("demo.other", {"id": [99], "word": ["risky"]})
    return tx.receipt


def compact(lake: Lake) -> Any:
    return lake.dataset("demo.one").compact()


@dataclass(frozen=True)
class Write:
    """A write, what the datasets hold before and after it, and whether it may be sent again."""

    run: Callable[[Lake], Any]
    after: tuple[list[int], list[int]]
    replayable: bool = True

    before = ([1, 2], [1, 2])

    def state(self, lake: Lake) -> str:
        """whole or absent; anything else is a broken promise."""
        held = tuple(rows(lake, name) for name in SETS)
        versions = [lake.dataset(name).version for name in SETS]
        if held == self.before and versions == [2, 2]:
            return "absent"
        assert held == self.after
        assert versions in ([3, 3], [3, 2])
        return "whole"


WRITES = {
    "append": Write(append, ([1, 2, 99], [1, 2])),
    "pair": Write(pair, ([1, 2, 99], [99])),
    "compact": Write(compact, ([1, 2], [1, 2]), replayable=False),
}


def check_aftermath(place: Place, write: Write, *, happened: bool | None) -> None:
    """A new process finds the write whole or absent, can send it again, can write on, and can clean up."""
    with place.open() as lake:
        state = write.state(lake)
        if happened is not None:
            assert state == ("whole" if happened else "absent")
        again = write.run(lake)
        if write.replayable:
            assert again.replayed == (state == "whole")
        assert write.state(lake) == "whole"
        for name in SETS:
            for version in range(1, lake.dataset(name).version + 1):
                at = lake.dataset(name).at(version)
                assert at.to_arrow(row_ids=True).num_rows == at.num_rows
        lake.dataset("demo.one").append({"id": [100], "word": ["next"]})
        assert rows(lake, "demo.one") == [*write.after[0], 100]
        tidy(lake)


def tidy(lake: Lake) -> None:
    """After the dead writer's lease ran out, a sweep leaves exactly the files that versions hold."""
    lake.workspace.db.clock = lambda: datetime.now(UTC) + timedelta(hours=3)
    sweep(lake.workspace, lake.caller, Keep(), really=True)
    store = lake.workspace.store
    on_disk = {path for folder in store.folders(f"data/{lake.caller.tenant}") for path, _ in store.files(folder)}
    held = {
        file.path
        for name in SETS
        for version in range(1, lake.dataset(name).version + 1)
        for file in lake.dataset(name).at(version).files()
    }
    assert on_disk == held


@pytest.mark.parametrize("step", faults.STEPS)
@pytest.mark.parametrize("kind", WRITES)
def test_a_failure_at_any_step_leaves_the_write_whole_or_absent(place: Place, kind: str, step: str) -> None:
    write = WRITES[kind]
    with place.open() as lake:
        prepare(lake)

        def fail() -> None:
            raise OSError("injected")

        with faults.armed(step, fail):
            if step == "commit.sent":  # the answer to COMMIT was lost, and the receipt tells
                assert write.run(lake).commit_no == 5
            else:
                with pytest.raises(OSError, match="injected"):
                    write.run(lake)
        state = write.state(lake) if kind != "compact" else None
        assert state in (None, "whole" if step in COMMITTED else "absent")
    check_aftermath(place, write, happened=None if kind == "compact" else step in COMMITTED)


@pytest.mark.parametrize("step", faults.STEPS)
@pytest.mark.parametrize("kind", WRITES)
def test_a_kill_at_any_step_leaves_the_write_whole_or_absent(place: Place, kind: str, step: str) -> None:
    write = WRITES[kind]
    with place.open() as lake:
        prepare(lake)
    args = {"append": ("demo.one", step, "k"), "pair": (*SETS, step, "k"), "compact": ("demo.one", step)}
    (Path(place.folder) / "go").touch()
    process = place.spawn(f"killed_{kind}", *args[kind])
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, f"the write never came to {step}"
    check_aftermath(place, write, happened=None if kind == "compact" else step in COMMITTED)


@pytest.mark.parametrize("kind", WRITES)
def test_the_nth_file_operation_may_fail(place: Place, kind: str) -> None:
    write = WRITES[kind]
    with place.open() as lake:
        prepare(lake)
        n = 0
        while True:
            n += 1
            countdown = Countdown(n)
            lake.workspace.store = FailingStore(Path(place.folder), countdown)
            try:
                write.run(lake)
            except (PenstockError, OSError):
                assert countdown.fired
                assert write.state(lake) == "absent"
                continue
            break
        assert n > 5, "too few operations were seen"
        assert not countdown.fired
    check_aftermath(place, write, happened=True if kind != "compact" else None)


@pytest.mark.parametrize("kind", ["append", "pair"])
def test_the_nth_sql_statement_may_fail(place: Place, kind: str) -> None:
    write = WRITES[kind]
    with place.open() as lake:
        prepare(lake)
        n = happened = 0
        while not happened:
            n += 1
            countdown = Countdown(n)
            try:
                with failing_sql(lake.workspace.db, countdown):
                    write.run(lake)
                happened = 1
            except (Unavailable, Conflict):
                assert countdown.fired
                assert write.state(lake) == "absent"
        assert n > 10, "too few statements were seen"
    check_aftermath(place, write, happened=True)


def test_an_unknown_outcome_is_told_as_unknown_and_is_harmless_to_replay(place: Place) -> None:
    write = WRITES["append"]
    with place.open() as lake, ExitStack() as lost:
        prepare(lake)

        def lose_everything() -> None:
            """COMMIT was sent; since then the database does not answer."""
            lost.enter_context(failing_sql(lake.workspace.db, Countdown(1)))
            raise OSError("injected")

        with faults.armed("commit.sent", lose_everything), pytest.raises(Undecided) as told:
            write.run(lake)
        assert told.value.context["idempotency_key"] == "k"
    check_aftermath(place, write, happened=True)


def test_a_connection_that_dies_during_commit_is_looked_up(postgres_url: str, tmp_path: Path) -> None:
    """PostgreSQL itself ends the session right before COMMIT: nothing was written, and the caller hears so."""
    place = Place.make(tmp_path / "workspace", postgres_url)
    write = WRITES["append"]
    owner = Database(postgres_url)

    def terminate() -> None:
        with owner.raw() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state LIKE 'idle in tr%' AND pid <> pg_backend_pid()"
                )
            )

    with place.open() as lake:
        prepare(lake)
        with faults.armed("commit.ready", terminate), pytest.raises(Conflict) as refusal:
            write.run(lake)
        assert refusal.value.reason == "commit_lost"
        assert write.state(lake) == "absent"
    owner.close()
    check_aftermath(place, write, happened=False)


def test_a_writer_whose_lease_was_ended_cannot_commit(place: Place) -> None:
    """It slept too long; its files were swept. It is refused, and its next write takes a new lease."""
    with place.open() as sleeper, place.open() as sweeper:
        prepare(sleeper)

        def sweep_now() -> None:
            sweeper.workspace.db.clock = lambda: datetime.now(UTC) + timedelta(hours=3)
            swept = sweep(sweeper.workspace, sweeper.caller, Keep(), really=True)
            assert swept.orphans == 1

        with faults.armed("stage.synced", sweep_now), pytest.raises(Conflict) as refusal:
            append(sleeper)
        assert refusal.value.reason == "lease_ended"
        assert rows(sleeper, "demo.one") == [1, 2]
        assert append(sleeper).version == 3
        assert rows(sleeper, "demo.one") == [1, 2, 99]


def test_a_live_writer_is_never_swept(place: Place) -> None:
    with place.open() as writer, place.open() as sweeper:
        prepare(writer)

        def sweep_now() -> None:
            assert sweep(sweeper.workspace, sweeper.caller, Keep(days=0, versions=1), really=True).orphans == 0

        with faults.armed("stage.synced", sweep_now):
            assert append(writer).version == 3
        assert rows(writer, "demo.one") == [1, 2, 99]


def test_a_killed_actor_really_dies(embedded: Place) -> None:
    """The kill tests show something only if an unarmed actor lives."""
    with embedded.open() as lake:
        prepare(lake)
    (Path(embedded.folder) / "go").touch()
    assert answer(embedded.spawn("append_rows", "demo.one", 5, 1)) == [3]
