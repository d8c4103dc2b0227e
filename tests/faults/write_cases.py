"""Write cases for fault tests, with their results."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid5

import pyarrow as pa

from penstock.core.dataset.edit_policy import EditMode, EditPolicy
from penstock.core.names import DatasetName
from penstock.lake import Dataset, Lake
from penstock.service.datasets import row_edits, write
from penstock.service.datasets.row_source import open_reader
from penstock.service.datasets.streaming_inserts import InsertService

ROW = {"id": [99], "word": ["risky"]}

Contents = dict[str, tuple[int, list[int]]]  # dataset → version and ids


def prepare(lake: Lake) -> None:
    for name in ("demo.one", "demo.other"):
        lake.create(name, {"id": [1], "word": ["a"]}).append({"id": [2], "word": ["b"]})
    lake.create("demo.marked", {"id": [1, 2, 3, 4], "word": ["a", "b", "c", "d"]})
    _marked_dataset(lake).delete([2])


BEFORE: Contents = {"demo.marked": (2, [1, 3, 4]), "demo.one": (2, [1, 2]), "demo.other": (2, [1, 2])}


def _marked_dataset(lake: Lake) -> Dataset:
    """Return a dataset whose file has a deletion vector; edits extend it."""
    lake._workspace.edit_policy = EditPolicy(EditMode.MARK)
    return lake.dataset("demo.marked")


def new_tenant_lake(lake: Lake) -> Lake:
    """Return a lake of a tenant that has never written."""
    return Lake(lake._workspace, replace(lake.caller, tenant=uuid5(lake.caller.tenant, "new tenant")), lake._folder)


def _pair(lake: Lake) -> Any:
    with lake.transaction(idempotency_key="k") as tx:
        tx.append("demo.one", ROW)
        tx.overwrite("demo.other", ROW)
    return tx.receipt


def _insert(lake: Lake) -> Any:
    """Insert through staged files. `group_commit_writes` has the inserts that are small enough for a group commit."""
    ds, rows = lake.dataset("demo.one"), pa.RecordBatch.from_pydict(ROW)
    with closing(InsertService(lake._workspace, small_rows=0)) as inserts:
        insertion = inserts.begin(lake.caller, ds.id, rows.schema, key="k")
        insertion.add(rows)
        return insertion.commit().result().receipt


def _update(lake: Lake) -> Any:
    """Update rows of two files."""
    rows = pa.table({"id": [99, 1], "word": ["risky", "changed"]})
    target = lake._workspace, lake.caller, lake.dataset("demo.one").id
    return row_edits.update(*target, pa.array([2, 1]), rows, key="k").receipt


def _create(lake: Lake) -> Any:
    target = lake._workspace, new_tenant_lake(lake).caller, DatasetName("demo", "new")
    return write.create(*target, pa.schema([("id", pa.int64())]), open_reader({"id": [99]}), key="k")


@dataclass(frozen=True)
class WriteCase:
    run: Callable[[Lake], Any]
    changes: Contents
    writes_files: bool = True
    after: Contents = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "after", BEFORE | self.changes)

    def state(self, lake: Lake) -> str:
        """Return `complete` or `absent`; assert that the write is not partial."""
        current = contents(lake)
        assert current in (BEFORE, self.after)
        return "absent" if current == BEFORE else "complete"


WRITES = {
    "append": WriteCase(
        lambda lake: lake.dataset("demo.one").append(ROW, idempotency_key="k"), {"demo.one": (3, [1, 2, 99])}
    ),
    "insert": WriteCase(_insert, {"demo.one": (3, [1, 2, 99])}),
    "pair": WriteCase(_pair, {"demo.one": (3, [1, 2, 99]), "demo.other": (3, [99])}),
    "create": WriteCase(_create, {"demo.new": (1, [99])}),
    "overwrite": WriteCase(
        lambda lake: lake.dataset("demo.other").overwrite(ROW, idempotency_key="k"), {"demo.other": (3, [99])}
    ),
    "alter": WriteCase(
        lambda lake: lake.dataset("demo.one").alter(add={"more": "int64"}, idempotency_key="k"),
        {"demo.one": (3, [1, 2])},
        writes_files=False,
    ),
    "merge": WriteCase(
        lambda lake: (
            lake.dataset("demo.one")
            .merge({"id": [2, 99], "word": ["changed", "risky"]}, "id", engine="pyarrow", idempotency_key="k")
            .receipt
        ),
        {"demo.one": (3, [1, 2, 99])},
    ),
    "update": WriteCase(_update, {"demo.one": (3, [1, 99])}),
    "marked update": WriteCase(
        lambda lake: _marked_dataset(lake).update([3], {"id": [99], "word": ["risky"]}, idempotency_key="k").receipt,
        {"demo.marked": (3, [1, 4, 99])},
    ),
    "marked delete": WriteCase(
        lambda lake: _marked_dataset(lake).delete([3, 4], idempotency_key="k").receipt,
        {"demo.marked": (3, [1])},
        writes_files=False,
    ),
    "last rows": WriteCase(
        lambda lake: _marked_dataset(lake).delete([1, 3, 4], idempotency_key="k").receipt,
        {"demo.marked": (3, [])},
        writes_files=False,
    ),
    "marked merge": WriteCase(
        lambda lake: (
            _marked_dataset(lake)
            .merge({"id": [3, 99], "word": ["changed", "risky"]}, "id", engine="pyarrow", idempotency_key="k")
            .receipt
        ),
        {"demo.marked": (3, [1, 3, 4, 99])},
    ),
    "fold": WriteCase(
        lambda lake: lake.dataset("demo.marked").compact(idempotency_key="k"), {"demo.marked": (3, [1, 3, 4])}
    ),
    "compact": WriteCase(lambda lake: lake.dataset("demo.one").compact(idempotency_key="k"), {"demo.one": (3, [1, 2])}),
}


def contents(lake: Lake) -> Contents:
    """Read all rows of all datasets."""
    result: Contents = {}
    for lake_ in (lake, new_tenant_lake(lake)):
        for dataset in lake_.datasets():
            rows = dataset.to_arrow(["id"], row_ids=True)
            assert rows.num_rows == dataset.num_rows
            result[dataset.name] = dataset.version, sorted(rows["id"].to_pylist())
    return result
