"""A run is remembered from its request to its end, and ends once, whatever becomes of its process."""

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

from catalog.test_pipelines import insert_pipeline, removed
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
def writing(lake: Lake) -> Iterator[CatalogTransaction]:
    with lake._workspace.db.write(lake.caller) as tx:
        yield tx


def requested(lake: Lake, key: str | None = None, request: str = REQUEST, **members: Any) -> Run:
    """Insert a run, or return the existing run of its key."""
    with writing(lake) as tx:
        run = Run(
            uuid4(), None, "monthly", DEFINITION, RunState.QUEUED, tx.now, tx.caller.user, tx.caller.name, key=key
        )
        run = replace(run, **members)
        return runs.insert(tx, run, role=Role.DEVELOPER, request_digest=request, worker="host process 1", round_no=None)


def running(lake: Lake, key: str | None = None) -> Run:
    run = requested(lake, key)
    with writing(lake) as tx:
        assert runs.start(tx, run.id, "host process 2")
        return runs.find(tx, run.id)


def beat(tx: CatalogTransaction, *these: Run) -> dict[UUID, bool]:
    """Signs of life of first tries."""
    alive = runs.heartbeat(tx, [(run.id, 1) for run in these], claimed_until=tx.now)
    return {run: requested for (run, _), requested in alive.items()}


def ended(lake: Lake, outcome: RunOutcome = DONE, key: str | None = None) -> Run:
    run = running(lake, key)
    with writing(lake) as tx:
        assert runs.finish(tx, run.id, 1, outcome)
    return now(lake, run)


def now(lake: Lake, run: Run) -> Run:
    with lake._workspace.db.read(lake.caller) as tx:
        return runs.find(tx, run.id)


def ids(lake: Lake, **expected: str) -> list[UUID]:
    pairs = [(f"${name}", value) for name, value in expected.items()]
    with lake._workspace.db.read(lake.caller) as tx:
        page = runs.search(tx, options(pairs, runs.FIELDS, default_top=50, max_top=200))
    return [run.id for run in page.items]


# -- asking -----------------------------------------------------------------------------------------------------------


def test_find_returns_the_inserted_run(lake: Lake) -> None:
    pipeline = insert_pipeline(lake)
    run = requested(lake, "k", pipeline_id=pipeline.id, name="Größe")
    assert now(lake, run) == run
    assert json.dumps(now(lake, run).as_json()) == json.dumps(run.as_json()), "member by member, in order"


def test_insert_stores_author_and_role_for_the_worker(lake: Lake) -> None:
    run = requested(lake)
    c = tables.pipeline_runs.c
    with lake._workspace.db.read(lake.caller) as tx:
        row = tx.first(
            select(c.role, c.worker, c.request_digest).where(tenant_filter(tables.pipeline_runs), c.id == run.id)
        )
    assert row is not None
    assert tuple(row) == (Role.DEVELOPER.claim, "host process 1", REQUEST)


@pytest.mark.parametrize("state", [RunState.QUEUED, RunState.RUNNING, RunState.SUCCEEDED])
def test_key_identifies_the_active_or_succeeded_run(lake: Lake, other_tenant: Lake, state: RunState) -> None:
    makes = {
        RunState.QUEUED: requested,
        RunState.RUNNING: running,
        RunState.SUCCEEDED: lambda lake, key: ended(lake, DONE, key),
    }
    first = makes[state](lake, "k")
    again = requested(lake, "k")
    assert (again.id, again.state) == (first.id, state)
    assert requested(lake, "other").id != first.id
    assert requested(other_tenant, "k").id != first.id
    assert len(ids(lake)) == 2


@pytest.mark.parametrize("outcome", [FAILED, CANCELLED], ids=["failed", "cancelled"])
def test_key_can_be_used_again_after_a_failed_or_cancelled_run(lake: Lake, outcome: RunOutcome) -> None:
    first = ended(lake, outcome, "k")
    second = requested(lake, "k", OTHER_REQUEST)
    assert second.id != first.id
    assert requested(lake, "k", OTHER_REQUEST).id == second.id


def test_key_of_another_request_is_rejected(lake: Lake) -> None:
    first = requested(lake, "k")
    with pytest.raises(AlreadyExists) as raised:
        requested(lake, "k", OTHER_REQUEST)
    assert (raised.value.reason, raised.value.context) == ("key_reused", {"key": "k"})
    assert ids(lake) == [first.id]


def test_runs_without_a_key_are_separate(lake: Lake) -> None:
    assert len({requested(lake).id for _ in range(3)}) == 3


