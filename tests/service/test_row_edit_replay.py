"""A repeated delete with the idempotency key of an earlier one, after a sweep."""

from datetime import timedelta

import pytest

from penstock.errors import NotFound
from penstock.lake import Dataset, Lake
from penstock.service.datasets.sweep import RetentionPolicy, sweep

SWEEP_ALL = RetentionPolicy(versions=1, grace=timedelta(0))


@pytest.fixture(params=["mark", "rewrite"])
def edit_mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def numbers(lake: Lake) -> Dataset:
    return lake.create("demo.numbers", {"n": list(range(1, 101))})


def test_replayed_delete_returning_after_a_sweep_explains_that_it_was_committed(lake: Lake, numbers: Dataset) -> None:
    first = numbers.delete([3, 5], returning=True, idempotency_key="k")
    sweep(lake._workspace, lake.caller, SWEEP_ALL, execute=True)
    with pytest.raises(NotFound) as raised:
        numbers.delete([3, 5], returning=True, idempotency_key="k")
    assert raised.value.reason == "deleted_rows_swept"
    assert str(raised.value) == (
        "The delete with this idempotency key was committed: it deleted 2 rows of demo.numbers, as version 2. Its rows "
        "cannot be returned again, because version 1 was swept. Repeat the delete without RETURNING for its receipt"
    )
    again = numbers.delete([3, 5], idempotency_key="k")
    assert (again.receipt, again.affected) == (first.receipt, 2)
    assert again.receipt is not None
    assert again.receipt.replayed
    assert (numbers.version, numbers.num_rows) == (2, 98)


def test_replayed_delete_of_unknown_rows_after_a_sweep_returns_no_rows(lake: Lake, numbers: Dataset) -> None:
    numbers.delete([1000], returning=True, idempotency_key="k")
    numbers.append({"n": [0]})
    sweep(lake._workspace, lake.caller, SWEEP_ALL, execute=True)
    again = numbers.delete([1000], returning=True, idempotency_key="k")
    assert again.returned is not None
    assert (again.affected, again.returned.num_rows) == (0, 0)
