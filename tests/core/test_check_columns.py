"""Columns and the same rows as JSON have the same validation report."""

import math
import re
from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from penstock.core import result_schema
from penstock.core.result_schema import (
    MAX_DESCRIBED,
    ColumnChecker,
    FieldType,
    ResultField,
    ValidationReport,
    check_batches,
    check_rows,
    schema_mismatches,
)

STRING, NUMBER, BOOLEAN, DATE, DATETIME = FieldType
TEXT = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
LISTS = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view]


def validate(
    fields: Sequence[ResultField], table: pa.Table, *, strict: bool = False, rows: int | None = None
) -> ValidationReport:
    return check_batches(fields, table.schema, table.to_batches(max_chunksize=rows), strict=strict)


def errors_of(
    fields: Sequence[ResultField], table: pa.Table, *, strict: bool = False
) -> list[tuple[int, str, str | None]]:
    report = validate(fields, table, strict=strict)
    assert report.count == len(report.errors)
    return [(error["row"], error["field"], error["actual"]) for error in report.errors]


def single_column(data_type: pa.DataType, *values: Any) -> pa.Table:
    return pa.table({"a": pa.array(values, data_type)})


# -- column types -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data_type", TEXT, ids=str)
def test_check_batches_accepts_every_arrow_text_type_as_string(data_type: pa.DataType) -> None:
    assert errors_of([ResultField("a", STRING)], single_column(data_type, "", "x", None)) == [(2, "a", "null")]


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (pa.int8(), -128), (pa.uint64(), 2**64 - 1), (pa.int64(), -(2**63)), (pa.float16(), 0.5), (pa.float32(), 0.5),
        (pa.float64(), 1e308), (pa.decimal128(38, 0), Decimal(10**38 - 1)), (pa.decimal256(50, 2), Decimal("0.01")),
        (pa.decimal32(4, 2), Decimal("0.01")),
    ],
)  # fmt: skip
def test_check_batches_accepts_every_arrow_number_type_as_number_only(data_type: pa.DataType, value: Any) -> None:
    table = single_column(data_type, value, None)
    assert errors_of([ResultField("a", NUMBER)], table) == [(1, "a", "null")]
    for other in (STRING, BOOLEAN, DATE, DATETIME):
        assert errors_of([ResultField("a", other, optional=True)], table) == [(0, "a", "number")]


@pytest.mark.parametrize("data_type", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_check_batches_rejects_non_finite_numbers(data_type: pa.DataType) -> None:
    table = single_column(data_type, 1.0, math.nan, math.inf, None, -math.inf)
    reported = [(1, "a", "non-finite number"), (2, "a", "non-finite number"), (4, "a", "non-finite number")]
    assert errors_of([ResultField("a", NUMBER, optional=True)], table) == reported


def test_check_batches_distinguishes_booleans_from_numbers() -> None:
    assert errors_of([ResultField("a", NUMBER)], single_column(pa.bool_(), True)) == [(0, "a", "boolean")]
    assert errors_of([ResultField("a", BOOLEAN)], single_column(pa.int8(), 1)) == [(0, "a", "number")]
    assert errors_of([ResultField("a", BOOLEAN)], single_column(pa.bool_(), True, False)) == []


TIMESTAMPS = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Asia/Kolkata")]


@pytest.mark.parametrize("data_type", [pa.date32(), pa.date64()], ids=str)
def test_check_batches_accepts_dates_as_date_only(data_type: pa.DataType) -> None:
    table = single_column(data_type, date(2026, 1, 31), date(1, 1, 1), date(9999, 12, 31))
    assert errors_of([ResultField("a", DATE)], table) == []
    for other in (STRING, DATETIME):
        assert errors_of([ResultField("a", other)], table) == [(row, "a", "date") for row in range(3)]


@pytest.mark.parametrize("data_type", TIMESTAMPS, ids=str)
def test_check_batches_accepts_timestamps_of_every_unit_and_zone_as_datetime_only(data_type: pa.DataType) -> None:
    table = single_column(data_type, datetime(2026, 1, 31, 10), None)
    assert errors_of([ResultField("a", DATETIME)], table) == [(1, "a", "null")]
    for other in (STRING, DATE):
        assert errors_of([ResultField("a", other, optional=True)], table) == [(0, "a", "datetime")]


DAY = 86_400


@pytest.mark.parametrize(
    ("data_type", "field", "ticks", "ticks_per_day"),
    [
        (pa.date32(), DATE, pa.int32(), 1),
        (pa.date64(), DATE, pa.int64(), DAY * 1000),
        (pa.timestamp("s"), DATETIME, pa.int64(), DAY),
        (pa.timestamp("ms", "UTC"), DATETIME, pa.int64(), DAY * 1000),
        (pa.timestamp("us"), DATETIME, pa.int64(), DAY * 10**6),
    ],
)
def test_check_batches_reports_years_outside_of_four_digits_as_out_of_range(
    data_type: Any, field: FieldType, ticks: Any, ticks_per_day: int
) -> None:
    first, after = date(1, 1, 1).toordinal() - date(1970, 1, 1).toordinal(), date(9999, 12, 31).toordinal() - 719_162
    values = [
        first * ticks_per_day,
        (first - 1) * ticks_per_day,
        (after - 1) * ticks_per_day,
        after * ticks_per_day,
        None,
    ]
    table = pa.table({"a": pa.array(values, ticks).view(data_type)})
    result = f"{field} out of range"
    assert errors_of([ResultField("a", field, optional=True)], table) == [(1, "a", result), (3, "a", result)]


@pytest.mark.parametrize("data_type", TEXT, ids=str)
def test_check_batches_accepts_text_in_date_and_datetime_format(data_type: pa.DataType) -> None:
    days, moments = ["2026-01-31", "2024-02-29", None], ["2026-01-31T10:00:00.5+05:30", "2024-02-29t23:59:59z", None]
    assert errors_of([ResultField("a", DATE, optional=True)], single_column(data_type, *days)) == []
    assert errors_of([ResultField("a", DATETIME, optional=True)], single_column(data_type, *moments)) == []
    bad = ["2026-02-30", "2026-01-31", "2023-02-29T00:00:00Z", "", None, "0000-01-01"]
    assert [row for row, _, _ in errors_of([ResultField("a", DATE)], single_column(data_type, *bad))] == [0, 2, 3, 4, 5]
    assert [row for row, _, _ in errors_of([ResultField("a", DATETIME)], single_column(data_type, *bad))] == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]


