"""Order the rows of a search, and read them by page, in the same order on every database.

    sort_keys(orderby, columns, tie_break)     the sort key of a row
    prepare_search(statement, keys, …)         the statement of a page: ordered, after a position
    search_page(tx, search, options, …)        the rows of a page, the position of the next page, and the total count

Text is ordered by code point. NULL sorts lowest; long texts are ordered by their first characters, which fit into the
link of the next page.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cmp_to_key
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Integer,
    Row,
    Select,
    String,
    Text,
    Uuid,
    and_,
    bindparam,
    false,
    func,
    or_,
    select,
)
from sqlalchemy.sql.type_api import TypeEngine

from penstock.catalog.database import CatalogTransaction
from penstock.catalog.odata_sql import Columns, Sql, sql_column
from penstock.catalog.sql_functions import CodePoints, Unindexed
from penstock.catalog.tables import UtcTimestamp
from penstock.core.names import parse_uuid
from penstock.core.odata import OrderBy, QueryOptions, skiptoken
from penstock.core.odata.skiptoken import MAX_KEY_TEXT
from penstock.core.paging import SearchPage

T = TypeVar("T")


@dataclass(frozen=True)
class SortKey:
    """A column that rows are ordered by."""

    column: Sql
    descending: bool = False
    unindexed: bool = False  # do not read the rows from the index of this order

    @property
    def value(self) -> Sql:
        """The value that is compared, which a position contains."""
        is_long = isinstance(self.column.type, String) and (self.column.type.length or MAX_KEY_TEXT + 1) > MAX_KEY_TEXT
        return func.substr(self.column, 1, MAX_KEY_TEXT, type_=Text()) if is_long else self.column

    @property
    def is_nullable(self) -> bool:
        return getattr(self.column, "nullable", True)

    def order(self) -> ColumnElement[Any]:
        """Return the element of ORDER BY."""
        key = Unindexed(self._comparable) if self.unindexed else self._comparable
        directed = key.desc() if self.descending else key.asc()
        if not self.is_nullable:  # without NULLS FIRST, so that PostgreSQL uses the index
            return directed
        return directed.nulls_last() if self.descending else directed.nulls_first()

    def equals(self, position: Sql | None) -> ColumnElement[bool]:
        """Return the condition that a row has the value of a position; None: NULL."""
        return self._comparable.is_(None) if position is None else self._comparable == position

    def follows(self, position: Sql | None) -> ColumnElement[bool]:
        """Return the condition that a row comes after the value of a position; None: NULL, which is lowest."""
        if position is None:
            return false() if self.descending else self._comparable.is_not(None)
        if not self.descending:
            return self._comparable > position
        lower = self._comparable < position
        return or_(lower, self._comparable.is_(None)) if self.is_nullable else lower

    def reaches(self, position: Sql) -> ColumnElement[bool]:
        """Return the condition that a row has the value of a position or comes after it, for a column without NULL."""
        return self._comparable <= position if self.descending else self._comparable >= position

    @property
    def _comparable(self) -> Sql:
        return CodePoints(self.value) if isinstance(self.column.type, String) else self.value


def sort_keys(orderby: Sequence[OrderBy], columns: Columns, tie_break: Sequence[Sql]) -> tuple[SortKey, ...]:
    """Return the sort key. `tie_break` comes last, so that no two rows are equal."""
    requested = [SortKey(sql_column(item.field, columns), item.descending) for item in orderby]
    others = [SortKey(column) for column in tie_break if not any(column is key.column for key in requested)]
    return (*requested, *others)


def newest_first(created: Sql, key: Sql, *, few: bool) -> tuple[SortKey, ...]:
    """Return the default sort key. With `few`, the rows are sorted instead of read from the index of that order."""
    return tuple(SortKey(column, descending=True, unindexed=few) for column in (created, key))


@dataclass(frozen=True)
class PreparedSearch:
    """The statements of a search: all rows, and the rows of a page with their sort keys as the last columns."""

    all_rows: Select[Any]
    page: Select[Any]
    keys: tuple[SortKey, ...]


def null_positions(options: QueryOptions) -> tuple[bool, ...] | None:
    """Return for each value of the position whether it is NULL; None without a position. Part of a statement's shape."""
    return None if options.after is None else tuple(value is None for value in options.after)


