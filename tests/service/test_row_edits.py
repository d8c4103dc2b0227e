"""Updates and deletes by row id are atomic, also with concurrent writers."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import bindparam, select

from conftest import examples
from penstock import failpoints
from penstock.catalog import snapshots
from penstock.catalog.tables import deletion_vectors
from penstock.catalog.tenant_guard import tenant_filter
from penstock.core.caller import Role
from penstock.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, PenstockError, Unsupported
from penstock.lake import Dataset, Lake
from penstock.service.datasets import row_edits
from penstock.service.datasets.overlay import DatasetOverlay
from penstock.service.datasets.row_edits import EditResult, RowEdit
from penstock.service.datasets.staging import StagingArea
from penstock.service.datasets.write import load_writable
from penstock.service.transactions.transaction_commit import commit_changes
from support.statement_log import recorded_statements
from support.workspaces import WorkspaceFixture

RowsById = dict[int, tuple[int, str]]  # row id → values


def table(rows: list[tuple[Any, Any]]) -> pa.Table:
    return pa.table(
        {"id": pa.array([r[0] for r in rows], pa.int64()), "word": pa.array([r[1] for r in rows], pa.string())}
    )


def read_rows(ds: Dataset, version: int | None = None) -> RowsById:
    snapshot = ds.current() if version is None else ds.at(version)
    return by_id(snapshot.to_arrow(row_ids=True))


def by_id(rows: pa.Table) -> RowsById:
    """Return the values by row id in the order of the rows, and check that row ids are unique."""
    rows_by_id = {row["rowid"]: (row["id"], row["word"]) for row in rows.to_pylist()}
    assert len(rows_by_id) == rows.num_rows
    return rows_by_id


def update(ds: Dataset, ids: list[int], rows: list[tuple[Any, Any]], **options: Any) -> EditResult:
    lake = ds._lake
    return row_edits.update(lake._workspace, lake.caller, ds.id, pa.array(ids, pa.int64()), table(rows), **options)


def delete(ds: Dataset, ids: list[int], **options: Any) -> EditResult:
    lake = ds._lake
    return row_edits.delete(lake._workspace, lake.caller, ds.id, pa.array(ids, pa.int64()), **options)


def stored(ds: Dataset) -> set[str]:
    return {path for path, _ in ds._lake._workspace.store.files(ds.current().snapshot.location)}


def before_commit(action: Callable[[], object]) -> AbstractContextManager[None]:
    """Call a function once, right before the next commit."""
    pending = [action]
    return failpoints.armed("stage.complete", lambda: pending and pending.pop()())


@pytest.fixture(params=["mark", "rewrite"])
def edit_mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def five_rows(three_rows: Dataset) -> Dataset:
    """Create five rows in two files."""
    three_rows.append({"id": [4, 5], "word": ["four", "five"]})
    return three_rows


def test_update_replaces_rows_by_id(five_rows: Dataset, edit_mode: str) -> None:
    result = update(five_rows, [5, 2], [(50, "V"), (20, "II")], returning=True)
    assert read_rows(five_rows) == {1: (1, "one"), 2: (20, "II"), 3: (3, "three"), 4: (4, "four"), 5: (50, "V")}
    assert result.affected == 2
    assert result.returned is not None
    assert list(by_id(result.returned).items()) == [(5, (50, "V")), (2, (20, "II"))]
    assert result.returned.schema.equals(five_rows.schema.append(pa.field("rowid", pa.int64(), nullable=False)))
    last = five_rows.history()[0]
    assert (last.operation, last.counts.updated, last.rows) == ("update", 2, 5)
    assert (last.files, last.deleted_rows, last.vector_files) == ((3, 2, 2) if edit_mode == "mark" else (2, 0, 0))
    assert result.receipt is not None
    assert result.receipt.version == 3
    assert read_rows(five_rows, 2)[5] == (5, "five")
    assert update(five_rows, [2], [(2, "two")]).returned is None


def test_delete_returns_rows_in_order_of_ids(five_rows: Dataset) -> None:
    result = delete(five_rows, [4, 99, 1, 4, 3], returning=True)
    assert result.affected == 3
    assert result.returned is not None
    assert list(by_id(result.returned).items()) == [(4, (4, "four")), (1, (1, "one")), (3, (3, "three"))]
    assert result.returned.schema.equals(five_rows.schema.append(pa.field("rowid", pa.int64(), nullable=False)))
    assert read_rows(five_rows) == {2: (2, "two"), 5: (5, "five")}
    last = five_rows.history()[0]
    assert (last.operation, last.counts.deleted, last.rows) == ("delete", 3, 2)
    assert len(read_rows(five_rows, 2)) == 5


def test_delete_of_unknown_ids_creates_no_version(five_rows: Dataset) -> None:
    result = delete(five_rows, [99, -1, 0, 2**63 - 1, -(2**63)], returning=True)
    assert result.affected == 0
    assert result.returned is not None
    assert result.returned.num_rows == 0
    assert five_rows.version == 2


def test_delete_of_all_rows_of_file_removes_file(five_rows: Dataset) -> None:
    (first, second) = five_rows.current().files()
    result = delete(five_rows, [5, 4], returning=True)
    assert [file.path for file in five_rows.current().files()] == [first.path]
    assert result.returned is not None
    assert list(by_id(result.returned)) == [5, 4]
    assert delete(five_rows, [1, 2, 3]).affected == 3
    assert (five_rows.current().files(), five_rows.num_rows) == ([], 0)
    five_rows.append({"id": [6], "word": ["six"]})
    assert read_rows(five_rows) == {6: (6, "six")}, "row ids are never reused"
    assert second.path in stored(five_rows)


REJECTED: dict[str, tuple[list[int], list[tuple[Any, Any]] | None, type[PenstockError], str, str]] = {
    "no ids to update": ([], [], Invalid, "empty_row_ids", "row_ids cannot be empty for UPDATE"),
    "no ids to delete": ([], None, Invalid, "empty_row_ids", "row_ids cannot be empty for DELETE"),
    "too few rows": (
        [1, 2, 3, 4],
        [(1, "x")] * 3,
        Invalid,
        "row_count_mismatch",
        "row_ids count (4) does not match input rows (3)",
    ),
    "too many rows": (
        [1],
        [(1, "x")] * 2,
        Invalid,
        "row_count_mismatch",
        "row_ids count (1) does not match input rows (2)",
    ),
    "a duplicate id": (
        [4, 3, 1, 3, 4],
        [(1, "x")] * 5,
        Invalid,
        "duplicate_row_ids",
        "row_id 3 is given more than once",
    ),
    "a missing id": ([5, 99, 1, 77], [(1, "x")] * 4, NotFound, "row_not_found", "row_id 99 not found in table"),
    "only unknown ids": ([-7], [(1, "x")], NotFound, "row_not_found", "row_id -7 not found in table"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_rejected_edit_changes_nothing(five_rows: Dataset, case: str) -> None:
    ids, rows, error_class, reason, sentence = REJECTED[case]
    before = stored(five_rows)
    with pytest.raises(error_class) as raised:
        delete(five_rows, ids) if rows is None else update(five_rows, ids, rows)
    assert (raised.value.reason, raised.value.message) == (reason, sentence)
    assert (five_rows.version, stored(five_rows)) == (2, before)


def test_update_with_one_unknown_id_changes_nothing(lake: Lake) -> None:
    ds = lake.create("demo.many", table([(n, "old") for n in range(10_000)]))
    before = stored(ds)
    ids = [*range(1, 5_000), 70_000, *range(5_001, 10_001)]
    with pytest.raises(NotFound, match="row_id 70000 not found in table"):
        update(ds, ids, [(n, "new") for n in ids])
    assert (ds.version, stored(ds)) == (1, before)
    ids[4_999] = 5_000
    assert update(ds, ids, [(n, "new") for n in ids]).affected == 10_000
    assert read_rows(ds) == {n: (n, "new") for n in range(1, 10_001)}


def test_update_with_other_schema_is_rejected(lake: Lake) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", pa.string())])
    ds = lake.create("demo.required", pa.table({"id": [1, 2], "word": ["one", "two"]}, schema=schema))
    with pytest.raises(Invalid) as raised:
        update(ds, [1, 2], [(1, "x"), (None, "y")])
    assert raised.value.reason == "null_in_required_column"
    with pytest.raises(Invalid, match="column mismatch: table has 2 columns, input has 1"):
        row_edits.update(lake._workspace, lake.caller, ds.id, pa.array([1]), pa.table({"id": [1]}))
    assert update(ds, [2], [(3, None)]).affected == 1
    assert read_rows(ds) == {1: (1, "one"), 2: (3, None)}


def test_edit_of_dataset_without_row_ids_is_rejected(lake: Lake) -> None:
    ds = lake.create("demo.events", table([(1, "one")]), row_ids=False)
    with pytest.raises(Unsupported, match=r"table 'events' does not support UPDATE \(no rowid\)") as raised:
        update(ds, [1], [(1, "x")])
    assert raised.value.reason == "missing_row_ids"
    with pytest.raises(Unsupported, match=r"table 'events' does not support DELETE \(no rowid\)"):
        delete(ds, [1])


def test_edit_requires_write_access(five_rows: Dataset, lake: Lake, other_tenant: Lake) -> None:
    with pytest.raises(NotFound):
        delete(Dataset(other_tenant, five_rows.id), [1])
    viewer = Lake(lake._workspace, replace(lake.caller, role=Role.VIEWER), lake._folder)
    with pytest.raises(Forbidden):
        update(Dataset(viewer, five_rows.id), [1], [(1, "x")])
    sealed = lake.create("demo.sealed", table([(1, "one")]), read_only=True)
    with pytest.raises(Unsupported) as raised:
        delete(sealed, [1])
    assert raised.value.reason == "read_only"
    assert five_rows.version == 2


def test_returned_rows_above_limit_are_rejected(five_rows: Dataset, lake: Lake) -> None:
    lake._workspace.limits = replace(lake._workspace.limits, returned_bytes=60)
    before = stored(five_rows)
    for edit in (
        lambda: update(five_rows, [1], [(1, "x" * 60)], returning=True),
        lambda: delete(five_rows, [1, 2, 3, 4, 5], returning=True),
    ):
        with pytest.raises(Invalid, match="larger than 60 bytes") as raised:
            edit()
        assert raised.value.reason == "returned_too_large"
    assert (five_rows.version, stored(five_rows)) == (2, before)
    assert update(five_rows, [1], [(1, "x" * 60)]).affected == 1
    assert delete(five_rows, [2], returning=True).affected == 1


def test_edit_with_idempotency_key_executes_once(five_rows: Dataset) -> None:
    first = update(five_rows, [2, 1], [(20, "II"), (10, "I")], key="u", returning=True)
    five_rows.append({"id": [9], "word": ["nine"]})
    repeated = update(five_rows, [2, 1], [(20, "II"), (10, "I")], key="u", returning=True)
    assert repeated == replace(first, receipt=repeated.receipt)
    assert repeated.receipt is not None
    assert repeated.receipt.replayed
    deleted = delete(five_rows, [5, 1, 99], key="d", returning=True)
    five_rows.compact()
    repeated = delete(five_rows, [5, 1, 99], key="d", returning=True)
    assert repeated == replace(deleted, receipt=repeated.receipt)
    assert deleted.returned is not None
    assert list(by_id(deleted.returned).items()) == [(5, (5, "five")), (1, (10, "I"))]
    assert delete(five_rows, [5], key="nothing", returning=True) == delete(
        five_rows, [5], key="nothing", returning=True
    )
    assert [v.operation for v in five_rows.history()] == ["compact", "delete", "append", "update", "append", "create"]
    for second in (
        lambda: update(five_rows, [1, 2], [(20, "II"), (10, "I")], key="u"),
        lambda: update(five_rows, [2, 1], [(20, "II"), (10, "X")], key="u"),
        lambda: delete(five_rows, [2, 1], key="u"),
        lambda: delete(five_rows, [5, 1], key="d"),
    ):
        with pytest.raises(AlreadyExists, match="another request"):
            second()


def test_edit_is_rebased_over_concurrent_appends(five_rows: Dataset) -> None:
    with before_commit(lambda: five_rows.append({"id": [6], "word": ["six"]})):
        update(five_rows, [1], [(10, "I")])
    with before_commit(lambda: five_rows.append({"id": [7], "word": ["seven"]})):
        delete(five_rows, [2], returning=True)
    assert set(read_rows(five_rows).values()) >= {(10, "I"), (6, "six"), (7, "seven")}
    assert [v.operation for v in five_rows.history()][:4] == ["delete", "append", "update", "append"]


OVERTAKING: dict[str, Callable[[Dataset], Any]] = {
    "an update of another row of the file": lambda ds: update(ds, [2], [(20, "II")]),
    "a delete of another row of the file": lambda ds: delete(ds, [2]),
    "a merge": lambda ds: ds.merge({"id": [2], "word": ["II"]}, "id"),
    "a compaction": lambda ds: ds.compact(),
}


@pytest.mark.parametrize("other", OVERTAKING)
def test_overtaken_edit_is_repeated(five_rows: Dataset, other: str) -> None:
    with before_commit(lambda: OVERTAKING[other](five_rows)):
        result = update(five_rows, [1], [(10, "I")])
    assert result.affected == 1
    assert read_rows(five_rows)[1] == (10, "I")
    assert read_rows(five_rows, five_rows.version - 1)[1] == (1, "one")
    with before_commit(lambda: update(five_rows, [3], [(30, "III")])):
        deleted = delete(five_rows, [3, 5], returning=True)
    assert deleted.returned is not None
    assert list(by_id(deleted.returned).items()) == [(3, (30, "III")), (5, (5, "five"))], (
        "the rows as they were at last"
    )
    remaining = {values for rowid, values in read_rows(five_rows).items() if rowid != 2}
    assert remaining == {(10, "I"), (4, "four")}
    assert len(stored(five_rows)) == len(
        {f.path for v in range(1, five_rows.version + 1) for f in five_rows.at(v).files()}
    )


def test_update_of_concurrently_deleted_row_changes_nothing(five_rows: Dataset) -> None:
    with before_commit(lambda: delete(five_rows, [1])), pytest.raises(NotFound, match="row_id 1 not found"):
        update(five_rows, [3, 1], [(30, "III"), (10, "I")])
    assert read_rows(five_rows)[3] == (3, "three")
    assert five_rows.version == 3


def test_edit_during_schema_change_keeps_values_of_other_writers(five_rows: Dataset, edit_mode: str) -> None:
    with before_commit(lambda: five_rows.alter(add={"more": "int64"})):
        assert update(five_rows, [1], [(10, "I")]).affected == 1

    def grow() -> None:
        five_rows.alter(add={"most": "int64"})
        five_rows.merge({"id": [2], "word": ["II"], "more": [7], "most": [8]}, "id")

    rows = pa.table({"id": [3], "word": ["III"], "more": [9]})
    lake = five_rows._lake
    arguments = lake._workspace, lake.caller, five_rows.id, pa.array([3]), rows
    with before_commit(grow):
        if edit_mode == "mark":  # row 3 is unchanged: the update commits as if before the change of the schema
            row_edits.update(*arguments)
        else:  # the file was replaced: the update is executed again
            with pytest.raises(Invalid, match="table has 4 columns, input has 3"):
                row_edits.update(*arguments)
    read = {row.pop("rowid"): row for row in five_rows.to_arrow(row_ids=True).to_pylist()}
    assert read[1] == {"id": 10, "word": "I", "more": None, "most": None}
    assert read[2] == {"id": 2, "word": "II", "more": 7, "most": 8}
    assert read[3]["word"] == ("III" if edit_mode == "mark" else "three")


def test_edit_of_files_with_older_schema(lake: Lake) -> None:
    ds = lake.create("demo.old", pa.table({"n": pa.array([1, 2, 3], pa.int32())}))
    ds.alter(add={"word": "string"}, widen={"n": "int64"})
    target = lake._workspace, lake.caller, ds.id
    row_edits.update(*target, pa.array([2]), pa.table({"n": [2**40], "word": ["big"]}))
    deleted = row_edits.delete(*target, pa.array([3]), returning=True).returned
    assert deleted is not None
    assert deleted.to_pylist() == [{"n": 3, "word": None, "rowid": 3}]
    assert ds.to_arrow().to_pylist() == [{"n": 1, "word": None}, {"n": 2**40, "word": "big"}]


class EditTransaction:
    """Edits of one dataset that are committed together."""

    def __init__(self, ds: Dataset) -> None:
        self.lake, self.ds = ds._lake, ds
        ws, caller = self.lake._workspace, self.lake.caller
        self.stage, self.working = StagingArea(ws, caller), DatasetOverlay(ws, caller, load_writable(ws, caller, ds.id))

    def edit(self, ids: list[int], rows: list[tuple[Any, Any]] | None = None, **options: Any) -> EditResult:
        arguments, id_array = None if rows is None else table(rows), pa.array(ids, pa.int64())
        editing = RowEdit(self.lake._workspace, self.lake.caller, self.stage, id_array, arguments, **options)
        self.stage.drop(self.working.apply(editing.change(self.working)))
        return editing.last_result

    def append(self, rows: list[tuple[Any, Any]]) -> list[int]:
        """Return the assigned row ids."""
        before = {file.path for file in self.working.files()}
        source = pa.RecordBatchReader.from_batches(table([]).schema, table(rows).to_batches())
        self.working.apply(self.stage.append(self.working, source))
        (new,) = [file for file in self.working.files() if file.path not in before]
        assert new.first_row_id is not None
        return list(range(new.first_row_id, new.first_row_id + new.rows))

    def commit(self) -> None:
        with self.stage:
            commit_changes(self.lake._workspace, self.lake.caller, self.stage, [self.working.change()])


def test_edits_in_transaction_see_its_writes(five_rows: Dataset) -> None:
    tx = EditTransaction(five_rows)
    id_6, id_7, id_8 = tx.append([(6, "six"), (7, "seven"), (8, "eight")])
    assert tx.edit([id_7, 1], [(70, "VII"), (10, "I")]).affected == 2
    deleted = tx.edit([id_7, id_6, 2], returning=True)
    assert deleted.returned is not None
    assert list(by_id(deleted.returned).items()) == [(id_7, (70, "VII")), (id_6, (6, "six")), (2, (2, "two"))]
    assert deleted.receipt is None
    with pytest.raises(NotFound, match=f"row_id {id_7} not found"):
        tx.edit([id_7], [(7, "x")])
    assert tx.edit([id_8, 1], [(80, "VIII"), (11, "I'")]).affected == 2
    assert five_rows.version == 2
    five_rows.append({"id": [9], "word": ["nine"]})
    tx.commit()
    expected = {1: (11, "I'"), 3: (3, "three"), 4: (4, "four"), 5: (5, "five"), id_8: (80, "VIII")}
    assert {key: values for key, values in read_rows(five_rows).items() if values != (9, "nine")} == expected
    assert [v.operation for v in five_rows.history()][:2] == ["append+update+delete", "append"]
    assert stored(five_rows) == {file.path for version in (1, 2, 3, 4) for file in five_rows.at(version).files()}


def test_transactions_that_edit_rows_of_one_file_conflict_if_it_is_rewritten(
    five_rows: Dataset, edit_mode: str
) -> None:
    first, second = EditTransaction(five_rows), EditTransaction(five_rows)
    first.edit([1], [(10, "I")])
    second.edit([2])
    first.commit()
    if edit_mode == "mark":
        second.commit()
        assert read_rows(five_rows) == {1: (10, "I"), 3: (3, "three"), 4: (4, "four"), 5: (5, "five")}
        return
    with pytest.raises(Conflict) as raised:
        second.commit()
    assert raised.value.reason == "stale_version"
    assert read_rows(five_rows)[2] == (2, "two")


def test_transactions_that_edit_one_row_conflict_and_name_it(five_rows: Dataset, edit_mode: str) -> None:
    first, second = EditTransaction(five_rows), EditTransaction(five_rows)
    first.edit([1, 2], [(10, "I"), (20, "II")])
    second.edit([2, 3, 4])
    first.commit()
    with pytest.raises(Conflict) as raised:
        second.commit()
    assert read_rows(five_rows)[2] == (20, "II")
    if edit_mode == "mark":
        assert raised.value.reason == "row_conflict"
        assert raised.value.context["row_ids"] == [2]
        assert raised.value.context["conflicting_rows"] == 1


def test_edits_of_one_row_in_files_with_stored_ids_conflict_and_name_it(five_rows: Dataset, edit_mode: str) -> None:
    update(five_rows, [2, 4], [(2, "II"), (4, "IV")])  # the ids are stored from this version on
    first, second = EditTransaction(five_rows), EditTransaction(five_rows)
    first.edit([4])
    second.edit([2, 4], [(2, "ii"), (4, "iv")])
    first.commit()
    with pytest.raises(Conflict) as raised:
        second.commit()
    assert read_rows(five_rows) == {1: (1, "one"), 2: (2, "II"), 3: (3, "three"), 5: (5, "five")}
    if edit_mode == "mark":
        assert raised.value.context["row_ids"] == [4]


@pytest.mark.parametrize("edit_mode", ["mark"])
def test_transaction_commits_after_compaction_of_its_files(five_rows: Dataset) -> None:
    """Compaction changes no row, so that a transaction does not lose to it: its rows are located in the new file."""
    update(five_rows, [2], [(20, "II")])
    first, second = EditTransaction(five_rows), EditTransaction(five_rows)
    first.edit([1, 5], [(10, "I"), (50, "V")])
    first.edit([2])
    second.edit([3])
    five_rows.append({"id": [6], "word": ["six"]})
    five_rows.compact()
    first.commit()
    assert read_rows(five_rows) == {1: (10, "I"), 3: (3, "three"), 4: (4, "four"), 5: (50, "V"), 6: (6, "six")}
    five_rows.compact()
    second.commit()
    assert read_rows(five_rows) == {1: (10, "I"), 4: (4, "four"), 5: (50, "V"), 6: (6, "six")}


@pytest.mark.parametrize("edit_mode", ["auto"])
def test_transaction_marks_many_rows_of_a_file_and_conflicts_by_row(lake: Lake) -> None:
    """An edit outside a transaction rewrites the file, because it can be executed again."""
    ds = lake.create("demo.many", table([(n, "old") for n in range(10_000)]))
    half = list(range(1, 5001))
    first, second = EditTransaction(ds), EditTransaction(ds)
    first.edit(half, [(n, "new") for n in half], in_transaction=True)
    second.edit([6000], in_transaction=True)
    first.commit()
    second.commit()
    version = ds.current().snapshot.version
    assert (version.rows, version.deleted_rows, version.vector_files) == (9999, 5001, 1)
    update(ds, half, [(n, "newer") for n in half])
    delete(ds, list(range(6001, 7001)))
    assert not ds.current().snapshot.version.vector_files
    assert [row for row in read_rows(ds).values() if row[1] != "old"] == [(n, "newer") for n in half]


@pytest.mark.parametrize("edit_mode", ["auto"])
def test_united_vector_may_exceed_the_limits_until_the_next_edit(lake: Lake) -> None:
    """The limits hold for each edit. A commit that unites edits of several writers does not check them again."""
    ds = lake.create("demo.united", table([(n, "x") for n in range(10_000)]))
    deletes = [list(range(first, first + 2000)) for first in (2001, 4001, 6001)]

    def delete_concurrently() -> None:
        if deletes:
            delete(ds, deletes.pop())

    with failpoints.armed("stage.complete", delete_concurrently):
        delete(ds, list(range(1, 2001)))
    assert ds.current().snapshot.version.deleted_rows == 8000
    assert set(read_rows(ds)) == set(range(8001, 10_001))
    delete(ds, [10_000])
    version = ds.current().snapshot.version
    assert (version.rows, version.deleted_rows, version.vector_files) == (1999, 0, 0)


@pytest.mark.parametrize("edit_mode", ["mark"])
def test_delete_in_many_files_sends_the_same_number_of_statements_for_any_vectors(lake: Lake) -> None:
    ds = lake.create("demo.statements", table([(n, "x") for n in range(100)]))
    for _ in range(29):
        ds.append(table([(n, "x") for n in range(100)]))
    counts = []
    for row in range(1, 9):  # after a power of two all parts of a vector are folded
        with recorded_statements(lake._workspace.db) as statements:
            delete(ds, [file * 100 + row for file in range(30)])
        counts.append(len(statements))
    assert max(counts) <= min(counts) + 2
    assert ds.num_rows == 30 * 92


@pytest.mark.parametrize("edit_mode", ["auto"])
def test_processes_that_update_different_rows_of_one_file_all_commit_at_once(
    workspace: WorkspaceFixture, soak: bool
) -> None:
    """The commit unites the vectors: no row is located twice."""
    processes, times = (8, 200) if soak else (4, 15)
    with workspace.open() as lake:
        ds = lake.create("demo.shared", table([(n, "old") for n in range(1, 20_001)]))
        ids = [int(n) for n in np.random.default_rng(5).permutation(20_000)[: processes * times] + 1]
    located = workspace.race("update_rows", [("demo.shared", ids[i::processes]) for i in range(processes)])
    assert located == [times] * processes
    with workspace.open() as lake:
        ds = lake.dataset("demo.shared")
        assert read_rows(ds) == {n: (-n, "updated") if n in set(ids) else (n, "old") for n in range(1, 20_001)}
        newest = ds.current().snapshot.version
        assert (newest.number, newest.deleted_rows, newest.vector_files) == (1 + len(ids), len(ids), 1)


def test_delete_of_all_rows_by_several_writers_drops_the_file(five_rows: Dataset, edit_mode: str) -> None:
    """The last writer deletes the last row: the file is removed, and no vector is stored for it."""
    delete(five_rows, [1])
    with before_commit(lambda: delete(five_rows, [2])):
        delete(five_rows, [3])
    assert read_rows(five_rows) == {4: (4, "four"), 5: (5, "five")}
    newest = five_rows.current().snapshot.version
    assert (newest.rows, newest.files, newest.deleted_rows, newest.vector_files) == (2, 1, 0, 0)
    for version, ids in ((3, {2, 3, 4, 5}), (4, {3, 4, 5})):
        assert set(read_rows(five_rows, version)) == ids


@pytest.mark.parametrize("edit_mode", ["mark"])
def test_delete_of_fresh_rows_opens_no_file(lake: Lake) -> None:
    ds = lake.create("demo.unread", table([(n, "x") for n in range(100)]))
    (file,) = ds.current().files()
    path = Path(lake._workspace.store.locate(file.path))
    content = path.read_bytes()
    path.write_bytes(b"not a Parquet file")
    assert delete(ds, [1, 50, 100, 101]).affected == 3
    path.write_bytes(content)
    assert set(read_rows(ds)) == set(range(1, 101)) - {1, 50, 100}


@pytest.mark.parametrize("edit_mode", ["mark"])
def test_vectors_of_many_commits_are_folded_into_few_rows(lake: Lake) -> None:
    """A file has few rows of its vector at any version, and a position is rewritten rarely."""
    ds = lake.create("demo.folded", table([(n, "x") for n in range(1000)]))
    ids = [int(n) for n in np.random.default_rng(3).permutation(np.arange(1, 1001))[:64]]
    for row_id in ids:
        delete(ds, [row_id])
    vectors = deletion_vectors.c
    query = select(vectors.rows, vectors.end_version).where(
        tenant_filter(deletion_vectors), vectors.dataset_id == bindparam("dataset")
    )
    with lake._workspace.db.read(lake.caller) as tx:
        rows = tx.all(query, dataset=ds.id)
    assert len(rows) == len(ids)
    assert sum(row.rows for row in rows if row.end_version is None) == len(ids)
    assert sum(row.end_version is None for row in rows) <= 7
    assert sum(row.rows for row in rows) <= len(ids) * 7
    for version in (2, 17, 40, 65):
        assert set(read_rows(ds, version)) == set(range(1, 1001)) - set(ids[: version - 1])


def test_edit_opens_and_replaces_only_files_with_ids(lake: Lake, edit_mode: str) -> None:
    """Of 60 files, only those near the ids are opened; damaged files elsewhere are not read."""
    ds = lake.create("demo.files", table([(n, "old") for n in range(10)]))
    for _ in range(59):
        ds.append(table([(n, "old") for n in range(10)]))
    update(ds, [5, 595], [(5, "new"), (595, "new")])  # now some files store row ids
    with lake._workspace.db.read(lake.caller) as tx:
        snapshot = snapshots.newest(tx, ds.id)
        opened = snapshots.files(tx, snapshot, row_id_ranges=[(7, 7), (321, 322), (591, 600)])
        past = snapshots.files(tx, snapshots.at_version(tx, ds.id, 60), row_id_ranges=[(7, 7)])
    assert {(1, 10), (321, 330), (591, 600)} <= {file.row_ids for file in opened}
    assert len(opened) < 30
    expected = {1} if edit_mode == "mark" else {1, 60}
    assert {file.number for file in past} >= expected, "an ended file is found where it was live"
    paths = {file.row_ids: Path(lake._workspace.store.locate(file.path)) for file in ds.current().files()}
    remaining = {ids: path.read_bytes() for ids, path in paths.items() if ids not in ((1, 10), (321, 330), (5, 595))}
    for ids in remaining:
        paths[ids].write_bytes(b"not a Parquet file")
    assert update(ds, [322, 1], [(1, "x"), (2, "y")]).affected == 2
    assert delete(ds, [322, 3]).affected == 2
    for ids, content in remaining.items():
        paths[ids].write_bytes(content)
    assert len(read_rows(ds)) == 598
    if edit_mode == "rewrite":
        assert ds.current().files()[0].row_ids == (11, 20)


@pytest.mark.parametrize("edit_mode", ["auto"])
def test_edit_reads_the_row_ids_of_a_small_file_once(lake: Lake) -> None:
    """The ranges of ids of small updates overlap, so that each edit of an updated row looks into all of their files."""
    ds = lake.create("demo.updated", table([(n, "old") for n in range(1000)]))
    for n in range(1, 21):
        update(ds, [n, 1000 - n], [(n, "new"), (1000 - n, "new")])
    delete(ds, [500])  # looks into the files
    paths = [Path(lake._workspace.store.locate(file.path)) for file in ds.current().files() if file.rows == 2]
    contents = [path.read_bytes() for path in paths]
    for path in paths:
        path.write_bytes(b"not a Parquet file")
    assert update(ds, [7, 501], [(7, "newer"), (501, "newer")]).affected == 2
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    assert sorted(row for row in read_rows(ds).values() if row[1] == "newer") == [(7, "newer"), (501, "newer")]
    assert len(paths) == 20


def test_edit_of_very_many_ids(lake: Lake, soak: bool) -> None:
    rows = 1_000_000 if soak else 100_000
    ids = np.arange(1, rows + 1)
    ds = lake.create("demo.large", pa.table({"n": ids[: rows // 2]}))
    ds.append(pa.table({"n": ids[rows // 2 :]}))
    target = lake._workspace, lake.caller, ds.id
    shuffled = np.random.default_rng(1).permutation(ids)
    batches = pa.table({"n": shuffled * 10}).to_batches(max_chunksize=1000)
    result = row_edits.update(*target, pa.array(shuffled), pa.Table.from_batches(batches), returning=True)
    assert result.affected == rows
    read = ds.to_arrow(row_ids=True)
    assert (read["n"].to_numpy() == read["rowid"].to_numpy() * 10).all()
    deleted = row_edits.delete(*target, pa.array(shuffled[::3]), returning=True)
    assert deleted.returned is not None
    assert (deleted.returned["rowid"].to_numpy() == shuffled[::3]).all()
    assert (deleted.returned["n"].to_numpy() == shuffled[::3] * 10).all()
    assert set(ds.to_arrow(row_ids=True)["rowid"].to_numpy()) == set(ids) - set(shuffled[::3])


values = st.tuples(st.integers(-3, 6), st.text("xyz", max_size=2))
id_picks = st.lists(st.integers(0, 30), min_size=1, max_size=4)  # indexes into all ids, and an unknown id
programs = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(values, min_size=1, max_size=5)),
        st.tuples(st.just("update"), st.tuples(id_picks, st.lists(values, min_size=4, max_size=4))),
        st.tuples(st.just("delete"), id_picks),
        st.tuples(st.just("merge"), st.dictionaries(st.integers(-3, 6), st.text("xyz", max_size=2), max_size=3)),
        st.tuples(st.just("compact"), st.none()),
    ),
    max_size=10,
)


class EditModel:
    """Rows by id, and all ids that were assigned."""

    def __init__(self, ds: Dataset) -> None:
        self.ds = ds
        self.current: RowsById = {}
        self.past: dict[int, RowsById] = {1: {}}
        self.all_ids: list[int] = []

    def run(self, operation: str, arguments: Any) -> None:
        before = dict(self.current)
        getattr(self, f"_{operation}")(arguments)
        read = read_rows(self.ds)
        fresh = {rowid: row for rowid, row in read.items() if rowid not in before}
        assert not set(fresh) & set(self.all_ids), "an id was assigned twice"
        assert {rowid: row for rowid, row in read.items() if rowid in self.current} == self.current
        assert sorted(fresh.values()) == sorted(self.new)
        self.current |= fresh
        self.all_ids += sorted(fresh)
        self.past[self.ds.version] = dict(self.current)

    def _append(self, rows: list[tuple[int, str]]) -> None:
        self.ds.append(table(rows))
        self.new = list(rows)

    def _update(self, arguments: tuple[list[int], list[tuple[int, str]]]) -> None:
        ids = list(dict.fromkeys(self._ids(arguments[0])))
        rows, self.new = arguments[1][: len(ids)], []
        if missing := [rowid for rowid in ids if rowid not in self.current]:
            with pytest.raises(NotFound, match=f"row_id {missing[0]} not found"):
                update(self.ds, ids, rows)
            return
        self.current |= dict(zip(ids, rows, strict=True))
        result = update(self.ds, ids, rows, returning=True).returned
        assert result is not None
        assert by_id(result) == dict(zip(ids, rows, strict=True))

    def _delete(self, arguments: list[int]) -> None:
        ids, self.new = self._ids(arguments), []
        expected = {rowid: self.current[rowid] for rowid in ids if rowid in self.current}
        deleted = delete(self.ds, ids, returning=True)
        assert deleted.affected == len(expected)
        assert deleted.returned is not None
        assert list(by_id(deleted.returned).items()) == list(expected.items())
        self.current = {rowid: row for rowid, row in self.current.items() if rowid not in expected}

    def _merge(self, arguments: dict[int, str]) -> None:
        self.ds.merge(table(list(arguments.items())), "id", engine="pyarrow")
        keys = {key for key, _ in self.current.values()}
        self.current = {rowid: (key, arguments.get(key, word)) for rowid, (key, word) in self.current.items()}
        self.new = [row for row in arguments.items() if row[0] not in keys]

    def _compact(self, _: None) -> None:
        self.ds.compact()
        self.new = []

    def _ids(self, picks: list[int]) -> list[int]:
        return [self.all_ids[pick % len(self.all_ids)] if self.all_ids and pick < 30 else 10**6 for pick in picks]


@settings(max_examples=examples(30, soak=300), suppress_health_check=[HealthCheck.too_slow])
@given(programs)
def test_random_edits_match_dict_model(program: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder, WorkspaceFixture.make(Path(folder) / "w", None).open() as lake:
        model = EditModel(lake.create("demo.model", schema=table([(0, "")]).schema))
        for operation, values in program:
            model.run(operation, values)
        for version, expected in model.past.items():
            assert read_rows(model.ds, version) == expected, f"version {version} has changed"
        versions = range(1, model.ds.version + 1)
        assert stored(model.ds) == {file.path for version in versions for file in model.ds.at(version).files()}
