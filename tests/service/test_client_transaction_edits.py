"""Transactions of clients that delete and update rows by id, continued by another process between any two operations."""

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from penstock.catalog import client_transactions
from penstock.core.dataset.deletion_vector import DeletionVector
from penstock.core.names import DatasetName
from penstock.errors import Conflict
from penstock.lake import Dataset, Lake
from penstock.service.datasets.row_edits import RowEdit
from penstock.service.transactions.client import ClientTransactions
from penstock.service.transactions.write_set import WriteSet
from penstock.storage.scan import scan
from support.workspaces import WorkspaceFixture

NAME = DatasetName.parse("demo.numbers")
FILES, FILE_ROWS = 3, 1_000
Rows = dict[int, int]  # number by row id


@pytest.fixture(params=["mark", "rewrite"])
def edit_mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Processes:
    """Two processes that serve the same client in turns: no operation finds its write set in memory."""

    def __init__(self, lakes: list[Lake]) -> None:
        self.lakes = lakes
        self._servers = [ClientTransactions(lake._workspace) for lake in lakes]
        self._turn = 0

    def begin(self) -> UUID:
        return self._servers[0].create(self.lakes[0].caller)

    def edit(self, transaction: UUID, new_values: dict[int, int | None]) -> int:
        """Set the numbers of rows, or delete the rows if all values are None. Return the number of affected rows."""
        lake, server = self._next()
        ids = pa.array(new_values, pa.int64())
        deletes = all(value is None for value in new_values.values())
        rows = None if deletes else pa.table({"n": pa.array(new_values.values(), pa.int64())})
        with server.operation(lake.caller, transaction) as operation:
            overlay = operation.overlay(NAME)
            edit = RowEdit(lake._workspace, lake.caller, operation.stage, ids, rows)
            operation.apply(overlay, edit.change(overlay))
            return edit.last_result.affected

    def read(self, transaction: UUID) -> Rows:
        lake, server = self._next()
        overlay = server.snapshot_for_read(lake.caller, transaction, NAME)
        rows = scan(lake._workspace.store, overlay.files(), overlay.schema, row_ids=True).read_all()
        assert rows.num_rows == overlay.rows
        return by_row_id(rows)

    def commit(self, transaction: UUID) -> None:
        lake, server = self._next()
        server.commit(lake.caller, transaction)

    def write_set_json(self, transaction: UUID) -> str:
        with self.lakes[0]._workspace.db.read(self.lakes[0].caller) as tx:
            _, text = client_transactions.load_write_set(tx, transaction)
        assert text is not None
        return text

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def _next(self) -> tuple[Lake, ClientTransactions]:
        self._turn = 1 - self._turn
        return self.lakes[self._turn], self._servers[self._turn]


@pytest.fixture
def processes(workspace: WorkspaceFixture) -> Iterator[Processes]:
    with workspace.open() as one, workspace.open() as other, closing(Processes([one, other])) as processes:
        yield processes


@pytest.fixture
def marking_lake(workspace: WorkspaceFixture) -> Iterator[Lake]:
    """A process that always marks rows as deleted: in both edit modes, transactions edit files with vectors."""
    with replace(workspace, edit_mode="mark").open() as lake:
        yield lake


@pytest.fixture
def numbers(marking_lake: Lake) -> Dataset:
    """Three files, each with a deletion vector: row id n has the number n, and every seventh row is deleted."""
    ds = marking_lake.create(str(NAME), schema=pa.schema([("n", pa.int64())]))
    for number in range(FILES):
        first = 1 + number * FILE_ROWS
        ds.append(pa.table({"n": pa.array(range(first, first + FILE_ROWS))}))
    ds.delete(list(range(7, FILES * FILE_ROWS + 1, 7)))
    return ds


def by_row_id(rows: pa.Table) -> Rows:
    ids = rows["rowid"].to_pylist()
    assert len(set(ids)) == len(ids)
    return dict(zip(ids, rows["n"].to_pylist(), strict=True))


def committed(ds: Dataset) -> Rows:
    rows = ds.to_arrow(row_ids=True)
    assert ds.num_rows == rows.num_rows
    return by_row_id(rows)