@given(
    st.lists(
        st.from_regex(r"[0-9+ -]{4}[-/ ]?[0-9]{1,2}-?[0-3 ][0-9]{1,2}|[0-9T:Z.-]{9,12}", fullmatch=True), max_size=6
    )
)
@pytest.mark.parametrize("data_type", [DATE, DATETIME])
def test_check_batches_and_is_valid_agree_on_text(data_type: FieldType, texts: list[str]) -> None:
    field = ResultField("a", data_type)
    assert errors_of([field], single_column(pa.string(), *texts)) == [
        (row, "a", "string") for row, text in enumerate(texts) if not result_schema.is_valid(data_type, text)
    ]
    for text in texts:  # a column of one text, which takes the fast path
        assert validate([field], single_column(pa.string(), text)).valid is result_schema.is_valid(data_type, text)


@pytest.mark.parametrize(
    "many", [*LISTS, lambda item: pa.list_(item, 2)], ids=["list", "large", "view", "large view", "fixed"]
)
def test_check_batches_validates_each_array_item(many: Any) -> None:
    table = single_column(many(pa.float64()), [1.0, 2.0], [1.0, math.nan], [None, 1.0], None, [3.0, 4.0]).slice(1)
    reported = [(0, "a", "array with non-finite number"), (1, "a", "array with null")]
    assert errors_of([ResultField("a", NUMBER, optional=True, array=True)], table) == reported
    assert errors_of([ResultField("a", NUMBER, array=True)], table) == [*reported, (2, "a", "null")]
    assert [actual for _, _, actual in errors_of([ResultField("a", NUMBER)], table)] == [
        "array",
        "array",
        "null",
        "array",
    ]
    assert [actual for _, _, actual in errors_of([ResultField("a", STRING, array=True)], table)] == [
        "array with number", "array with null", "null", "array with number",
    ]  # fmt: skip


def test_check_batches_accepts_empty_arrays_of_any_type() -> None:
    table = single_column(pa.list_(pa.list_(pa.int8())), [], [[]], None)
    assert errors_of([ResultField("a", STRING, optional=True, array=True)], table) == [(1, "a", "array with array")]


def test_check_batches_ignores_values_behind_nulls() -> None:
    masked = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 4], pa.int32()), pa.array([1.0, math.nan, 2.0, 3.0]), mask=pa.array([False, True, False])
    )
    table = pa.table({"a": masked, "b": pa.DictionaryArray.from_arrays([0, 1, None], ["x", None])[:3]})
    fields = [ResultField("a", NUMBER, optional=True, array=True), ResultField("b", STRING)]
    assert errors_of(fields, table) == [(1, "b", "null"), (2, "b", "null")]


