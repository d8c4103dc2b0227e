"""Failures at every step of a commit: acknowledged writes are committed once, rejected writes not at all."""

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from faults.failing_parts import Countdown, FailingStore, failing_sql
from faults.group_commit_writes import FIRST, GROUP, insert_as_group
from faults.write_cases import BEFORE, ROW, WRITES, WriteCase, contents, new_tenant_lake, prepare
from penstock import failpoints
from penstock.catalog import receipts
from penstock.catalog.database import Database
from penstock.errors import CommitStateUnknown, Conflict, Unavailable
from penstock.service.datasets.sweep import RetentionPolicy, sweep
from support.workspaces import WorkspaceFixture, result_of

COMMITTED = ("commit.sent", "commit.done")  # after these steps the write is committed
STEPS = [
    (case_name, step)
    for case_name, write in WRITES.items()
    for step in failpoints.STEPS
    if write.writes_files or step not in ("stage.opened", "stage.written", "stage.synced")
]


def check_aftermath(fixture: WorkspaceFixture, write: WriteCase, *, is_committed: bool) -> None:
    """Assert that a new process reads the write completely or not at all, and can repeat it, write and sweep."""
    with fixture.open() as lake:
        assert write.state(lake) == ("complete" if is_committed else "absent")
        assert write.run(lake).replayed == is_committed
        assert write.state(lake) == "complete"
        for dataset in lake.datasets():
            for version in range(1, dataset.version + 1):
                snapshot = lake.dataset(dataset.id).at(version)
                assert snapshot.to_arrow(row_ids=True).num_rows == snapshot.num_rows
        version, ids = write.after["demo.one"]
        assert lake.dataset("demo.one").append({"id": [100], "word": ["next"]}).version == version + 1
        assert contents(lake)["demo.one"] == (version + 1, [*ids, 100])
        sweep_after_lease_end(lake)
        sweep_after_lease_end(new_tenant_lake(lake))


def sweep_after_lease_end(lake: Any) -> None:
    """Assert that a sweep after the lease has ended leaves exactly the files of versions."""
    lake._workspace.db.clock = lambda: datetime.now(UTC) + timedelta(hours=3)
    sweep(lake._workspace, lake.caller, RetentionPolicy(), execute=True)
    store = lake._workspace.store
    on_disk = {path for folder in store.folders(f"data/{lake.caller.tenant}") for path, _ in store.files(folder)}
    version_files = {
        file.path
        for dataset in lake.datasets()
        for version in range(1, dataset.version + 1)
        for file in lake.dataset(dataset.id).at(version).files()
    }
    assert on_disk == version_files


@pytest.mark.parametrize(("case_name", "step"), STEPS)
def test_failure_at_any_failpoint_leaves_the_write_complete_or_absent(
    workspace: WorkspaceFixture, case_name: str, step: str
) -> None:
    write = WRITES[case_name]
    with workspace.open() as lake:
        prepare(lake)

        def fail() -> None:
            raise OSError("injected")

        with failpoints.armed(step, fail):
            if step == "commit.sent":  # the response to COMMIT was lost; the receipt shows the outcome
                assert not write.run(lake).replayed
            else:
                with pytest.raises(OSError, match="injected"):
                    write.run(lake)
        assert write.state(lake) == ("complete" if step in COMMITTED else "absent")
    check_aftermath(workspace, write, is_committed=step in COMMITTED)


@pytest.mark.parametrize(("case_name", "step"), STEPS)
def test_kill_at_any_failpoint_leaves_the_write_complete_or_absent(
    workspace: WorkspaceFixture, case_name: str, step: str
) -> None:
    with workspace.open() as lake:
        prepare(lake)
    (Path(workspace.folder) / "go").touch()
    process = workspace.spawn("kill_at_step", case_name, step)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, f"the write did not reach {step}"
    check_aftermath(workspace, WRITES[case_name], is_committed=step in COMMITTED)


