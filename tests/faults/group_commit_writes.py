"""Group commits of inserts, with failures."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import count

import pyarrow as pa

from penstock.lake import Dataset, Lake
from penstock.service.datasets.streaming_inserts import InsertResult, InsertService, InsertStream

FIRST = [5]
GROUP = {"a": [10, 11], "b": [20], "c": [30, 31, 32]}  # key → ids


def batch(*ids: int | None) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "word": pa.array(["w"] * len(ids), pa.string())})


def start_insert(inserts: InsertService, ds: Dataset, *batches: pa.RecordBatch, key: str | None = None) -> InsertStream:
    insertion = inserts.begin(ds._lake.caller, ds.id, (batches or [batch()])[0].schema, key=key)
    for record_batch in batches:
        insertion.add(record_batch)
    return insertion


def commit_as_group(
    first: InsertStream, *waiting: InsertStream, before_group: Callable[[], object] = lambda: None
) -> list[Future[InsertResult]]:
    """Commit the waiting streams as one group, during the commit of the first. Call `before_group` before."""
    results: list[Future[InsertResult]] = []
    requested = threading.Event()

    def submit_waiting(_: object) -> None:
        before_group()
        results.extend(insertion.commit() for insertion in waiting)
        requested.set()

    first.commit().add_done_callback(submit_waiting)
    assert requested.wait(60)
    return results


def insert_as_group(lake: Lake, dataset: str, before_group: Callable[[], object] = lambda: None) -> list[InsertResult]:
    ds = lake.dataset(dataset)
    with closing(InsertService(lake._workspace)) as inserts:
        waiting = [start_insert(inserts, ds, batch(*ids), key=key) for key, ids in GROUP.items()]
        results = commit_as_group(
            start_insert(inserts, ds, batch(*FIRST), key="first"), *waiting, before_group=before_group
        )
        return [result.result() for result in results]


def insert_forever(lake: Lake, dataset: str, reported: Callable[[int], None]) -> None:
    """Insert pairs of rows n and -n, in eight threads; call `reported` with n when the pair is committed."""
    ds, numbers = lake.dataset(dataset), count(100)
    inserts = InsertService(lake._workspace)

    def work(_: int) -> None:
        for n in numbers:
            start_insert(inserts, ds, batch(n), batch(-n)).commit().result()
            reported(n)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
