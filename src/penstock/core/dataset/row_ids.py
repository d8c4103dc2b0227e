"""Row ids that are asked for, sorted once: each file finds its own among them without looking at the others."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import Invalid

_CUTS = 15  # each makes one more search in the catalog


@dataclass(frozen=True, slots=True)
class RowIds:
    values: Any  # numpy, ascending, each once
    places: Any  # where each stands in the list that was given; where several times, the first

    @classmethod
    def of(cls, ids: Any) -> "RowIds":
        if len(ids) < 2 or (ids[1:] > ids[:-1]).all():
            return cls(ids, np.arange(len(ids)))
        return cls(*np.unique(ids, return_index=True))

    def __len__(self) -> int:
        return len(self.values)

    def within(self, low: int, high: int) -> "RowIds":
        """Those from `low` to `high`."""
        first, last = np.searchsorted(self.values, low, "left"), np.searchsorted(self.values, high, "right")
        return RowIds(self.values[first:last], self.places[first:last])

    def meet(self, held: Any) -> tuple[Any, Any]:
        """Where ids of `held`, which has none twice, are among these: their places there, in order, and here."""
        if not len(held) or not len(self):
            return _NONE, _NONE
        if len(self) < len(held) and (held[1:] > held[:-1]).all():
            at = np.minimum(np.searchsorted(held, self.values), len(held) - 1)
            which = np.flatnonzero(held[at] == self.values)
            return at[which], which
        which = np.minimum(np.searchsorted(self.values, held), len(self) - 1)
        at = np.flatnonzero(self.values[which] == held)
        return at, which[at]

    def spans(self) -> list[tuple[int, int]]:
        """The ids as a few stretches, parted where the gaps are widest."""
        gaps = np.diff(self.values)
        widest = np.argpartition(gaps, -_CUTS)[-_CUTS:] if len(gaps) > _CUTS else np.arange(len(gaps))
        cuts = np.sort(widest[gaps[widest] > 1])
        firsts, lasts = np.append(0, cuts + 1), np.append(cuts, len(self) - 1)
        return [(int(low), int(high)) for low, high in zip(self.values[firsts], self.values[lasts], strict=True)]


_NONE = np.zeros(0, dtype=np.int64)


def given_ids(given: Any) -> pa.Array:
    """Row ids from Arrow, numpy or Python."""
    try:
        found = given if isinstance(given, pa.Array | pa.ChunkedArray) else pa.array(given)
        ids = (found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found).cast(pa.int64())
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        ids = None
    if ids is None or ids.null_count or not (pt.is_integer(found.type) or not len(ids)):
        raise Invalid("bad_row_ids", "row ids are whole numbers of 64 bits, and none of them NULL")
    return ids
