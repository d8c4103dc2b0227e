"""Decide for each data file whether an edit marks its changed rows as deleted or rewrites the file."""

from dataclasses import dataclass, replace
from enum import Enum

_SMALL_FILE_ROWS = 4096
_CONTAINER_ROWS = 1 << 16  # a Roaring bitmap stores the positions of that many rows together
_CONTAINER_BYTES = 8 << 10  # at most, whatever the number of positions
_CONTAINER_HEADER_BYTES = 8
_POSITION_BYTES = 2


class EditMode(Enum):
    AUTO = "auto"
    MARK = "mark"  # mark, whatever the limits; for tests and measurements
    REWRITE = "rewrite"


@dataclass(frozen=True, slots=True)
class EditPolicy:
    """Limits of a deletion vector. An edit that would exceed them rewrites the file."""

    mode: EditMode = EditMode.AUTO
    max_vector_bytes: int = 256 << 10
    max_deleted_percent: int = 20  # of the rows of a file
    small_file_rows: int = 0  # the share does not count in a file of at most this many rows

    def for_row_edits(self) -> "EditPolicy":
        """Return the policy for rows that are edited by id.

        Small files are marked, so that edits of different rows of one do not conflict.
        """
        return replace(self, small_file_rows=_SMALL_FILE_ROWS)

    def for_transactions(self) -> "EditPolicy":
        """Return the policy for rows that a transaction edits by id.

        A transaction cannot execute an edit again, so it marks rows whatever their share: the edit then conflicts only
        with changes of the same rows.
        """
        return replace(self, max_deleted_percent=100)

    def marks(self, rows: int, deleted: int, touched: int) -> bool:
        """Return True if an edit should mark rows of a file as deleted, False if it should rewrite the file.

        Args:
            rows: rows of the file, with those that are marked
            deleted: rows that are marked already
            touched: further rows that the edit updates or deletes
        """
        if self.mode is not EditMode.AUTO:
            return self.mode is EditMode.MARK
        total = deleted + touched
        is_few = rows <= self.small_file_rows or 100 * total <= self.max_deleted_percent * rows
        return is_few and vector_bytes(rows, total) <= self.max_vector_bytes


def vector_bytes(rows: int, deleted: int) -> int:
    """Return an upper bound of the size of a deletion vector.

    Args:
        rows: rows of the file
        deleted: number of positions in the vector
    """
    containers = min(-(-rows // _CONTAINER_ROWS), deleted)
    return containers * _CONTAINER_HEADER_BYTES + min(deleted * _POSITION_BYTES, containers * _CONTAINER_BYTES)
