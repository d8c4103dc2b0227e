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
from sqlalchemy import event, select, text

from catalog.test_pipelines import kept, removed
from penstock.catalog import runs, tables
from penstock.catalog.database import Database, Tx, mine
from penstock.core.caller import Role
from penstock.core.dataset.changes import Written
from penstock.core.odata import options
from penstock.core.pipeline.run import UNDER_WAY, Outcome, Progress, Read, Run, State
from penstock.errors import AlreadyExists, NotFound
from penstock.lake import Lake
from workspaces import Place

REQUEST, OTHER_REQUEST = "a" * 64, "b" * 64
DEFINITION = {"zeta": 1, "name": "monthly", "a": {"long": [1, None, 2.5], "b": "ß🦆"}}
READ = Read(str(uuid4()), "demo.numbers", 7, 8)
RESULT = {"success": True, "operation": "append", "order": 2, "result": {"rows_appended": 142, "filtered": False}}
PROGRESS = Progress(1, 2, 3, "append", "write", stages=4, tasks=9, rows=12)
WRITTEN = Written(uuid4(), "demo.numbers", 9, "pipeline", 142, inserted=142)
DONE = Outcome(State.SUCCEEDED, (READ,), (RESULT,))
FAILED = Outcome(State.FAILED, error={"error": {"code": "APPEND_001", "message": "Dataset not found", "details": {}}})
CANCELLED = Outcome(State.CANCELLED)


@contextmanager
def writing(lake: Lake) -> Iterator[Tx]:
    with lake.workspace.db.write(lake.caller) as tx:
        yield tx


def asked(lake: Lake, key: str | None = None, request: str = REQUEST, **members: Any) -> Run:
    """The run that counts once this one was asked for."""
    with writing(lake) as tx:
        run = Run(uuid4(), None, "monthly", DEFINITION, State.QUEUED, tx.now, tx.caller.user, tx.caller.name, key=key)
        run = replace(run, **members)
        return runs.insert(tx, run, role=Role.DEVELOPER, request=request, holder="host process 1", turn=None)


def running(lake: Lake, key: str | None = None) -> Run:
    run = asked(lake, key)
    with writing(lake) as tx:
        assert runs.start(tx, run.id, "host process 2")
        return runs.find(tx, run.id)


def beat(tx: Tx, *these: Run) -> dict[UUID, bool]:
    """Signs of life of first tries."""
    alive = runs.beat(tx, [(run.id, 1) for run in these], until=tx.now)
    return {run: asked for (run, _), asked in alive.items()}


def ended(lake: Lake, outcome: Outcome = DONE, key: str | None = None) -> Run:
    run = running(lake, key)
    with writing(lake) as tx:
        assert runs.finish(tx, run.id, 1, outcome)
    return now(lake, run)


def now(lake: Lake, run: Run) -> Run:
    with lake.workspace.db.read(lake.caller) as tx:
        return runs.find(tx, run.id)


def ids(lake: Lake, **wanted: str) -> list[UUID]:
    pairs = [(f"${name}", value) for name, value in wanted.items()]
    with lake.workspace.db.read(lake.caller) as tx:
        page = runs.search(tx, options(pairs, runs.FIELDS, default_top=50, max_top=200))
    return [run.id for run in page.items]


# -- asking -----------------------------------------------------------------------------------------------------------


def test_a_run_is_found_as_it_was_asked_for(lake: Lake) -> None:
    pipeline = kept(lake)
    run = asked(lake, "k", pipeline_id=pipeline.id, name="Größe")
    assert now(lake, run) == run
    assert json.dumps(now(lake, run).as_json()) == json.dumps(run.as_json()), "member by member, in order"


def test_who_asked_is_kept_for_whoever_runs_it(lake: Lake) -> None:
    run = asked(lake)
    c = tables.pipeline_runs.c
    with lake.workspace.db.read(lake.caller) as tx:
        row = tx.first(select(c.role, c.holder, c.request).where(mine(tables.pipeline_runs), c.id == run.id))
    assert row is not None
    assert tuple(row) == (Role.DEVELOPER.wire, "host process 1", REQUEST)


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.SUCCEEDED])
def test_a_key_names_the_run_that_is_under_way_or_has_succeeded(lake: Lake, stranger: Lake, state: State) -> None:
    makes = {State.QUEUED: asked, State.RUNNING: running, State.SUCCEEDED: lambda lake, key: ended(lake, DONE, key)}
    first = makes[state](lake, "k")
    again = asked(lake, "k")
    assert (again.id, again.state) == (first.id, state)
    assert asked(lake, "other").id != first.id
    assert asked(stranger, "k").id != first.id
    assert len(ids(lake)) == 2


