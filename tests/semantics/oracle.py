"""What a merge means, in plain Python: rows are dicts, and every rule is a line."""

import math
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
Key = tuple[Any, ...]


class Refused(Exception):
    """The merge must not happen. The text is the reason."""


def merge(
    target: Sequence[Row],
    source: Sequence[Row],
    columns: Sequence[str],
    keys: Sequence[str],
    strategy: str,
    order_by: Sequence[str] = (),
) -> tuple[list[Row], dict[str, int]]:
    """The rows afterwards, and the counts. `columns`: of the rows afterwards."""
    _check_nulls(source, keys)
    if strategy == "deduplicate":
        source = deduplicated(source, keys, order_by)
    brought = {key(row, keys): row for row in source}
    if len(brought) < len(source):
        raise Refused("duplicate_keys")
    _check_nulls(target, keys)

    after: list[Row] = []
    updated = deleted = 0
    for row in target:
        new = brought.get(key(row, keys))
        if new is None and strategy == "full_merge":
            deleted += 1
        elif new is None or strategy == "insert":
            after.append(_whole(row, columns))
        else:
            after.append(_whole({**row, **new}, columns))
            updated += 1

    known = {key(row, keys) for row in target}
    new_rows = [row for at, row in brought.items() if at not in known and strategy != "update"]
    after += [_whole(row, columns) for row in new_rows]
    return after, {"inserted": len(new_rows), "updated": updated, "deleted": deleted, "total": len(after)}


def deduplicated(source: Sequence[Row], keys: Sequence[str], order_by: Sequence[str]) -> list[Row]:
    """Of the rows with one key the highest; of equally high ones the last."""
    best: dict[Key, Row] = {}
    for row in source:
        at = key(row, keys)
        if at not in best or _height(row, order_by) >= _height(best[at], order_by):
            best[at] = row
    return list(best.values())


def key(row: Row, keys: Sequence[str]) -> Key:
    """What rows are told apart by: NaN is one value, and so is zero with either sign."""
    return tuple("NaN" if _is_nan(row[name]) else row[name] for name in keys)


def _check_nulls(rows: Sequence[Row], keys: Sequence[str]) -> None:
    if any(row[name] is None for row in rows for name in keys):
        raise Refused("null_keys")


def _height(row: Row, order_by: Sequence[str]) -> Key:
    """NULL is lowest, NaN highest."""
    return tuple((0,) if row[n] is None else (2,) if _is_nan(row[n]) else (1, row[n]) for n in order_by)


def _whole(row: Row, columns: Sequence[str]) -> Row:
    return {name: row.get(name) for name in columns}


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
