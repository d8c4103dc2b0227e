"""Whatever fails, wherever: what was acknowledged is there once, what was refused is not there at all."""

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from faults.failing import Countdown, FailingStore, failing_sql
from faults.grouped import FIRST, GROUP, insert_together
from faults.writes import BEFORE, ROW, WRITES, Write, newcomer, picture, prepare
from penstock import failpoints as faults
from penstock.catalog import commit as commits
from penstock.catalog.database import Database
from penstock.errors import Conflict, Unavailable, Undecided
from penstock.service.datasets.sweep import Keep, sweep
from workspaces import Place, answer

COMMITTED = ("commit.sent", "commit.done")  # the steps after which the write has happened
STEPS = [
    (kind, step)
    for kind, write in WRITES.items()
    for step in faults.STEPS
    if write.writes_files or step not in ("stage.opened", "stage.written", "stage.synced")
]


def check_aftermath(place: Place, write: Write, *, happened: bool) -> None:
    """A new process finds the write whole or absent, can send it again, can write on, and can clean up."""
    with place.open() as lake:
        assert write.state(lake) == ("whole" if happened else "absent")
        assert write.run(lake).replayed == happened
        assert write.state(lake) == "whole"
        for at in lake.datasets():
            for version in range(1, at.version + 1):
                past = lake.dataset(at.id).at(version)
                assert past.to_arrow(row_ids=True).num_rows == past.num_rows
        version, ids = write.after["demo.one"]
        assert lake.dataset("demo.one").append({"id": [100], "word": ["next"]}).version == version + 1
        assert picture(lake)["demo.one"] == (version + 1, [*ids, 100])
        tidy(lake)
        tidy(newcomer(lake))


def tidy(lake: Any) -> None:
    """After the dead writer's lease ran out, a sweep leaves exactly the files that versions hold."""
    lake.workspace.db.clock = lambda: datetime.now(UTC) + timedelta(hours=3)
    sweep(lake.workspace, lake.caller, Keep(), really=True)
    store = lake.workspace.store
    on_disk = {path for folder in store.folders(f"data/{lake.caller.tenant}") for path, _ in store.files(folder)}
    held = {
        file.path
        for at in lake.datasets()
        for version in range(1, at.version + 1)
        for file in lake.dataset(at.id).at(version).files()
    }
    assert on_disk == held


@pytest.mark.parametrize(("kind", "step"), STEPS)
def test_a_failure_at_any_step_leaves_the_write_whole_or_absent(place: Place, kind: str, step: str) -> None:
    write = WRITES[kind]
    with place.open() as lake:
        prepare(lake)

        def fail() -> None:
            raise OSError("injected")

        with faults.armed(step, fail):
            if step == "commit.sent":  # the answer to COMMIT was lost, and the receipt tells
                assert not write.run(lake).replayed
            else:
                with pytest.raises(OSError, match="injected"):
                    write.run(lake)
        assert write.state(lake) == ("whole" if step in COMMITTED else "absent")
    check_aftermath(place, write, happened=step in COMMITTED)


@pytest.mark.parametrize(("kind", "step"), STEPS)
def test_a_kill_at_any_step_leaves_the_write_whole_or_absent(place: Place, kind: str, step: str) -> None:
    with place.open() as lake:
        prepare(lake)
    (Path(place.folder) / "go").touch()
    process = place.spawn("killed", kind, step)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, f"the write never came to {step}"
    check_aftermath(place, WRITES[kind], happened=step in COMMITTED)


@pytest.mark.parametrize("kind", [kind for kind, write in WRITES.items() if write.writes_files])
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
            except Unavailable:
                assert countdown.fired
                assert write.state(lake) == "absent"
                continue
            break
        assert n > 5, "too few operations were seen"
        assert not countdown.fired
    check_aftermath(place, write, happened=True)


@pytest.mark.parametrize("kind", WRITES)
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
            except (Unavailable, Conflict, Undecided):
                assert countdown.fired
                assert write.state(lake) == "absent"
        assert n > 8, "too few statements were seen"
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


def test_a_request_without_a_key_can_be_sent_again_with_the_one_that_is_told(place: Place) -> None:
    with place.open() as lake, ExitStack() as lost:
        prepare(lake)
        ds = lake.dataset("demo.one")

        def lose_everything() -> None:
            lost.enter_context(failing_sql(lake.workspace.db, Countdown(1)))
            raise OSError("injected")

        with faults.armed("commit.sent", lose_everything), pytest.raises(Undecided) as told:
            ds.append(ROW)
        again = ds.append(ROW, idempotency_key=told.value.context["idempotency_key"])
        assert again.replayed
        assert picture(lake)["demo.one"] == (3, [1, 2, 99])


