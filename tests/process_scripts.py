"""What other processes do in a test: each function gets an open lake and answers with plain values."""

import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

from penstock import failpoints as faults
from penstock.errors import Conflict
from penstock.lake import Lake
from workspaces import Place


def main() -> None:
    place, script, args = json.loads(sys.argv[1])
    with Place(**place).open() as lake:
        lake.datasets()  # all is loaded and connected before the race begins
        print("ready", flush=True)
        deadline = time.monotonic() + 60
        while not Path(place["folder"], "go").exists():
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.001)
        print(json.dumps(globals()[script](lake, *args)), flush=True)


def overwrite_at(lake: Lake, dataset: str, base: int, who: int) -> str:
    """Commit from a given base: won, or told who was first."""
    try:
        lake.dataset(dataset).overwrite({"id": [who], "word": ["won"]}, expect=base)
    except Conflict as refusal:
        return refusal.reason
    return "won"


def add_one(lake: Lake, dataset: str, times: int) -> int:
    """Read a number, write it back plus one; on a conflict, again. The answer is how many conflicts there were."""
    ds, conflicts = lake.dataset(dataset), 0
    for _ in range(times):
        while True:
            now = ds.now()
            (row,) = now.to_arrow().to_pylist()
            try:
                ds.overwrite({"id": [row["id"] + 1], "word": ["counted"]}, expect=now.version)
                break
            except Conflict:
                conflicts += 1
    return conflicts


def append_rows(lake: Lake, dataset: str, first: int, times: int) -> list[int]:
    """Append one row at a time; the answer is the versions that were acknowledged."""
    ds = lake.dataset(dataset)
    return [ds.append({"id": [first + i], "word": ["appended"]}).version for i in range(times)]


def move_money(lake: Lake, one: str, other: str, times: int) -> int:
    """Write to two datasets at once, again and again; the answer is how often it was refused."""
    refused = 0
    for i in range(times):
        try:
            with lake.transaction() as tx:
                tx.append(one, {"id": [-i], "word": ["out"]})
                tx.append(other, {"id": [i], "word": ["in"]})
        except Conflict:
            refused += 1
    return refused


def merge_keys(lake: Lake, dataset: str, keys: list[int], who: int, engine: str) -> str:
    """Merge rows of the same keys as others do at the same time."""
    try:
        lake.dataset(dataset).merge({"id": keys, "word": [f"by {who}"] * len(keys)}, "id", engine=engine)
    except Conflict as refusal:
        return refusal.reason
    return "merged"


def killed(lake: Lake, kind: str, step: str) -> str:
    """A write that ends this process at a step, as a power switch would."""
    from faults.writes import WRITES

    with faults.armed(step, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        WRITES[kind].run(lake)
    return "alive"


def killed_together(lake: Lake, dataset: str, step: str) -> str:
    """Inserts that are committed together; a step of theirs ends this process."""
    from faults.grouped import insert_together

    with ExitStack() as armed:
        die = faults.armed(step, lambda: os.kill(os.getpid(), signal.SIGKILL))
        insert_together(lake, dataset, lambda: armed.enter_context(die))
    return "alive"


def insert_forever(lake: Lake, dataset: str) -> None:
    """Until somebody ends this process; it tells of each insert that was acknowledged."""
    from faults.grouped import insert_forever

    insert_forever(lake, dataset, lambda n: print(n, flush=True))


def run_killed(lake: Lake, dataset: str, step: str) -> str:
    """A run of a pipeline that ends this process at a step; it has the key `once`."""
    from operation_cases import twice

    with faults.armed(step, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        lake.pipeline(twice(lake.dataset(dataset))).run(idempotency_key="once")
    return "alive"


def ask_killed(lake: Lake, definition: dict[str, Any]) -> None:
    """Put a run into the queue, tell its id, and end this process."""
    from penstock.core.pipeline import definition as pipeline
    from penstock.service.pipelines.run_worker import Runner

    ticket = Runner(lake.workspace, takes=False).submit(lake.caller, pipeline.read(definition))
    print(ticket.run.id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def work_killed(lake: Lake, step: str) -> None:
    """Take runs; a step of the first one ends this process."""
    from penstock.service.pipelines.run_worker import Runner

    with faults.armed(step, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        Runner(lake.workspace).start()
        time.sleep(60)


def work(lake: Lake) -> int:
    """Take what waits; the answer is how many runs ended here."""
    from penstock.service.pipelines.run_worker import Bounds, Runner

    ended = list[str]()
    runner = Runner(lake.workspace, Bounds(at_once=2))
    runner.hear_ends(lambda state, _: ended.append(state))
    runner.start()
    while not runner.idle():
        time.sleep(0.01)
    runner.close(60)
    return len(ended)


def transact_killed(lake: Lake, names: list[str], step: str) -> str:
    """A client's transaction whose owner ends at a step of the commit; "" is before it."""
    from penstock.service.transactions.client import Transactions

    transactions = Transactions(lake.workspace)
    transaction = transactions.create(lake.caller)
    with transactions.operation(lake.caller, transaction) as operation:
        _append_risky(operation, names)
    print(transaction, flush=True)
    if not step:
        os.kill(os.getpid(), signal.SIGKILL)
    with faults.armed(step, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        transactions.commit(lake.caller, transaction)
    return "alive"


def operate_killed(lake: Lake, transaction: str, name: str) -> None:
    """An operation of somebody else's transaction that ends this process."""
    from penstock.service.transactions.client import Transactions

    with Transactions(lake.workspace).operation(lake.caller, UUID(transaction)) as operation:
        _append_risky(operation, [name])
        os.kill(os.getpid(), signal.SIGKILL)


def _append_risky(operation: Any, names: list[str]) -> None:
    from penstock.core.names import DatasetName
    from penstock.service.datasets.row_source import reader

    for name in names:
        working = operation.working(DatasetName.parse(name))
        operation.apply(working, operation.stage.append(working, reader({"id": [99], "word": ["risky"]})))
