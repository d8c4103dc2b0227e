"""Encode Arrow batches as JSON text without loss of digits.

Integers and decimals are numbers with all their digits. Dates and times are ISO 8601, with Z in UTC. Bytes are base64.
NaN and the infinities, which JSON does not have, are null. Types that no dataset stores but SQL can return, such as
intervals, are text.
"""

import base64
import json
from collections.abc import Callable, Iterator
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

NULL = "null"
_ZERO_FRACTION = {"s": "", "ms": ".000", "us": ".000000", "ns": ".000000000"}  # of a second, by unit


def rows_to_json(batches: list[pa.RecordBatch]) -> str:
    """Return the rows as a JSON array of objects."""
    return f"[{','.join(chain.from_iterable(map(_objects, batches)))}]"


def _objects(batch: pa.RecordBatch) -> Iterator[str]:
    names = [f"{_string(name)}:" for name in batch.schema.names]
    if not names:
        yield from ["{}"] * batch.num_rows
    for values in zip(*map(_values, batch.columns), strict=True):
        yield f"{{{','.join(map(str.__add__, names, values))}}}"


def _values(column: pa.Array) -> list[str]:
    """Return each value of a column as JSON text."""
    data_type = column.type
    if pt.is_list(data_type) or pt.is_fixed_size_list(data_type):
        items, lengths = _values(column.flatten()), pc.list_value_length(column).fill_null(0).to_pylist()
        start, arrays = 0, []
        for length, is_valid in zip(lengths, column.is_valid().to_pylist(), strict=True):
            arrays.append(f"[{','.join(items[start : start + length])}]" if is_valid else NULL)
            start += length
        return arrays
    if pt.is_struct(data_type):
        names = [f"{_string(field.name)}:" for field in data_type]
        rows = zip(*map(_values, column.flatten()), strict=True)
        objects = (f"{{{','.join(map(str.__add__, names, row))}}}" for row in rows)
        return [
            text if is_valid else NULL for text, is_valid in zip(objects, column.is_valid().to_pylist(), strict=True)
        ]
    if pt.is_timestamp(data_type):
        zone = "" if data_type.tz is None else "Z"
        texts = column.cast(pa.timestamp(data_type.unit)).cast(pa.string()).to_pylist()
        fraction = _ZERO_FRACTION[data_type.unit]
        return [NULL if text is None else f'"{text.replace(" ", "T").removesuffix(fraction)}{zone}"' for text in texts]
    encode = next((encode for matches, encode in _ENCODERS.items() if matches(data_type)), _as_string)
    plain = column.cast(pa.string()) if pt.is_date(data_type) else column  # Python's dates end with the year 9999
    return [NULL if value is None else encode(value) for value in plain.to_pylist()]


def _string(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _as_string(value: object) -> str:
    return _string(str(value))


def _float(value: float) -> str:
    return repr(value) if value - value == 0 else NULL


_ENCODERS: dict[Callable[[pa.DataType], bool], Callable[..., str]] = {
    pt.is_boolean: lambda value: "true" if value else "false",
    pt.is_integer: str,
    pt.is_floating: _float,
    pt.is_decimal: lambda value: format(value, "f"),
    pt.is_string: _string,
    pt.is_date: _string,
    pt.is_binary: lambda value: f'"{base64.b64encode(value).decode()}"',
}
