"""Rows on their way out: a page of them as exact JSON, or all of them as a stream of bytes.

In JSON, integers and decimals are numbers with all their digits, dates and times are ISO 8601 (in UTC with Z), bytes
are base64, and NaN and the infinities, which JSON does not know, are null. What no dataset can hold and SQL can make,
such as an interval, is text.
"""

import base64
import io
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.rest.requests import media_types as media

NULL = "null"
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of Arrow's stream
_NO_FRACTION = {"s": "", "ms": ".000", "us": ".000000", "ns": ".000000000"}  # of a second


def page(reader: pa.RecordBatchReader, skip: int, top: int, most_bytes: int) -> tuple[list[pa.RecordBatch], bool]:
    """Up to `top` rows after the first `skip`, fewer where they are large; and are there more?"""
    taken: list[pa.RecordBatch] = []
    for batch in reader:
        start = min(skip, batch.num_rows)
        skip -= start
        rest = batch.slice(start)
        if not rest.num_rows:
            continue
        if top == 0 or most_bytes <= 0:
            return taken, True
        fitting = max(0 if taken else 1, most_bytes * rest.num_rows // max(rest.nbytes, 1))
        part = rest.slice(0, min(top, fitting))
        if part.num_rows:
            taken.append(part)
        if part.num_rows < rest.num_rows:
            return taken, True
        top -= part.num_rows
        most_bytes -= part.nbytes
    return taken, False


def as_json(batches: list[pa.RecordBatch]) -> str:
    """A list of objects."""
    return f"[{','.join(chain.from_iterable(map(_objects, batches)))}]"


def stream(kind: str, reader: pa.RecordBatchReader) -> Iterator[bytes | memoryview]:
    """All rows as Arrow or Parquet, in bounded memory. The first batch is read at once: what fails there is an error."""
    first = next(reader, None)
    batches = reader if first is None else chain([first], reader)
    return _STREAMS[kind](reader.schema, batches)


def size(kind: str, table: pa.Table) -> int | None:
    """How many bytes the stream of a table has, where that can be told beforehand."""
    if kind != media.ARROW:
        return None
    batches = sum(map(pa.ipc.get_record_batch_size, table.to_batches()))
    return int(table.schema.serialize().size + batches + len(_END))


class _Drain(io.RawIOBase):
    """A file whose content is taken away as it grows."""

    def __init__(self) -> None:
        self._held, self._at = bytearray(), 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: object) -> int:
        piece = memoryview(data)  # type: ignore[arg-type]
        self._held += piece
        self._at += piece.nbytes
        return piece.nbytes

    def drained(self) -> bytes:
        taken = bytes(self._held)
        self._held.clear()
        return taken


def _as_parquet(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    sink = _Drain()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
            if piece := sink.drained():
                yield piece
    yield sink.drained()


def _as_arrow(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[memoryview]:
    """Arrow's stream is its messages, one after the other: nothing is copied once more."""
    yield memoryview(schema.serialize())
    for batch in batches:
        yield memoryview(batch.serialize())
    yield memoryview(_END)


_STREAMS: dict[str, Callable[[pa.Schema, Iterable[pa.RecordBatch]], Iterator[bytes | memoryview]]] = {
    media.ARROW: _as_arrow,
    media.PARQUET: _as_parquet,
}


def _objects(batch: pa.RecordBatch) -> Iterator[str]:
    names = [f"{_text(name)}:" for name in batch.schema.names]
    if not names:
        yield from ["{}"] * batch.num_rows
    for values in zip(*map(_values, batch.columns), strict=True):
        yield f"{{{','.join(map(str.__add__, names, values))}}}"


def _values(column: pa.Array) -> list[str]:
    """Each value of a column as JSON text."""
    kind = column.type
    if pt.is_list(kind) or pt.is_fixed_size_list(kind):
        inner, ends = _values(column.flatten()), pc.list_value_length(column).fill_null(0).to_pylist()
        at, told = 0, []
        for length, there in zip(ends, column.is_valid().to_pylist(), strict=True):
            told.append(f"[{','.join(inner[at : at + length])}]" if there else NULL)
            at += length
        return told
    if pt.is_struct(kind):
        names = [f"{_text(field.name)}:" for field in kind]
        rows = zip(*map(_values, column.flatten()), strict=True)
        objects = (f"{{{','.join(map(str.__add__, names, row))}}}" for row in rows)
        return [text if there else NULL for text, there in zip(objects, column.is_valid().to_pylist(), strict=True)]
    if pt.is_timestamp(kind):
        zone = "" if kind.tz is None else "Z"
        moments = column.cast(pa.timestamp(kind.unit)).cast(pa.string()).to_pylist()
        return [
            NULL if m is None else f'"{m.replace(" ", "T").removesuffix(_NO_FRACTION[kind.unit])}{zone}"'
            for m in moments
        ]
    say = next((say for test, say in _SAY.items() if test(kind)), _odd)
    plain = column.cast(pa.string()) if pt.is_date(kind) else column  # Python's dates end with the year 9999
    return [NULL if value is None else say(value) for value in plain.to_pylist()]


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _odd(value: object) -> str:
    return _text(str(value))


def _number(value: float) -> str:
    return repr(value) if value - value == 0 else NULL


_SAY: dict[Callable[[pa.DataType], bool], Callable[..., str]] = {
    pt.is_boolean: lambda value: "true" if value else "false",
    pt.is_integer: str,
    pt.is_floating: _number,
    pt.is_decimal: lambda value: format(value, "f"),
    pt.is_string: _text,
    pt.is_date: _text,
    pt.is_binary: lambda value: f'"{base64.b64encode(value).decode()}"',
}