@pytest.mark.parametrize(
    ("data_type", "value", "result"),
    [
        (pa.binary(), b"x", "binary"),
        (pa.time64("us"), time(10), "time64[us]"),
        (pa.struct({"x": pa.int8()}), {"x": 1}, "object"),
        (pa.map_(pa.string(), pa.int8()), [("x", 1)], "object"),
        (pa.list_(pa.struct({"x": pa.int8()})), [{"x": 1}], "array"),
    ],
    ids=str,
)
def test_check_batches_rejects_unsupported_types_unless_null(data_type: pa.DataType, value: Any, result: str) -> None:
    for field in FieldType:
        assert errors_of([ResultField("a", field, optional=True)], single_column(data_type, value, None)) == [
            (0, "a", result)
        ]


@pytest.mark.parametrize(
    ("expression", "field", "result"),
    [
        ("1::HUGEINT", NUMBER, None), ("1::UHUGEINT", NUMBER, None), ("18446744073709551615::UBIGINT", NUMBER, None),
        ("sum(1::BIGINT)", NUMBER, None), ("1.5", NUMBER, None), ("avg(1)", NUMBER, None), ("count(*)", NUMBER, None),
        ("uuid()", STRING, None), ("'b'::ENUM('a', 'b')", STRING, None), ("'{}'::JSON", STRING, None),
        ("'2026-01-31'::ENUM('2026-01-31')", DATE, None), ("DATE '2026-01-31'", DATE, None),
        ("TIMESTAMP '2026-01-31'", DATETIME, None), ("TIMESTAMP_NS '2026-01-31'", DATETIME, None),
        ("TIMESTAMPTZ '2026-01-31 00:00:00+00'", DATETIME, None), ("true", BOOLEAN, None), ("NULL", STRING, "null"),
        ("DATE 'infinity'", DATE, "date out of range"), ("TIMESTAMP '-infinity'", DATETIME, "datetime out of range"),
        ("'nan'::FLOAT", NUMBER, "non-finite number"), ("'-inf'::DOUBLE", NUMBER, "non-finite number"),
        ("'x'::BLOB", STRING, "binary"), ("{'x': 1}", STRING, "object"), ("[1]", NUMBER, "array"),
    ],
)  # fmt: skip
def test_check_batches_validates_duckdb_results_by_value(expression: str, field: FieldType, result: str | None) -> None:
    with duckdb.connect() as db:
        table = db.sql(f"SELECT {expression} AS a").to_arrow_table()
    assert errors_of([ResultField("a", field)], table) == ([] if result is None else [(0, "a", result)])


# -- rows, fields and counts ------------------------------------------------------------------------------------------

A, B, C = ResultField("a", STRING), ResultField("b", NUMBER), ResultField("c", DATE, optional=True)
TWO = pa.table({"b": pa.array([1, None, 3]), "more": [True, False, None], "a": ["x", None, "z"]})


def test_check_batches_reports_row_field_expected_and_actual_as_in_contract() -> None:
    assert validate([ResultField("z", DATE, array=True), A, B, C], TWO.slice(0, 2)).as_json() == {
        "valid": False,
        "error_count": 4,
        "errors": [
            {"row": 0, "field": "z", "expected": "date[]", "actual": None, "message": "Missing required field: z"},
            {"row": 1, "field": "z", "expected": "date[]", "actual": None, "message": "Missing required field: z"},
            {"row": 1, "field": "a", "expected": "string", "actual": "null", "message": "Type mismatch for field a"},
            {"row": 1, "field": "b", "expected": "number", "actual": "null", "message": "Type mismatch for field b"},
        ],
    }


def test_check_batches_strict_rejects_undeclared_columns() -> None:
    assert validate([A, B], TWO.slice(0, 1)).valid
    reported = [(0, "more", "boolean"), (1, "a", "null"), (1, "b", "null"), (1, "more", "boolean"), (2, "more", "null")]
    assert errors_of([A, B], TWO, strict=True) == reported
    assert validate([A, B], TWO, strict=True).errors[0]["message"] == "Unexpected field: more"


@pytest.mark.parametrize("strict", [False, True])
def test_check_batches_accepts_results_without_rows(strict: bool) -> None:
    assert validate([A, B, C, ResultField("z", DATE)], TWO.slice(0, 0), strict=strict) == ValidationReport(0, ())
    assert check_batches([A, B], TWO.schema, [], strict=strict).valid