@pytest.mark.parametrize("outcome", [FAILED, CANCELLED], ids=["failed", "cancelled"])
def test_a_key_is_free_again_after_a_run_that_came_to_nothing(lake: Lake, outcome: Outcome) -> None:
    first = ended(lake, outcome, "k")
    second = asked(lake, "k", OTHER_REQUEST)
    assert second.id != first.id
    assert asked(lake, "k", OTHER_REQUEST).id == second.id


def test_a_key_is_not_for_another_request(lake: Lake) -> None:
    first = asked(lake, "k")
    with pytest.raises(AlreadyExists) as refusal:
        asked(lake, "k", OTHER_REQUEST)
    assert (refusal.value.reason, refusal.value.context) == ("key_reused", {"key": "k"})
    assert ids(lake) == [first.id]


def test_runs_without_a_key_are_all_their_own(lake: Lake) -> None:
    assert len({asked(lake).id for _ in range(3)}) == 3


def test_of_several_requests_with_one_key_at_once_one_becomes_a_run(lake: Lake) -> None:
    together = Barrier(6)

    def ask(_: int) -> UUID:
        together.wait(60)
        return asked(lake, "k").id

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(6)))
    assert ids(lake) == [answers[0]]
    assert set(answers) == {answers[0]}


def test_a_run_outlives_its_pipeline(lake: Lake) -> None:
    pipeline = kept(lake)
    run = asked(lake, pipeline_id=pipeline.id)
    removed(lake, pipeline.id)
    assert now(lake, run) == run


# -- running ----------------------------------------------------------------------------------------------------------


def test_a_run_starts_once(lake: Lake) -> None:
    run = asked(lake)
    with writing(lake) as tx:
        assert runs.start(tx, run.id, "host process 2")
        assert runs.find(tx, run.id) == replace(run, state=State.RUNNING, started_at=tx.now)
        assert not runs.start(tx, run.id, "host process 3")


def test_progress_is_shown_while_a_run_runs_and_gone_when_it_is_over(lake: Lake) -> None:
    run = running(lake)
    shown = replace(run, progress=asdict(PROGRESS), results=(RESULT,), reads=(asdict(READ),))
    with writing(lake) as tx:
        runs.show_progress(tx, run.id, 1, PROGRESS, [RESULT], [READ])
    assert now(lake, run) == shown
    with writing(lake) as tx:
        assert runs.finish(tx, run.id, 1, FAILED)
        runs.show_progress(tx, run.id, 1, PROGRESS, [RESULT], [READ])
        assert runs.find(tx, run.id) == replace(run, state=State.FAILED, ended_at=tx.now, error=FAILED.error)


def test_a_run_ends_once(lake: Lake) -> None:
    run = running(lake)
    with writing(lake) as tx:
        assert runs.finish(tx, run.id, 1, DONE, written=[WRITTEN], commit_no=3)
        moment = tx.now
    with writing(lake) as tx:
        assert not runs.finish(tx, run.id, 1, FAILED)
    over = now(lake, run)
    assert over == replace(
        run,
        state=State.SUCCEEDED,
        ended_at=moment,
        reads=(asdict(READ),),
        results=(RESULT,),
        written=({**asdict(WRITTEN), "dataset": str(WRITTEN.dataset)},),
        commit_no=3,
    )
    assert json.dumps(over.results[0]) == json.dumps(RESULT), "member by member, in order"


def test_an_end_that_is_rolled_back_did_not_happen(lake: Lake) -> None:
    run = running(lake)
    with pytest.raises(ZeroDivisionError), writing(lake) as tx:
        assert runs.finish(tx, run.id, 1, DONE)
        raise ZeroDivisionError
    assert now(lake, run) == run


def test_a_run_ends_whatever_the_details_of_its_error_are(lake: Lake) -> None:
    run, id, at = running(lake), uuid4(), datetime(2026, 1, 31, tzinfo=UTC)
    details = {"id": id, "at": at, "key": float("nan"), "text": "a\x00b\ud800", "tuple": (1, 2), "big": 2**63}
    with writing(lake) as tx:
        assert runs.finish(tx, run.id, 1, Outcome(State.FAILED, error={"error": {"details": details}}))
    told = {**details, "id": str(id), "at": str(at), "key": "NaN", "tuple": [1, 2]}
    assert now(lake, run).error == {"error": {"details": told}}


# -- stopping ---------------------------------------------------------------------------------------------------------


def test_a_run_that_waits_is_cancelled_at_once(lake: Lake) -> None:
    run = asked(lake)
    with writing(lake) as tx:
        told = runs.ask_to_cancel(tx, run.id)
        assert told == replace(run, state=State.CANCELLED, cancelling=True, ended_at=tx.now)
        assert not runs.start(tx, run.id, "host process 2")
        assert beat(tx, run) == {}


