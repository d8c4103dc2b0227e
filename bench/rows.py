"""Test data: deterministic rows with eight columns, an increasing id and pseudorandom values."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DEVICES = 1000
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("device", pa.int32()),
        ("reading", pa.float64()),
        ("amount", pa.decimal128(12, 2)),
        ("city", pa.string()),
        ("label", pa.string()),
        ("taken", pa.timestamp("us", tz="UTC")),
        ("valid", pa.bool_()),
    ]
)

_CITIES = np.array(["Accra", "Bergen", "Cusco", "Dakar", "Erfurt", "Fukuoka", "Ghent", "Hanoi", "Izmir", "Jaipur"])
_BEGAN = 1_700_000_000_000_000  # microseconds


def table(count: int, start: int = 0) -> pa.Table:
    """Return the rows `start` to `start + count − 1`. The same arguments return the same rows."""
    random = np.random.default_rng(start)
    ids = np.arange(start, start + count, dtype=np.int64)
    columns = [
        pa.array(ids),
        pa.array(random.integers(0, DEVICES, count, dtype=np.int32)),
        pa.array(random.random(count)),
        _decimals(random.integers(-10_000_00, 10_000_00, count)),
        pa.array(_CITIES[random.integers(0, len(_CITIES), count)]),
        pc.binary_join_element_wise("label", pa.array(random.integers(0, 10**9, count)).cast(pa.string()), "-"),
        pa.array(_BEGAN + ids * 250_000).cast(SCHEMA.field("taken").type),
        pa.array(random.random(count) < 0.98),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def wide(count: int, start: int = 0) -> pa.Table:
    """Return rows with ten columns: also a date, and a note in every third row."""
    rows = table(count, start)
    notes = pc.if_else(pa.array(np.arange(count) % 3 == 0), rows["city"], None)
    return rows.append_column("day", rows["taken"].cast(pa.date32())).append_column("note", notes)


def stream(count: int, *, step: int = 100_000) -> pa.RecordBatchReader:
    """Return a reader that creates rows on demand."""

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, count, step):
            yield from table(min(step, count - start), start).to_batches()

    return pa.RecordBatchReader.from_batches(SCHEMA, batches())


def _decimals(hundredths: np.ndarray) -> pa.Array:
    halves = np.stack([hundredths, hundredths >> 63], axis=1)  # 128 bits, the low half first
    kind = SCHEMA.field("amount").type
    return pa.Array.from_buffers(kind, len(hundredths), [None, pa.py_buffer(halves.tobytes())])
