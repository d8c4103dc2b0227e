"""Queued runs: fairness between tenants, cancellation, and records that survive the process."""

import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.core.caller import Caller, Role
from penstock.core.pipeline import definition as pipeline_definition
from penstock.core.pipeline.run import Run, RunState
from penstock.core.progress import Progress, ProgressCallback
from penstock.errors import Conflict, NotFound, Unavailable
from penstock.lake import Dataset, Lake
from penstock.service.pipelines import runs
from penstock.service.pipelines.run_worker import RunHandle, RunLimits, RunWorker
from support.operation_cases import self_append_pipeline
from support.workspaces import WorkspaceFixture

pytestmark = pytest.mark.usefixtures("spark")


class Gate:
    """Block runs in their progress callback, and record the order of their arrival."""

    def __init__(self) -> None:
        self.arrived: list[str] = []
        self.open, self.reached = threading.Event(), threading.Event()

    def of(self, name: str) -> ProgressCallback:
        def wait_at_gate(_: Progress) -> None:
            if name not in self.arrived:
                self.arrived.append(name)
            self.reached.set()
            assert self.open.wait(60)

        return wait_at_gate


def pipeline_of(ds: Dataset) -> pipeline_definition.PipelineDefinition:
    return pipeline_definition.parse_pipeline(self_append_pipeline(ds))


def other_tenant(lake: Lake) -> Lake:
    return Lake(lake._workspace, Caller(uuid4(), uuid4(), "other", Role.ADMIN), lake._folder)


def record(lake: Lake, handle: RunHandle) -> Run:
    return runs.show(lake._workspace, lake.caller, handle.run.id)


@pytest.fixture
def runner(lake: Lake) -> Iterator[RunWorker]:
    worker = RunWorker(lake._workspace, RunLimits(max_concurrent=1, max_queued=4, max_queued_per_tenant=3))
    yield worker
    worker.close()


EXECUTION_MODES = pytest.mark.parametrize("here", [False, True], ids=["queued", "local"])


def test_queue_alternates_between_tenants(lake: Lake, runner: RunWorker) -> None:
    other = other_tenant(lake)
    own, other_rows = (tenant_lake.create("demo.rows", {"id": [1]}) for tenant_lake in (lake, other))
    gate = Gate()
    handles = [runner.submit(lake.caller, pipeline_of(own), on_progress=gate.of("first"))]
    assert gate.reached.wait(60)
    for name in ("second", "third"):
        handles.append(runner.submit(lake.caller, pipeline_of(own), on_progress=gate.of(name)))
    handles.append(runner.submit(other.caller, pipeline_of(other_rows), on_progress=gate.of("theirs")))
    assert [record(lake, handle).state for handle in handles[:3]] == [
        RunState.RUNNING,
        RunState.QUEUED,
        RunState.QUEUED,
    ]
    gate.open.set()
    for handle in handles:
        assert runner.wait(handle, 60)
        assert handle.error is None
    assert gate.arrived == ["first", "second", "theirs", "third"]
    assert (own.num_rows, other_rows.num_rows) == (8, 2)


def test_submit_above_tenant_or_queue_limit_is_rejected(lake: Lake, runner: RunWorker) -> None:
    other = other_tenant(lake)
    own, other_rows = (tenant_lake.create("demo.rows", {"id": [1]}) for tenant_lake in (lake, other))
    gate = Gate()
    handles = [runner.submit(lake.caller, pipeline_of(own), on_progress=gate.of("first"))]
    assert gate.reached.wait(60)
    handles += [runner.submit(lake.caller, pipeline_of(own)) for _ in range(3)]
    with pytest.raises(Unavailable) as raised:
        runner.submit(lake.caller, pipeline_of(own))
    assert raised.value.reason == "too_many_runs"
    handles.append(runner.submit(other.caller, pipeline_of(other_rows)))
    with pytest.raises(Unavailable):
        runner.submit(other.caller, pipeline_of(other_rows))
    gate.open.set()
    for handle in handles:
        assert runner.wait(handle, 120)
        assert handle.error is None


@EXECUTION_MODES
def test_cancelled_run_writes_nothing(lake: Lake, runner: RunWorker, here: bool) -> None:
    ds = lake.create("demo.rows", {"id": [1]})
    gate = Gate()
    running = runner.submit(lake.caller, pipeline_of(ds), on_progress=gate.of("running"), local=here)
    assert gate.reached.wait(60)
    waiting = runner.submit(lake.caller, pipeline_of(ds), local=here)
    assert runner.cancel(lake.caller, waiting.run.id).state is RunState.CANCELLED
    assert runner.cancel(lake.caller, running.run.id).cancelling
    gate.open.set()
    for handle in (running, waiting):
        assert runner.wait(handle, 60)
        assert isinstance(handle.error, Conflict)
        assert record(lake, handle).state is RunState.CANCELLED
    assert ds.version == 1
    assert runner.cancel(lake.caller, running.run.id).state is RunState.CANCELLED
    with pytest.raises(NotFound):
        runner.cancel(other_tenant(lake).caller, running.run.id)


