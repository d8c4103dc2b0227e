"""Functions that tests run in other processes: each gets an open lake and returns plain values."""

import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

from penstock import failpoints
from penstock.errors import Conflict
from penstock.lake import Lake
from penstock.service.datasets.row_edits import RowEdit
from penstock.storage.data_files import FileSizing
from support.workspaces import WorkspaceFixture

SMALL_FILES = FileSizing(file_bytes=4_000, group_rows=20)  # a compaction of few rows needs several steps


def main() -> None:
    location, script, args = json.loads(sys.argv[1])
    with WorkspaceFixture(**location).open() as lake:
        lake.datasets()  # load modules and connect before the race begins
        print("ready", flush=True)
        deadline = time.monotonic() + 60
        while not Path(location["folder"], "go").exists():
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.001)
        print(json.dumps(globals()[script](lake, *args)), flush=True)


def overwrite_at(lake: Lake, dataset: str, base: int, writer: int) -> str:
    """Overwrite the dataset at a base version; return 'won' or the reason of the conflict."""
    try:
        lake.dataset(dataset).overwrite({"id": [writer], "word": ["won"]}, expect=base)
    except Conflict as error:
        return error.reason
    return "won"


def add_one(lake: Lake, dataset: str, times: int) -> int:
    """Increment a stored number, and retry after each conflict. Return the number of conflicts."""
    ds, conflicts = lake.dataset(dataset), 0
    for _ in range(times):
        while True:
            snapshot = ds.current()
            (row,) = snapshot.to_arrow().to_pylist()
            try:
                ds.overwrite({"id": [row["id"] + 1], "word": ["counted"]}, expect=snapshot.version)
                break
            except Conflict:
                conflicts += 1
    return conflicts


def update_rows(lake: Lake, dataset: str, ids: list[int]) -> int:
    """Update rows one by one; return how often a row was located."""
    ds, located = lake.dataset(dataset), 0
    find = RowEdit._find

    def count(self: RowEdit, *args: Any) -> Any:
        nonlocal located
        located += 1
        return find(self, *args)

    RowEdit._find = count  # type: ignore[method-assign]
    for row_id in ids:
        assert ds.update([row_id], {"id": [-row_id], "word": ["updated"]}).affected == 1
    return located


def append_rows(lake: Lake, dataset: str, first: int, times: int) -> list[int]:
    """Append one row at a time; return the acknowledged versions."""
    ds = lake.dataset(dataset)
    return [ds.append({"id": [first + i], "word": ["appended"]}).version for i in range(times)]


def move_money(lake: Lake, first: str, second: str, times: int) -> int:
    """Write to two datasets in each transaction; return the number of conflicts."""
    conflicts = 0
    for i in range(times):
        try:
            with lake.transaction() as tx:
                tx.append(first, {"id": [-i], "word": ["out"]})
                tx.append(second, {"id": [i], "word": ["in"]})
        except Conflict:
            conflicts += 1
    return conflicts


def merge_keys(lake: Lake, dataset: str, keys: list[int], writer: int, engine: str) -> str:
    """Merge rows of the same keys concurrently with other processes."""
    try:
        lake.dataset(dataset).merge({"id": keys, "word": [f"by {writer}"] * len(keys)}, "id", engine=engine)
    except Conflict as error:
        return error.reason
    return "merged"


