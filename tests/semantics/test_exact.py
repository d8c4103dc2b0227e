"""Rows over Flight fit a table exactly, or hear where they part."""

import pyarrow as pa
import pytest

from penstock.core.schema.exact_match import check_exact
from penstock.core.schema.canonical import conform
from penstock.errors import Invalid

TABLE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("word", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("at", pa.struct([("place", pa.string()), ("when", pa.timestamp("us"))])),
    ]
)


def changed(place: int, field: tuple[str, pa.DataType]) -> pa.Schema:
    return TABLE.set(place, pa.field(*field))


SAME = {
    "the table's own": TABLE,
    "nothing required": changed(0, ("id", pa.int64())),
    "large strings": changed(1, ("word", pa.large_string())),
    "string views": changed(1, ("word", pa.string_view())),
    "lists of large strings": changed(2, ("tags", pa.list_(pa.field("of no matter", pa.large_string(), nullable=False)))),
    "structs of views": changed(3, ("at", pa.struct([("place", pa.string_view()), ("when", pa.timestamp("us"))]))),
    "metadata": TABLE.with_metadata({"a": "b"}),
}  # fmt: skip


@pytest.mark.parametrize("given", SAME.values(), ids=SAME)
def test_the_kinds_of_string_and_what_may_be_null_make_no_difference(given: pa.Schema) -> None:
    check_exact(given, TABLE)
    rows = [
        {"id": 1, "word": "a", "tags": ["x", "y"], "at": {"place": "here", "when": 0}},
        {"id": 2, "word": None, "tags": None, "at": None},
    ]
    batch = pa.RecordBatch.from_pylist(rows, given)
    assert conform(batch, TABLE).equals(pa.RecordBatch.from_pylist(rows, TABLE))


OTHER = [
    (TABLE.remove(3), "column mismatch: table has 4 columns, input has 3"),
    (pa.schema([]), "column mismatch: table has 4 columns, input has 0"),
    (TABLE.append(pa.field("x", pa.int8())), "column mismatch: table has 4 columns, input has 5"),
    (
        pa.schema([TABLE.field(i) for i in (1, 0, 2, 3)]),
        "column mismatch: column 1 is 'id' in the table, 'word' in the input",
    ),
    (changed(1, ("Word", pa.string())), "column mismatch: column 2 is 'word' in the table, 'Word' in the input"),
    (changed(0, ("id", pa.int32())), "column mismatch: column 'id' is int64 in the table, int32 in the input"),
    (changed(1, ("word", pa.binary())), "column mismatch: column 'word' is string in the table, binary in the input"),
    (
        changed(1, ("word", pa.dictionary(pa.int8(), pa.string()))),
        "column mismatch: column 'word' is string in the table, "
        "dictionary<values=string, indices=int8, ordered=0> in the input",
    ),
    (
        changed(2, ("tags", pa.large_list(pa.string()))),
        "column mismatch: column 'tags' is list<item: string> in the table, large_list<item: string> in the input",
    ),
    (
        changed(3, ("at", pa.struct([("place", pa.string())]))),
        "column mismatch: column 'at' is struct<place: string, when: timestamp[us]> in the table, "
        "struct<place: string> in the input",
    ),
]


@pytest.mark.parametrize(("given", "sentence"), OTHER, ids=[sentence[17:60] for _, sentence in OTHER])
def test_anything_else_is_refused_with_the_first_place_that_differs(given: pa.Schema, sentence: str) -> None:
    with pytest.raises(Invalid) as refusal:
        check_exact(given, TABLE)
    assert (refusal.value.reason, refusal.value.message) == ("column_mismatch", sentence)


def test_a_column_whose_name_is_no_text_is_refused() -> None:
    coded = pa.schema([("id", pa.int64()), ("wörd", pa.string())]).serialize().to_pybytes()
    broken = pa.ipc.read_schema(pa.py_buffer(coded.replace("wörd".encode(), b"w\xff\xffrd")))
    with pytest.raises(Invalid) as refusal:
        check_exact(broken, TABLE)
    assert refusal.value.reason == "bad_column_name"