def test_concurrent_inserts_with_one_key_create_one_run(lake: Lake) -> None:
    together = Barrier(6)

    def ask(_: int) -> UUID:
        together.wait(60)
        return requested(lake, "k").id

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(6)))
    assert ids(lake) == [answers[0]]
    assert set(answers) == {answers[0]}


def test_run_is_found_after_its_pipeline_is_removed(lake: Lake) -> None:
    pipeline = insert_pipeline(lake)
    run = requested(lake, pipeline_id=pipeline.id)
    removed(lake, pipeline.id)
    assert now(lake, run) == run


# -- running ----------------------------------------------------------------------------------------------------------


def test_start_succeeds_once(lake: Lake) -> None:
    run = requested(lake)
    with writing(lake) as tx:
        assert runs.start(tx, run.id, "host process 2")
        assert runs.find(tx, run.id) == replace(run, state=RunState.RUNNING, started_at=tx.now)
        assert not runs.start(tx, run.id, "host process 3")


def test_progress_is_stored_while_running_and_removed_at_the_end(lake: Lake) -> None:
    run = running(lake)
    progress = {
        "operation": 1, "operations": 2, "order": 3, "type": "append", "phase": "write",
        "stages": 4, "stages_done": 0, "tasks": 9, "tasks_done": 0, "rows": 12,
    }  # fmt: skip
    stored = replace(run, progress=progress, results=(RESULT,), reads=(asdict(READ),))
    with writing(lake) as tx:
        runs.update_progress(tx, run.id, 1, PROGRESS, [RESULT], [READ])
    assert now(lake, run) == stored
    with writing(lake) as tx:
        assert runs.finish(tx, run.id, 1, FAILED)
        runs.update_progress(tx, run.id, 1, PROGRESS, [RESULT], [READ])
        assert runs.find(tx, run.id) == replace(run, state=RunState.FAILED, ended_at=tx.now, error=FAILED.error)


def test_finish_succeeds_once(lake: Lake) -> None:
    run = running(lake)
    with writing(lake) as tx:
        assert runs.finish(tx, run.id, 1, DONE, written=[WRITTEN], commit_no=3)
        moment = tx.now
    with writing(lake) as tx:
        assert not runs.finish(tx, run.id, 1, FAILED)
    over = now(lake, run)
    assert over == replace(
        run,
        state=RunState.SUCCEEDED,
        ended_at=moment,
        reads=(asdict(READ),),
        results=(RESULT,),
        written=({**asdict(WRITTEN), "dataset": str(WRITTEN.dataset)},),
        commit_no=3,
    )
    assert json.dumps(over.results[0]) == json.dumps(RESULT), "member by member, in order"


def test_finish_that_is_rolled_back_keeps_the_run_active(lake: Lake) -> None:
    run = running(lake)
    with pytest.raises(ZeroDivisionError), writing(lake) as tx:
        assert runs.finish(tx, run.id, 1, DONE)
        raise ZeroDivisionError
    assert now(lake, run) == run


def test_finish_accepts_any_error_details(lake: Lake) -> None:
    run, id, at = running(lake), uuid4(), datetime(2026, 1, 31, tzinfo=UTC)
    details = {"id": id, "at": at, "key": float("nan"), "text": "a\x00b\ud800", "tuple": (1, 2), "big": 2**63}
    with writing(lake) as tx:
        assert runs.finish(tx, run.id, 1, RunOutcome(RunState.FAILED, error={"error": {"details": details}}))
    reported = {**details, "id": str(id), "at": str(at), "key": "NaN", "tuple": [1, 2]}
    assert now(lake, run).error == {"error": {"details": reported}}


# -- stopping ---------------------------------------------------------------------------------------------------------


def test_request_cancel_of_a_queued_run_cancels_it(lake: Lake) -> None:
    run = requested(lake)
    with writing(lake) as tx:
        reported = runs.request_cancel(tx, run.id)
        assert reported == replace(run, state=RunState.CANCELLED, cancelling=True, ended_at=tx.now)
        assert not runs.start(tx, run.id, "host process 2")
        assert beat(tx, run) == {}


def test_request_cancel_of_a_running_run_is_reported_by_heartbeat(lake: Lake) -> None:
    run, other = running(lake), running(lake)
    with writing(lake) as tx:
        assert runs.request_cancel(tx, run.id) == replace(run, cancelling=True)
        assert runs.request_cancel(tx, run.id) == replace(run, cancelling=True)
        assert beat(tx, other, run, replace(run, id=uuid4())) == {run.id: True, other.id: False}
        assert runs.finish(tx, run.id, 1, CANCELLED)
        assert beat(tx, run, other) == {other.id: False}


