"""The same rows in pieces of the size of a Parquet row group."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

GROUP_BYTES = 64 << 20  # a row group is held in memory as a whole, so it ends here at the latest


def groups(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, rows: int, size: int = GROUP_BYTES
) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    held_rows = held_bytes = 0
    for batch in batches:
        while batch.num_rows:
            take = min(batch.num_rows, rows - held_rows)
            part, batch = batch.slice(0, take), batch.slice(take)
            held.append(part)
            held_rows += take
            held_bytes += part.nbytes
            if held_rows >= rows or held_bytes >= size:
                yield pa.Table.from_batches(held, schema)
                held, held_rows, held_bytes = [], 0, 0
    if held:
        yield pa.Table.from_batches(held, schema)
