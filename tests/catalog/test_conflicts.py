"""Test every cell of the tables in docs/conflicts.md."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from penstock import failpoints
from penstock.core.dataset.edit_policy import EditMode, EditPolicy
from penstock.errors import PenstockError
from penstock.lake import Dataset, Lake

PAGE = Path(__file__).parents[2] / "docs" / "conflicts.md"

_fresh = count()

WRITES: dict[str, Callable[[Dataset], object]] = {
    "append": lambda ds: ds.append({"id": [7], "word": ["seven"]}),
    "overwrite": lambda ds: ds.overwrite({"id": [8], "word": ["eight"]}),
    "merge": lambda ds: ds.merge({"id": [1, 7], "word": ["uno", "sette"]}, "id"),
    "update": lambda ds: ds.update([1], ds.to_arrow(where="id = 1")),
    "delete": lambda ds: ds.delete([2]),
    "alter": lambda ds: ds.alter(add={f"c{next(_fresh)}": "int64"}),
    "compact": lambda ds: ds.compact(),
    "drop": lambda ds: ds.drop(),
}


def documented_cells(number: int) -> list[tuple[str, str, str]]:
    """Return the cells of a table of the page: row, column and outcome."""
    tables = [block for block in PAGE.read_text().split("\n\n") if block.startswith("|")]
    header, _, *rows = [line.strip("| \n").split(" | ") for line in tables[number].splitlines()]
    return [(row[0], second, expected) for row in rows for second, expected in zip(header[1:], row[1:], strict=True)]


@pytest.fixture(params=["mark", "rewrite"])
def edit_mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_conflicts_table_lists_every_write_operation() -> None:
    assert {(first, second) for first, second, _ in documented_cells(0)} == {(a, b) for a in WRITES for b in WRITES}


@pytest.mark.parametrize(("first", "second", "expected"), documented_cells(0))
def test_overtaken_write_has_the_outcome_in_the_conflicts_table(
    three_rows: Dataset, first: str, second: str, expected: str
) -> None:
    three_rows.append({"id": [4], "word": ["four"]})
    if second == "drop":
        WRITES[first](three_rows)
        outcomes = outcome(lambda: WRITES[second](three_rows))
    else:
        # The second write has read its base; the first write commits; then the second write continues.
        pending = [lambda: WRITES[first](three_rows)]
        with failpoints.armed("stage.begun", lambda: pending.pop()() if pending else None):
            outcomes = outcome(lambda: WRITES[second](three_rows))
        assert not pending
    assert outcomes == expected
    if "drop" not in (first, second):
        ids, versions = [1, 2, 3, 4], 2
        for position, write in enumerate((first, second) if expected == "done" else (first,)):
            versions += not (
                (write == "delete" and 2 not in ids)  # a delete without rows creates no version
                or (position and write == "compact" and first in ("overwrite", "compact"))  # one file is left
            )
            ids = _ids_after(write, ids)
        assert sorted(three_rows.to_arrow()["id"].to_pylist()) == ids
        assert three_rows.num_rows == len(ids)
        assert three_rows.version == versions


_TRANSACTION_ROWS = {"the same row": 1, "other rows of the file": 3, "rows of other files": 4}


@pytest.mark.parametrize("edit_mode", ["auto"])
@pytest.mark.parametrize("edit", ["update", "delete"])
@pytest.mark.parametrize(("first", "rows", "expected"), documented_cells(1))
def test_edit_in_transaction_has_the_outcome_in_the_conflicts_table(
    lake: Lake, first: str, rows: str, expected: str, edit: str
) -> None:
    operation, _, mode = first.partition(", ")
    row_id = 2 if (operation, rows) == ("delete", "the same row") else _TRANSACTION_ROWS[rows]
    ds = lake.create("demo.rows", {"id": [1, 2, 3], "word": ["one", "two", "three"]})
    ds.append({"id": [4, 5], "word": ["four", "five"]})
    lake._workspace.edit_policy = EditPolicy(EditMode.MARK)

    def edit_in_transaction() -> None:
        with lake.transaction() as tx:
            if edit == "update":
                tx.update(ds, [row_id], {"id": [row_id], "word": ["new"]})
            else:
                tx.delete(ds, [row_id])
            lake._workspace.edit_policy = EditPolicy(EditMode.REWRITE if mode == "rewritten" else EditMode.MARK)
            WRITES[operation](ds)
            after.update({row["rowid"]: row["word"] for row in ds.to_arrow(row_ids=True).to_pylist()})

    after: dict[int, str] = {}
    assert outcome(edit_in_transaction) == expected
    if expected == "done":
        after |= {row_id: "new"}
        if edit == "delete":
            del after[row_id]
    assert {row["rowid"]: row["word"] for row in ds.to_arrow(row_ids=True).to_pylist()} == after


def _ids_after(write: str, ids: list[int]) -> list[int]:
    match write:
        case "append":
            return sorted([*ids, 7])
        case "overwrite":
            return [8]
        case "merge":
            return sorted([*ids, *({1, 7} - set(ids))])
        case "delete":
            return [id for id in ids if id != 2]
    return ids


def outcome(write: Callable[[], object]) -> str:
    try:
        write()
    except PenstockError as error:
        return error.kind
    return "done"