def test_run_requests_and_cancellations_are_in_the_audit(lake: Lake) -> None:
    run = running(lake)
    with writing(lake) as tx:
        runs.request_cancel(tx, run.id)
        runs.request_cancel(tx, run.id)  # which changes nothing
    with lake._workspace.db.read(lake.caller) as tx:
        rows = tx.all(select(tables.audit.c.action).where(tenant_filter(tables.audit)).order_by(tables.audit.c.at))
    assert [row.action for row in rows if row.action.startswith("run.")] == ["run.create", "run.cancel"]


@pytest.mark.parametrize("outcome", [DONE, FAILED, CANCELLED], ids=lambda outcome: outcome.state.value)
def test_ended_run_is_never_changed(lake: Lake, outcome: RunOutcome) -> None:
    run = ended(lake, outcome)
    with writing(lake) as tx:
        assert runs.request_cancel(tx, run.id) == run
        assert runs.expire_stale_runs(tx, tx.now + timedelta(days=1)) == 0


# -- falling silent ---------------------------------------------------------------------------------------------------

SIGNS: dict[str, Callable[[CatalogTransaction, Run], Any]] = {
    "a beat": lambda tx, run: beat(tx, run),
    "progress": lambda tx, run: runs.update_progress(tx, run.id, 1, PROGRESS, [], []),
}


@pytest.mark.parametrize("sign", SIGNS)
def test_run_with_heartbeats_does_not_expire(lake: Lake, sign: str) -> None:
    run, dead = running(lake), running(lake)
    with writing(lake) as tx:
        since = tx.now
        SIGNS[sign](tx, run)
        assert runs.has_stale_runs(tx, since)
        assert runs.expire_stale_runs(tx, since) == 1
        assert not runs.has_stale_runs(tx, since)
        assert (runs.find(tx, run.id).state, runs.find(tx, dead.id).state) == (RunState.RUNNING, RunState.FAILED)


def test_start_counts_as_a_heartbeat(lake: Lake) -> None:
    run = requested(lake)
    with writing(lake) as tx:
        since = tx.now
        assert runs.has_stale_runs(tx, since)
        assert runs.start(tx, run.id, "host process 2")
        assert not runs.has_stale_runs(tx, since)


@pytest.mark.parametrize("make", [requested, running], ids=["queued", "running"])
def test_stale_run_fails_and_its_attempt_is_rejected(lake: Lake, make: Callable[..., Run]) -> None:
    run = make(lake, "k")
    with writing(lake) as tx:
        if run.state is RunState.RUNNING:
            runs.update_progress(tx, run.id, 1, PROGRESS, [RESULT], [READ])
    with writing(lake) as tx:
        moment = tx.now
        assert runs.expire_stale_runs(tx, moment + timedelta(seconds=1)) == 1
        assert runs.expire_stale_runs(tx, moment + timedelta(seconds=1)) == 0
    with writing(lake) as tx:
        assert beat(tx, run) == {}
        assert not runs.start(tx, run.id, "host process 2")
        assert not runs.finish(tx, run.id, 1, DONE, written=[WRITTEN], commit_no=3)
    lost = now(lake, run)
    assert (lost.state, lost.ended_at, lost.progress, lost.written) == (RunState.FAILED, moment, None, ())
    assert len(lost.results) == (run.state is RunState.RUNNING), "the results of finished operations are kept"
    assert lost.error is not None
    assert lost.error["error"]["code"] == "RUN_LOST"
    assert requested(lake, "k").id != run.id, "to run it again is safe"


# -- finding ----------------------------------------------------------------------------------------------------------

USES: dict[str, Callable[[CatalogTransaction, UUID], Any]] = {
    "find": runs.find,
    "ask_to_cancel": runs.request_cancel,
}


@pytest.mark.parametrize("use", USES)
def test_run_of_another_tenant_is_not_found(lake: Lake, other_tenant: Lake, use: str) -> None:
    theirs = running(other_tenant)
    answers = set()
    for id in (theirs.id, uuid4()):
        with pytest.raises(NotFound) as raised, writing(lake) as tx:
            USES[use](tx, id)
        answers.add(str(raised.value.as_dict()).replace(str(id), "ID"))
    assert len(answers) == 1
    assert now(other_tenant, theirs) == theirs


def test_runs_of_another_tenant_cannot_be_changed(lake: Lake, other_tenant: Lake) -> None:
    waiting, theirs = requested(other_tenant), running(other_tenant)
    with writing(lake) as tx:
        assert not runs.start(tx, waiting.id, "host process 3")
        assert beat(tx, waiting, theirs) == {}
        runs.update_progress(tx, theirs.id, 1, PROGRESS, [RESULT], [READ])
        assert not runs.finish(tx, theirs.id, 1, FAILED)
        late = tx.now + timedelta(days=1)
        assert (runs.has_stale_runs(tx, late), runs.expire_stale_runs(tx, late)) == (False, 0)
    assert (now(other_tenant, waiting), now(other_tenant, theirs)) == (waiting, theirs)
    assert ids(lake) == []


