"""Result schemas: parse, infer, compare, and validate rows."""

import math
import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import result_schema
from penstock.core.result_schema import (
    MAX_DESCRIBED,
    MAX_DESCRIPTION,
    MAX_FIELDS,
    ONLY_SCALARS,
    FieldType,
    ResultField,
    SchemaDifference,
    breaking_differences,
    check_rows,
    diff,
    fields_from_json,
    infer_fields,
    infer_fields_from_rows,
    json_schema,
    parse_fields,
)
from penstock.errors import Invalid

STRING, NUMBER, BOOLEAN, DATE, DATETIME = FieldType

FIELDS = st.lists(
    st.builds(
        ResultField,
        st.sampled_from("abcdef"),
        st.sampled_from(FieldType),
        st.booleans(),
        st.booleans(),
        st.none() | st.text("xyz", min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda field: field.name,
).map(tuple)


# -- parse ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("input_value", "read"),
    [
        ({"name": "a", "type": "string"}, ResultField("a", STRING)),
        ({"name": "a", "type": "number", "optional": True}, ResultField("a", NUMBER, optional=True)),
        ({"name": "a", "type": "boolean", "description": "d"}, ResultField("a", BOOLEAN, description="d")),
        ({"name": "a", "type": "date", "description": None}, ResultField("a", DATE)),
        ({"name": "a", "type": "datetime", "description": ""}, ResultField("a", DATETIME)),
        ({"name": "a", "type": "string", "array": False}, ResultField("a", STRING)),
        ({"name": "a", "type": "string", "array": True}, ResultField("a", STRING, array=True)),
        ({"name": "a", "type": "string[]"}, ResultField("a", STRING, array=True)),
        ({"name": "a", "type": "date[]", "array": False}, ResultField("a", DATE, array=True)),
        ({"name": "a", "type": "array", "items": "number"}, ResultField("a", NUMBER, array=True)),
        ({"name": "a", "type": "array", "items": {"type": "number"}}, ResultField("a", NUMBER, array=True)),
        ({"name": "_" + "x" * 127, "type": "string"}, ResultField("_" + "x" * 127, STRING)),
        ({"name": "a", "type": "string", "description": "é" * MAX_DESCRIPTION}, ResultField("a", STRING, description="é" * MAX_DESCRIPTION)),
    ],
)  # fmt: skip
def test_parse_fields_accepts_equivalent_notations(input_value: dict[str, Any], read: ResultField) -> None:
    assert parse_fields([input_value]) == (read,)


@given(FIELDS)
def test_parse_fields_round_trips_as_json(fields: tuple[ResultField, ...]) -> None:
    assert parse_fields([field.as_json() for field in fields]) == fields
    assert fields_from_json([field.as_json() for field in fields]) == fields


def test_result_field_as_json_omits_absent_members() -> None:
    assert ResultField("a", STRING).as_json() == {"name": "a", "type": "string", "optional": False}
    assert ResultField("a", DATE, True, True, "d").as_json() == {
        "name": "a", "type": "date", "optional": True, "array": True, "description": "d",
    }  # fmt: skip


GOOD = {"name": "good", "type": "string"}


@pytest.mark.parametrize(
    ("input_value", "reason", "pointer"),
    [
        ([], "missing_fields", "/fields"),
        (None, "bad_fields", "/fields"),
        ({"a": "string"}, "bad_fields", "/fields"),
        ("string", "bad_fields", "/fields"),
        ([{"name": f"f{n}", "type": "string"} for n in range(MAX_FIELDS + 1)], "too_many_fields", "/fields"),
        ([GOOD, "string"], "bad_field", "/fields/1"),
        ([GOOD, None], "bad_field", "/fields/1"),
        ([GOOD, {"type": "string"}], "bad_field_name", "/fields/1/name"),
        ([GOOD, {"name": "", "type": "string"}], "bad_field_name", "/fields/1/name"),
        ([GOOD, {"name": 1, "type": "string"}], "bad_field_name", "/fields/1/name"),
        ([GOOD, {"name": "a b", "type": "string"}], "bad_field_name", "/fields/1/name"),
        ([GOOD, {"name": "1a", "type": "string"}], "bad_field_name", "/fields/1/name"),
        ([GOOD, {"name": "a\n", "type": "string"}], "bad_field_name", "/fields/1/name"),
        ([GOOD, {"name": "é", "type": "string"}], "bad_field_name", "/fields/1/name"),
        ([GOOD, {"name": "x" * 129, "type": "string"}], "bad_field_name", "/fields/1/name"),
        ([GOOD, GOOD], "duplicate_field_name", "/fields/1/name"),
        ([{"name": "a"}], "non_scalar_field", "/fields/0/type"),
        ([{"name": "a", "type": "array"}], "non_scalar_field", "/fields/0/items"),
        ([{"name": "a", "type": "string", "items": "string"}], "bad_field_type", "/fields/0/items"),
        ([{"name": "a", "type": "string", "optional": 1}], "bad_field", "/fields/0/optional"),
        ([{"name": "a", "type": "string", "optional": None}], "bad_field", "/fields/0/optional"),
        ([{"name": "a", "type": "string", "array": "yes"}], "bad_field", "/fields/0/array"),
        ([{"name": "a", "type": "string", "description": 1}], "bad_description", "/fields/0/description"),
        ([{"name": "a", "type": "string", "description": "x" * (MAX_DESCRIPTION + 1)}], "bad_description", "/fields/0/description"),
        ([{"name": "a", "type": "string", "description": "a\x00b"}], "bad_description", "/fields/0/description"),
        ([{"name": "a", "type": "string", "description": "\ud800"}], "bad_description", "/fields/0/description"),
        ([{"name": "a", "type": "string", "nullable": True}], "unknown_member", "/fields/0"),
        ([{"name": "a", "type": "money"}], "non_scalar_field", "/fields/0/type"),
        ([{"name": "a", "type": "String"}], "non_scalar_field", "/fields/0/type"),
        ([{"name": "a", "type": ""}], "non_scalar_field", "/fields/0/type"),
        ([{"name": "a", "type": None}], "non_scalar_field", "/fields/0/type"),
        ([{"name": "a", "type": 1}], "non_scalar_field", "/fields/0/type"),
        ([{"name": "a", "type": "object"}], "non_scalar_field", "/fields/0/type"),
        ([{"name": "a", "type": "struct"}], "non_scalar_field", "/fields/0/type"),
        ([{"name": "a", "type": "json"}], "non_scalar_field", "/fields/0/type"),
        ([{"name": "a", "type": {"type": "string"}}], "non_scalar_field", "/fields/0/type"),
        ([{"name": "a", "type": ["string", "null"]}], "non_scalar_field", "/fields/0/type"),
        ([{"name": "a", "type": "string[][]"}], "non_scalar_field", "/fields/0/type"),
        ([{"name": "a", "type": "string[]", "array": True}], "non_scalar_field", "/fields/0/type"),
        ([{"name": "a", "type": "object[]"}], "non_scalar_field", "/fields/0/type"),
        ([{"name": "a", "type": "array", "items": "object"}], "non_scalar_field", "/fields/0/items"),
        ([{"name": "a", "type": "array", "items": "string[]"}], "non_scalar_field", "/fields/0/items"),
        ([{"name": "a", "type": "array", "items": "array"}], "non_scalar_field", "/fields/0/items"),
        ([{"name": "a", "type": "array", "items": "string", "array": True}], "non_scalar_field", "/fields/0/items"),
        ([{"name": "a", "type": "array", "items": {"type": "object", "properties": {}}}], "non_scalar_field", "/fields/0/items"),
        ([{"name": "a", "type": "array", "items": {"type": "string", "x": 1}}], "non_scalar_field", "/fields/0/items"),
        ([{"name": "a", "type": "array", "items": None}], "non_scalar_field", "/fields/0/items"),
        ([{"name": "a", "type": "string", "properties": {}}], "non_scalar_field", "/fields/0/properties"),
        ([{"name": "a", "fields": []}], "non_scalar_field", "/fields/0/fields"),
    ],
)  # fmt: skip
def test_parse_fields_rejects_bad_fields_with_pointer(input_value: Any, reason: str, pointer: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_fields(input_value)
    (error,) = raised.value.context["errors"]
    assert (raised.value.reason, error["code"], error["pointer"]) == (reason, reason, pointer)
    assert error["message"] == raised.value.message
    if reason == "non_scalar_field":
        assert raised.value.message.startswith(ONLY_SCALARS)
        assert raised.value.context["field"] == "a"


def test_parse_fields_reports_all_errors_and_non_scalar_types_first() -> None:
    with pytest.raises(Invalid) as raised:
        parse_fields(
            [{"name": "1"}, {"name": "a", "type": "object", "x": 1}, {"name": "a", "type": "string", "optional": 0}]
        )
    assert raised.value.reason == "non_scalar_field"
    assert raised.value.context["field"] == "1"
    assert raised.value.message.endswith("(5 more in errors)")
    assert [(error["pointer"], error["code"]) for error in raised.value.context["errors"]] == [
        ("/fields/0/name", "bad_field_name"),
        ("/fields/0/type", "non_scalar_field"),
        ("/fields/1/type", "non_scalar_field"),
        ("/fields/1", "unknown_member"),
        ("/fields/2/name", "duplicate_field_name"),
        ("/fields/2/optional", "bad_field"),
    ]


def test_parse_fields_without_nesting_reports_first_error_as_reason() -> None:
    with pytest.raises(Invalid) as raised:
        parse_fields([{"name": "a", "type": "string", "optional": 0}, {"name": "1", "type": "string"}])
    assert raised.value.reason == "bad_field"
    assert raised.value.context["field"] == "a"


def test_parse_fields_error_is_printable_for_any_name() -> None:
    odd = "\ud800\x00" + "é" * 1_000
    with pytest.raises(Invalid) as raised:
        parse_fields([{"name": odd, "type": odd, odd: 1}])
    reported = [raised.value.context["field"], *(error["message"] for error in raised.value.context["errors"])]
    assert len(reported) == 4
    assert all(text.isascii() and text.isprintable() and len(text) < 1_200 for text in reported)


def test_parse_fields_non_scalar_message_matches_contract() -> None:
    assert ONLY_SCALARS == "Only scalar types allowed in query returns"


# -- infer ------------------------------------------------------------------------------------------------------------

COLUMNS = {
    STRING: [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    NUMBER: [pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.decimal128(10, 2), pa.decimal256(50, 2)],
    BOOLEAN: [pa.bool_()],
    DATE: [pa.date32(), pa.date64()],
    DATETIME: [pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.timestamp("s", "Europe/Rome")],
}
REFUSED = [
    pa.null(), pa.binary(), pa.large_binary(), pa.binary(4), pa.time32("s"), pa.time64("us"), pa.duration("us"),
    pa.month_day_nano_interval(), pa.struct({"x": pa.int64()}), pa.map_(pa.string(), pa.string()),
    pa.list_(pa.list_(pa.string())), pa.list_(pa.struct({"x": pa.int64()})), pa.list_(pa.binary()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("field_type", "column"), [(field_type, column) for field_type, columns in COLUMNS.items() for column in columns]
)
def test_infer_fields_maps_column_types(field_type: FieldType, column: pa.DataType) -> None:
    schema = pa.schema([pa.field("a", column, nullable=False), pa.field("b", column)])
    assert infer_fields(schema) == (ResultField("a", field_type), ResultField("b", field_type, optional=True))
    for many in (pa.list_, pa.large_list, pa.list_view, lambda item: pa.list_(item, 3)):
        assert infer_fields(pa.schema([pa.field("a", many(column), nullable=False)])) == (
            ResultField("a", field_type, array=True),
        )


@pytest.mark.parametrize("column", REFUSED, ids=str)
def test_infer_fields_rejects_columns_without_scalars(column: pa.DataType) -> None:
    with pytest.raises(Invalid) as raised:
        infer_fields(pa.schema({"a": pa.int64(), "b": column}))
    assert (raised.value.reason, raised.value.context["field"]) == ("non_scalar_field", "b")
    assert str(column)[:60] in raised.value.message


def test_infer_fields_reports_all_bad_columns() -> None:
    schema = pa.schema(
        [("my col", pa.int64()), ("a", pa.binary()), ("a", pa.int64()), ("a", pa.int64()), ("t", pa.time32("s"))]
    )
    with pytest.raises(Invalid) as raised:
        infer_fields(schema)
    assert [(error["pointer"], error["code"]) for error in raised.value.context["errors"]] == [
        ("/fields/0/name", "bad_field_name"),
        ("/fields/1/type", "non_scalar_field"),
        ("/fields/2/name", "duplicate_field_name"),
        ("/fields/3/name", "duplicate_field_name"),
        ("/fields/4/type", "non_scalar_field"),
    ]
    assert [
        "'my col'" in raised.value.context["errors"][0]["message"],
        "'t'" in raised.value.context["errors"][4]["message"],
    ] == [True, True]
    with pytest.raises(Invalid) as raised:
        infer_fields(pa.schema([]))
    assert raised.value.reason == "missing_fields"


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ([True, False], ResultField("a", BOOLEAN)),
        ([1, 2.5], ResultField("a", NUMBER)),
        (["x", ""], ResultField("a", STRING)),
        (["2026-01-31", "x"], ResultField("a", STRING)),
        (["2026-01-31", "2026-02-01"], ResultField("a", DATE)),
        (["2026-01-31T10:00:00Z", "2026-01-31T10:00:00"], ResultField("a", DATETIME)),
        (["2026-01-31", "2026-01-31T10:00:00"], ResultField("a", STRING)),
        ([1, None], ResultField("a", NUMBER, optional=True)),
        ([1, ...], ResultField("a", NUMBER, optional=True)),
        ([[1], [], [2, 3]], ResultField("a", NUMBER, array=True)),
        ([["x"], None], ResultField("a", STRING, optional=True, array=True)),
    ],
)
def test_infer_fields_from_rows_chooses_narrowest_type(values: list[Any], field: ResultField) -> None:
    rows = [{} if value is ... else {"a": value} for value in values]
    assert infer_fields_from_rows(rows) == (field,)
    assert check_rows([field], rows).valid


@pytest.mark.parametrize(
    ("rows", "reason", "pointer"),
    [
        ([{}], "missing_fields", "/fields"),
        ([{"a": 1}, 5], "bad_row", "/rows/1"),
        ([{"my col": 1}], "bad_field_name", "/fields/0/name"),
        ([{"a": 1, "b": {}}], "non_scalar_field", "/fields/1/type"),
        ([{"a": [[1]]}], "non_scalar_field", "/fields/0/type"),
        ([{"a": [1]}, {"a": 1}], "non_scalar_field", "/fields/0/type"),
        ([{"a": [{}]}], "non_scalar_field", "/fields/0/type"),
        ([{"a": 1}, {"a": "x"}], "mixed_types", "/fields/0/type"),
        ([{"a": 1}, {"a": True}], "mixed_types", "/fields/0/type"),
        ([{"a": [1, None]}], "mixed_types", "/fields/0/type"),
        ([{"a": math.nan}], "mixed_types", "/fields/0/type"),
        ([{"a": None}], "mixed_types", "/fields/0/type"),
        ([{"a": []}], "mixed_types", "/fields/0/type"),
    ],
)
def test_infer_fields_from_rows_rejects_mixed_types(rows: list[Any], reason: str, pointer: str) -> None:
    with pytest.raises(Invalid) as raised:
        infer_fields_from_rows(rows)
    assert [(difference["code"], difference["pointer"]) for difference in raised.value.context["errors"]] == [
        (reason, pointer)
    ]


# -- differences ------------------------------------------------------------------------------------------------------

A, B, C = ResultField("a", STRING), ResultField("b", NUMBER), ResultField("c", DATE, optional=True)


def with_changes(field: ResultField, **changes: Any) -> ResultField:
    return ResultField(**{name: changes.get(name, getattr(field, name)) for name in ResultField.__dataclass_fields__})


@pytest.mark.parametrize(
    ("old", "new", "reported", "breaks"),
    [
        ([A, B], [A, B], [], 0),
        ([A], [A, B], [{"change": "added", "field": "b", "to": B.as_json()}], 0),
        ([A, B], [A], [{"change": "removed", "field": "b", "from": B.as_json()}], 1),
        ([A, C], [A], [{"change": "removed", "field": "c", "from": C.as_json()}], 0),
        ([A, B], [B, A], [{"change": "reordered", "from": ["a", "b"], "to": ["b", "a"]}], 0),
        ([A, B, C], [B, C], [{"change": "removed", "field": "a", "from": A.as_json()}], 1),
        ([A], [with_changes(A, type=DATE)], [{"change": "changed", "field": "a", "member": "type", "from": "string", "to": "date"}], 1),
        ([A], [with_changes(A, array=True)], [{"change": "changed", "field": "a", "member": "array", "from": False, "to": True}], 1),
        ([with_changes(A, array=True)], [A], [{"change": "changed", "field": "a", "member": "array", "from": True, "to": False}], 1),
        ([A], [with_changes(A, optional=True)], [{"change": "changed", "field": "a", "member": "optional", "from": False, "to": True}], 1),
        ([C], [with_changes(C, optional=False)], [{"change": "changed", "field": "c", "member": "optional", "from": True, "to": False}], 0),
        ([A], [with_changes(A, description="d")], [{"change": "changed", "field": "a", "member": "description", "from": None, "to": "d"}], 0),
    ],
)  # fmt: skip
def test_diff_reports_changed_members_and_breaking_changes(old: Any, new: Any, reported: Any, breaks: int) -> None:
    assert [difference.as_json() for difference in diff(old, new)] == reported
    assert len(breaking_differences(old, new)) == breaks


def test_diff_reports_every_changed_member_of_a_field() -> None:
    differences = diff([A, B], [with_changes(B, optional=True, type=STRING)])
    assert [(difference.change, difference.field, difference.member) for difference in differences] == [
        ("removed", "a", None),
        ("changed", "b", "type"),
        ("changed", "b", "optional"),
    ]
    assert breaking_differences([A, B], [with_changes(B, optional=True, type=STRING)]) == differences


@given(FIELDS)
def test_diff_of_equal_schemas_is_empty(fields: tuple[ResultField, ...]) -> None:
    assert diff(fields, fields) == []


@given(FIELDS, FIELDS)
def test_diff_of_different_schemas_is_not_empty_in_both_directions(
    old: tuple[ResultField, ...], new: tuple[ResultField, ...]
) -> None:
    def reverse_diff(difference: SchemaDifference) -> Any:
        swapped = {"added": "removed", "removed": "added"}
        return (
            swapped.get(difference.change, str(difference.change)),
            difference.field,
            difference.member,
            difference.new,
            difference.old,
        )

    forward = [
        (str(difference.change), difference.field, difference.member, difference.old, difference.new)
        for difference in diff(old, new)
    ]
    backward = [reverse_diff(difference) for difference in diff(new, old)]
    assert sorted(map(repr, forward)) == sorted(map(repr, backward))
    assert bool(forward) is (old != new)


def test_json_schema_describes_fields() -> None:
    every = [
        ResultField("s", STRING, description="text"),
        ResultField("n", NUMBER, optional=True),
        ResultField("b", BOOLEAN, array=True),
        ResultField("d", DATE),
        ResultField("t", DATETIME, optional=True, array=True),
    ]
    assert json_schema("Orders", None, every) == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Orders",
        "type": "object",
        "properties": {
            "s": {"type": "string", "description": "text"},
            "n": {"type": ["number", "null"]},
            "b": {"type": "array", "items": {"type": "boolean"}},
            "d": {"type": "string", "format": "date"},
            "t": {"type": ["array", "null"], "items": {"type": "string", "format": "date-time"}},
        },
        "required": ["s", "b", "d"],
        "additionalProperties": True,
    }
    assert json_schema("Orders", "of a day", [A])["description"] == "of a day"


# -- row validation ---------------------------------------------------------------------------------------------------

VALUES: dict[FieldType, tuple[list[Any], list[Any]]] = {  # valid and invalid values
    STRING: (["", "x", "2026-01-31"], [1, True, ["x"], {"x": 1}, None]),
    NUMBER: (
        [0, -1, 1.5, -0.0, 10**400, Decimal("1e400"), Decimal("0.1"), 1e308],
        [True, False, "1", math.nan, math.inf, -math.inf, Decimal("NaN"), Decimal("Infinity"), [1], {}, None],
    ),
    BOOLEAN: ([True, False], [0, 1, "true", [], None]),
    DATE: (
        ["2026-01-31", "2024-02-29", "0001-01-01", "9999-12-31"],
        [
            "2026-02-29", "2026-13-01", "2026-00-10", "0000-01-01", "2026-1-31", "20260131", "2026-W05-6", "26-01-31",
            "2026-01-31T00:00:00Z", " 2026-01-31", "2026-01-31\n", "٢٠٢٦-01-31", "", 20260131, None,
        ],
    ),
    DATETIME: (
        [
            "2026-01-31T10:00:00Z", "2026-01-31T10:00:00", "2026-01-31t10:00:00z", "2026-01-31T10:00:00+05:30",
            "2026-01-31T10:00:00-00:00", "2026-01-31T23:59:59.123456789Z", "2026-01-31T00:00:00.1", "2024-02-29T00:00:00+23:59",
        ],
        [
            "2026-01-31", "2026-01-31T10:00Z", "2026-01-31T24:00:00Z", "2026-01-31T10:60:00Z", "2026-01-31T23:59:60Z",
            "2026-02-29T10:00:00Z", "2026-01-31T10:00:00+0530", "2026-01-31T10:00:00+24:00", "2026-01-31T10:00:00+05:60",
            "2026-01-31T10:00:00.", "2026-01-31T10:00:00,5Z", "2026-01-31 10:00:00Z", "2026-01-31T10:00:00 Z",
            "20260131T100000Z", "2026-01-31T10:00:00Z\n", "2026-01-31T10:00:00UTC", "2026-01-31T1٠:00:00Z", 1769853600, None,
        ],
    ),
}  # fmt: skip
VALUE_CASES = [
    (field_type, value, is_valid)
    for field_type, lists in VALUES.items()
    for is_valid, values in zip((True, False), lists, strict=True)
    for value in values
]


def test_value_cases_cover_every_field_type() -> None:
    assert set(VALUES) == set(FieldType)


@pytest.mark.parametrize(("field_type", "value", "valid"), VALUE_CASES)
def test_is_valid_accepts_values_of_type_only(field_type: FieldType, value: Any, valid: bool) -> None:
    assert result_schema.is_valid(field_type, value) is valid
    assert check_rows([ResultField("a", field_type)], [{"a": value}]).valid is valid
    assert check_rows([ResultField("a", field_type, optional=True)], [{"a": value}]).valid is (valid or value is None)
    assert check_rows([ResultField("a", field_type, array=True)], [{"a": [value]}]).valid is valid
    if not isinstance(value, list):
        assert not check_rows([ResultField("a", field_type, array=True)], [{"a": value}]).valid


@pytest.mark.parametrize("year", [0, 1, 4, 100, 400, 1000, 1900, 2000, 2023, 2024, 2100, 9996, 9999])
def test_is_valid_accepts_calendar_dates_only(year: int) -> None:
    for month in range(14):
        for day in range(34):
            text = f"{year:04}-{month:02}-{day:02}"
            exists = parse_reference(f"{text}T00:00:00")
            assert (result_schema.is_valid(DATE, text), result_schema.is_valid(DATETIME, f"{text}T00:00:00Z")) == (
                exists,
                exists,
            ), text


def error(row: int | None, field: str | None, expected: str | None, actual: str | None, message: str) -> dict[str, Any]:
    index = ({} if row is None else {"row": row}) | ({} if field is None else {"field": field})
    return index | {"expected": expected, "actual": actual, "message": message}


TAGS = ResultField("tags", NUMBER, array=True)


@pytest.mark.parametrize(
    ("fields", "rows", "errors"),
    [
        ([A], [], []),
        ([A], [{"a": "x", "more": 1}], []),
        ([C], [{}, {"c": None}], []),
        ([A], [{}], [error(0, "a", "string", None, "Missing required field: a")]),
        ([A], [{"a": "x"}, {"a": None}], [error(1, "a", "string", "null", "Type mismatch for field a")]),
        ([A], [{"a": 1}], [error(0, "a", "string", "number", "Type mismatch for field a")]),
        ([C], [{"c": "tomorrow"}], [error(0, "c", "date", "string", "Type mismatch for field c")]),
        ([B], [{"b": True}], [error(0, "b", "number", "boolean", "Type mismatch for field b")]),
        ([B], [{"b": math.nan}], [error(0, "b", "number", "non-finite number", "Type mismatch for field b")]),
        ([B], [{"b": {}}], [error(0, "b", "number", "object", "Type mismatch for field b")]),
        ([B], [{"b": [1]}], [error(0, "b", "number", "array", "Type mismatch for field b")]),
        ([TAGS], [{"tags": []}, {"tags": [1, 2]}], []),
        ([TAGS], [{"tags": 1}], [error(0, "tags", "number[]", "number", "Type mismatch for field tags")]),
        ([TAGS], [{"tags": [1, "x", None]}], [error(0, "tags", "number[]", "array with string", "Type mismatch for field tags")]),
        ([TAGS], [{"tags": [1, None]}], [error(0, "tags", "number[]", "array with null", "Type mismatch for field tags")]),
        ([TAGS], [{"tags": [[1]]}], [error(0, "tags", "number[]", "array with array", "Type mismatch for field tags")]),
        ([A], ["a", {"a": "x"}, None], [error(0, None, "object", "string", "Row must be object"), error(2, None, "object", "null", "Row must be object")]),
        ([A], {"a": "x"}, [error(None, None, "array", "object", "Result must be array")]),
        ([A], None, [error(None, None, "array", "null", "Result must be array")]),
        ([A, B], [{"b": "x"}], [error(0, "a", "string", None, "Missing required field: a"), error(0, "b", "number", "string", "Type mismatch for field b")]),
    ],
)  # fmt: skip
def test_check_rows_reports_missing_and_mismatched_fields(
    fields: list[ResultField], rows: Any, errors: list[dict[str, Any]]
) -> None:
    verdict = check_rows(fields, rows)
    assert (list(verdict.errors), verdict.count, verdict.valid) == (errors, len(errors), not errors)
    assert verdict.as_json() == {"valid": not errors, "error_count": len(errors), "errors": errors}


def test_check_rows_strict_rejects_undeclared_members() -> None:
    rows = [{"a": "x", "b": 1, "\ud800": None}, {"a": "x"}]
    assert check_rows([A], rows).valid
    assert list(check_rows([A], rows, strict=True).errors) == [
        error(0, "b", None, "number", "Unexpected field: b"),
        error(0, "\\ud800", None, "null", "Unexpected field: \\ud800"),
    ]


def test_check_rows_counts_all_errors_and_describes_first_hundred() -> None:
    verdict = check_rows([A, B], [{"a": 1}] * 75)
    assert (verdict.valid, verdict.count, len(verdict.errors)) == (False, 150, MAX_DESCRIBED)
    assert [difference["row"] for difference in verdict.errors] == [number for number in range(50) for _ in range(2)]


def test_check_rows_never_reports_values() -> None:
    secret = "4111-1111"
    rows = [{"a": [secret], "b": secret, "c": secret, "x": secret}, secret, {"b": {secret: secret}}]
    assert secret not in repr(check_rows([A, B, C], rows, strict=True))


ORACLE: dict[FieldType, Callable[[Any], bool]] = {
    STRING: lambda it: type(it) is str,
    NUMBER: lambda it: type(it) in (int, float) and it - it == 0,
    BOOLEAN: lambda it: type(it) is bool,
    DATE: lambda it: type(it) is str and len(it) == 10 and parse_reference(f"{it}T00:00:00"),
    DATETIME: lambda it: type(it) is str and len(it) > 18 and parse_reference(it),
}
CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.floats(), st.text(max_size=2),
    st.from_regex(r"(2024|2026)-0[0-3]-(2[89]|3[0-2])", fullmatch=True),
    st.from_regex(r"2026-0[12]-29T(0|2)[0-5]:59:59(\.5)?(Z|[+]01:00)?", fullmatch=True),
)  # fmt: skip


def parse_reference(text: str) -> bool:
    if not re.fullmatch(r"[\d:T.Z+-]+", text, re.ASCII):
        return False
    try:
        return bool(datetime.fromisoformat(text))
    except ValueError:
        return False


@given(FIELDS, st.lists(st.dictionaries(st.sampled_from("abcdefg"), CELLS | st.lists(CELLS, max_size=2)), max_size=4))
def test_check_rows_agrees_with_reference_implementation(
    fields: tuple[ResultField, ...], rows: list[dict[str, Any]]
) -> None:
    def is_accepted(field: ResultField, row: dict[str, Any]) -> bool:
        if row.get(field.name) is None:
            return field.optional
        cells = row[field.name] if field.array else [row[field.name]]
        return isinstance(cells, list) and all(ORACLE[field.type](cell) for cell in cells)

    invalid = [
        (number, field.name) for number, row in enumerate(rows) for field in fields if not is_accepted(field, row)
    ]
    extra = sum(1 for row in rows for name in row if name not in {field.name for field in fields})
    verdict = check_rows(fields, rows)
    assert [(difference["row"], difference["field"]) for difference in verdict.errors] == invalid
    assert check_rows(fields, rows, strict=True).count == len(invalid) + extra
