"""Runs in the catalog: insert, start, progress, cancel, expire and search."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, insert, select, text

from catalog.test_pipelines import insert_pipeline, remove_pipeline
from penstock.catalog import runs, tables
from penstock.catalog.database import CatalogTransaction
from penstock.catalog.tenant_guard import tenant_filter
from penstock.core.caller import Role
from penstock.core.dataset.changes import DatasetCommit
from penstock.core.odata import options
from penstock.core.pipeline.run import ACTIVE_STATES, InputVersion, Run, RunOutcome, RunState
from penstock.core.progress import Progress
from penstock.errors import AlreadyExists, NotFound
from penstock.lake import Lake
from support.statement_log import recorded_statements
from support.workspaces import WorkspaceFixture

REQUEST, OTHER_REQUEST = "a" * 64, "b" * 64
DEFINITION = {"zeta": 1, "name": "monthly", "a": {"long": [1, None, 2.5], "b": "ß🦆"}}
READ = InputVersion(str(uuid4()), "demo.numbers", 7, 8)
RESULT = {"success": True, "operation": "append", "order": 2, "result": {"rows_appended": 142, "filtered": False}}
PROGRESS = Progress("write", 12, operation=1, operations=2, order=3, type="append", stages=4, tasks=9)
WRITTEN = DatasetCommit(uuid4(), "demo.numbers", 9, "pipeline", 142, inserted=142)
DONE = RunOutcome(RunState.SUCCEEDED, (READ,), (RESULT,))
FAILED = RunOutcome(
    RunState.FAILED, error={"error": {"code": "APPEND_001", "message": "Dataset not found", "details": {}}}
)
CANCELLED = RunOutcome(RunState.CANCELLED)


@contextmanager
def write_transaction(lake: Lake) -> Iterator[CatalogTransaction]:
    with lake._workspace.db.write(lake.caller) as tx:
        yield tx


def insert_run(lake: Lake, key: str | None = None, request: str = REQUEST, **members: Any) -> Run:
    """Insert a run, or return the existing run of its key."""
    with write_transaction(lake) as tx:
        run = Run(
            uuid4(), None, "monthly", DEFINITION, RunState.QUEUED, tx.now, tx.caller.user, tx.caller.name, key=key
        )
        run = replace(run, **members)
        return runs.insert(tx, run, role=Role.DEVELOPER, request_digest=request, worker="host process 1", round_no=None)


def start_run(lake: Lake, key: str | None = None) -> Run:
    run = insert_run(lake, key)
    with write_transaction(lake) as tx:
        assert runs.start(tx, run.id, "host process 2")
        return runs.find(tx, run.id)


def send_heartbeats(tx: CatalogTransaction, *attempts: Run) -> dict[UUID, bool]:
    """Send heartbeats of first attempts."""
    cancel_requests = runs.heartbeat(tx, [(run.id, 1) for run in attempts], claimed_until=tx.now)
    return {run: requested for (run, _), requested in cancel_requests.items()}


def finish_run(lake: Lake, outcome: RunOutcome = DONE, key: str | None = None) -> Run:
    run = start_run(lake, key)
    with write_transaction(lake) as tx:
        assert runs.finish(tx, run.id, 1, outcome)
    return load_run(lake, run)


def load_run(lake: Lake, run: Run) -> Run:
    with lake._workspace.db.read(lake.caller) as tx:
        return runs.find(tx, run.id)


def ids(lake: Lake, **expected: str) -> list[UUID]:
    pairs = [(f"${name}", value) for name, value in expected.items()]
    with lake._workspace.db.read(lake.caller) as tx:
        page = runs.search(tx, options(pairs, runs.FIELDS, default_top=50, max_top=200))
    return [run.id for run in page.items]


# -- insert -----------------------------------------------------------------------------------------------------------


def test_find_returns_the_inserted_run(lake: Lake) -> None:
    pipeline = insert_pipeline(lake)
    run = insert_run(lake, "k", pipeline_id=pipeline.id, name="Größe")
    assert load_run(lake, run) == run
    assert json.dumps(load_run(lake, run).as_json()) == json.dumps(run.as_json()), "member by member, in order"


def test_insert_stores_author_and_role_for_the_worker(lake: Lake) -> None:
    run = insert_run(lake)
    c = tables.pipeline_runs.c
    with lake._workspace.db.read(lake.caller) as tx:
        row = tx.first(
            select(c.role, c.worker, c.request_digest).where(tenant_filter(tables.pipeline_runs), c.id == run.id)
        )
    assert row is not None
    assert tuple(row) == (Role.DEVELOPER.claim, "host process 1", REQUEST)


@pytest.mark.parametrize("state", [RunState.QUEUED, RunState.RUNNING, RunState.SUCCEEDED])
def test_key_identifies_the_active_or_succeeded_run(lake: Lake, other_tenant: Lake, state: RunState) -> None:
    create_in_state = {
        RunState.QUEUED: insert_run,
        RunState.RUNNING: start_run,
        RunState.SUCCEEDED: lambda lake, key: finish_run(lake, DONE, key),
    }
    first = create_in_state[state](lake, "k")
    repeated = insert_run(lake, "k")
    assert (repeated.id, repeated.state) == (first.id, state)
    assert insert_run(lake, "other").id != first.id
    assert insert_run(other_tenant, "k").id != first.id
    assert len(ids(lake)) == 2


@pytest.mark.parametrize("outcome", [FAILED, CANCELLED], ids=["failed", "cancelled"])
def test_key_can_be_used_again_after_a_failed_or_cancelled_run(lake: Lake, outcome: RunOutcome) -> None:
    first = finish_run(lake, outcome, "k")
    second = insert_run(lake, "k", OTHER_REQUEST)
    assert second.id != first.id
    assert insert_run(lake, "k", OTHER_REQUEST).id == second.id


def test_key_of_another_request_is_rejected(lake: Lake) -> None:
    first = insert_run(lake, "k")
    with pytest.raises(AlreadyExists) as raised:
        insert_run(lake, "k", OTHER_REQUEST)
    assert (raised.value.reason, raised.value.context) == ("key_reused", {"key": "k"})
    assert ids(lake) == [first.id]


def test_runs_without_a_key_are_separate(lake: Lake) -> None:
    assert len({insert_run(lake).id for _ in range(3)}) == 3


def test_concurrent_inserts_with_one_key_create_one_run(lake: Lake) -> None:
    barrier = Barrier(6)

    def insert_concurrently(_: int) -> UUID:
        barrier.wait(60)
        return insert_run(lake, "k").id

    with ThreadPoolExecutor(6) as pool:
        run_ids = list(pool.map(insert_concurrently, range(6)))
    assert ids(lake) == [run_ids[0]]
    assert set(run_ids) == {run_ids[0]}


def test_run_is_found_after_its_pipeline_is_removed(lake: Lake) -> None:
    pipeline = insert_pipeline(lake)
    run = insert_run(lake, pipeline_id=pipeline.id)
    remove_pipeline(lake, pipeline.id)
    assert load_run(lake, run) == run


# -- start, progress and finish ---------------------------------------------------------------------------------------


def test_start_succeeds_once(lake: Lake) -> None:
    run = insert_run(lake)
    with write_transaction(lake) as tx:
        assert runs.start(tx, run.id, "host process 2")
        assert runs.find(tx, run.id) == replace(run, state=RunState.RUNNING, started_at=tx.now)
        assert not runs.start(tx, run.id, "host process 3")


def test_progress_is_stored_while_running_and_removed_at_the_end(lake: Lake) -> None:
    run = start_run(lake)
    progress = {
        "operation": 1, "operations": 2, "order": 3, "type": "append", "phase": "write",
        "stages": 4, "stages_done": 0, "tasks": 9, "tasks_done": 0, "rows": 12,
    }  # fmt: skip
    stored = replace(run, progress=progress, results=(RESULT,), reads=(asdict(READ),))
    with write_transaction(lake) as tx:
        runs.update_progress(tx, run.id, 1, PROGRESS, [RESULT], [READ])
    assert load_run(lake, run) == stored
    with write_transaction(lake) as tx:
        assert runs.finish(tx, run.id, 1, FAILED)
        runs.update_progress(tx, run.id, 1, PROGRESS, [RESULT], [READ])
        assert runs.find(tx, run.id) == replace(run, state=RunState.FAILED, ended_at=tx.now, error=FAILED.error)


def test_finish_succeeds_once(lake: Lake) -> None:
    run = start_run(lake)
    with write_transaction(lake) as tx:
        assert runs.finish(tx, run.id, 1, DONE, written=[WRITTEN], commit_no=3)
        current_time = tx.now
    with write_transaction(lake) as tx:
        assert not runs.finish(tx, run.id, 1, FAILED)
    finished = load_run(lake, run)
    assert finished == replace(
        run,
        state=RunState.SUCCEEDED,
        ended_at=current_time,
        reads=(asdict(READ),),
        results=(RESULT,),
        written=({**asdict(WRITTEN), "dataset": str(WRITTEN.dataset)},),
        commit_no=3,
    )
    assert json.dumps(finished.results[0]) == json.dumps(RESULT), "member by member, in order"


def test_finish_that_is_rolled_back_keeps_the_run_active(lake: Lake) -> None:
    run = start_run(lake)
    with pytest.raises(ZeroDivisionError), write_transaction(lake) as tx:
        assert runs.finish(tx, run.id, 1, DONE)
        raise ZeroDivisionError
    assert load_run(lake, run) == run


def test_finish_accepts_any_error_details(lake: Lake) -> None:
    run, id, at = start_run(lake), uuid4(), datetime(2026, 1, 31, tzinfo=UTC)
    details = {"id": id, "at": at, "key": float("nan"), "text": "a\x00b\ud800", "tuple": (1, 2), "big": 2**63}
    with write_transaction(lake) as tx:
        assert runs.finish(tx, run.id, 1, RunOutcome(RunState.FAILED, error={"error": {"details": details}}))
    reported = {**details, "id": str(id), "at": str(at), "key": "NaN", "tuple": [1, 2]}
    assert load_run(lake, run).error == {"error": {"details": reported}}


# -- cancel -----------------------------------------------------------------------------------------------------------


def test_request_cancel_of_a_queued_run_cancels_it(lake: Lake) -> None:
    run = insert_run(lake)
    with write_transaction(lake) as tx:
        reported = runs.request_cancel(tx, run.id)
        assert reported == replace(run, state=RunState.CANCELLED, cancelling=True, ended_at=tx.now)
        assert not runs.start(tx, run.id, "host process 2")
        assert send_heartbeats(tx, run) == {}


def test_request_cancel_of_a_running_run_is_reported_by_heartbeat(lake: Lake) -> None:
    run, other = start_run(lake), start_run(lake)
    with write_transaction(lake) as tx:
        assert runs.request_cancel(tx, run.id) == replace(run, cancelling=True)
        assert runs.request_cancel(tx, run.id) == replace(run, cancelling=True)
        assert send_heartbeats(tx, other, run, replace(run, id=uuid4())) == {run.id: True, other.id: False}
        assert runs.finish(tx, run.id, 1, CANCELLED)
        assert send_heartbeats(tx, run, other) == {other.id: False}


def test_run_requests_and_cancellations_are_in_the_audit(lake: Lake) -> None:
    run = start_run(lake)
    with write_transaction(lake) as tx:
        runs.request_cancel(tx, run.id)
        runs.request_cancel(tx, run.id)  # it has no effect
    with lake._workspace.db.read(lake.caller) as tx:
        rows = tx.all(select(tables.audit.c.action).where(tenant_filter(tables.audit)).order_by(tables.audit.c.at))
    assert [row.action for row in rows if row.action.startswith("run.")] == ["run.create", "run.cancel"]


@pytest.mark.parametrize("outcome", [DONE, FAILED, CANCELLED], ids=lambda outcome: outcome.state.value)
def test_ended_run_is_never_changed(lake: Lake, outcome: RunOutcome) -> None:
    run = finish_run(lake, outcome)
    with write_transaction(lake) as tx:
        assert runs.request_cancel(tx, run.id) == run
        assert runs.expire_stale_runs(tx, tx.now + timedelta(days=1)) == 0


# -- expiry -----------------------------------------------------------------------------------------------------------

HEARTBEATS: dict[str, Callable[[CatalogTransaction, Run], Any]] = {
    "heartbeat": lambda tx, run: send_heartbeats(tx, run),
    "progress": lambda tx, run: runs.update_progress(tx, run.id, 1, PROGRESS, [], []),
}


@pytest.mark.parametrize("heartbeat", HEARTBEATS)
def test_run_with_heartbeats_does_not_expire(lake: Lake, heartbeat: str) -> None:
    run, stale = start_run(lake), start_run(lake)
    with write_transaction(lake) as tx:
        current_time = tx.now
        HEARTBEATS[heartbeat](tx, run)
        assert runs.has_stale_runs(tx, current_time)
        assert runs.expire_stale_runs(tx, current_time) == 1
        assert not runs.has_stale_runs(tx, current_time)
        assert (runs.find(tx, run.id).state, runs.find(tx, stale.id).state) == (RunState.RUNNING, RunState.FAILED)


def test_start_counts_as_a_heartbeat(lake: Lake) -> None:
    run = insert_run(lake)
    with write_transaction(lake) as tx:
        current_time = tx.now
        assert runs.has_stale_runs(tx, current_time)
        assert runs.start(tx, run.id, "host process 2")
        assert not runs.has_stale_runs(tx, current_time)


@pytest.mark.parametrize("make", [insert_run, start_run], ids=["queued", "running"])
def test_stale_run_fails_and_its_attempt_is_rejected(lake: Lake, make: Callable[..., Run]) -> None:
    run = make(lake, "k")
    with write_transaction(lake) as tx:
        if run.state is RunState.RUNNING:
            runs.update_progress(tx, run.id, 1, PROGRESS, [RESULT], [READ])
    with write_transaction(lake) as tx:
        current_time = tx.now
        assert runs.expire_stale_runs(tx, current_time + timedelta(seconds=1)) == 1
        assert runs.expire_stale_runs(tx, current_time + timedelta(seconds=1)) == 0
    with write_transaction(lake) as tx:
        assert send_heartbeats(tx, run) == {}
        assert not runs.start(tx, run.id, "host process 2")
        assert not runs.finish(tx, run.id, 1, DONE, written=[WRITTEN], commit_no=3)
    failed = load_run(lake, run)
    assert (failed.state, failed.ended_at, failed.progress, failed.written) == (RunState.FAILED, current_time, None, ())
    assert len(failed.results) == (run.state is RunState.RUNNING), "the results of finished operations are kept"
    assert failed.error is not None
    assert failed.error["error"]["code"] == "RUN_LOST"
    assert insert_run(lake, "k").id != run.id, "the key can be used again"


# -- search -----------------------------------------------------------------------------------------------------------

USES: dict[str, Callable[[CatalogTransaction, UUID], Any]] = {
    "find": runs.find,
    "request_cancel": runs.request_cancel,
}


@pytest.mark.parametrize("use", USES)
def test_run_of_another_tenant_is_not_found(lake: Lake, other_tenant: Lake, use: str) -> None:
    foreign = start_run(other_tenant)
    run_ids = set()
    for id in (foreign.id, uuid4()):
        with pytest.raises(NotFound) as raised, write_transaction(lake) as tx:
            USES[use](tx, id)
        run_ids.add(str(raised.value.as_dict()).replace(str(id), "ID"))
    assert len(run_ids) == 1
    assert load_run(other_tenant, foreign) == foreign


def test_runs_of_another_tenant_cannot_be_changed(lake: Lake, other_tenant: Lake) -> None:
    waiting, foreign = insert_run(other_tenant), start_run(other_tenant)
    with write_transaction(lake) as tx:
        assert not runs.start(tx, waiting.id, "host process 3")
        assert send_heartbeats(tx, waiting, foreign) == {}
        runs.update_progress(tx, foreign.id, 1, PROGRESS, [RESULT], [READ])
        assert not runs.finish(tx, foreign.id, 1, FAILED)
        late = tx.now + timedelta(days=1)
        assert (runs.has_stale_runs(tx, late), runs.expire_stale_runs(tx, late)) == (False, 0)
    assert (load_run(other_tenant, waiting), load_run(other_tenant, foreign)) == (waiting, foreign)
    assert ids(lake) == []


def test_search_returns_runs_newest_first(lake: Lake, other_tenant: Lake) -> None:
    pipeline = insert_pipeline(lake)
    waiting, failed = insert_run(lake, pipeline_id=pipeline.id, name="Straße"), finish_run(lake, FAILED)
    running_run = start_run(lake)
    insert_run(other_tenant)
    finds: dict[str, list[Run]] = {
        "": [running_run, failed, waiting],
        "state eq 'failed'": [failed],
        "state in ('queued', 'running')": [running_run, waiting],
        f"pipeline_id eq {pipeline.id}": [waiting],
        "pipeline_id eq null": [running_run, failed],
        "toupper(name) eq 'STRASSE'": [waiting],
        "ended_at ne null": [failed],
        "started_at eq null": [waiting],
        f"created_at gt {failed.created_at.isoformat().replace('+00:00', 'Z')}": [running_run],
        f"author eq '{lake.caller.name}' and name eq 'monthly'": [running_run, failed],
        f"id eq {failed.id}": [failed],
    }
    for filter, expected in finds.items():
        assert ids(lake, **({"filter": filter} if filter else {})) == [run.id for run in expected], filter
    assert ids(lake, search="strasse") == [waiting.id]
    assert ids(lake, orderby="created_at", top="2") == [waiting.id, failed.id]
    assert ids(lake, top="1", skip="1") == [failed.id]


def test_states_of_the_key_lookup_match_the_unique_index() -> None:
    (index,) = (index for index in tables.pipeline_runs.indexes if index.name == "uq_pipeline_runs_key")
    condition = str(index.dialect_options["sqlite"]["where"].compile(compile_kwargs={"literal_binds": True}))
    assert all(f"'{state}'" in condition for state in (*ACTIVE_STATES, RunState.SUCCEEDED))
    assert not any(f"'{state}'" in condition for state in (RunState.FAILED, RunState.CANCELLED))


PAGES: list[tuple[str, str]] = [
    ("", "ix_pipeline_runs_created"),
    ("pipeline_id eq 550e8400-e29b-41d4-a716-446655440000", "ix_pipeline_runs_pipeline"),
    ("state eq 'succeeded'", "ix_pipeline_runs_state"),
]


@pytest.mark.parametrize(("filter", "index"), PAGES, ids=[index for _, index in PAGES])
def test_search_pages_use_an_index_without_sorting(lake: Lake, filter: str, index: str) -> None:
    """Check the query plan: a page reads its own rows only."""
    db, run = lake._workspace.db, insert_run(lake)
    pipeline_ids = [insert_pipeline(lake, str(number)).id for number in range(10)]
    with recorded_statements(db) as statements:
        ids(lake, **({"filter": filter} if filter else {}))
    with db.connect_without_tenant() as connection:  # ends with a rollback: no other test sees the runs
        if connection.dialect.name == "postgresql":
            _insert_runs(connection, run.id, pipeline_ids)
        plan = _plan(connection, *statements[-1])
    assert index in plan, plan
    assert "TEMP B-TREE" not in plan, plan
    assert "Sort" not in plan, plan


def _insert_runs(connection: Connection, template: UUID, pipeline_ids: list[UUID]) -> None:
    """Insert enough runs to make one index of PostgreSQL cheaper than all others, and update its statistics."""
    table = tables.pipeline_runs
    row = connection.execute(select(table).where(table.c.id == template)).one()._asdict()
    rows = [
        {
            **row,
            "id": uuid4(),
            "pipeline_id": pipeline_ids[number % len(pipeline_ids)],
            "state": ("failed", "succeeded", "failed", "cancelled", "failed")[number % 5],
            "created_at": row["created_at"] - timedelta(seconds=number),
        }
        for number in range(5_000)
    ]
    connection.execute(insert(table), rows)
    connection.execute(text(f"ANALYZE {table.name}"))


FEW: dict[str, tuple[Callable[[Lake], Any], str]] = {
    "active": (lambda lake: ids(lake, filter="state in ('queued', 'running')"), "ix_pipeline_runs_state"),
    "waiting or running": (
        lambda lake: ids(lake, filter="name ne 'x' and (state eq 'queued' or state eq 'running')"),
        "ix_pipeline_runs_state",
    ),
    "silent": (lambda lake: _in(lake, lambda tx: runs.has_stale_runs(tx, tx.now)), "ix_pipeline_runs_state"),
    "buried": (
        lambda lake: _in(lake, lambda tx: runs.expire_stale_runs(tx, tx.now - timedelta(1))),
        "ix_pipeline_runs_state",
    ),
    "of a key": (lambda lake: insert_run(lake, "k"), "uq_pipeline_runs_key"),
}


@pytest.mark.parametrize("query_name", FEW)
def test_selective_search_does_not_scan_all_runs(sqlite_workspace: WorkspaceFixture, query_name: str) -> None:
    """Check the plan on SQLite, which has no row counts; PostgreSQL has them."""
    use, index = FEW[query_name]
    with sqlite_workspace.open() as lake:
        insert_run(lake, "k")
        with recorded_statements(lake._workspace.db) as statements:
            use(lake)
        with lake._workspace.db.connect_without_tenant(write=False) as connection:
            assert index in _plan(connection, *statements[-1])


def _in(lake: Lake, use: Callable[[CatalogTransaction], Any]) -> Any:
    with write_transaction(lake) as tx:
        return use(tx)


def _plan(connection: Connection, statement: str, parameters: Any) -> str:
    explain = "EXPLAIN" if connection.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
    return "\n".join(str(row[-1]) for row in connection.exec_driver_sql(f"{explain} {statement}", parameters))
