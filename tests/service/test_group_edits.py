"""Small updates and deletes that arrive together share a commit, and each gets its own result."""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pyarrow as pa
import pytest

from faults.failing_parts import Countdown, failing_sql
from penstock import failpoints
from penstock.errors import CommitStateUnknown, Conflict, Invalid, NotFound, Unavailable
from penstock.lake import Dataset, Lake
from penstock.service.datasets import row_edits
from penstock.service.datasets.group_edits import EditService
from penstock.service.datasets.row_edits import EditResult
from penstock.service.workspace import Workspace

Edit = tuple[list[int], list[tuple[int, str]] | None]  # row ids and their new values; None: delete


@pytest.fixture(params=["mark", "rewrite"])
def edit_mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def edits(opened_workspace: Workspace) -> Iterator[EditService]:
    with closing(EditService(opened_workspace)) as edits:
        yield edits


@pytest.fixture
def ten_rows(lake: Lake) -> Dataset:
    """Create ten rows in two files: row id n has the number n."""
    ds = lake.create("demo.ten", table([(n, "old") for n in range(1, 7)]))
    ds.append(table([(n, "old") for n in range(7, 11)]))
    return ds


def table(rows: list[tuple[int, str]]) -> pa.Table:
    return pa.table(
        {"id": pa.array([n for n, _ in rows], pa.int64()), "word": pa.array([w for _, w in rows], pa.string())}
    )


def words(ds: Dataset) -> dict[int, str]:
    read = ds.to_arrow(row_ids=True)
    return dict(zip(read["rowid"].to_pylist(), read["word"].to_pylist(), strict=True))


def submit(edits: EditService, ds: Dataset, edit: Edit, **options: Any) -> Future[EditResult]:
    ids, rows = edit
    new_rows = None if rows is None else table(rows)
    return edits.submit(ds._lake.caller, ds.id, pa.array(ids, pa.int64()), new_rows, **options)


def commit_as_group(
    edits: EditService,
    ds: Dataset,
    waiting: list[tuple[Edit, dict[str, Any]]],
    before_group: Callable[[], object] = lambda: None,
) -> list[Future[EditResult]]:
    """Submit edits while the commit of another edit ends, so that they form a group. Call `before_group` before."""
    futures: list[Future[EditResult]] = []
    submitted = threading.Event()

    def submit_waiting(_: object) -> None:
        before_group()
        futures.extend(submit(edits, ds, edit, **options) for edit, options in waiting)
        submitted.set()

    submit(edits, ds, ([10], [(10, "first")])).add_done_callback(submit_waiting)
    assert submitted.wait(60)
    return futures


def test_edits_that_arrive_together_share_a_commit(edits: EditService, ten_rows: Dataset) -> None:
    waiting: list[tuple[Edit, dict[str, Any]]] = [
        (([1], [(1, "a")]), {"returning": True}),
        (([2, 99], None), {}),
        (([8, 3], [(8, "b"), (3, "c")]), {"key": "k"}),
        (([99], None), {}),
    ]
    results = [future.result() for future in commit_as_group(edits, ten_rows, waiting)]
    assert ten_rows.version == 4
    assert [result.affected for result in results] == [1, 1, 2, 0]
    assert results[0].returned is not None
    assert results[0].returned.to_pylist() == [{"id": 1, "word": "a", "rowid": 1}]
    assert {result.receipt.version for result in results if result.receipt} == {4}
    assert words(ten_rows) == {
        1: "a", 3: "c", 4: "old", 5: "old", 6: "old", 7: "old", 8: "b", 9: "old", 10: "first"
    }  # fmt: skip
    last = ten_rows.history()[0]
    assert (last.operation, last.counts.updated, last.counts.deleted) == ("update+delete", 3, 1)
    repeated = submit(edits, ten_rows, ([8, 3], [(8, "b"), (3, "c")]), key="k").result()
    assert (repeated.affected, repeated.receipt and repeated.receipt.replayed, ten_rows.version) == (2, True, 4)


def test_edits_of_one_row_are_executed_in_their_order(edits: EditService, ten_rows: Dataset) -> None:
    waiting: list[tuple[Edit, dict[str, Any]]] = [
        (([1], [(1, "a")]), {}),
        (([1, 2], [(1, "b"), (2, "b")]), {}),
        (([2], None), {}),
        (([2], None), {}),
        (([3], [(3, "c")]), {}),
    ]
    results = [future.result() for future in commit_as_group(edits, ten_rows, waiting)]
    assert [result.affected for result in results] == [1, 2, 1, 0, 1]
    assert {1: "b", 3: "c"}.items() <= words(ten_rows).items()
    assert 2 not in words(ten_rows)


def test_edit_that_fails_in_a_group_does_not_affect_the_others(edits: EditService, ten_rows: Dataset) -> None:
    waiting: list[tuple[Edit, dict[str, Any]]] = [
        (([1], [(1, "a")]), {}),
        (([99], [(1, "x")]), {}),
        (([4, 4], [(1, "x"), (2, "x")]), {}),
        (([5], None), {}),
    ]
    outcomes = [future.exception() for future in commit_as_group(edits, ten_rows, waiting)]
    assert [type(outcome) for outcome in outcomes] == [type(None), NotFound, Invalid, type(None)]
    assert words(ten_rows)[1] == "a"
    assert 5 not in words(ten_rows)
    assert words(ten_rows)[4] == "old"


