"""Canonical types, column names, schema compatibility and evolution."""

from decimal import Decimal

import pyarrow as pa
import pyarrow.types as pt
import pytest

from penstock.core.schema.canonical import canonical_schema, canonical_type
from penstock.core.schema.compatibility import cast_batch, check_fits, evolve
from penstock.core.schema.type_names import from_fields, parse_type, to_fields
from penstock.core.schema.type_widening import common_type
from penstock.errors import Invalid

CANONICAL_TYPES = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(38, 10), pa.decimal128(5, 5),
    pa.list_(pa.int64()), pa.list_(pa.list_(pa.string())), pa.struct([("a", pa.int8()), ("b", pa.list_(pa.date32()))]),
]  # fmt: skip

CONVERTED = [
    (pa.uint8(), pa.int16()), (pa.uint16(), pa.int32()), (pa.uint32(), pa.int64()), (pa.uint64(), pa.decimal128(20, 0)),
    (pa.float16(), pa.float32()), (pa.large_string(), pa.string()), (pa.string_view(), pa.string()),
    (pa.large_binary(), pa.binary()), (pa.binary_view(), pa.binary()), (pa.binary(16), pa.binary()),
    (pa.date64(), pa.date32()), (pa.timestamp("s"), pa.timestamp("us")), (pa.timestamp("ns"), pa.timestamp("us")),
    (pa.timestamp("ms", "+00:00"), pa.timestamp("us", "UTC")), (pa.timestamp("ns", "Etc/UTC"), pa.timestamp("us", "UTC")),
    (pa.dictionary(pa.int8(), pa.large_string()), pa.string()), (pa.decimal256(20, 2), pa.decimal128(20, 2)),
    (pa.decimal64(9, 2), pa.decimal128(9, 2)), (pa.large_list(pa.uint8()), pa.list_(pa.int16())),
    (pa.list_(pa.int8(), 3), pa.list_(pa.int8())), (pa.struct([("a", pa.uint8())]), pa.struct([("a", pa.int16())])),
]  # fmt: skip

REFUSED = [
    (pa.null(), "cast it"), (pa.time32("s"), "string"), (pa.time64("us"), "string"), (pa.duration("s"), "int64"),
    (pa.timestamp("us", "Europe/Paris"), "tz=UTC"), (pa.decimal256(50, 2), "38"), (pa.decimal128(5, -2), "digits"),
    (pa.map_(pa.string(), pa.int8()), "list<struct"), (pa.month_day_nano_interval(), "int64"), (pa.uuid(), "cast"),
    (pa.struct([]), "fields"), (pa.struct([("a", pa.int8()), ("A", pa.int8())]), "case"), (pa.list_(pa.null()), "NULL"),
]  # fmt: skip


@pytest.mark.parametrize("expected_type", CANONICAL_TYPES, ids=str)
def test_canonical_type_returns_canonical_types_unchanged(expected_type: pa.DataType) -> None:
    assert canonical_type(expected_type) == expected_type
    schema = pa.schema([pa.field("x", expected_type, nullable=False)])
    assert from_fields(to_fields(schema)).equals(schema)


@pytest.mark.parametrize(("input_value", "expected_type"), CONVERTED, ids=str)
def test_canonical_type_converts_lossless_types(input_value: pa.DataType, expected_type: pa.DataType) -> None:
    assert canonical_type(input_value) == expected_type
    assert canonical_type(expected_type) == expected_type


@pytest.mark.parametrize(("input_value", "word"), REFUSED, ids=str)
def test_canonical_type_rejects_unsupported_types_with_advice(input_value: pa.DataType, word: str) -> None:
    with pytest.raises(Invalid) as raised:
        canonical_schema(pa.schema([("fine", pa.int8()), ("odd", input_value)]))
    assert raised.value.reason == "unsupported_type"
    assert raised.value.context["column"] == "odd"
    assert word in raised.value.message


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ([], "missing_columns"), ([""], "bad_column_name"), ([" "], "bad_column_name"), (["a\0b"], "bad_column_name"),
        (["a\nb"], "bad_column_name"), (["x" * 256], "bad_column_name"), (["rowid"], "reserved_column_name"),
        (["_ROWID"], "reserved_column_name"), (["a", "A"], "duplicate_column_name"), (["é", "É"], "duplicate_column_name"),
        ([f"c{i}" for i in range(4097)], "too_many_columns"),
    ],
)  # fmt: skip
def test_check_column_names_rejects_ambiguous_names(names: list[str], reason: str) -> None:
    with pytest.raises(Invalid) as raised:
        canonical_schema(pa.schema([(name, pa.int8()) for name in names]))
    assert raised.value.reason == reason


@pytest.mark.parametrize("name", ["select", "a.b", 'say "hi"', "naïve 🦆", "x y", "it's", "`tick`", "1", "a" * 255])
def test_check_column_names_accepts_unusual_names(name: str) -> None:
    assert canonical_schema(pa.schema([(name, pa.int8())])).names == [name]


