"""Deletion vectors: the positions of a data file's rows that a version no longer contains."""

from collections.abc import Iterable
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64


class DeletionVector:
    """An immutable set of row positions of one data file.

    The serialized form is the portable format of 64-bit Roaring bitmaps, which Iceberg v3 uses too. Only the bitmap stays
    in memory: the positions as an array take up to 64 times as much.
    """

    __slots__ = ("_bitmap",)

    def __init__(self, bitmap: BitMap64) -> None:
        self._bitmap = bitmap

    @classmethod
    def from_positions(cls, positions: Any) -> "DeletionVector":
        """Create a vector from positions: a numpy array or an iterable of integers."""
        return cls(BitMap64(np.asarray(positions, dtype=np.uint64)))

    @classmethod
    def from_bytes(cls, data: bytes) -> "DeletionVector":
        """Restore a vector from `to_bytes`."""
        return cls(BitMap64.deserialize(data))

    @classmethod
    def union(cls, vectors: Iterable["DeletionVector"]) -> "DeletionVector | None":
        """Return the union of the vectors; None if there is none."""
        parts = list(vectors)
        return reduce(lambda one, other: one | other, parts) if parts else None

    def to_bytes(self) -> bytes:
        """Serialize the vector."""
        self._bitmap.run_optimize()
        return bytes(self._bitmap.serialize())

    @property
    def positions(self) -> Any:
        """Return the positions as a new, ascending numpy array of int64."""
        return np.array(self._bitmap.to_array(), dtype=np.int64)

    def between(self, first: int, rows: int) -> Any:
        """Return the positions within `rows` rows from `first`, relative to `first`."""
        return DeletionVector(self._bitmap & BitMap64(range(first, first + rows))).positions - first

    def mask(self, first: int, rows: int) -> pa.Array | None:
        """Return a mask of the rows that remain of `rows` rows from `first`; None if all of them remain."""
        deleted = self.between(first, rows)
        if not len(deleted):
            return None
        remains = np.ones(rows, dtype=bool)
        remains[deleted] = False
        return pa.array(remains)

    def contains(self, positions: Any) -> Any:
        """Return for each of the positions, ascending and unique, whether the vector contains it."""
        common = self & DeletionVector.from_positions(positions)
        is_contained = np.zeros(len(positions), dtype=bool)
        is_contained[np.searchsorted(positions, common.positions)] = True
        return is_contained

    def is_disjoint(self, other: "DeletionVector") -> bool:
        return bool(self._bitmap.isdisjoint(other._bitmap))

    def __or__(self, other: "DeletionVector") -> "DeletionVector":
        return DeletionVector(self._bitmap | other._bitmap)

    def __and__(self, other: "DeletionVector") -> "DeletionVector":
        return DeletionVector(self._bitmap & other._bitmap)

    def __len__(self) -> int:
        return len(self._bitmap)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeletionVector) and bool(self._bitmap == other._bitmap)

    def __hash__(self) -> int:
        return hash((len(self), self._bitmap.min() if self._bitmap else -1))

    def __repr__(self) -> str:
        return f"DeletionVector({len(self)} rows)"


def remaining(batch: pa.RecordBatch, first: int, deleted: DeletionVector | None) -> pa.RecordBatch:
    """Return the rows of a batch that a deletion vector leaves.

    Args:
        batch: consecutive rows of a data file
        first: position of the first row in the file
        deleted: the deletion vector of the file; None: no row is deleted
    """
    mask = deleted.mask(first, batch.num_rows) if deleted else None
    return batch if mask is None else batch.filter(mask)
