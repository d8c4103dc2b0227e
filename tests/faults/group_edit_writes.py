"""Updates and deletes that are committed together, and a callback that fails or kills their commit."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing

import pyarrow as pa

from penstock.lake import Lake
from penstock.service.datasets.group_edits import EditService
from penstock.service.datasets.row_edits import EditResult

NAME = "demo.edited"
ROWS = 40
FIRST = ([10], [-10])  # row ids and new values; None: delete
GROUP: dict[str, tuple[list[int], list[int] | None]] = {  # key → edit
    "a": ([1], [-1]),
    "b": ([2, 30], [-2, -30]),
    "c": ([3, 31], None),
}
AFTER_FIRST = {number: number for number in range(1, ROWS) if number != 10} | {10: -10}
AFTER_GROUP = {number: value for number, value in AFTER_FIRST.items() if number not in (3, 31)} | {
    1: -1, 2: -2, 30: -30
}  # fmt: skip


def prepare_edited(lake: Lake) -> None:
    """Create two files; the row with the id n has the number n. The last row is deleted already."""
    ds = lake.create(NAME, {"n": list(range(1, 21))})
    ds.append({"n": list(range(21, ROWS + 1))})
    ds.delete([ROWS])


def values(lake: Lake) -> dict[int, int]:
    """Return the number of each row by row id."""
    ds = lake.dataset(NAME)
    rows = ds.to_arrow(row_ids=True)
    assert rows.num_rows == ds.num_rows
    return dict(zip(rows["rowid"].to_pylist(), rows["n"].to_pylist(), strict=True))


def edit_together(lake: Lake, before_group: Callable[[], object] = lambda: None) -> list[Future[EditResult]]:
    """Submit the group while the first edit is being answered, and wait for the results. `before_group` is called first."""
    dataset = lake.dataset(NAME).id
    futures: list[Future[EditResult]] = []
    submitted = threading.Event()

    def submit(key: str, ids: list[int], new_values: list[int] | None) -> Future[EditResult]:
        rows = None if new_values is None else pa.table({"n": pa.array(new_values, pa.int64())})
        return service.submit(lake.caller, dataset, pa.array(ids, pa.int64()), rows, key=key)

    def submit_group(_: object) -> None:
        before_group()
        futures.extend(submit(key, *edit) for key, edit in GROUP.items())
        submitted.set()

    with closing(EditService(lake._workspace)) as service:
        submit("first", *FIRST).add_done_callback(submit_group)
        assert submitted.wait(60)
    return futures
