"""One run queue for all processes: a run survives its submitter and its worker, and commits once.

The pipelines link the files of one dataset into another, which needs no Spark job. A second commit of a run would
create version 2.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from sqlalchemy import event, select

from penstock import failpoints
from penstock.catalog import runs as run_records
from penstock.catalog.tables import pipeline_runs
from penstock.catalog.tenant_guard import tenant_filter
from penstock.core.caller import Caller, Role
from penstock.core.pipeline import definition as pipeline_definition
from penstock.core.pipeline.definition import PipelineDefinition
from penstock.core.pipeline.run import Run, RunState
from penstock.errors import Conflict, Forbidden, NotFound, PenstockError, Unavailable, Unsupported
from penstock.lake import Lake
from penstock.service.datasets import read
from penstock.service.pipelines import run_worker, runs
from penstock.service.pipelines.run_worker import RunLimits, RunWorker
from support.workspaces import WorkspaceFixture


@pytest.fixture
def lake(workspace: WorkspaceFixture) -> Iterator[Lake]:
    with workspace.open() as lake:
        lake.create("demo.rows", {"id": [1, 2, 3]})
        lake.create("demo.none", schema=pa.schema([("id", pa.int64())]))
        yield lake


@pytest.fixture
def submitter(lake: Lake) -> RunWorker:
    """A worker that submits runs and executes no queued run."""
    return RunWorker(lake._workspace, RunLimits(max_queued=4, max_queued_per_tenant=3), takes_queued_runs=False)


@pytest.fixture
def worker(lake: Lake) -> Iterator[RunWorker]:
    """A worker that executes queued runs once it is started."""
    runner = RunWorker(lake._workspace)
    yield runner
    runner.close()


def copy_definition(lake: Lake, name: str = "demo.copy") -> dict[str, Any]:
    """Return a pipeline that copies a dataset."""
    schema, _, table = name.partition(".")
    append = {"type": "append", "parameters": {"source": {"dataset_id": str(lake.dataset("demo.none").id)}}}
    return {
        "name": "copied",
        "working": {"dataset_id": str(lake.dataset("demo.rows").id)},
        "operations": [append],
        "output": {"schema_name": schema, "table_name": table},
    }


def copy_pipeline(lake: Lake, name: str = "demo.copy") -> PipelineDefinition:
    return pipeline_definition.parse_pipeline(copy_definition(lake, name))


def record(lake: Lake, run: UUID) -> Run:
    return runs.show(lake._workspace, lake.caller, run)


def tries(lake: Lake, run: UUID) -> int:
    c = pipeline_runs.c
    with lake._workspace.db.read(lake.caller) as tx:
        row = tx.first(select(c.attempts).where(tenant_filter(pipeline_runs), c.id == run))
    assert row is not None
    return int(row.attempts)


def advance_clock_past_staleness(lake: Lake) -> None:
    clock = lake._workspace.db.clock
    lake._workspace.db.clock = lambda: clock() + runs.STALE_AFTER + timedelta(seconds=5)


def output_of_killed_process(fixture: WorkspaceFixture, script: str, *args: Any) -> list[str]:
    """Return the output lines of a process that kills itself."""
    (Path(fixture.folder) / "go").touch()
    process = fixture.spawn(script, *args)
    out, err = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, err
    return out.splitlines()


# -- crashes of processes ---------------------------------------------------------------------------------------------


def test_queued_run_survives_submitting_process(workspace: WorkspaceFixture, lake: Lake, worker: RunWorker) -> None:
    run = UUID(output_of_killed_process(workspace, "submit_run_and_die", copy_definition(lake))[-1])
    advance_clock_past_staleness(lake)
    assert record(lake, run).state is RunState.QUEUED
    worker.start()
    assert worker.wait(run_worker.RunHandle(lake.caller, record(lake, run)), 60)
    assert (record(lake, run).state, lake.dataset("demo.copy").version) == (RunState.SUCCEEDED, 1)


# The failpoint at which the worker is killed, and the number of attempts until the run ends.
STEPS = {"stage.begun": 2, "commit.begun": 2, "commit.added": 2, "commit.ready": 2, "commit.sent": 1}


@pytest.mark.parametrize("step", STEPS)
def test_run_of_killed_worker_commits_once(
    workspace: WorkspaceFixture, lake: Lake, submitter: RunWorker, worker: RunWorker, step: str
) -> None:
    handle = submitter.submit(lake.caller, copy_pipeline(lake))
    output_of_killed_process(workspace, "kill_worker_at_step", step)
    is_committed = STEPS[step] == 1
    assert record(lake, handle.run.id).state is (RunState.SUCCEEDED if is_committed else RunState.RUNNING)
    worker.start()
    assert submitter.wait(handle, 0) == is_committed, "no worker claims a run of a process that may be alive"
    advance_clock_past_staleness(lake)
    assert submitter.wait(handle, 60)
    assert handle.error is None
    assert (lake.dataset("demo.copy").version, lake.dataset("demo.copy").num_rows) == (1, 3)
    assert tries(lake, handle.run.id) == STEPS[step]
    assert worker.queued_count() == 0


def test_run_that_kills_every_worker_fails(workspace: WorkspaceFixture, lake: Lake, submitter: RunWorker) -> None:
    handle = submitter.submit(lake.caller, copy_pipeline(lake))
    for _ in range(3):
        output_of_killed_process(workspace, "kill_worker_at_step", "stage.begun")
        with lake._workspace.db.write(lake.caller) as tx:
            assert run_records.expire_stale_runs(tx, tx.now + timedelta(seconds=1)) == 1
    assert submitter.wait(handle, 60)
    assert isinstance(handle.error, Unavailable)
    assert (handle.error.reason, handle.run.state) == ("run_lost", RunState.FAILED)
    assert submitter.queued_count() == 0


def test_several_workers_execute_each_queued_run_once(workspace: WorkspaceFixture, lake: Lake) -> None:
    queue_worker = RunWorker(lake._workspace, takes_queued_runs=False)
    handles = [queue_worker.submit(lake.caller, copy_pipeline(lake, f"demo.copy_{n}")) for n in range(12)]
    ended = workspace.race("execute_queued_runs", [[], [], []])
    assert sum(ended) == 12, ended
    assert {record(lake, handle.run.id).state for handle in handles} == {RunState.SUCCEEDED}
    assert {tries(lake, handle.run.id) for handle in handles} == {1}
    assert {lake.dataset(f"demo.copy_{n}").version for n in range(12)} == {1}


def test_stale_workers_commit_no_run_twice(
    workspace: WorkspaceFixture, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "STALE_AFTER", timedelta(seconds=0.05))
    monkeypatch.setattr(run_worker, "_HEARTBEAT_SECONDS", 0.1)
    with workspace.open() as another:
        workers = [RunWorker(worker._workspace) for worker in (lake, another, lake)]
        handles = [workers[0].submit(lake.caller, copy_pipeline(lake, f"demo.copy_{n}")) for n in range(12)]
        for worker in workers:
            worker.start()
        for handle in handles:
            while not workers[1].wait(handle, 0.05):  # polls, and claims stale runs
                pass
        for worker in workers:
            worker.close()
    records = [record(lake, handle.run.id) for handle in handles]
    copies = {f"demo.copy_{n}" for n, run in enumerate(records) if run.state is RunState.SUCCEEDED}
    assert {run.error["error"]["code"] for run in records if run.error} <= {"RUN_LOST"}
    assert {dataset.name: dataset.version for dataset in lake.datasets()} == dict.fromkeys(
        {"demo.rows", "demo.none", *copies}, 1
    )


def test_requeued_run_is_executed_by_other_worker(lake: Lake, submitter: RunWorker, worker: RunWorker) -> None:
    handle = submitter.submit(lake.caller, copy_pipeline(lake))
    closing_worker, begun, go = RunWorker(lake._workspace), threading.Event(), threading.Event()

    def pause() -> None:
        begun.set()
        assert go.wait(60)

    with failpoints.armed("stage.begun", pause):
        closing_worker.start()
        assert begun.wait(60)
        (attempt,) = closing_worker._attempts
        closing = threading.Thread(target=closing_worker.close)
        closing.start()
        while attempt.stop is None:
            closing.join(0.01)
        go.set()
        closing.join()
    assert record(lake, handle.run.id).state is RunState.QUEUED
    worker.start()
    assert submitter.wait(handle, 60)
    assert (handle.error, lake.dataset("demo.copy").version) == (None, 1)
    assert tries(lake, handle.run.id) >= 2  # on a busy machine a heartbeat may be late, and the run is claimed again


# -- remote execution ------------------------------------------------------------------------------------------------


def test_run_executes_as_its_author(lake: Lake, submitter: RunWorker, worker: RunWorker) -> None:
    ada = Caller(lake.caller.tenant, uuid4(), "ada", Role.DEVELOPER)
    handle = submitter.submit(ada, copy_pipeline(lake))
    worker.start()
    assert submitter.wait(handle, 60)
    (version,) = read.versions(lake._workspace, lake.caller, lake.dataset("demo.copy").id)
    assert version.author == "ada"
    with pytest.raises(Forbidden):
        submitter.submit(replace(ada, role=Role.VIEWER), copy_pipeline(lake))


def _unknown(lake: Lake) -> dict[str, Any]:
    return {**copy_definition(lake), "working": {"dataset_id": str(uuid4())}}


def _read_only(lake: Lake) -> dict[str, Any]:
    lake.create("demo.fixed", {"id": [1]}, read_only=True)
    return copy_definition(lake, "demo.fixed")


ERRORS: dict[str, tuple[Callable[[Lake], dict[str, Any]], type[PenstockError]]] = {
    "an unknown dataset": (_unknown, NotFound),
    "a dataset that is read-only": (_read_only, Unsupported),
}


@pytest.mark.parametrize("case", ERRORS)
def test_run_error_is_same_from_local_and_remote_worker(
    lake: Lake, submitter: RunWorker, worker: RunWorker, case: str
) -> None:
    make, error_class = ERRORS[case]
    definition = pipeline_definition.parse_pipeline(make(lake))
    handle = submitter.submit(lake.caller, definition)
    worker.start()
    remote_handle = worker.submit(lake.caller, definition)
    for runner, run_handle in ((submitter, handle), (worker, remote_handle)):
        assert runner.wait(run_handle, 60)
        assert type(run_handle.error) is error_class
    assert remote_handle.error is not None
    assert handle.error is not None
    assert remote_handle.error.as_dict() == handle.error.as_dict()


def test_queued_run_is_cancelled_by_any_process(lake: Lake, submitter: RunWorker, worker: RunWorker) -> None:
    handle = submitter.submit(lake.caller, copy_pipeline(lake))
    assert worker.cancel(lake.caller, handle.run.id).state is RunState.CANCELLED
    worker.start()
    assert submitter.wait(handle, 60)
    assert isinstance(handle.error, Conflict)
    assert handle.error.reason == "run_cancelled"
    assert [dataset.name for dataset in lake.datasets()] == ["demo.none", "demo.rows"]


def test_local_run_claims_queued_run_with_same_key(lake: Lake, submitter: RunWorker) -> None:
    queued = submitter.submit(lake.caller, copy_pipeline(lake), key="once")
    done = lake.pipeline(copy_definition(lake)).run(idempotency_key="once")
    assert (done.id, done.state) == (queued.run.id, RunState.SUCCEEDED)
    assert submitter.wait(queued, 60)


# -- the queue --------------------------------------------------------------------------------------------------------


def test_queue_limits_apply_to_all_processes(workspace: WorkspaceFixture, lake: Lake, submitter: RunWorker) -> None:
    other_lake = Lake(lake._workspace, Caller(uuid4(), uuid4(), "other", Role.ADMIN), lake._folder)
    with workspace.open() as another:
        other_submitter = RunWorker(
            another._workspace, RunLimits(max_queued=4, max_queued_per_tenant=3), takes_queued_runs=False
        )
        handles = [
            queue_worker.submit(lake.caller, copy_pipeline(lake))
            for queue_worker in (submitter, other_submitter, submitter)
        ]
        for queue_worker in (submitter, other_submitter):
            with pytest.raises(Unavailable, match="Your tenant has 3 runs in the queue, limit 3") as raised:
                queue_worker.submit(lake.caller, copy_pipeline(lake))
            assert raised.value.reason == "too_many_runs"
        other_submitter.submit(other_lake.caller, copy_pipeline(lake))
        with pytest.raises(Unavailable, match="The run queue is full: 4 runs queued, limit 4"):
            submitter.submit(other_lake.caller, copy_pipeline(lake))
        other_submitter.cancel(lake.caller, handles[0].run.id)
        submitter.submit(other_lake.caller, copy_pipeline(lake))
        assert submitter.queued_count() == other_submitter.queued_count() == 4


def test_worker_without_queue_executes_no_queued_run(lake: Lake, submitter: RunWorker) -> None:
    handle = submitter.submit(lake.caller, copy_pipeline(lake))
    submitter.start()
    assert not submitter.wait(handle, 1.0)
    assert record(lake, handle.run.id).state is RunState.QUEUED
    submitter.close()


def test_idle_worker_only_reads_catalog(lake: Lake, worker: RunWorker) -> None:
    statements, polled = list[str](), threading.Event()

    def record_statement(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.append(statement)
        if sum("FROM run_queue" in sql for sql in statements) == 3:
            polled.set()

    event.listen(lake._workspace.db.engine, "before_cursor_execute", record_statement)
    worker.start()
    assert polled.wait(60)
    event.remove(lake._workspace.db.engine, "before_cursor_execute", record_statement)
    assert {statement.split()[0] for statement in statements} <= {"SELECT", "BEGIN"}
    assert "BEGIN IMMEDIATE" not in statements