def test_check_batches_counts_all_errors_and_describes_first_hundred_for_any_batches() -> None:
    table = pa.table({"a": [None] * 75, "b": [None] * 75}, pa.schema({"a": pa.string(), "b": pa.int64()}))
    for rows in (1, 7, 50, None):
        report = validate([A, B], table, rows=rows)
        assert (report.count, len(report.errors)) == (150, MAX_DESCRIBED)
        assert [(error["row"], error["field"]) for error in report.errors] == [
            (row, name) for row in range(50) for name in "ab"
        ]


def test_column_checker_report_is_available_after_every_batch() -> None:
    checker = ColumnChecker([A], TWO.schema)
    reports = []
    for batch in TWO.to_batches(max_chunksize=1):
        checker.add(batch)
        reports.append((checker.report.count, [error["row"] for error in checker.report.errors]))
    assert reports == [(0, []), (1, [1]), (1, [1])]


def test_check_batches_never_reports_values() -> None:
    secret = "4111-1111"
    table = pa.table({"a": [[secret]], "b": [secret], "c": [secret], "x": [{"y": secret}]})
    report = validate([A, B, C], table, strict=True)
    assert report.count == 4
    assert secret not in repr(report)


def test_check_batches_validates_a_million_rows_of_a_hundred_fields() -> None:
    rows, bad = 1_000_000, 999_983
    numbers = np.arange(rows, dtype=float)
    numbers[bad] = math.nan
    days = pa.array(["2026-01-31"] * bad + ["2026-02-30"] * (rows - bad))
    assert errors_of([B], pa.table({"b": numbers})) == [(bad, "b", "non-finite number")]
    assert validate([C], pa.table({"c": days}), rows=65_536).count == rows - bad

    fields = [ResultField(f"f{n}", NUMBER) for n in range(120)]
    wide = pa.table({field.name: [1, 2] for field in fields if field.name != "f60"})
    assert errors_of(fields, wide) == [(0, "f60", None), (1, "f60", None)]


# -- columns and rows -------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(["", "x", "2026-01-31", "2026-02-30", "2024-02-29T10:00:00Z", "2023-02-29T10:00:00", "1", "é"])
TIMES = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)).map(lambda time: time.replace(microsecond=0))
SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *((data_type, WORDS) for data_type in TEXT),
    *((data_type, st.integers(0, 100)) for data_type in (pa.int8(), pa.int64(), pa.uint64())),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.decimal128(5, 2), st.decimals(-100, 100, places=2)),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates()),
    *((data_type, TIMES) for data_type in TIMESTAMPS),
    (pa.binary(), st.binary(max_size=2)),
    (pa.struct({"x": pa.int8()}), st.just({"x": 1})),
    (pa.null(), st.none()),
]


@st.composite
def draw_column(draw: st.DrawFn, rows: int) -> tuple[pa.DataType, list[Any]]:
    data_type, values = draw(st.sampled_from(SCALARS))
    if draw(st.booleans()) and not (pa.types.is_string_view(data_type) or pa.types.is_null(data_type)):
        data_type = draw(st.sampled_from(LISTS))(data_type)
        values = st.lists(st.none() | values if draw(st.booleans()) else values, max_size=3)
    cells = st.none() | values if draw(st.booleans()) else values
    return data_type, draw(st.lists(cells, min_size=rows, max_size=rows))


@st.composite
def draw_result(draw: st.DrawFn) -> tuple[list[ResultField], pa.Table, list[dict[str, Any]]]:
    """Draw fields, a table, and its rows as JSON."""
    rows = draw(st.integers(0, 6))
    columns = {name: draw(draw_column(rows)) for name in draw(st.sets(st.sampled_from("abcdef"), min_size=1))}
    fields = []
    for name in draw(st.permutations("abcde")):
        data_type = result_schema.field_type(columns[name][0]) if name in columns else None
        if data_type is None or draw(st.integers(0, 3)) == 0:
            data_type = draw(st.sampled_from(FieldType)), draw(st.booleans())
        elif data_type[0] is STRING and draw(st.booleans()):
            data_type = draw(st.sampled_from([DATE, DATETIME])), data_type[1]
        fields.append(ResultField(name, data_type[0], draw(st.booleans()), data_type[1]))
    fields_by_name = {field.name: field for field in fields}
    table = pa.table({name: pa.array(values, data_type) for name, (data_type, values) in columns.items()})
    json_rows = [
        {name: as_json(values[row], fields_by_name.get(name)) for name, (_, values) in columns.items()}
        for row in range(rows)
    ]
    return fields, table, json_rows