def kill_at_step(lake: Lake, write_name: str, step: str) -> str:
    """Kill this process at a step of a write."""
    from faults.write_cases import WRITES

    with failpoints.armed(step, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        WRITES[write_name].run(lake)
    return "alive"


def kill_compaction_at_step(lake: Lake, dataset: str, step: str, number: int) -> str:
    """Kill this process when a compaction in small steps reaches a step for the nth time."""
    remaining = [number]

    def die() -> None:
        remaining[0] -= 1
        if not remaining[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    lake._workspace.file_sizing = SMALL_FILES
    with failpoints.armed(step, die):
        lake.dataset(dataset).compact()
    return "alive"


def kill_group_insert(lake: Lake, dataset: str, step: str) -> str:
    """Kill this process at a step of a group insert."""
    from faults.group_commit_writes import insert_as_group

    with ExitStack() as stack:
        die = failpoints.armed(step, lambda: os.kill(os.getpid(), signal.SIGKILL))
        insert_as_group(lake, dataset, lambda: stack.enter_context(die))
    return "alive"


def kill_group_edit(lake: Lake, step: str) -> str:
    """Kill this process at a step of the commit of a group of updates and deletes."""
    from faults.group_edit_writes import edit_together

    with ExitStack() as armed:
        die = failpoints.armed(step, lambda: os.kill(os.getpid(), signal.SIGKILL))
        edit_together(lake, lambda: armed.enter_context(die))
    return "alive"


def kill_union(lake: Lake, kind: str, step: str) -> str:
    """Kill this process at a step of an edit whose deletion vectors are united with those of another edit."""
    from faults.union_writes import run_overtaken

    with ExitStack() as armed:
        die = failpoints.armed(step, lambda: os.kill(os.getpid(), signal.SIGKILL))
        run_overtaken(lake, kind, lambda: armed.enter_context(die))
    return "alive"


def insert_forever(lake: Lake, dataset: str) -> None:
    """Insert until this process is killed; print each acknowledged insert."""
    from faults.group_commit_writes import insert_forever

    insert_forever(lake, dataset, lambda n: print(n, flush=True))


def kill_run_at_step(lake: Lake, dataset: str, step: str) -> str:
    """Kill this process at a step of a pipeline run with the key `once`."""
    from support.operation_cases import self_append_pipeline

    with failpoints.armed(step, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        lake.pipeline(self_append_pipeline(lake.dataset(dataset))).run(idempotency_key="once")
    return "alive"


def submit_run_and_die(lake: Lake, definition: dict[str, Any]) -> None:
    """Queue a run, print its id, and kill this process."""
    from penstock.core.pipeline import definition as pipeline_definition
    from penstock.service.pipelines.run_worker import RunWorker

    handle = RunWorker(lake._workspace, takes_queued_runs=False).submit(
        lake.caller, pipeline_definition.parse_pipeline(definition)
    )
    print(handle.run.id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def kill_worker_at_step(lake: Lake, step: str) -> None:
    """Kill this process at a step of the first claimed run."""
    from penstock.service.pipelines.run_worker import RunWorker

    with failpoints.armed(step, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        RunWorker(lake._workspace).start()
        time.sleep(60)


def execute_queued_runs(lake: Lake) -> int:
    """Execute queued runs; return the number of ended runs."""
    from penstock.service.pipelines.run_worker import RunLimits, RunWorker

    ended = list[str]()
    runner = RunWorker(lake._workspace, RunLimits(max_concurrent=2))
    runner.on_run_end(lambda state, _: ended.append(state))
    runner.start()
    while not runner.is_idle():
        time.sleep(0.01)
    runner.close(60)
    return len(ended)


def kill_transaction_at_step(lake: Lake, names: list[str], step: str) -> str:
    """Kill the owner of a client's transaction at a step of the commit; "" is before the commit."""
    from penstock.service.transactions.client import ClientTransactions

    transactions = ClientTransactions(lake._workspace)
    transaction = transactions.create(lake.caller)
    with transactions.operation(lake.caller, transaction) as operation:
        _append_risky(operation, names)
    print(transaction, flush=True)
    if not step:
        os.kill(os.getpid(), signal.SIGKILL)
    with failpoints.armed(step, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        transactions.commit(lake.caller, transaction)
    return "alive"


def kill_operation(lake: Lake, transaction: str, name: str) -> None:
    """Kill this process during an operation of another process's transaction."""
    from penstock.service.transactions.client import ClientTransactions

    with ClientTransactions(lake._workspace).operation(lake.caller, UUID(transaction)) as operation:
        _append_risky(operation, [name])
        os.kill(os.getpid(), signal.SIGKILL)


def _append_risky(operation: Any, names: list[str]) -> None:
    from penstock.core.names import DatasetName
    from penstock.service.datasets.row_source import open_reader

    for name in names:
        working = operation.overlay(DatasetName.parse(name))
        operation.apply(working, operation.stage.append(working, open_reader({"id": [99], "word": ["risky"]})))