def delete_and_update(processes: Processes, transaction: UUID) -> Rows:
    """Delete and update rows of all files in several operations, and return the rows that the transaction must see."""
    expected = {n: n for n in range(1, FILES * FILE_ROWS + 1) if n % 7}
    steps: list[dict[int, int | None]] = [
        {1: None, 1001: None},
        {2: -2, 2999: -2999},
        {1: None, 2: None, 7: None, 3: None},  # row 2 is in a staged file; rows 1 and 7 are deleted
        {4: -4, 2999: -1},
        {1002: None, 1003: None},
    ]
    for step in steps:
        affected = processes.edit(transaction, step)
        assert affected == len(step.keys() & expected.keys())
        for row_id, value in step.items():
            if value is None:
                expected.pop(row_id, None)
            else:
                expected[row_id] = value
        assert processes.read(transaction) == expected
    return expected


def test_edits_of_several_processes_in_a_transaction_are_committed_together(
    processes: Processes, numbers: Dataset, edit_mode: str
) -> None:
    transaction = processes.begin()
    expected = delete_and_update(processes, transaction)
    assert ('"deleted":[]' in processes.write_set_json(transaction)) is (edit_mode == "rewrite")
    processes.commit(transaction)
    assert committed(numbers) == expected
    snapshot = numbers.current().snapshot.version
    assert snapshot.deleted_rows == sum(len(file.deleted) for file in numbers.current().files() if file.deleted)


def test_write_set_with_deleted_rows_survives_json_round_trip(processes: Processes, numbers: Dataset) -> None:
    lake, transaction = processes.lakes[0], processes.begin()
    delete_and_update(processes, transaction)
    text = processes.write_set_json(transaction)
    with lake._workspace.db.read(lake.caller) as tx:
        commit_no = client_transactions.find(tx, transaction).commit_no
    restored = WriteSet.from_json(lake._workspace, lake.caller, commit_no, text)
    assert restored.to_json() == text
    (change,) = restored.changes()
    base_vectors = {file.path: file.deleted for file in numbers.current().files()}
    for file in (*change.removed, *(deleted.file for deleted in change.deleted)):
        assert file.deleted == base_vectors[file.path]
        assert file.deleted


def test_transaction_continues_with_the_vectors_of_its_start(
    processes: Processes, numbers: Dataset, edit_mode: str
) -> None:
    """Another writer deletes other rows of the same files meanwhile; the transaction does not see it before its commit."""
    transaction = processes.begin()
    processes.edit(transaction, {1: None})
    numbers.delete([5, 1005])
    processes.edit(transaction, {2: None})
    seen = processes.read(transaction)
    assert {5, 1005} <= seen.keys()
    if edit_mode == "mark":
        processes.commit(transaction)
        assert committed(numbers) == {n: value for n, value in seen.items() if n not in (5, 1005)}
    else:
        with pytest.raises(Conflict):
            processes.commit(transaction)


def test_delete_of_a_row_that_another_writer_deletes_is_a_conflict(processes: Processes, numbers: Dataset) -> None:
    transaction = processes.begin()
    processes.edit(transaction, {1: None, 2: None})
    numbers.delete([2])
    with pytest.raises(Conflict):
        processes.commit(transaction)
    assert {1}.issubset(committed(numbers))


def test_write_set_size_does_not_depend_on_rows_deleted_before(processes: Processes, marking_lake: Lake) -> None:
    """The vectors of the base are in the catalog already."""
    rows, rng = 200_000, np.random.default_rng(1)
    ds = marking_lake.create(str(NAME), pa.table({"n": pa.array(range(rows))}))
    ds.delete(pa.array(np.sort(rng.permutation(np.arange(10, rows))[: rows // 6])))
    (file,) = ds.current().files()
    assert isinstance(file.deleted, DeletionVector)
    transaction = processes.begin()
    processes.edit(transaction, {1: None, 2: None})
    assert len(processes.write_set_json(transaction)) < len(file.deleted.to_bytes()) / 5
    assert len(processes.read(transaction)) == ds.num_rows - 2


@pytest.mark.parametrize("seed", [1, 2, None])
def test_random_edits_of_a_transaction_match_a_dictionary(
    processes: Processes, numbers: Dataset, seed: int | None
) -> None:
    seed = random.randrange(2**32) if seed is None else seed
    print(f"seed {seed}")
    rng, transaction, expected = random.Random(seed), processes.begin(), committed(numbers)
    for number in range(6):
        ids = rng.sample(sorted(expected), rng.choice([1, 3, 50]))
        new_values: dict[int, int | None] = dict.fromkeys(ids) if rng.random() < 0.5 else dict.fromkeys(ids, -number)
        assert processes.edit(transaction, new_values) == len(ids)
        for row_id, value in new_values.items():
            if value is None:
                del expected[row_id]
            else:
                expected[row_id] = value
    assert processes.read(transaction) == expected
    processes.commit(transaction)
    assert committed(numbers) == expected