def test_search_returns_runs_newest_first(lake: Lake, other_tenant: Lake) -> None:
    pipeline = insert_pipeline(lake)
    waiting, failed = requested(lake, pipeline_id=pipeline.id, name="Straße"), ended(lake, FAILED)
    busy = running(lake)
    requested(other_tenant)
    finds: dict[str, list[Run]] = {
        "": [busy, failed, waiting],
        "state eq 'failed'": [failed],
        "state in ('queued', 'running')": [busy, waiting],
        f"pipeline_id eq {pipeline.id}": [waiting],
        "pipeline_id eq null": [busy, failed],
        "toupper(name) eq 'STRASSE'": [waiting],
        "ended_at ne null": [failed],
        "started_at eq null": [waiting],
        f"created_at gt {failed.created_at.isoformat().replace('+00:00', 'Z')}": [busy],
        f"author eq '{lake.caller.name}' and name eq 'monthly'": [busy, failed],
        f"id eq {failed.id}": [failed],
    }
    for filter, found in finds.items():
        assert ids(lake, **({"filter": filter} if filter else {})) == [run.id for run in found], filter
    assert ids(lake, search="strasse") == [waiting.id]
    assert ids(lake, orderby="created_at", top="2") == [waiting.id, failed.id]
    assert ids(lake, top="1", skip="1") == [failed.id]


def test_states_of_the_key_lookup_match_the_unique_index() -> None:
    (index,) = (index for index in tables.pipeline_runs.indexes if index.name == "uq_pipeline_runs_key")
    where = str(index.dialect_options["sqlite"]["where"].compile(compile_kwargs={"literal_binds": True}))
    assert all(f"'{state}'" in where for state in (*ACTIVE_STATES, RunState.SUCCEEDED))
    assert not any(f"'{state}'" in where for state in (RunState.FAILED, RunState.CANCELLED))


PAGES: list[tuple[str, str]] = [
    ("", "ix_pipeline_runs_created"),
    ("pipeline_id eq 550e8400-e29b-41d4-a716-446655440000", "ix_pipeline_runs_pipeline"),
    ("state eq 'succeeded'", "ix_pipeline_runs_state"),
]


@pytest.mark.parametrize(("filter", "index"), PAGES, ids=[index for _, index in PAGES])
def test_search_pages_use_an_index_without_sorting(lake: Lake, filter: str, index: str) -> None:
    """However many runs there are, a page costs what it shows."""
    db, run = lake._workspace.db, requested(lake)
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
    """Insert so many runs that one index of PostgreSQL is cheaper than all others, and update its statistics."""
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
    "under way": (lambda lake: ids(lake, filter="state in ('queued', 'running')"), "ix_pipeline_runs_state"),
    "waiting or running": (
        lambda lake: ids(lake, filter="name ne 'x' and (state eq 'queued' or state eq 'running')"),
        "ix_pipeline_runs_state",
    ),
    "silent": (lambda lake: _in(lake, lambda tx: runs.has_stale_runs(tx, tx.now)), "ix_pipeline_runs_state"),
    "buried": (
        lambda lake: _in(lake, lambda tx: runs.expire_stale_runs(tx, tx.now - timedelta(1))),
        "ix_pipeline_runs_state",
    ),
    "of a key": (lambda lake: requested(lake, "k"), "uq_pipeline_runs_key"),
}


@pytest.mark.parametrize("what", FEW)
def test_selective_search_does_not_scan_all_runs(sqlite_workspace: WorkspaceFixture, what: str) -> None:
    """Check the plan on SQLite, which has no row counts; PostgreSQL has them."""
    use, index = FEW[what]
    with sqlite_workspace.open() as lake:
        requested(lake, "k")
        with recorded_statements(lake._workspace.db) as statements:
            use(lake)
        with lake._workspace.db.connect_without_tenant(write=False) as connection:
            assert index in _plan(connection, *statements[-1])


def _in(lake: Lake, use: Callable[[CatalogTransaction], Any]) -> Any:
    with writing(lake) as tx:
        return use(tx)


def _plan(connection: Connection, statement: str, parameters: Any) -> str:
    explain = "EXPLAIN" if connection.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
    return "\n".join(str(row[-1]) for row in connection.exec_driver_sql(f"{explain} {statement}", parameters))
