"""A stream held so that it can be read again: in memory while it is small, else in a file that is mapped into memory."""

from collections.abc import Callable, Iterator

import pyarrow as pa

from penstock.errors import Unavailable

HELD_BYTES = 256 << 20


def spool(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch], path: Callable[[], str], *, held_bytes: int = HELD_BYTES
) -> pa.Table:
    """All rows as one table. `path` gives the name of a file, if one is needed; the caller removes it."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > held_bytes:
            return _mapped(schema, held, batches, path())
    return pa.Table.from_batches(held, schema)


def _mapped(schema: pa.Schema, held: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch], path: str) -> pa.Table:
    try:
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            while held:
                writer.write_batch(held.pop(0))
            for batch in rest:
                writer.write_batch(batch)
        return pa.ipc.open_file(pa.memory_map(path)).read_all()
    except OSError as cause:
        raise Unavailable("storage_failed", f"the source could not be set aside: {cause.strerror or cause}") from None