def prepare_search(statement: Select[Any], keys: tuple[SortKey, ...], nulls: tuple[bool, ...] | None) -> PreparedSearch:
    """Return the statements of a search with all its conditions."""
    values = [key.value.label(f"sort_key_{number}") for number, key in enumerate(keys)]
    page = statement.order_by(*(key.order() for key in keys)).add_columns(*values)
    page = page.limit(bindparam("page_limit", type_=Integer)).offset(bindparam("page_offset", type_=Integer))
    return PreparedSearch(statement, page if nulls is None else page.where(follows(keys, nulls)), keys)


def follows(keys: Sequence[SortKey], nulls: Sequence[bool]) -> ColumnElement[bool]:
    """Return the condition that a row comes after the position whose values are bound by `position_values`.

    Raises:
        Invalid: no row can have this position
    """
    if len(nulls) != len(keys) or any(is_null > key.is_nullable for key, is_null in zip(keys, nulls, strict=True)):
        raise skiptoken.bad_token()
    values = [
        None if is_null else bindparam(f"after{index}", type_=key.value.type)
        for index, (key, is_null) in enumerate(zip(keys, nulls, strict=True))
    ]
    (key, value), *before = reversed(list(zip(keys, values, strict=True)))
    condition: ColumnElement[bool] = key.follows(value)
    for key, value in before:
        condition = or_(key.follows(value), and_(key.equals(value), condition))
    first, value = keys[0], values[0]
    if value is not None and not first.is_nullable:  # a range that an index serves
        condition = and_(first.reaches(value), condition)
    return condition


def position_values(keys: Sequence[SortKey], after: Sequence[Any] | None) -> dict[str, Any]:
    """Return the values to run `follows` with.

    Raises:
        Invalid: a value has not the type of its column
    """
    return {
        f"after{index}": _parse_position(key.column.type, value)
        for index, (key, value) in enumerate(zip(keys, after or (), strict=False))
        if value is not None
    }


def _parse_position(column_type: TypeEngine[Any], value: Any) -> Any:
    match column_type, value:
        case Uuid(), str():
            if (id := parse_uuid(value)) is not None:
                return id
        case UtcTimestamp(), str():
            with suppress(ValueError, OverflowError):
                return datetime.fromisoformat(value).astimezone(UTC)
        case (String(), str()) | (Boolean(), bool()):
            return value
        case Integer(), int() if not isinstance(value, bool):
            return value
    raise skiptoken.bad_token()


def _format_position(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        value.isoformat() if isinstance(value, datetime) else str(value) if isinstance(value, UUID) else value
        for value in values
    )


def search_page(
    tx: CatalogTransaction,
    search: PreparedSearch,
    options: QueryOptions,
    from_row: Callable[[Row[Any]], T],
    added: Sequence[tuple[tuple[Any, ...], T]] = (),
    **values: Any,
) -> SearchPage[T]:
    """Return one page of a search.

    Args:
        tx: the transaction
        search: the statements
        options: number of items, position, and whether to count
        from_row: converts a row
        added: items that are in no table, with their sort keys; they are inserted in their places
        values: values of the statements
    """
    skip = max(options.skip - len(added), 0)  # rows that come before the page, wherever the added items are
    position = position_values(search.keys, options.after)
    limits = {"page_limit": options.top + 1 + len(added), "page_offset": skip}
    rows = tx.all(search.page, **values, **position, **limits)
    keyed = [(tuple(row)[-len(search.keys) :], row) for row in rows]
    items: list[tuple[tuple[Any, ...], T]] = [*added, *((key, from_row(row)) for key, row in keyed)]
    if added:

        def compare(first: tuple[tuple[Any, ...], T], second: tuple[tuple[Any, ...], T]) -> int:
            return _compare_keys(search.keys, first[0], second[0])

        items.sort(key=cmp_to_key(compare))
    del items[: options.skip - skip]
    page, more = items[: options.top], len(items) > options.top
    count = None
    if options.count:
        counted = tx.first(select(func.count()).select_from(search.all_rows.subquery()), **values)
        count = counted[0] if counted else 0
    next_key = _format_position(page[-1][0]) if page and more else None
    return SearchPage([item for _, item in page], next_key, count)


def _compare_keys(keys: Sequence[SortKey], first: Sequence[Any], second: Sequence[Any]) -> int:
    """Compare the sort keys of two items as the databases do."""
    for key, left, right in zip(keys, first, second, strict=True):
        if left != right:
            is_less = right is not None and (left is None or left < right)
            return -1 if is_less != key.descending else 1
    return 0
