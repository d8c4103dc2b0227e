"""Edits that another writer overtakes with an edit of other rows of the same file, so that their vectors are united."""

from collections.abc import Callable
from typing import Any

from penstock import failpoints
from penstock.lake import Lake

NAME = "demo.united"
ROWS = 100
BEFORE = {number: number for number in range(1, ROWS + 1)}
AFTER_OTHER = {number: number for number in BEFORE if number != 1}
AFTER = {
    "delete": {number: number for number in AFTER_OTHER if number not in (2, 3)},
    "update": AFTER_OTHER | {2: -2, 3: -3},
    "merge": AFTER_OTHER | {2: -2, 3: -3, ROWS + 1: 500},
}


def prepare_united(lake: Lake) -> None:
    """Create one file: the row with the id n has the number n."""
    lake.create(NAME, {"key": list(range(1, ROWS + 1)), "n": list(range(1, ROWS + 1))})


def values(lake: Lake) -> dict[int, int]:
    """Return the number of each row by key."""
    ds = lake.dataset(NAME)
    rows = ds.to_arrow(row_ids=True)
    assert rows.num_rows == ds.num_rows == len(set(rows["rowid"].to_pylist()))
    return dict(zip(rows["key"].to_pylist(), rows["n"].to_pylist(), strict=True))


def run(lake: Lake, kind: str) -> Any:
    """Execute the edit, and return its receipt."""
    ds = lake.dataset(NAME)
    match kind:
        case "delete":
            return ds.delete([2, 3], idempotency_key="k").receipt
        case "update":
            return ds.update([2, 3], {"key": [2, 3], "n": [-2, -3]}, idempotency_key="k").receipt
        case "merge":
            source = {"key": [2, 3, ROWS + 1], "n": [-2, -3, 500]}
            return ds.merge(source, "key", engine="pyarrow", idempotency_key="k").receipt
    raise KeyError(kind)


def run_overtaken(lake: Lake, kind: str, before_commit: Callable[[], object] = lambda: None) -> Any:
    """Execute the edit; before its commit, another edit is committed, and `before_commit` is called."""
    pending = [1]

    def overtake() -> None:
        if pending:
            lake.dataset(NAME).delete([pending.pop()])
            before_commit()

    with failpoints.armed("stage.complete", overtake):
        receipt = run(lake, kind)
    assert not pending, "the edit was not overtaken"
    return receipt
