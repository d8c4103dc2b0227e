"""Transactions of the Python API: writes to several datasets in one commit."""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.core.dataset.changes import Receipt
from penstock.core.dataset.row_ids import parse_row_ids
from penstock.core.merge import MergeResult
from penstock.lake.dataset import Dataset, cast_rows
from penstock.service.datasets import merge, row_source
from penstock.service.datasets.row_edits import EditResult
from penstock.service.transactions.local import LocalTransaction

if TYPE_CHECKING:
    from penstock.lake import Lake


class Transaction:
    """Writes to several datasets that are committed together when the `with` block ends without an error.

    Reads of the transaction's own writes are possible after the commit only.
    """

    def __init__(self, lake: "Lake", idempotency_key: str | None) -> None:
        self._lake = lake
        self._writes = LocalTransaction(lake._workspace, lake.caller, key=idempotency_key)

    def append(self, dataset: "str | UUID | Dataset", rows: Any) -> None:
        """Append rows.

        Args:
            dataset: the dataset, its name or its id
            rows: as in `Dataset.append`

        Example:
            >>> with lake.transaction(idempotency_key="two datasets") as tx:
            ...     tx.append(people, [{"id": 7, "name": "Margaret", "born": 1936}])
            ...     tx.append("demo.newcomers", [{"id": 8, "name": "Radia"}])
            >>> sorted((commit.name, commit.version) for commit in tx.receipt.written)
            [('demo.newcomers', 2), ('demo.people', 10)]
        """
        self._writes.append(self._id(dataset), row_source.open_reader(rows))

    def overwrite(self, dataset: "str | UUID | Dataset", rows: Any, *, expect: int | None = None) -> None:
        """Replace all rows. The arguments are those of `append` and `Dataset.overwrite`."""
        self._writes.overwrite(self._id(dataset), row_source.open_reader(rows), base=expect)

    def merge(
        self,
        dataset: "str | UUID | Dataset",
        rows: Any,
        key_columns: str | Sequence[str],
        strategy: str = "upsert",
        *,
        dedup_order_by: str | Sequence[str] | None = None,
        add_columns: bool = False,
        engine: str = "auto",
    ) -> MergeResult:
        """Merge rows by key. The arguments are those of `append` and `Dataset.merge`.

        Returns:
            the counts (`stats`); the receipt is in `receipt` after the commit
        """
        request = merge.MergeRequest(key_columns, strategy, dedup_order_by, add_columns, engine)
        return self._writes.merge(self._id(dataset), row_source.open_source(rows), request)

    def update(
        self, dataset: "str | UUID | Dataset", row_ids: Any, rows: Any, *, returning: bool = False
    ) -> EditResult:
        """Replace rows by id. The arguments are those of `append` and `Dataset.update`."""
        id = self._id(dataset)
        table = cast_rows(row_source.open_reader(rows), self._writes.schema(id))
        return self._writes.edit(id, parse_row_ids(row_ids), table, returning=returning)

    def delete(self, dataset: "str | UUID | Dataset", row_ids: Any, *, returning: bool = False) -> EditResult:
        """Delete rows by id. The arguments are those of `append` and `Dataset.delete`."""
        return self._writes.edit(self._id(dataset), parse_row_ids(row_ids), None, returning=returning)

    @property
    def receipt(self) -> Receipt | None:
        """Receipt of the commit; None before the commit, and if nothing was written."""
        return self._writes.receipt

    def __enter__(self) -> "Transaction":
        self._writes.__enter__()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writes.__exit__(error_type, error, trace)

    def _id(self, dataset: "str | UUID | Dataset") -> UUID:
        return dataset.id if isinstance(dataset, Dataset) else self._lake.dataset(dataset).id