def test_a_run_that_runs_is_asked_to_stop_and_hears_it(lake: Lake) -> None:
    run, other = running(lake), running(lake)
    with writing(lake) as tx:
        assert runs.ask_to_cancel(tx, run.id) == replace(run, cancelling=True)
        assert runs.ask_to_cancel(tx, run.id) == replace(run, cancelling=True)
        assert beat(tx, other, run, replace(run, id=uuid4())) == {run.id: True, other.id: False}
        assert runs.finish(tx, run.id, 1, CANCELLED)
        assert beat(tx, run, other) == {other.id: False}


def test_whoever_asks_for_runs_and_stops_them_is_on_record(lake: Lake) -> None:
    run = running(lake)
    with writing(lake) as tx:
        runs.ask_to_cancel(tx, run.id)
        runs.ask_to_cancel(tx, run.id)  # which changes nothing
    with lake.workspace.db.read(lake.caller) as tx:
        rows = tx.all(select(tables.audit.c.action).where(mine(tables.audit)).order_by(tables.audit.c.at))
    assert [row.action for row in rows if row.action.startswith("run.")] == ["run.create", "run.cancel"]


@pytest.mark.parametrize("outcome", [DONE, FAILED, CANCELLED], ids=lambda outcome: outcome.state.value)
def test_a_run_that_is_over_stays_as_it_is(lake: Lake, outcome: Outcome) -> None:
    run = ended(lake, outcome)
    with writing(lake) as tx:
        assert runs.ask_to_cancel(tx, run.id) == run
        assert runs.bury(tx, tx.now + timedelta(days=1)) == 0


# -- falling silent ---------------------------------------------------------------------------------------------------

SIGNS: dict[str, Callable[[Tx, Run], Any]] = {
    "a beat": lambda tx, run: beat(tx, run),
    "progress": lambda tx, run: runs.show_progress(tx, run.id, 1, PROGRESS, [], []),
}


@pytest.mark.parametrize("sign", SIGNS)
def test_a_run_that_shows_signs_of_life_is_not_buried(lake: Lake, sign: str) -> None:
    run, dead = running(lake), running(lake)
    with writing(lake) as tx:
        since = tx.now
        SIGNS[sign](tx, run)
        assert runs.silent(tx, since)
        assert runs.bury(tx, since) == 1
        assert not runs.silent(tx, since)
        assert (runs.find(tx, run.id).state, runs.find(tx, dead.id).state) == (State.RUNNING, State.FAILED)


def test_what_starts_is_alive(lake: Lake) -> None:
    run = asked(lake)
    with writing(lake) as tx:
        since = tx.now
        assert runs.silent(tx, since)
        assert runs.start(tx, run.id, "host process 2")
        assert not runs.silent(tx, since)


@pytest.mark.parametrize("make", [asked, running], ids=["queued", "running"])
def test_a_silent_run_is_shown_as_failed_and_can_do_no_more(lake: Lake, make: Callable[..., Run]) -> None:
    run = make(lake, "k")
    with writing(lake) as tx:
        if run.state is State.RUNNING:
            runs.show_progress(tx, run.id, 1, PROGRESS, [RESULT], [READ])
    with writing(lake) as tx:
        moment = tx.now
        assert runs.bury(tx, moment + timedelta(seconds=1)) == 1
        assert runs.bury(tx, moment + timedelta(seconds=1)) == 0
    with writing(lake) as tx:
        assert beat(tx, run) == {}
        assert not runs.start(tx, run.id, "host process 2")
        assert not runs.finish(tx, run.id, 1, DONE, written=[WRITTEN], commit_no=3)
    lost = now(lake, run)
    assert (lost.state, lost.ended_at, lost.progress, lost.written) == (State.FAILED, moment, None, ())
    assert len(lost.results) == (run.state is State.RUNNING), "what it had done is still told"
    assert lost.error is not None
    assert lost.error["error"]["code"] == "RUN_LOST"
    assert asked(lake, "k").id != run.id, "to run it again is safe"


# -- finding ----------------------------------------------------------------------------------------------------------

USES: dict[str, Callable[[Tx, UUID], Any]] = {
    "find": runs.find,
    "ask_to_cancel": runs.ask_to_cancel,
}


@pytest.mark.parametrize("use", USES)
def test_a_foreign_run_answers_as_an_unknown_one(lake: Lake, stranger: Lake, use: str) -> None:
    theirs = running(stranger)
    answers = set()
    for id in (theirs.id, uuid4()):
        with pytest.raises(NotFound) as refusal, writing(lake) as tx:
            USES[use](tx, id)
        answers.add(str(refusal.value.facts()).replace(str(id), "ID"))
    assert len(answers) == 1
    assert now(stranger, theirs) == theirs


