"""The writes that are failed and killed, and what they leave when they are whole."""

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

Picture = dict[str, tuple[int, list[int]]]  # dataset → version and ids


def prepare(lake: Lake) -> None:
    for name in ("demo.one", "demo.other"):
        lake.create(name, {"id": [1], "word": ["a"]}).append({"id": [2], "word": ["b"]})
    lake.create("demo.marked", {"id": [1, 2, 3, 4], "word": ["a", "b", "c", "d"]})
    _marking(lake).delete([2])


BEFORE: Picture = {"demo.marked": (2, [1, 3, 4]), "demo.one": (2, [1, 2]), "demo.other": (2, [1, 2])}


def _marking(lake: Lake) -> Dataset:
    """Return a dataset whose file has a deletion vector; edits extend it."""
    lake._workspace.edit_policy = EditPolicy(EditMode.MARK)
    return lake.dataset("demo.marked")


def newcomer(lake: Lake) -> Lake:
    """Return a lake of a tenant that has never written."""
    return Lake(lake._workspace, replace(lake.caller, tenant=uuid5(lake.caller.tenant, "newcomer")), lake._folder)


def _pair(lake: Lake) -> Any:
    with lake.transaction(idempotency_key="k") as tx:
        tx.append("demo.one", ROW)
        tx.overwrite("demo.other", ROW)
    return tx.receipt


def _insert(lake: Lake) -> Any:
    """Through staged files; what is small enough to be committed with others is struck as a group elsewhere."""
    ds, rows = lake.dataset("demo.one"), pa.RecordBatch.from_pydict(ROW)
    with closing(InsertService(lake._workspace, small_rows=0)) as inserts:
        insertion = inserts.begin(lake.caller, ds.id, rows.schema, key="k")
        insertion.add(rows)
        return insertion.commit().result().receipt


def _update(lake: Lake) -> Any:
    """Rows of two files."""
    rows = pa.table({"id": [99, 1], "word": ["risky", "changed"]})
    where = lake._workspace, lake.caller, lake.dataset("demo.one").id
    return row_edits.update(*where, pa.array([2, 1]), rows, key="k").receipt


def _create(lake: Lake) -> Any:
    there = lake._workspace, newcomer(lake).caller, DatasetName("demo", "new")
    return write.create(*there, pa.schema([("id", pa.int64())]), open_reader({"id": [99]}), key="k")


@dataclass(frozen=True)
class Write:
    run: Callable[[Lake], Any]
    leaves: Picture
    writes_files: bool = True
    after: Picture = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "after", BEFORE | self.leaves)

    def state(self, lake: Lake) -> str:
        """whole or absent; anything else is a broken promise."""
        seen = picture(lake)
        assert seen in (BEFORE, self.after)
        return "absent" if seen == BEFORE else "whole"


WRITES = {
    "append": Write(
        lambda lake: lake.dataset("demo.one").append(ROW, idempotency_key="k"), {"demo.one": (3, [1, 2, 99])}
    ),
    "insert": Write(_insert, {"demo.one": (3, [1, 2, 99])}),
    "pair": Write(_pair, {"demo.one": (3, [1, 2, 99]), "demo.other": (3, [99])}),
    "create": Write(_create, {"demo.new": (1, [99])}),
    "overwrite": Write(
        lambda lake: lake.dataset("demo.other").overwrite(ROW, idempotency_key="k"), {"demo.other": (3, [99])}
    ),
    "alter": Write(
        lambda lake: lake.dataset("demo.one").alter(add={"more": "int64"}, idempotency_key="k"),
        {"demo.one": (3, [1, 2])},
        writes_files=False,
    ),
    "merge": Write(
        lambda lake: (
            lake.dataset("demo.one")
            .merge({"id": [2, 99], "word": ["changed", "risky"]}, "id", engine="pyarrow", idempotency_key="k")
            .receipt
        ),
        {"demo.one": (3, [1, 2, 99])},
    ),
    "update": Write(_update, {"demo.one": (3, [1, 99])}),
    "marked update": Write(
        lambda lake: _marking(lake).update([3], {"id": [99], "word": ["risky"]}, idempotency_key="k").receipt,
        {"demo.marked": (3, [1, 4, 99])},
    ),
    "marked delete": Write(
        lambda lake: _marking(lake).delete([3, 4], idempotency_key="k").receipt,
        {"demo.marked": (3, [1])},
        writes_files=False,
    ),
    "last rows": Write(
        lambda lake: _marking(lake).delete([1, 3, 4], idempotency_key="k").receipt,
        {"demo.marked": (3, [])},
        writes_files=False,
    ),
    "marked merge": Write(
        lambda lake: (
            _marking(lake)
            .merge({"id": [3, 99], "word": ["changed", "risky"]}, "id", engine="pyarrow", idempotency_key="k")
            .receipt
        ),
        {"demo.marked": (3, [1, 3, 4, 99])},
    ),
    "fold": Write(
        lambda lake: lake.dataset("demo.marked").compact(idempotency_key="k"), {"demo.marked": (3, [1, 3, 4])}
    ),
    "compact": Write(lambda lake: lake.dataset("demo.one").compact(idempotency_key="k"), {"demo.one": (3, [1, 2])}),
}


def picture(lake: Lake) -> Picture:
    """Everything there is, read in full."""
    seen: Picture = {}
    for whose in (lake, newcomer(lake)):
        for at in whose.datasets():
            read = at.to_arrow(["id"], row_ids=True)
            assert read.num_rows == at.num_rows
            seen[at.name] = at.version, sorted(read["id"].to_pylist())
    return seen
