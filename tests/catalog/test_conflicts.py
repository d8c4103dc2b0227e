"""Test every cell of the tables in docs/conflicts.md."""

from collections.abc import Callable
from datetime import timedelta
from itertools import count, product
from pathlib import Path

import pytest

from penstock import failpoints
from penstock.core.dataset.edit_policy import EditMode, EditPolicy
from penstock.errors import PenstockError
from penstock.lake import Dataset, Lake
from penstock.service.datasets.sweep import RetentionPolicy, sweep

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


_FILES = {1: [[1], [2], [3], [4], [5]], 3: [[1, 2, 3], [4, 5]], 1000: [[*range(1, 4), *range(6, 1003)], [4, 5]]}


def default_cells() -> list[tuple[int, str, str, str]]:
    """Return the number of rows of a file, and the cells that apply to such a file with the default settings."""
    cells = []
    for file_rows, (first, rows, expected) in product(_FILES, documented_cells(1)):
        operation, _, mode = first.partition(", ")
        chosen_mode = "rewritten" if operation == "merge" and file_rows < 1000 else "marked"
        if mode in ("", chosen_mode) and (file_rows > 1 or rows != "other rows of the file"):
            cells.append((file_rows, operation, rows, expected))
    return cells


@pytest.mark.parametrize("edit_mode", ["auto"])
@pytest.mark.parametrize("edit", ["update", "delete"])
@pytest.mark.parametrize(("file_rows", "operation", "rows", "expected"), default_cells())
def test_edit_in_transaction_has_the_outcome_in_the_conflicts_table_with_default_settings(
    lake: Lake, file_rows: int, operation: str, rows: str, expected: str, edit: str
) -> None:
    key = 2 if (operation, rows) == ("delete", "the same row") else _TRANSACTION_ROWS[rows]
    ds = lake.create("demo.rows", {"id": [0], "word": ["none"]})
    for keys in _FILES[file_rows]:
        ds.append({"id": keys, "word": [str(key) for key in keys]})
    ids = {row["id"]: row["rowid"] for row in ds.to_arrow(row_ids=True).to_pylist()}
    after: dict[int, str] = {}

    def edit_in_transaction() -> None:
        with lake.transaction() as tx:
            if edit == "update":
                tx.update(ds, [ids[key]], {"id": [key], "word": ["new"]})
            else:
                tx.delete(ds, [ids[key]])
            match operation:
                case "update":
                    ds.update([ids[1]], {"id": [1], "word": ["other"]})
                case "delete":
                    ds.delete([ids[2]])
                case _:
                    WRITES[operation](ds)
            after.update({row["rowid"]: row["word"] for row in ds.to_arrow(row_ids=True).to_pylist()})

    error = raised_by(edit_in_transaction)
    assert (error.kind if error else "done") == expected
    if error and operation in ("update", "delete"):
        assert error.context["row_ids"] == [ids[key]]
    if expected == "done":
        after[ids[key]] = "new"
        if edit == "delete":
            del after[ids[key]]
    assert {row["rowid"]: row["word"] for row in ds.to_arrow(row_ids=True).to_pylist()} == after


@pytest.mark.parametrize("edit_mode", ["auto"])
def test_edit_in_transaction_of_a_row_that_compactions_and_edits_of_other_rows_move_is_done(lake: Lake) -> None:
    ds = lake.create("demo.rows", {"id": [1, 2, 3], "word": ["one", "two", "three"]})
    ds.append({"id": [4, 5], "word": ["four", "five"]})
    with lake.transaction() as tx:
        tx.update(ds, [1, 4], {"id": [1, 4], "word": ["uno", "quattro"]})
        ds.update([2], {"id": [2], "word": ["due"]})
        ds.compact()
        ds.delete([3])
        ds.compact()
        ds.update([5], {"id": [5], "word": ["cinque"]})
    assert sorted(ds.to_arrow()["word"].to_pylist()) == ["cinque", "due", "quattro", "uno"]


@pytest.mark.parametrize("edit_mode", ["auto"])
@pytest.mark.parametrize("compacted", ["before", "after", "both", "never"])
def test_edit_in_transaction_of_a_row_that_was_edited_around_a_compaction_names_the_row(
    lake: Lake, compacted: str
) -> None:
    ds = lake.create("demo.rows", {"id": [1, 2, 3], "word": ["one", "two", "three"]})
    ds.update([2], {"id": [2], "word": ["due"]})  # the row is alone in its file

    def edit_in_transaction() -> None:
        with lake.transaction() as tx:
            tx.update(ds, [2, 3], {"id": [2, 3], "word": ["new", "new"]})
            if compacted in ("before", "both"):
                ds.compact()
            ds.update([2], {"id": [2], "word": ["other"]})
            if compacted in ("after", "both"):
                ds.compact()

    error = raised_by(edit_in_transaction)
    assert error is not None
    assert (error.reason, error.context["row_ids"]) == ("row_conflict", [2])
    assert sorted(ds.to_arrow()["word"].to_pylist()) == ["one", "other", "three"]


@pytest.mark.parametrize("edit_mode", ["auto"])
@pytest.mark.parametrize("edited", [0, 1])
def test_edit_in_transaction_of_two_compacted_datasets_conflicts_if_a_row_of_one_was_edited(
    lake: Lake, edited: int
) -> None:
    """A commit stops at the first dataset whose files were compacted; the rows of the other one are checked, too."""
    both = [lake.create(f"demo.rows{n}", {"id": [1, 2, 3], "word": ["one", "two", "three"]}) for n in range(2)]
    for ds in both:
        ds.append({"id": [4], "word": ["four"]})

    def edit_in_transaction() -> None:
        with lake.transaction() as tx:
            for ds in both:
                tx.update(ds, [1], {"id": [1], "word": ["new"]})
            both[edited].update([1], {"id": [1], "word": ["other"]})
            for ds in both:
                ds.compact()

    error = raised_by(edit_in_transaction)
    assert error is not None
    assert (error.reason, error.context["row_ids"]) == ("row_conflict", [1])
    assert "other" in both[edited].to_arrow()["word"].to_pylist()
    assert "one" in both[1 - edited].to_arrow()["word"].to_pylist()


@pytest.mark.parametrize("edit_mode", ["auto"])
def test_edit_in_transaction_conflicts_if_a_sweep_has_deleted_the_record_of_changes(lake: Lake) -> None:
    ds = lake.create("demo.rows", {"id": [1, 2, 3], "word": ["one", "two", "three"]})

    def edit_in_transaction() -> None:
        with lake.transaction() as tx:
            tx.update(ds, [1], {"id": [1], "word": ["new"]})
            ds.update([1], {"id": [1], "word": ["other"]})
            ds.compact()
            sweep(lake._workspace, lake.caller, RetentionPolicy(versions=1, grace=timedelta(0)), execute=True)

    assert outcome(edit_in_transaction) == "Conflict"
    assert sorted(ds.to_arrow()["word"].to_pylist()) == ["other", "three", "two"]


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
    error = raised_by(write)
    return error.kind if error else "done"


def raised_by(write: Callable[[], object]) -> PenstockError | None:
    try:
        write()
    except PenstockError as error:
        return error
    return None
