"""Buffer the rows of an update until its last batch has arrived."""

from tempfile import TemporaryDirectory

import pyarrow as pa

from penstock.core.schema.compatibility import cast_batch
from penstock.storage.spool import Spool

_MEMORY_BYTES = 16 << 20  # more rows are written to a temporary file


class RowBuffer:
    """Collect batches as one table, in memory or in a temporary file that the end of the block deletes."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._folder = TemporaryDirectory(prefix="penstock-update-")
        self._spool = Spool(schema, lambda: f"{self._folder.name}/rows", held_bytes=_MEMORY_BYTES)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch, cast to the schema. May block on a disk."""
        self._spool.add(cast_batch(batch, self._schema))

    def table(self) -> pa.Table:
        """Return all rows; no batch can be added after it."""
        return self._spool.table()

    def close(self) -> None:
        """Delete the temporary file. A table that maps it stays readable."""
        self._spool.close()
        self._folder.cleanup()
