"""Exact match of a Flight schema with a table: the first difference is reported."""

from typing import Any

import pyarrow as pa
import pytest

from penstock.core.schema.canonical import canonical_schema
from penstock.core.schema.compatibility import cast_batch
from penstock.core.schema.exact_match import check_exact
from penstock.errors import Invalid

TABLE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("word", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("at", pa.struct([("place", pa.string()), ("when", pa.timestamp("us"))])),
    ]
)


def with_change(index: int, field: tuple[str, pa.DataType]) -> pa.Schema:
    return TABLE.set(index, pa.field(*field))


SAME = {
    "the table's own": TABLE,
    "nothing required": with_change(0, ("id", pa.int64())),
    "large strings": with_change(1, ("word", pa.large_string())),
    "string views": with_change(1, ("word", pa.string_view())),
    "lists of large strings": with_change(2, ("tags", pa.list_(pa.field("of no matter", pa.large_string(), nullable=False)))),
    "structs of views": with_change(3, ("at", pa.struct([("place", pa.string_view()), ("when", pa.timestamp("us"))]))),
    "large lists": with_change(2, ("tags", pa.large_list(pa.string_view()))),
    "list views": with_change(2, ("tags", pa.list_view(pa.string()))),
    "milliseconds": with_change(3, ("at", pa.struct([("place", pa.string()), ("when", pa.timestamp("ms"))]))),
    "metadata": TABLE.with_metadata({"a": "b"}),
}  # fmt: skip


@pytest.mark.parametrize("input_value", SAME.values(), ids=SAME)
def test_check_exact_accepts_types_that_are_stored_alike(input_value: pa.Schema) -> None:
    check_exact(input_value, TABLE)
    rows = [
        {"id": 1, "word": "a", "tags": ["x", "y"], "at": {"place": "here", "when": 0}},
        {"id": 2, "word": None, "tags": None, "at": None},
    ]
    batch = pa.RecordBatch.from_pylist(rows, input_value)
    assert cast_batch(batch, TABLE).equals(pa.RecordBatch.from_pylist(rows, TABLE))


OTHER = [
    (TABLE.remove(3), "column mismatch: table has 4 columns, input has 3"),
    (pa.schema([]), "column mismatch: table has 4 columns, input has 0"),
    (TABLE.append(pa.field("x", pa.int8())), "column mismatch: table has 4 columns, input has 5"),
    (
        pa.schema([TABLE.field(i) for i in (1, 0, 2, 3)]),
        "column mismatch: column 1 is 'id' in the table, 'word' in the input",
    ),
    (with_change(1, ("Word", pa.string())), "column mismatch: column 2 is 'word' in the table, 'Word' in the input"),
    (with_change(0, ("id", pa.int32())), "column mismatch: column 'id' is int64 in the table, int32 in the input"),
    (
        with_change(1, ("word", pa.binary())),
        "column mismatch: column 'word' is string in the table, binary in the input",
    ),
    (
        with_change(2, ("tags", pa.large_list(pa.binary()))),
        "column mismatch: column 'tags' is list<item: string> in the table, large_list<item: binary> in the input",
    ),
    (
        with_change(2, ("tags", pa.map_(pa.string(), pa.string()))),
        "column mismatch: column 'tags' is list<item: string> in the table, map<string, string> in the input",
    ),
    (
        with_change(3, ("at", pa.struct([("place", pa.string())]))),
        "column mismatch: column 'at' is struct<place: string, when: timestamp[us]> in the table, "
        "struct<place: string> in the input",
    ),
]


@pytest.mark.parametrize(("input_value", "message"), OTHER, ids=[sentence[17:60] for _, sentence in OTHER])
def test_check_exact_reports_first_difference(input_value: pa.Schema, message: str) -> None:
    with pytest.raises(Invalid) as raised:
        check_exact(input_value, TABLE)
    assert (raised.value.reason, raised.value.message) == ("column_mismatch", message)


def test_check_exact_rejects_column_names_that_are_not_utf8() -> None:
    coded = pa.schema([("id", pa.int64()), ("wörd", pa.string())]).serialize().to_pybytes()
    broken = pa.ipc.read_schema(pa.py_buffer(coded.replace("wörd".encode(), b"w\xff\xffrd")))
    with pytest.raises(Invalid) as raised:
        check_exact(broken, TABLE)
    assert raised.value.reason == "bad_column_name"


LIST_VIEWS = [
    (pa.list_view(pa.int64()), [[1, 2], None, [], [3]]),
    (pa.large_list_view(pa.large_string()), [["a"], ["b", None]]),
    (pa.struct([("a", pa.list_view(pa.uint8()))]), [{"a": [1]}, None, {"a": None}]),
    (pa.list_(pa.list_view(pa.int8())), [[[1], None], None, [[2, 3]]]),
]


@pytest.mark.parametrize(("data_type", "values"), LIST_VIEWS, ids=str)
def test_cast_batch_keeps_values_of_list_views(data_type: pa.DataType, values: list[Any]) -> None:
    stored = canonical_schema(pa.schema([("c", data_type)]))
    batch = pa.record_batch([pa.array(values, data_type)], ["c"])
    for slice_ in (batch, batch.slice(1)):
        rows = cast_batch(slice_, stored)
        rows.validate(full=True)
        assert rows.column(0).to_pylist() == slice_.column(0).to_pylist()