def test_cancel_through_catalog_stops_run_of_other_process(lake: Lake, runner: RunWorker) -> None:
    ds = lake.create("demo.rows", {"id": [1]})
    begun, pause = threading.Event(), threading.Event()

    def wait_for_stop(_: Progress) -> None:
        begun.set()
        (attempt,) = runner._attempts
        while attempt.stop is None:
            pause.wait(0.05)

    handle = runner.submit(lake.caller, pipeline_of(ds), on_progress=wait_for_stop)
    assert begun.wait(60)
    assert runs.cancel(lake._workspace, lake.caller, handle.run.id).cancelling
    assert runner.wait(handle, 60)
    assert record(lake, handle).state is RunState.CANCELLED
    assert ds.version == 1


def test_stale_local_run_cannot_commit(lake: Lake, runner: RunWorker) -> None:
    ds = lake.create("demo.rows", {"id": [1]})
    gate = Gate()
    handle = runner.submit(lake.caller, pipeline_of(ds), on_progress=gate.of("slow"), local=True)
    assert gate.reached.wait(60)
    advance_clock_past_staleness(lake)
    loaded = record(lake, handle)
    assert (loaded.state, loaded.error["error"]["code"] if loaded.error else None) == (RunState.FAILED, "RUN_LOST")
    gate.open.set()
    assert runner.wait(handle, 60)
    assert handle.error is not None
    assert ds.version == 1
    assert record(lake, handle).state is RunState.FAILED
    repeated = runner.submit(lake.caller, pipeline_of(ds))
    assert runner.wait(repeated, 60)
    assert ds.version == 2


def test_stale_queued_run_is_repeated_and_committed_once(lake: Lake, runner: RunWorker) -> None:
    ds = lake.create("demo.rows", {"id": [1]})
    gate = Gate()
    handle = runner.submit(lake.caller, pipeline_of(ds), on_progress=gate.of("slow"))
    assert gate.reached.wait(60)
    advance_clock_past_staleness(lake)
    assert record(lake, handle).state is RunState.QUEUED
    gate.open.set()
    assert runner.wait(handle, 60)
    assert handle.error is None
    assert (ds.version, ds.num_rows) == (2, 2)


def advance_clock_past_staleness(lake: Lake) -> None:
    clock = lake._workspace.db.clock
    lake._workspace.db.clock = lambda: clock() + runs.STALE_AFTER + timedelta(seconds=5)


@EXECUTION_MODES
def test_close_requeues_queued_runs_and_fails_local_runs(lake: Lake, here: bool) -> None:
    ds = lake.create("demo.rows", {"id": [1]})
    runner = RunWorker(lake._workspace, RunLimits(max_concurrent=1))
    gate = Gate()
    first = runner.submit(lake.caller, pipeline_of(ds), on_progress=gate.of("first"), local=here)
    assert gate.reached.wait(60)
    (attempt,) = runner._attempts
    second = runner.submit(lake.caller, pipeline_of(ds), local=here)
    closing = threading.Thread(target=runner.close)
    closing.start()
    while attempt.stop is None:
        closing.join(0.01)
    gate.open.set()
    closing.join(60)
    assert not closing.is_alive()
    for handle in (first, second):
        loaded = record(lake, handle)
        code = loaded.error["error"]["code"] if loaded.error else None
        assert (loaded.state, code) == ((RunState.FAILED, "SERVICE_STOPPED") if here else (RunState.QUEUED, None))
        assert runner.wait(handle, 0) == here
    assert ds.version == 1
    with pytest.raises(Unavailable):
        runner.submit(lake.caller, pipeline_of(ds), local=here)


@pytest.mark.parametrize("step", ["stage.synced", "commit.added", "commit.sent"])
def test_run_of_killed_process_can_be_repeated(sqlite_workspace: WorkspaceFixture, step: str) -> None:
    with sqlite_workspace.open() as lake:
        ds = lake.create("demo.rows", {"id": [1]})
    (Path(sqlite_workspace.folder) / "go").touch()
    process = sqlite_workspace.spawn("kill_run_at_step", "demo.rows", step)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, f"the run never came to {step}"
    is_committed = step == "commit.sent"
    with sqlite_workspace.open() as lake:
        clock = lake._workspace.db.clock
        lake._workspace.db.clock = lambda: clock() + runs.STALE_AFTER + timedelta(seconds=5)
        ds = lake.dataset("demo.rows")
        assert ds.version == (2 if is_committed else 1)
        repeated = lake.pipeline(self_append_pipeline(ds)).run(idempotency_key="once")
        assert (ds.version, ds.num_rows, repeated.state) == (2, 2, RunState.SUCCEEDED)