@pytest.mark.parametrize("case_name", [case_name for case_name, write in WRITES.items() if write.writes_files])
def test_failure_of_the_nth_file_operation_leaves_the_write_complete_or_absent(
    workspace: WorkspaceFixture, case_name: str
) -> None:
    write = WRITES[case_name]
    with workspace.open() as lake:
        prepare(lake)
        n = 0
        while True:
            n += 1
            countdown = Countdown(n)
            lake._workspace.store = FailingStore(Path(workspace.folder), countdown)
            try:
                write.run(lake)
            except Unavailable:
                assert countdown.fired
                assert write.state(lake) == "absent"
                continue
            break
        assert n > 5, "too few operations"
        assert not countdown.fired
    check_aftermath(workspace, write, is_committed=True)


@pytest.mark.parametrize("case_name", WRITES)
def test_failure_of_the_nth_sql_statement_leaves_the_write_complete_or_absent(
    workspace: WorkspaceFixture, case_name: str
) -> None:
    write = WRITES[case_name]
    with workspace.open() as lake:
        prepare(lake)
        n = is_committed = 0
        while not is_committed:
            n += 1
            countdown = Countdown(n)
            try:
                with failing_sql(lake._workspace.db, countdown):
                    write.run(lake)
                is_committed = 1
            except (Unavailable, Conflict, CommitStateUnknown):
                assert countdown.fired
                assert write.state(lake) == "absent"
        assert n > 8, "too few statements"
    check_aftermath(workspace, write, is_committed=True)


def test_unknown_outcome_is_reported_and_can_be_replayed(workspace: WorkspaceFixture) -> None:
    write = WRITES["append"]
    with workspace.open() as lake, ExitStack() as stack:
        prepare(lake)

        def disconnect_database() -> None:
            """Disconnect the database after COMMIT was sent."""
            stack.enter_context(failing_sql(lake._workspace.db, Countdown(1)))
            raise OSError("injected")

        with failpoints.armed("commit.sent", disconnect_database), pytest.raises(CommitStateUnknown) as reported:
            write.run(lake)
        assert reported.value.context["idempotency_key"] == "k"
    check_aftermath(workspace, write, is_committed=True)


def test_connection_lost_during_commit_looks_up_the_receipt(postgres_url: str, tmp_path: Path) -> None:
    """PostgreSQL ends the session right before COMMIT: nothing was written, and the caller receives an error."""
    fixture = WorkspaceFixture.make(tmp_path / "workspace", postgres_url)
    write = WRITES["append"]
    owner = Database(postgres_url)

    def terminate() -> None:
        with owner.connect_without_tenant() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state LIKE 'idle in tr%' AND pid <> pg_backend_pid()"
                )
            )

    with fixture.open() as lake:
        prepare(lake)
        with failpoints.armed("commit.ready", terminate), pytest.raises(Conflict) as raised:
            write.run(lake)
        assert raised.value.reason == "commit_lost"
        assert write.state(lake) == "absent"
    owner.close()
    check_aftermath(fixture, write, is_committed=False)


def test_unknown_outcome_reports_the_generated_key_for_a_retry(workspace: WorkspaceFixture) -> None:
    with workspace.open() as lake, ExitStack() as stack:
        prepare(lake)
        ds = lake.dataset("demo.one")

        def disconnect_database() -> None:
            stack.enter_context(failing_sql(lake._workspace.db, Countdown(1)))
            raise OSError("injected")

        with failpoints.armed("commit.sent", disconnect_database), pytest.raises(CommitStateUnknown) as reported:
            ds.append(ROW)
        repeated = ds.append(ROW, idempotency_key=reported.value.context["idempotency_key"])
        assert repeated.replayed
        assert contents(lake)["demo.one"] == (3, [1, 2, 99])


def test_find_receipt_waits_for_the_first_commit_of_a_tenant(postgres_url: str, tmp_path: Path) -> None:
    """The lookup waits on a row that is itself part of the commit."""
    with WorkspaceFixture.make(tmp_path / "workspace", postgres_url).open() as lake, ThreadPoolExecutor() as pool:
        lookups: list[Any] = []

        def find_receipt_concurrently() -> None:
            waiting = pool.submit(receipts.find_receipt, lake._workspace.db, lake.caller, "k")
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.5)
            lookups.append(waiting)

        with failpoints.armed("commit.ready", find_receipt_concurrently):
            lake.create("demo.first", {"id": [1]}, idempotency_key="k")
        assert lookups[0].result(timeout=10).written[0].name == "demo.first"