def test_nobody_moves_the_runs_of_another_tenant(lake: Lake, stranger: Lake) -> None:
    waiting, theirs = asked(stranger), running(stranger)
    with writing(lake) as tx:
        assert not runs.start(tx, waiting.id, "host process 3")
        assert beat(tx, waiting, theirs) == {}
        runs.show_progress(tx, theirs.id, 1, PROGRESS, [RESULT], [READ])
        assert not runs.finish(tx, theirs.id, 1, FAILED)
        late = tx.now + timedelta(days=1)
        assert (runs.silent(tx, late), runs.bury(tx, late)) == (False, 0)
    assert (now(stranger, waiting), now(stranger, theirs)) == (waiting, theirs)
    assert ids(lake) == []


def test_runs_are_found_the_newest_first(lake: Lake, stranger: Lake) -> None:
    pipeline = kept(lake)
    waiting, failed = asked(lake, pipeline_id=pipeline.id, name="Straße"), ended(lake, FAILED)
    busy = running(lake)
    asked(stranger)
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


def test_the_states_that_a_key_counts_in_are_those_of_its_index() -> None:
    (index,) = (index for index in tables.pipeline_runs.indexes if index.name == "uq_pipeline_runs_key")
    where = str(index.dialect_options["sqlite"]["where"].compile(compile_kwargs={"literal_binds": True}))
    assert all(f"'{state}'" in where for state in (*UNDER_WAY, State.SUCCEEDED))
    assert not any(f"'{state}'" in where for state in (State.FAILED, State.CANCELLED))


PAGES: list[tuple[str, str]] = [
    ("", "ix_pipeline_runs_created"),
    ("pipeline_id eq 550e8400-e29b-41d4-a716-446655440000", "ix_pipeline_runs_pipeline"),
    ("state eq 'succeeded'", "ix_pipeline_runs_state"),
]


@pytest.mark.parametrize(("filter", "index"), PAGES, ids=[index for _, index in PAGES])
def test_pages_are_read_by_an_index_and_not_sorted(lake: Lake, filter: str, index: str) -> None:
    """However many runs there are, a page costs what it shows."""
    db = lake.workspace.db
    with _heard(db) as statements:
        ids(lake, **({"filter": filter} if filter else {}))
    plan = _plan(db, *statements[-1])
    assert index in plan, plan
    assert "TEMP B-TREE" not in plan, plan
    assert "Sort" not in plan, plan


FEW: dict[str, tuple[Callable[[Lake], Any], str]] = {
    "under way": (lambda lake: ids(lake, filter="state in ('queued', 'running')"), "ix_pipeline_runs_state"),
    "waiting or running": (
        lambda lake: ids(lake, filter="name ne 'x' and (state eq 'queued' or state eq 'running')"),
        "ix_pipeline_runs_state",
    ),
    "silent": (lambda lake: _in(lake, lambda tx: runs.silent(tx, tx.now)), "ix_pipeline_runs_state"),
    "buried": (lambda lake: _in(lake, lambda tx: runs.bury(tx, tx.now - timedelta(1))), "ix_pipeline_runs_state"),
    "of a key": (lambda lake: asked(lake, "k"), "uq_pipeline_runs_key"),
}


@pytest.mark.parametrize("what", FEW)
def test_few_runs_are_not_looked_for_among_all(embedded: Place, what: str) -> None:
    """By SQLite, which does not know how many there are; PostgreSQL does."""
    use, index = FEW[what]
    with embedded.open() as lake:
        asked(lake, "k")
        with _heard(lake.workspace.db) as statements:
            use(lake)
        assert index in _plan(lake.workspace.db, *statements[-1])


def _in(lake: Lake, use: Callable[[Tx], Any]) -> Any:
    with writing(lake) as tx:
        return use(tx)


@contextmanager
def _heard(db: Database) -> Iterator[list[tuple[str, Any]]]:
    """What is said to the database."""
    said: list[tuple[str, Any]] = []

    def hear(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        said.append((statement, parameters))

    event.listen(db.engine, "before_cursor_execute", hear)
    try:
        yield said
    finally:
        event.remove(db.engine, "before_cursor_execute", hear)


def _plan(db: Database, statement: str, parameters: Any) -> str:
    with db.raw(write=False) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL enable_seqscan = off"))  # a small table is read whole otherwise
            connection.execute(text("SET LOCAL enable_sort = off"))
            connection.execute(text("SET LOCAL enable_bitmapscan = off"))
            return "\n".join(row[0] for row in connection.exec_driver_sql(f"EXPLAIN {statement}", parameters))
        explained = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        return "\n".join(row.detail for row in explained)