def test_a_lookup_waits_for_the_first_commit_of_a_tenant(postgres_url: str, tmp_path: Path) -> None:
    """The row that a lookup waits on is itself part of that commit."""
    with Place.make(tmp_path / "workspace", postgres_url).open() as lake, ThreadPoolExecutor() as pool:
        found: list[Any] = []

        def look_up_meanwhile() -> None:
            waiting = pool.submit(commits.lookup, lake.workspace.db, lake.caller, "k")
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.5)
            found.append(waiting)

        with faults.armed("commit.ready", look_up_meanwhile):
            lake.create("demo.first", {"id": [1]}, idempotency_key="k")
        assert found[0].result(timeout=10).written[0].name == "demo.first"


def test_a_writer_whose_lease_was_ended_cannot_commit(place: Place) -> None:
    """It slept too long; its files were swept. It is refused, and its next write takes a new lease."""
    with place.open() as sleeper, place.open() as sweeper:
        prepare(sleeper)

        def sweep_now() -> None:
            sweeper.workspace.db.clock = lambda: datetime.now(UTC) + timedelta(hours=3)
            swept = sweep(sweeper.workspace, sweeper.caller, Keep(), really=True)
            assert swept.orphans == 1

        with faults.armed("stage.synced", sweep_now), pytest.raises(Conflict) as refusal:
            WRITES["append"].run(sleeper)
        assert refusal.value.reason == "lease_ended"
        assert picture(sleeper) == BEFORE
        assert WRITES["append"].run(sleeper).version == 3
        assert picture(sleeper) == WRITES["append"].after


def test_a_live_writer_is_never_swept(place: Place) -> None:
    with place.open() as writer, place.open() as sweeper:
        prepare(writer)

        def sweep_now() -> None:
            assert sweep(sweeper.workspace, sweeper.caller, Keep(days=0, versions=1), really=True).orphans == 0

        with faults.armed("stage.synced", sweep_now):
            assert WRITES["append"].run(writer).version == 3
        assert picture(writer) == WRITES["append"].after


@pytest.mark.parametrize("step", [step for step in faults.STEPS if step.startswith("commit.")])
def test_a_kill_at_any_step_leaves_each_of_a_group_whole_or_absent(place: Place, step: str) -> None:
    """What was acknowledged before is there; each can be sent again, and hears the ids of its rows."""
    with place.open() as lake:
        prepare(lake)
    (Path(place.folder) / "go").touch()
    process = place.spawn("killed_together", "demo.one", step)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, f"the group never came to {step}"
    everything = [n for ids in GROUP.values() for n in ids]
    with place.open() as lake:
        happened = step in COMMITTED
        assert picture(lake)["demo.one"] == (3 + happened, [1, 2, *FIRST, *(everything if happened else ())])
        again = insert_together(lake, "demo.one")
        assert [told.receipt and told.receipt.replayed for told in again] == [happened] * len(GROUP)
        assert picture(lake)["demo.one"] == (4, [1, 2, *FIRST, *everything])
        read = lake.dataset("demo.one").to_arrow(row_ids=True)
        by_row_id = dict(zip(read["rowid"].to_pylist(), read["id"].to_pylist(), strict=True))
        for told, ids in zip(again, GROUP.values(), strict=True):
            assert told.first_row_id is not None
            assert [by_row_id[told.first_row_id + i] for i in range(told.rows)] == ids
        tidy(lake)


def test_a_kill_at_any_time_takes_no_insert_that_was_acknowledged(place: Place, soak: bool) -> None:
    with place.open() as lake:
        prepare(lake)
    (Path(place.folder) / "go").touch()
    process = place.spawn("insert_forever", "demo.one")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(2_000 if soak else 100):
        process.stdout.readline()
    process.kill()
    last, _ = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    with place.open() as lake:
        _, ids = picture(lake)["demo.one"]
        there = {n for n in ids if n > 2}
        assert {-n for n in ids if n < 0} == there, "an insert is there in half"
        assert len(ids) == 2 + 2 * len(there)
        assert len(there) >= (2_000 if soak else 100)
        assert {int(n) for n in last.split()} <= there
        tidy(lake)


def test_a_killed_actor_really_dies(embedded: Place) -> None:
    """The kill tests show something only if an unarmed actor lives."""
    with embedded.open() as lake:
        prepare(lake)
    (Path(embedded.folder) / "go").touch()
    assert answer(embedded.spawn("append_rows", "demo.one", 5, 1)) == [3]