def test_commit_with_an_ended_lease_is_rejected(workspace: WorkspaceFixture) -> None:
    """The files of a suspended writer were swept: its commit is rejected, and its next write takes a new lease."""
    with workspace.open() as writer, workspace.open() as sweeper:
        prepare(writer)

        def sweep_now() -> None:
            sweeper._workspace.db.clock = lambda: datetime.now(UTC) + timedelta(hours=3)
            swept = sweep(sweeper._workspace, sweeper.caller, RetentionPolicy(), execute=True)
            assert swept.orphans == 1

        with failpoints.armed("stage.synced", sweep_now), pytest.raises(Conflict) as raised:
            WRITES["append"].run(writer)
        assert raised.value.reason == "lease_ended"
        assert contents(writer) == BEFORE
        assert WRITES["append"].run(writer).version == 3
        assert contents(writer) == WRITES["append"].after


def test_sweep_keeps_the_files_of_an_active_writer(workspace: WorkspaceFixture) -> None:
    with workspace.open() as writer, workspace.open() as sweeper:
        prepare(writer)

        def sweep_now() -> None:
            assert (
                sweep(sweeper._workspace, sweeper.caller, RetentionPolicy(days=0, versions=1), execute=True).orphans
                == 0
            )

        with failpoints.armed("stage.synced", sweep_now):
            assert WRITES["append"].run(writer).version == 3
        assert contents(writer) == WRITES["append"].after


@pytest.mark.parametrize("step", [step for step in failpoints.STEPS if step.startswith("commit.")])
def test_kill_at_any_failpoint_leaves_each_insert_of_a_group_complete_or_absent(
    workspace: WorkspaceFixture, step: str
) -> None:
    """Acknowledged inserts are committed; each insert can be repeated and returns its row ids."""
    with workspace.open() as lake:
        prepare(lake)
    (Path(workspace.folder) / "go").touch()
    process = workspace.spawn("kill_group_insert", "demo.one", step)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, f"the group did not reach {step}"
    group_ids = [n for ids in GROUP.values() for n in ids]
    with workspace.open() as lake:
        is_committed = step in COMMITTED
        assert contents(lake)["demo.one"] == (3 + is_committed, [1, 2, *FIRST, *(group_ids if is_committed else ())])
        repeated = insert_as_group(lake, "demo.one")
        assert [reported.receipt and reported.receipt.replayed for reported in repeated] == [is_committed] * len(GROUP)
        assert contents(lake)["demo.one"] == (4, [1, 2, *FIRST, *group_ids])
        read = lake.dataset("demo.one").to_arrow(row_ids=True)
        by_row_id = dict(zip(read["rowid"].to_pylist(), read["id"].to_pylist(), strict=True))
        for reported, ids in zip(repeated, GROUP.values(), strict=True):
            assert reported.first_row_id is not None
            assert [by_row_id[reported.first_row_id + i] for i in range(reported.rows)] == ids
        sweep_after_lease_end(lake)


def test_kill_at_any_time_keeps_every_acknowledged_insert(workspace: WorkspaceFixture, soak: bool) -> None:
    with workspace.open() as lake:
        prepare(lake)
    (Path(workspace.folder) / "go").touch()
    process = workspace.spawn("insert_forever", "demo.one")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(2_000 if soak else 100):
        process.stdout.readline()
    process.kill()
    last, _ = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    with workspace.open() as lake:
        _, ids = contents(lake)["demo.one"]
        inserted = {n for n in ids if n > 2}
        assert {-n for n in ids if n < 0} == inserted, "an insert is incomplete"
        assert len(ids) == 2 + 2 * len(inserted)
        assert len(inserted) >= (2_000 if soak else 100)
        assert {int(n) for n in last.split()} <= inserted
        sweep_after_lease_end(lake)


def test_killed_process_ends_with_sigkill(sqlite_workspace: WorkspaceFixture) -> None:
    """A process without an armed failpoint survives, so the kill tests are meaningful."""
    with sqlite_workspace.open() as lake:
        prepare(lake)
    (Path(sqlite_workspace.folder) / "go").touch()
    assert result_of(sqlite_workspace.spawn("append_rows", "demo.one", 5, 1)) == [3]