def test_cast_batch_rejects_values_that_do_not_fit_by_column() -> None:
    target = pa.schema([("t", pa.timestamp("us")), ("d", pa.decimal128(3, 0))])
    valid = pa.record_batch({"t": pa.array([2000], pa.timestamp("ns")), "d": pa.array([999], pa.int64())})
    assert cast_batch(valid, target).column("d").to_pylist() == [Decimal(999)]
    for name, column in (("t", pa.array([2001], pa.timestamp("ns"))), ("d", pa.array([1000], pa.int64()))):
        batch = valid.set_column(valid.schema.get_field_index(name), name, column)
        with pytest.raises(Invalid) as raised:
            cast_batch(batch, target)
        assert raised.value.reason == "value_does_not_fit"
        assert raised.value.context["column"] == name


def test_cast_batch_fills_missing_columns_with_null_unless_required() -> None:
    target = pa.schema([("a", pa.int64()), pa.field("b", pa.string(), nullable=False)])
    check_fits(pa.schema([("b", pa.string())]), target)
    batch = cast_batch(pa.record_batch({"b": ["x"]}), target)
    assert batch.to_pylist() == [{"a": None, "b": "x"}]
    for source in (pa.schema([("a", pa.int64())]), pa.schema([("a", pa.int64()), ("b", pa.null())])):
        with pytest.raises(Invalid) as raised:
            check_fits(source, target)
        assert raised.value.reason == "missing_column"
    with pytest.raises(Invalid) as raised:
        cast_batch(pa.record_batch({"b": pa.array([None, "x"])}), target)
    assert raised.value.reason == "null_in_required_column"


@pytest.mark.parametrize(
    ("narrow", "wide", "fits"),
    [
        (pa.int8(), pa.int64(), True), (pa.int64(), pa.int32(), False), (pa.float32(), pa.float64(), True),
        (pa.int32(), pa.float64(), False), (pa.int64(), pa.decimal128(12, 2), True), (pa.date32(), pa.timestamp("us"), False),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), False), (pa.string(), pa.int64(), False), (pa.int64(), pa.string(), False),
        (pa.decimal128(5, 2), pa.decimal128(7, 3), True), (pa.decimal128(7, 3), pa.decimal128(7, 2), False),
        (pa.uint8(), pa.int16(), True), (pa.uint8(), pa.int8(), False), (pa.large_string(), pa.string(), True),
        (pa.list_(pa.int8()), pa.list_(pa.int64()), True), (pa.null(), pa.string(), True),
    ],
)  # fmt: skip
def test_check_fits_accepts_widening_and_rejects_narrowing(narrow: pa.DataType, wide: pa.DataType, fits: bool) -> None:
    source, target = pa.schema([("x", narrow)]), pa.schema([("x", wide)])
    if fits:
        check_fits(source, target)
    else:
        with pytest.raises(Invalid) as raised:
            check_fits(source, target)
        assert raised.value.context == {"column": "x", "expected": str(wide), "actual": str(narrow)}


def test_check_fits_names_extra_columns() -> None:
    with pytest.raises(Invalid) as raised:
        check_fits(pa.schema([("a", pa.int8()), ("z", pa.int8()), ("y", pa.int8())]), pa.schema([("a", pa.int8())]))
    assert raised.value.context["extra_columns"] == ["y", "z"]


@pytest.mark.parametrize("first", CANONICAL_TYPES, ids=str)
@pytest.mark.parametrize("second", CANONICAL_TYPES, ids=str)
def test_common_type_is_symmetric(first: pa.DataType, second: pa.DataType) -> None:
    # Integers fit into a decimal column, but an integer column does not become a decimal column.
    into_decimal = pt.is_decimal(first) and pt.is_integer(second)
    from_decimal = pt.is_integer(first) and pt.is_decimal(second)
    both = common_type(first, second)
    if into_decimal or from_decimal:
        assert both == (first if into_decimal else None)
        return
    assert both == common_type(second, first)
    if both is not None:
        assert common_type(first, both) == both == common_type(both, second)


def test_evolve_only_adds_columns_and_widens_types() -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.string())])
    assert evolve(schema, pa.schema([("c", pa.date32())]), {"a": pa.int64()}).names == ["a", "b", "c"]
    for add, widen, reason in (
        (
            [pa.field("c", pa.int8(), nullable=False)],
            {},
            "added_column_required",
        ),
        (
            [("B", pa.int8())],
            {},
            "duplicate_column_name",
        ),
        (
            [],
            {"a": pa.int8()},
            "not_wider",
        ),
        (
            [],
            {"a": pa.string()},
            "not_wider",
        ),
        ([], {"x": pa.int8()}, "column_not_found"),
    ):
        with pytest.raises(Invalid) as raised:
            evolve(schema, pa.schema(add), widen)
        assert raised.value.reason == reason


@pytest.mark.parametrize(
    ("text", "data_type"),
    [("int", pa.int32()), (" LONG ", pa.int64()), ("Decimal( 12, 2 )", pa.decimal128(12, 2)), ("list<list<text>>",
      pa.list_(pa.list_(pa.string()))), ("timestamp[us, tz=UTC]".lower(), pa.timestamp("us", "UTC"))],
)  # fmt: skip
def test_parse_type_accepts_common_type_names(text: str, data_type: pa.DataType) -> None:
    assert parse_type(text) == data_type


@pytest.mark.parametrize(
    "text", ["", "wurst", "decimal", "decimal(0,0)", "decimal(39,1)", "decimal(5,6)", "list<>", "list<int"]
)
def test_parse_type_rejects_unknown_types(text: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_type(text)
    assert raised.value.reason == "unknown_type"
