"""Inserts that are committed together, and what may strike them meanwhile."""

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


def begun(inserts: InsertService, ds: Dataset, *batches: pa.RecordBatch, key: str | None = None) -> InsertStream:
    insertion = inserts.begin(ds._lake.caller, ds.id, (batches or [batch()])[0].schema, key=key)
    for each in batches:
        insertion.add(each)
    return insertion


def together(
    first: InsertStream, *waiting: InsertStream, strike: Callable[[], object] = lambda: None
) -> list[Future[InsertResult]]:
    """Commit those who wait as one group: they come while the first is being answered. `strike` goes before."""
    answers: list[Future[InsertResult]] = []
    requested = threading.Event()

    def ask(_: object) -> None:
        strike()
        answers.extend(each.commit() for each in waiting)
        requested.set()

    first.commit().add_done_callback(ask)
    assert requested.wait(60)
    return answers


def insert_together(lake: Lake, dataset: str, strike: Callable[[], object] = lambda: None) -> list[InsertResult]:
    ds = lake.dataset(dataset)
    with closing(InsertService(lake._workspace)) as inserts:
        waiting = [begun(inserts, ds, batch(*ids), key=key) for key, ids in GROUP.items()]
        answers = together(begun(inserts, ds, batch(*FIRST), key="first"), *waiting, strike=strike)
        return [answer.result() for answer in answers]


def insert_forever(lake: Lake, dataset: str, reported: Callable[[int], None]) -> None:
    """Insert pairs of rows n and -n, eight at once; call `reported` with n when the pair is committed."""
    ds, numbers = lake.dataset(dataset), count(100)
    inserts = InsertService(lake._workspace)

    def work(_: int) -> None:
        for n in numbers:
            begun(inserts, ds, batch(n), batch(-n)).commit().result()
            reported(n)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
