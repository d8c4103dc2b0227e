"""Reference implementation of merge in plain Python, on rows as dicts."""

import math
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
Key = tuple[Any, ...]


class InvalidMerge(Exception):
    """The merge is invalid. The text is the error reason."""


def merge(
    target: Sequence[Row],
    source: Sequence[Row],
    columns: Sequence[str],
    keys: Sequence[str],
    strategy: str,
    order_by: Sequence[str] = (),
) -> tuple[list[Row], dict[str, int]]:
    """Return the rows and the counts after the merge. `columns`: columns of the result."""
    _check_nulls(source, keys)
    if strategy == "deduplicate":
        source = deduplicate(source, keys, order_by)
    source_by_key = {key(row, keys): row for row in source}
    if len(source_by_key) < len(source):
        raise InvalidMerge("duplicate_keys")
    _check_nulls(target, keys)

    after: list[Row] = []
    updated = deleted = 0
    for row in target:
        new = source_by_key.get(key(row, keys))
        if new is None and strategy == "full_merge":
            deleted += 1
        elif new is None or strategy == "insert":
            after.append(_with_columns(row, columns))
        else:
            after.append(_with_columns({**row, **new}, columns))
            updated += 1

    target_keys = {key(row, keys) for row in target}
    new_rows = [row for row_key, row in source_by_key.items() if row_key not in target_keys and strategy != "update"]
    after += [_with_columns(row, columns) for row in new_rows]
    return after, {"inserted": len(new_rows), "updated": updated, "deleted": deleted, "total": len(after)}


def deduplicate(source: Sequence[Row], keys: Sequence[str], order_by: Sequence[str]) -> list[Row]:
    """Keep the highest row of each key; of equal rows the last."""
    best: dict[Key, Row] = {}
    for row in source:
        row_key = key(row, keys)
        if row_key not in best or _rank(row, order_by) >= _rank(best[row_key], order_by):
            best[row_key] = row
    return list(best.values())


def key(row: Row, keys: Sequence[str]) -> Key:
    """Return the key of a row: all NaN are equal, and 0.0 equals -0.0."""
    return tuple("NaN" if _is_nan(row[name]) else row[name] for name in keys)


def _check_nulls(rows: Sequence[Row], keys: Sequence[str]) -> None:
    if any(row[name] is None for row in rows for name in keys):
        raise InvalidMerge("null_keys")


def _rank(row: Row, order_by: Sequence[str]) -> Key:
    """Return the sort key of a row: NULL is lowest, NaN highest."""
    return tuple((0,) if row[n] is None else (2,) if _is_nan(row[n]) else (1, row[n]) for n in order_by)


def _with_columns(row: Row, columns: Sequence[str]) -> Row:
    return {name: row.get(name) for name in columns}


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
