"""Sorted row ids, with lookup by file."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import Invalid

_MAX_CUTS = 15  # each adds one search in the catalog


@dataclass(frozen=True, slots=True)
class RowIds:
    values: Any  # numpy array, ascending, unique
    positions: Any  # numpy array: position of each id in the original list; the first one of duplicates

    @classmethod
    def from_array(cls, ids: Any) -> "RowIds":
        if len(ids) < 2 or (ids[1:] > ids[:-1]).all():
            return cls(ids, np.arange(len(ids)))
        return cls(*np.unique(ids, return_index=True))

    def __len__(self) -> int:
        return len(self.values)

    def between(self, low: int, high: int) -> "RowIds":
        """Return the ids from `low` to `high`, both included."""
        first, last = np.searchsorted(self.values, low, "left"), np.searchsorted(self.values, high, "right")
        return RowIds(self.values[first:last], self.positions[first:last])

    def lookup(self, stored: Any) -> tuple[Any, Any]:
        """Find the stored ids that are among these.

        Args:
            stored: unique row ids

        Returns:
            Positions in `stored`, ascending, and the matching positions in `self`.
        """
        if not len(stored) or not len(self):
            return _NONE, _NONE
        if len(self) < len(stored) and (stored[1:] > stored[:-1]).all():
            stored_positions = np.minimum(np.searchsorted(stored, self.values), len(stored) - 1)
            own_positions = np.flatnonzero(stored[stored_positions] == self.values)
            return stored_positions[own_positions], own_positions
        own_positions = np.minimum(np.searchsorted(self.values, stored), len(self) - 1)
        stored_positions = np.flatnonzero(self.values[own_positions] == stored)
        return stored_positions, own_positions[stored_positions]

    def spans(self) -> list[tuple[int, int]]:
        """Return a few intervals that cover the ids, split at the widest gaps."""
        gaps = np.diff(self.values)
        widest = np.argpartition(gaps, -_MAX_CUTS)[-_MAX_CUTS:] if len(gaps) > _MAX_CUTS else np.arange(len(gaps))
        cuts = np.sort(widest[gaps[widest] > 1])
        firsts, lasts = np.append(0, cuts + 1), np.append(cuts, len(self) - 1)
        return [(int(low), int(high)) for low, high in zip(self.values[firsts], self.values[lasts], strict=True)]


_NONE = np.zeros(0, dtype=np.int64)


def parse_row_ids(values: Any) -> pa.Array:
    """Convert row ids from Arrow, numpy or Python."""
    try:
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        ids = (array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array).cast(pa.int64())
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        ids = None
    if ids is None or ids.null_count or not (pt.is_integer(array.type) or not len(ids)):
        raise Invalid("bad_row_ids")
    return ids
