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

    A write sees the earlier writes of the transaction; reads see them after the commit. The end of the block raises
    `Conflict` if another writer committed a change in between that excludes one of the writes.
    """

    def __init__(self, lake: "Lake", idempotency_key: str | None) -> None:
        self._lake = lake
        self._writes = LocalTransaction(lake._workspace, lake.caller, key=idempotency_key)

    def append(self, dataset: "str | UUID | Dataset", rows: Any) -> None:
        """Append rows.

        Args:
            dataset: the dataset, its name or its id
            rows: as in `Dataset.append`

        Raises:
            Invalid: a column or a value does not fit the dataset's schema
            Unsupported: the dataset is read-only, or the transaction has ended
            NotFound: no dataset has this name or id

        Example:
            >>> with lake.transaction(idempotency_key="two datasets") as tx:
            ...     tx.append(people, [{"id": 7, "name": "Margaret", "born": 1936}])
            ...     tx.append("demo.newcomers", [{"id": 8, "name": "Radia"}])
            >>> sorted((commit.name, commit.version) for commit in tx.receipt.written)
            [('demo.newcomers', 2), ('demo.people', 10)]
        """
        self._writes.append(self._id(dataset), row_source.open_reader(rows))

    def overwrite(self, dataset: "str | UUID | Dataset", rows: Any, *, expect: int | None = None) -> None:
        """Replace all rows.

        Args:
            dataset: the dataset, its name or its id
            rows: as in `Dataset.overwrite`
            expect: the version that must still be the current one

        Raises:
            Conflict: the dataset is at another version than `expect`
            Invalid: a column or a value does not fit the dataset's schema
            Unsupported: the dataset is read-only, or the transaction has ended
            NotFound: no dataset has this name or id

        Example:
            >>> stock = lake.create("demo.stock", {"item": ["nut", "bolt"], "amount": [3, 4]})
            >>> with lake.transaction() as tx:
            ...     tx.overwrite(stock, {"item": ["nut"], "amount": [5]}, expect=1)
            >>> stock.to_arrow().to_pylist()
            [{'item': 'nut', 'amount': 5}]
        """
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
        """Merge rows by key.

        If another writer changes the dataset before the commit, the merge is not repeated: the commit fails.

        Args:
            dataset: the dataset, its name or its id
            rows: the source rows
            key_columns: the column, or columns, that identify a row
            strategy: `upsert`, `insert`, `update`, `full_merge` or `deduplicate`
            dedup_order_by: with `deduplicate`: of several source rows with one key, the highest value wins
            add_columns: add columns that only the source has; by default they are an error
            engine: `auto`, `pyarrow`, `duckdb` or `spark`; the result is the same

        Returns:
            the counts (`stats`); the receipt is in `receipt` after the commit

        Raises:
            Invalid: the strategy, a key column, a column or a value is invalid, or source keys are duplicate
            Unsupported: the dataset is read-only, the engine is not installed, or the transaction has ended
            NotFound: no dataset has this name or id

        Example:
            >>> with lake.transaction() as tx:
            ...     result = tx.merge(stock, {"item": ["nut", "screw"], "amount": [6, 7]}, "item")
            >>> result.stats
            {'inserted': 1, 'updated': 1, 'deleted': 0, 'total': 2}
        """
        request = merge.MergeRequest(key_columns, strategy, dedup_order_by, add_columns, engine)
        return self._writes.merge(self._id(dataset), row_source.open_source(rows), request)

    def update(
        self, dataset: "str | UUID | Dataset", row_ids: Any, rows: Any, *, returning: bool = False
    ) -> EditResult:
        """Replace the row with id `row_ids[i]` by `rows[i]`: all rows, or none.

        Args:
            dataset: the dataset, its name or its id
            row_ids: row ids, as `Dataset.to_arrow(row_ids=True)` returns them in the column `rowid`
            rows: one new row for each id
            returning: return the new rows with their ids

        Returns:
            the number of updated rows (`affected`), and the rows if `returning` is set

        Raises:
            Invalid: a row id or a value is invalid
            Unsupported: the dataset is read-only or has no row ids, or the transaction has ended
            NotFound: no dataset has this name or id, or a row id does not exist

        Example:
            >>> screws = stock.to_arrow(where="item = 'screw'", row_ids=True)["rowid"]
            >>> with lake.transaction() as tx:
            ...     result = tx.update(stock, screws, [{"item": "screw", "amount": 8}])
            >>> result.affected
            1
        """
        id = self._id(dataset)
        table = cast_rows(row_source.open_reader(rows), self._writes.schema(id))
        return self._writes.edit(id, parse_row_ids(row_ids), table, returning=returning)

    def delete(self, dataset: "str | UUID | Dataset", row_ids: Any, *, returning: bool = False) -> EditResult:
        """Delete rows by id. Unknown ids are ignored.

        Args:
            dataset: the dataset, its name or its id
            row_ids: row ids, as `Dataset.to_arrow(row_ids=True)` returns them in the column `rowid`
            returning: return the deleted rows with their ids

        Returns:
            the number of deleted rows (`affected`), and the rows if `returning` is set

        Raises:
            Invalid: the list of ids is empty, or an id is not a 64-bit integer
            Unsupported: the dataset is read-only or has no row ids, or the transaction has ended
            NotFound: no dataset has this name or id

        Example:
            >>> with lake.transaction() as tx:
            ...     result = tx.delete(stock, screws, returning=True)
            >>> result.returned["amount"].to_pylist()
            [8]
        """
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
