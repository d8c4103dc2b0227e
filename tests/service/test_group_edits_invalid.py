"""An edit that cannot be executed fails alone: the other edits of its group still share one commit."""

import threading
from concurrent.futures import Future
from contextlib import closing

import pyarrow as pa
import pytest

from penstock.errors import Invalid, NotFound
from penstock.lake import Dataset, Lake
from penstock.service.datasets.group_edits import EditService
from penstock.service.datasets.row_edits import EditResult

ROWS = 100
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
NULLABLE = pa.schema([pa.field("n", pa.int64())])

Edit = tuple[list[int], list[int | None] | None, str | None]  # row ids, new values (None: delete), key
UNKNOWN_ID: Edit = ([10**9], [0], None)
PARTLY_UNKNOWN_IDS: Edit = ([50, 10**9], [0, 0], None)
NULL_IN_REQUIRED_COLUMN: Edit = ([51], [None], None)
TOO_FEW_ROWS: Edit = ([52, 53], [0], None)
NO_IDS: Edit = ([], None, None)
GOOD: list[Edit] = [([number], [-number], None) for number in range(1, 33)] + [([40], None, None)]


@pytest.fixture(params=["mark", "rewrite"])
def edit_mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def numbers(lake: Lake) -> Dataset:
    """One file: the row with the id n has the number n - 1."""
    return lake.create("demo.numbers", pa.table({"n": pa.array(range(ROWS))}, schema=SCHEMA))


def submit_together(ds: Dataset, edits: list[Edit]) -> list[Future[EditResult]]:
    """Submit edits while the commit of another edit ends, and return their completed futures."""
    futures: list[Future[EditResult]] = []
    submitted = threading.Event()

    def submit(edit: Edit) -> Future[EditResult]:
        ids, values, key = edit
        rows = None if values is None else pa.table({"n": pa.array(values, pa.int64())}, schema=NULLABLE)
        return service.submit(ds._lake.caller, ds.id, pa.array(ids, pa.int64()), rows, key=key)

    def submit_all(_: object) -> None:
        futures.extend(map(submit, edits))
        submitted.set()

    with closing(EditService(ds._lake._workspace)) as service:
        submit(([ROWS], [0], None)).add_done_callback(submit_all)
        assert submitted.wait(60)
        for future in futures:
            future.exception(timeout=60)
    return futures


def values(ds: Dataset) -> dict[int, int]:
    rows = ds.to_arrow(row_ids=True)
    return dict(zip(rows["rowid"].to_pylist(), rows["n"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("invalid", "error_type"),
    [
        ([UNKNOWN_ID], NotFound),
        ([PARTLY_UNKNOWN_IDS], NotFound),
        ([UNKNOWN_ID, PARTLY_UNKNOWN_IDS], NotFound),
        ([NULL_IN_REQUIRED_COLUMN], Invalid),
        ([TOO_FEW_ROWS], Invalid),
        ([NO_IDS], Invalid),
    ],
    ids=["unknown_id", "partly_unknown_ids", "two", "null_in_required_column", "too_few_rows", "no_ids"],
)
def test_group_with_invalid_edits_commits_the_others_together(
    numbers: Dataset, invalid: list[Edit], error_type: type[Exception]
) -> None:
    futures = submit_together(numbers, [*GOOD[:16], *invalid, *GOOD[16:]])
    errors = [error for future in futures if (error := future.exception())]
    assert [type(error) for error in errors] == [error_type] * len(invalid)
    assert numbers.version == 3, "the edits did not share a commit"
    expected = {row_id: row_id - 1 for row_id in range(1, ROWS)} | {ROWS: 0} | {n: -n for n in range(1, 33)}
    del expected[40]
    assert values(numbers) == expected


def test_group_with_all_kinds_of_invalid_edits_commits_the_others_together(numbers: Dataset) -> None:
    invalid = [UNKNOWN_ID, NULL_IN_REQUIRED_COLUMN, PARTLY_UNKNOWN_IDS, TOO_FEW_ROWS, NO_IDS]
    errors = [type(future.exception()) for future in submit_together(numbers, [*invalid, *GOOD])]
    assert errors == [NotFound, Invalid, NotFound, Invalid, Invalid, *[type(None)] * len(GOOD)]
    assert numbers.version == 3


def test_replayed_update_in_a_group_whose_row_is_gone_returns_its_receipt(numbers: Dataset) -> None:
    (first,) = submit_together(numbers, [([7], [-7], "k")])
    numbers.delete([7])
    version = numbers.version
    replay, *others = submit_together(numbers, [([7], [-7], "k"), *GOOD[:3]])
    assert replay.result().receipt == first.result().receipt
    assert [future.result().affected for future in others] == [1, 1, 1]
    assert numbers.version == version + 2