def test_edit_with_a_used_key_gets_the_first_receipt_in_a_group(edits: EditService, ten_rows: Dataset) -> None:
    first = submit(edits, ten_rows, ([1], [(1, "a")]), key="k").result()
    waiting: list[tuple[Edit, dict[str, Any]]] = [
        (([1], [(1, "a")]), {"key": "k"}),
        (([2], None), {"key": "l"}),
        (([2], None), {"key": "l"}),
        (([3], None), {"key": "k"}),
    ]
    outcomes = [future.exception() or future.result() for future in commit_as_group(edits, ten_rows, waiting)]
    replay, delete, delete_again, other_request = outcomes
    assert isinstance(replay, EditResult)
    assert isinstance(delete, EditResult)
    assert isinstance(delete_again, EditResult)
    assert replay.receipt == first.receipt
    assert delete.receipt == delete_again.receipt
    assert getattr(other_request, "reason", "") == "key_reused"
    assert words(ten_rows)[3] == "old"


def test_group_finds_rows_again_that_another_writer_has_changed(
    edits: EditService, ten_rows: Dataset, edit_mode: str
) -> None:
    lake = ten_rows._lake

    def interfere() -> None:
        pending.pop()()

    pending = [lambda: row_edits.delete(lake._workspace, lake.caller, ten_rows.id, pa.array([2, 7]))]
    waiting: list[tuple[Edit, dict[str, Any]]] = [(([1], [(1, "a")]), {}), (([2, 3], None), {}), (([4], None), {})]
    with ExitStack() as stack:
        futures = commit_as_group(
            edits,
            ten_rows,
            waiting,
            before_group=lambda: stack.enter_context(
                failpoints.armed("stage.complete", lambda: interfere() if pending else None)
            ),
        )
        results = [future.result() for future in futures]
    assert [result.affected for result in results] == [1, 1, 1]
    assert words(ten_rows) == {1: "a", 5: "old", 6: "old", 8: "old", 9: "old", 10: "first"}


def test_failure_of_nth_statement_of_group_is_atomic(edits: EditService, ten_rows: Dataset) -> None:
    n = 0
    while len(words(ten_rows)) == 10:
        n += 1
        with ExitStack() as stack:
            sql = failing_sql(ten_rows._lake._workspace.db, Countdown(n))
            waiting: list[tuple[Edit, dict[str, Any]]] = [
                (([1], None), {"key": "a"}),
                (([2], [(2, f"try {n}")]), {"key": f"b{n}"}),
            ]
            futures = commit_as_group(
                edits,
                ten_rows,
                waiting,
                before_group=lambda sql=sql, stack=stack: stack.enter_context(sql),  # type: ignore[misc]
            )
            outcomes = [future.exception() for future in futures]
        allowed = Unavailable | Conflict | CommitStateUnknown
        assert all(outcome is None or isinstance(outcome, allowed) for outcome in outcomes)
        if outcomes[0] is None:
            assert 1 not in words(ten_rows)
        if outcomes[1] is None:
            assert words(ten_rows)[2] == f"try {n}"
        if n > 60:
            pytest.fail("the group was never committed")


def test_unknown_outcome_of_group_reports_each_key(edits: EditService, lake: Lake, ten_rows: Dataset) -> None:
    def disconnect_database() -> None:
        database_failure.enter_context(failing_sql(lake._workspace.db, Countdown(1)))
        raise OSError("injected")

    with ExitStack() as database_failure, ExitStack() as stack:
        futures = commit_as_group(
            edits,
            ten_rows,
            [(([1], None), {"key": "a"}), (([2], [(2, "b")]), {"key": "b"})],
            before_group=lambda: stack.enter_context(failpoints.armed("commit.sent", disconnect_database)),
        )
        errors = [future.exception() for future in futures]
    assert [type(error) for error in errors] == [CommitStateUnknown] * 2
    for key, edit in (("a", ([1], None)), ("b", ([2], [(2, "b")]))):
        repeated = submit(edits, ten_rows, edit, key=key).result()  # type: ignore[arg-type]
        assert repeated.receipt is not None
        assert repeated.receipt.replayed
    assert 1 not in words(ten_rows)
    assert words(ten_rows)[2] == "b"


@pytest.mark.parametrize("seed", [1, 2, None])
def test_concurrent_edits_match_a_serial_execution(lake: Lake, edits: EditService, seed: int | None) -> None:
    """Edit different rows in 8 threads, so that the result does not depend on the order."""
    seed = random.randrange(2**32) if seed is None else seed
    print(f"seed {seed}")
    ds = lake.create("demo.many", table([(n, "old") for n in range(1, 401)]))

    def work(thread: int) -> dict[int, str]:
        rng, words_by_id = (
            random.Random(seed * 8 + thread),
            dict.fromkeys(range(thread * 50 + 1, thread * 50 + 51), "old"),
        )
        for number in range(12):
            ids = rng.sample(list(words_by_id), min(len(words_by_id), rng.choice([1, 1, 1, 5])))
            if rng.random() < 0.3:
                assert submit(edits, ds, (ids, None)).result().affected == len(ids)
                words_by_id = {row_id: word for row_id, word in words_by_id.items() if row_id not in ids}
            else:
                rows = [(row_id, f"{thread} {number}") for row_id in ids]
                assert submit(edits, ds, (ids, rows)).result().affected == len(ids)
                words_by_id |= dict.fromkeys(ids, f"{thread} {number}")
        return words_by_id

    with ThreadPoolExecutor(8) as pool:
        expected = {row_id: word for words_by_id in pool.map(work, range(8)) for row_id, word in words_by_id.items()}
    assert words(ds) == expected
    assert ds.version < 1 + 8 * 12, "no edits shared a commit"