def as_json(value: Any, field: ResultField | None, *, in_array: bool = False) -> Any:
    """Convert a value to JSON: dates and times become text if they are declared; otherwise they become objects, like bytes."""
    declared_type = field.type if field is not None and field.array is in_array else None
    match value:
        case list():
            return [as_json(item, field, in_array=True) for item in value]
        case datetime():
            return value.isoformat() if declared_type is DATETIME else {}
        case date():
            return value.isoformat() if declared_type is DATE else {}
        case bytes():
            return {}
    return value


def without_text_types(error: dict[str, Any]) -> dict[str, Any]:
    actual = error["actual"]
    return error | {"actual": actual and re.sub("(date|datetime|binary)$", "object", actual)}


@settings(max_examples=examples(200, soak=2_000))
@given(draw_result(), st.booleans(), st.integers(1, 4))
def test_check_batches_and_check_rows_agree_on_random_results(result: Any, strict: bool, batch_rows: int) -> None:
    fields, table, rows = result
    report, expected = validate(fields, table, strict=strict, rows=batch_rows), check_rows(fields, rows, strict=strict)
    assert report.count == expected.count
    assert [without_text_types(error) for error in report.errors] == list(expected.errors)


@settings(max_examples=examples(100, soak=1_000))
@given(draw_result(), st.booleans())
def test_schema_mismatches_hold_for_every_row_with_a_value(result: Any, strict: bool) -> None:
    fields, table, rows = result
    errors = {(error["row"], error["field"]) for error in validate(fields, table, strict=strict).errors}
    for problem in schema_mismatches(fields, table.schema, strict=strict):
        for number, row in enumerate(rows):
            assert (number, problem["field"]) in errors or row[problem["field"]] in (None, [])


# -- schema mismatches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "data_type", "actual"),
    [
        (A, pa.string(), None), (A, pa.dictionary(pa.int8(), pa.string()), None), (A, pa.int64(), "number"),
        (A, pa.date32(), "date"), (A, pa.binary(), "binary"), (A, pa.null(), "null"), (A, pa.list_(pa.string()), "string[]"),
        (ResultField("a", STRING, optional=True), pa.null(), None), (ResultField("a", STRING, optional=True), pa.int8(), "number"),
        (ResultField("a", NUMBER), pa.bool_(), "boolean"), (ResultField("a", NUMBER), pa.decimal128(38), None),
        (ResultField("a", BOOLEAN), pa.int8(), "number"), (ResultField("a", BOOLEAN), pa.bool_(), None),
        (ResultField("a", DATE), pa.string(), None), (ResultField("a", DATE), pa.date64(), None),
        (ResultField("a", DATE), pa.timestamp("us"), "datetime"), (ResultField("a", DATETIME), pa.timestamp("s", "UTC"), None),
        (ResultField("a", DATETIME), pa.large_string(), None), (ResultField("a", DATETIME), pa.date32(), "date"),
        (ResultField("a", DATE, array=True), pa.list_(pa.string()), None), (ResultField("a", DATE, array=True), pa.string(), "string"),
        (ResultField("a", DATE, array=True), pa.list_(pa.int8()), "number[]"), (ResultField("a", DATE, array=True), pa.list_(pa.null()), None),
        (ResultField("a", DATE, array=True), pa.list_(pa.list_(pa.date32())), "array"),
        (ResultField("a", STRING), pa.struct({"x": pa.int8()}), "object"),
    ],
    ids=str,
)  # fmt: skip
def test_schema_mismatches_reports_incompatible_types_without_rows(
    field: ResultField, data_type: pa.DataType, actual: str | None
) -> None:
    reported = {"field": "a", "expected": field.expected, "actual": actual, "message": "Type mismatch for field a"}
    assert schema_mismatches([field], pa.schema({"a": data_type})) == ([] if actual is None else [reported])


def test_schema_mismatches_reports_missing_required_columns_without_rows() -> None:
    reported = {"field": "b", "expected": "number", "actual": None, "message": "Missing required field: b"}
    assert schema_mismatches([C, B, A], pa.schema({"a": pa.string(), "B": pa.int8()})) == [reported]


def test_schema_mismatches_strict_reports_undeclared_columns() -> None:
    schema = pa.schema({"a": pa.string(), "more": pa.list_(pa.int8())})
    assert schema_mismatches([A], schema) == []
    assert schema_mismatches([A], schema, strict=True) == [
        {"field": "more", "expected": None, "actual": "number[]", "message": "Unexpected field: more"}
    ]
