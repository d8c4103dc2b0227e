"""A result that comes as columns gets the verdict that its rows would get as JSON."""

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

from conftest import SOAK
from penstock.core import result_schema as contract
from penstock.core.result_schema import (MAX_DESCRIBED, Checker, Field, FieldType, Verdict, certain_mismatches, check_batches, check_rows)

STRING, NUMBER, BOOLEAN, DATE, DATETIME = FieldType
TEXT = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
LISTS = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view]


def verdict(fields: Sequence[Field], table: pa.Table, *, strict: bool = False, rows: int | None = None) -> Verdict:
    return check_batches(fields, table.schema, table.to_batches(max_chunksize=rows), strict=strict)


def wrong(fields: Sequence[Field], table: pa.Table, *, strict: bool = False) -> list[tuple[int, str, str | None]]:
    found = verdict(fields, table, strict=strict)
    assert found.count == len(found.errors)
    return [(it["row"], it["field"], it["actual"]) for it in found.errors]


def one(kind: pa.DataType, *values: Any) -> pa.Table:
    return pa.table({"a": pa.array(values, kind)})


# -- what a column may hold -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TEXT, ids=str)
def test_text_of_every_make_is_a_string(kind: pa.DataType) -> None:
    assert wrong([Field("a", STRING)], one(kind, "", "x", None)) == [(2, "a", "null")]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int8(), -128), (pa.uint64(), 2**64 - 1), (pa.int64(), -(2**63)), (pa.float16(), 0.5), (pa.float32(), 0.5),
        (pa.float64(), 1e308), (pa.decimal128(38, 0), Decimal(10**38 - 1)), (pa.decimal256(50, 2), Decimal("0.01")),
        (pa.decimal32(4, 2), Decimal("0.01")),
    ],
)  # fmt: skip
def test_numbers_of_every_make_are_numbers_and_nothing_else(kind: pa.DataType, value: Any) -> None:
    table = one(kind, value, None)
    assert wrong([Field("a", NUMBER)], table) == [(1, "a", "null")]
    for other in (STRING, BOOLEAN, DATE, DATETIME):
        assert wrong([Field("a", other, optional=True)], table) == [(0, "a", "number")]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_what_is_not_finite_is_no_number(kind: pa.DataType) -> None:
    table = one(kind, 1.0, math.nan, math.inf, None, -math.inf)
    told = [(1, "a", "non-finite number"), (2, "a", "non-finite number"), (4, "a", "non-finite number")]
    assert wrong([Field("a", NUMBER, optional=True)], table) == told


def test_a_boolean_is_no_number_and_a_number_no_boolean() -> None:
    assert wrong([Field("a", NUMBER)], one(pa.bool_(), True)) == [(0, "a", "boolean")]
    assert wrong([Field("a", BOOLEAN)], one(pa.int8(), 1)) == [(0, "a", "number")]
    assert wrong([Field("a", BOOLEAN)], one(pa.bool_(), True, False)) == []


MOMENTS = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Asia/Kolkata")]


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()], ids=str)
def test_days_are_dates_and_not_instants_or_text(kind: pa.DataType) -> None:
    table = one(kind, date(2026, 1, 31), date(1, 1, 1), date(9999, 12, 31))
    assert wrong([Field("a", DATE)], table) == []
    for other in (STRING, DATETIME):
        assert wrong([Field("a", other)], table) == [(row, "a", "date") for row in range(3)]


@pytest.mark.parametrize("kind", MOMENTS, ids=str)
def test_instants_of_every_unit_and_zone_are_datetimes_and_not_dates_or_text(kind: pa.DataType) -> None:
    table = one(kind, datetime(2026, 1, 31, 10), None)
    assert wrong([Field("a", DATETIME)], table) == [(1, "a", "null")]
    for other in (STRING, DATE):
        assert wrong([Field("a", other, optional=True)], table) == [(0, "a", "datetime")]


DAY = 86_400


@pytest.mark.parametrize(
    ("kind", "field", "ticks", "a_day"),
    [
        (pa.date32(), DATE, pa.int32(), 1),
        (pa.date64(), DATE, pa.int64(), DAY * 1000),
        (pa.timestamp("s"), DATETIME, pa.int64(), DAY),
        (pa.timestamp("ms", "UTC"), DATETIME, pa.int64(), DAY * 1000),
        (pa.timestamp("us"), DATETIME, pa.int64(), DAY * 10**6),
    ],
)
def test_a_year_that_four_digits_cannot_name_is_out_of_range(
    kind: Any, field: FieldType, ticks: Any, a_day: int
) -> None:
    first, after = date(1, 1, 1).toordinal() - date(1970, 1, 1).toordinal(), date(9999, 12, 31).toordinal() - 719_162
    values = [first * a_day, (first - 1) * a_day, (after - 1) * a_day, after * a_day, None]
    table = pa.table({"a": pa.array(values, ticks).view(kind)})
    said = f"{field} out of range"
    assert wrong([Field("a", field, optional=True)], table) == [(1, "a", said), (3, "a", said)]


@pytest.mark.parametrize("kind", TEXT, ids=str)
def test_text_is_a_date_or_a_datetime_if_it_reads_as_one(kind: pa.DataType) -> None:
    days, moments = ["2026-01-31", "2024-02-29", None], ["2026-01-31T10:00:00.5+05:30", "2024-02-29t23:59:59z", None]
    assert wrong([Field("a", DATE, optional=True)], one(kind, *days)) == []
    assert wrong([Field("a", DATETIME, optional=True)], one(kind, *moments)) == []
    bad = ["2026-02-30", "2026-01-31", "2023-02-29T00:00:00Z", "", None, "0000-01-01"]
    assert [row for row, _, _ in wrong([Field("a", DATE)], one(kind, *bad))] == [0, 2, 3, 4, 5]
    assert [row for row, _, _ in wrong([Field("a", DATETIME)], one(kind, *bad))] == [0, 1, 2, 3, 4, 5]


@given(
    st.lists(
        st.from_regex(r"[0-9+ -]{4}[-/ ]?[0-9]{1,2}-?[0-3 ][0-9]{1,2}|[0-9T:Z.-]{9,12}", fullmatch=True), max_size=6
    )
)
@pytest.mark.parametrize("kind", [DATE, DATETIME])
def test_text_is_judged_alike_as_value_and_as_column(kind: FieldType, texts: list[str]) -> None:
    field = Field("a", kind)
    assert wrong([field], one(pa.string(), *texts)) == [
        (row, "a", "string") for row, text in enumerate(texts) if not contract.good(kind, text)
    ]
    for text in texts:  # alone, no other one spoils the quick way
        assert verdict([field], one(pa.string(), text)).valid is contract.good(kind, text)


@pytest.mark.parametrize(
    "many", [*LISTS, lambda item: pa.list_(item, 2)], ids=["list", "large", "view", "large view", "fixed"]
)
def test_items_of_arrays_are_judged_one_by_one(many: Any) -> None:
    table = one(many(pa.float64()), [1.0, 2.0], [1.0, math.nan], [None, 1.0], None, [3.0, 4.0]).slice(1)
    told = [(0, "a", "array with non-finite number"), (1, "a", "array with null")]
    assert wrong([Field("a", NUMBER, optional=True, array=True)], table) == told
    assert wrong([Field("a", NUMBER, array=True)], table) == [*told, (2, "a", "null")]
    assert [actual for _, _, actual in wrong([Field("a", NUMBER)], table)] == ["array", "array", "null", "array"]
    assert [actual for _, _, actual in wrong([Field("a", STRING, array=True)], table)] == [
        "array with number", "array with null", "null", "array with number",
    ]  # fmt: skip


def test_empty_arrays_are_good_whatever_they_would_hold() -> None:
    table = one(pa.list_(pa.list_(pa.int8())), [], [[]], None)
    assert wrong([Field("a", STRING, optional=True, array=True)], table) == [(1, "a", "array with array")]


def test_what_a_null_hides_is_not_judged() -> None:
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 4], pa.int32()), pa.array([1.0, math.nan, 2.0, 3.0]), mask=pa.array([False, True, False])
    )
    table = pa.table({"a": hidden, "b": pa.DictionaryArray.from_arrays([0, 1, None], ["x", None])[:3]})
    fields = [Field("a", NUMBER, optional=True, array=True), Field("b", STRING)]
    assert wrong(fields, table) == [(1, "b", "null"), (2, "b", "null")]


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (pa.binary(), b"x", "binary"),
        (pa.time64("us"), time(10), "time64[us]"),
        (pa.struct({"x": pa.int8()}), {"x": 1}, "object"),
        (pa.map_(pa.string(), pa.int8()), [("x", 1)], "object"),
        (pa.list_(pa.struct({"x": pa.int8()})), [{"x": 1}], "array"),
    ],
    ids=str,
)
def test_what_no_field_takes_is_wrong_unless_it_is_null(kind: pa.DataType, value: Any, said: str) -> None:
    for field in FieldType:
        assert wrong([Field("a", field, optional=True)], one(kind, value, None)) == [(0, "a", said)]


@pytest.mark.parametrize(
    ("expression", "field", "said"),
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
def test_what_duckdb_gives_is_judged_as_what_it_stands_for(expression: str, field: FieldType, said: str | None) -> None:
    with duckdb.connect() as db:
        table = db.sql(f"SELECT {expression} AS a").to_arrow_table()
    assert wrong([Field("a", field)], table) == ([] if said is None else [(0, "a", said)])


# -- rows, fields and counts ------------------------------------------------------------------------------------------

A, B, C = Field("a", STRING), Field("b", NUMBER), Field("c", DATE, optional=True)
TWO = pa.table({"b": pa.array([1, None, 3]), "more": [True, False, None], "a": ["x", None, "z"]})


def test_a_verdict_tells_row_field_expected_and_actual_in_the_words_of_the_contract() -> None:
    assert verdict([Field("z", DATE, array=True), A, B, C], TWO.slice(0, 2)).as_json() == {
        "valid": False,
        "error_count": 4,
        "errors": [
            {"row": 0, "field": "z", "expected": "date[]", "actual": None, "message": "Missing required field: z"},
            {"row": 1, "field": "z", "expected": "date[]", "actual": None, "message": "Missing required field: z"},
            {"row": 1, "field": "a", "expected": "string", "actual": "null", "message": "Type mismatch for field a"},
            {"row": 1, "field": "b", "expected": "number", "actual": "null", "message": "Type mismatch for field b"},
        ],
    }


def test_columns_that_nobody_promised_are_refused_if_strict() -> None:
    assert verdict([A, B], TWO.slice(0, 1)).valid
    told = [(0, "more", "boolean"), (1, "a", "null"), (1, "b", "null"), (1, "more", "boolean"), (2, "more", "null")]
    assert wrong([A, B], TWO, strict=True) == told
    assert verdict([A, B], TWO, strict=True).errors[0]["message"] == "Unexpected field: more"


@pytest.mark.parametrize("strict", [False, True])
def test_a_result_without_rows_keeps_every_promise(strict: bool) -> None:
    assert verdict([A, B, C, Field("z", DATE)], TWO.slice(0, 0), strict=strict) == Verdict(0, ())
    assert check_batches([A, B], TWO.schema, [], strict=strict).valid


def test_all_errors_are_counted_and_the_first_hundred_described_whatever_the_batches() -> None:
    table = pa.table({"a": [None] * 75, "b": [None] * 75}, pa.schema({"a": pa.string(), "b": pa.int64()}))
    for rows in (1, 7, 50, None):
        found = verdict([A, B], table, rows=rows)
        assert (found.count, len(found.errors)) == (150, MAX_DESCRIBED)
        assert [(it["row"], it["field"]) for it in found.errors] == [(row, name) for row in range(50) for name in "ab"]


def test_the_verdict_is_known_after_every_batch() -> None:
    checker = Checker([A], TWO.schema)
    seen = []
    for batch in TWO.to_batches(max_chunksize=1):
        checker.add(batch)
        seen.append((checker.verdict.count, [it["row"] for it in checker.verdict.errors]))
    assert seen == [(0, []), (1, [1]), (1, [1])]


def test_no_value_is_ever_told() -> None:
    secret = "4111-1111"
    table = pa.table({"a": [[secret]], "b": [secret], "c": [secret], "x": [{"y": secret}]})
    found = verdict([A, B, C], table, strict=True)
    assert found.count == 4
    assert secret not in repr(found)


def test_a_million_rows_and_a_hundred_fields_are_judged_in_full() -> None:
    rows, bad = 1_000_000, 999_983
    numbers = np.arange(rows, dtype=float)
    numbers[bad] = math.nan
    days = pa.array(["2026-01-31"] * bad + ["2026-02-30"] * (rows - bad))
    assert wrong([B], pa.table({"b": numbers})) == [(bad, "b", "non-finite number")]
    assert verdict([C], pa.table({"c": days}), rows=65_536).count == rows - bad

    fields = [Field(f"f{n}", NUMBER) for n in range(120)]
    wide = pa.table({field.name: [1, 2] for field in fields if field.name != "f60"})
    assert wrong(fields, wide) == [(0, "f60", None), (1, "f60", None)]


# -- two ways to one verdict ------------------------------------------------------------------------------------------

WORDS = st.sampled_from(["", "x", "2026-01-31", "2026-02-30", "2024-02-29T10:00:00Z", "2023-02-29T10:00:00", "1", "é"])
INSTANTS = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)).map(lambda it: it.replace(microsecond=0))
SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *((kind, WORDS) for kind in TEXT),
    *((kind, st.integers(0, 100)) for kind in (pa.int8(), pa.int64(), pa.uint64())),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.decimal128(5, 2), st.decimals(-100, 100, places=2)),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates()),
    *((kind, INSTANTS) for kind in MOMENTS),
    (pa.binary(), st.binary(max_size=2)),
    (pa.struct({"x": pa.int8()}), st.just({"x": 1})),
    (pa.null(), st.none()),
]


@st.composite
def columns(draw: st.DrawFn, rows: int) -> tuple[pa.DataType, list[Any]]:
    kind, values = draw(st.sampled_from(SCALARS))
    if draw(st.booleans()) and not (pa.types.is_string_view(kind) or pa.types.is_null(kind)):
        kind = draw(st.sampled_from(LISTS))(kind)
        values = st.lists(st.none() | values if draw(st.booleans()) else values, max_size=3)
    cells = st.none() | values if draw(st.booleans()) else values
    return kind, draw(st.lists(cells, min_size=rows, max_size=rows))


@st.composite
def results(draw: st.DrawFn) -> tuple[list[Field], pa.Table, list[dict[str, Any]]]:
    """Fields, a table, and its rows as JSON."""
    rows = draw(st.integers(0, 6))
    drawn = {name: draw(columns(rows)) for name in draw(st.sets(st.sampled_from("abcdef"), min_size=1))}
    fields = []
    for name in draw(st.permutations("abcde")):
        kind = contract.field_type(drawn[name][0]) if name in drawn else None
        if kind is None or draw(st.integers(0, 3)) == 0:
            kind = draw(st.sampled_from(FieldType)), draw(st.booleans())
        elif kind[0] is STRING and draw(st.booleans()):
            kind = draw(st.sampled_from([DATE, DATETIME])), kind[1]
        fields.append(Field(name, kind[0], draw(st.booleans()), kind[1]))
    promised = {field.name: field for field in fields}
    table = pa.table({name: pa.array(values, kind) for name, (kind, values) in drawn.items()})
    told = [
        {name: as_json(values[row], promised.get(name)) for name, (_, values) in drawn.items()} for row in range(rows)
    ]
    return fields, table, told


def as_json(value: Any, field: Field | None, *, inside: bool = False) -> Any:
    """Days and instants are text where such are promised; elsewhere JSON has no word for them, nor for bytes."""
    promised = field.type if field is not None and field.array is inside else None
    match value:
        case list():
            return [as_json(item, field, inside=True) for item in value]
        case datetime():
            return value.isoformat() if promised is DATETIME else {}
        case date():
            return value.isoformat() if promised is DATE else {}
        case bytes():
            return {}
    return value


def in_json_words(error: dict[str, Any]) -> dict[str, Any]:
    actual = error["actual"]
    return error | {"actual": actual and re.sub("(date|datetime|binary)$", "object", actual)}


@settings(max_examples=2_000 if SOAK else 200)
@given(results(), st.booleans(), st.integers(1, 4))
def test_columns_get_the_verdict_of_their_rows(result: Any, strict: bool, at_once: int) -> None:
    fields, table, rows = result
    found, want = verdict(fields, table, strict=strict, rows=at_once), check_rows(fields, rows, strict=strict)
    assert found.count == want.count
    assert [in_json_words(error) for error in found.errors] == list(want.errors)


@settings(max_examples=1_000 if SOAK else 100)
@given(results(), st.booleans())
def test_what_is_certain_comes_true_in_every_row_that_has_a_value(result: Any, strict: bool) -> None:
    fields, table, rows = result
    wrong = {(error["row"], error["field"]) for error in verdict(fields, table, strict=strict).errors}
    for problem in certain_mismatches(fields, table.schema, strict=strict):
        for number, row in enumerate(rows):
            assert (number, problem["field"]) in wrong or row[problem["field"]] in (None, [])


# -- what is certain before any row -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "kind", "actual"),
    [
        (A, pa.string(), None), (A, pa.dictionary(pa.int8(), pa.string()), None), (A, pa.int64(), "number"),
        (A, pa.date32(), "date"), (A, pa.binary(), "binary"), (A, pa.null(), "null"), (A, pa.list_(pa.string()), "string[]"),
        (Field("a", STRING, optional=True), pa.null(), None), (Field("a", STRING, optional=True), pa.int8(), "number"),
        (Field("a", NUMBER), pa.bool_(), "boolean"), (Field("a", NUMBER), pa.decimal128(38), None),
        (Field("a", BOOLEAN), pa.int8(), "number"), (Field("a", BOOLEAN), pa.bool_(), None),
        (Field("a", DATE), pa.string(), None), (Field("a", DATE), pa.date64(), None),
        (Field("a", DATE), pa.timestamp("us"), "datetime"), (Field("a", DATETIME), pa.timestamp("s", "UTC"), None),
        (Field("a", DATETIME), pa.large_string(), None), (Field("a", DATETIME), pa.date32(), "date"),
        (Field("a", DATE, array=True), pa.list_(pa.string()), None), (Field("a", DATE, array=True), pa.string(), "string"),
        (Field("a", DATE, array=True), pa.list_(pa.int8()), "number[]"), (Field("a", DATE, array=True), pa.list_(pa.null()), None),
        (Field("a", DATE, array=True), pa.list_(pa.list_(pa.date32())), "array"),
        (Field("a", STRING), pa.struct({"x": pa.int8()}), "object"),
    ],
    ids=str,
)  # fmt: skip
def test_a_type_that_cannot_fit_is_known_without_a_row(field: Field, kind: pa.DataType, actual: str | None) -> None:
    told = {"field": "a", "expected": field.expected, "actual": actual, "message": "Type mismatch for field a"}
    assert certain_mismatches([field], pa.schema({"a": kind})) == ([] if actual is None else [told])


def test_a_required_column_that_is_not_there_is_known_without_a_row() -> None:
    told = {"field": "b", "expected": "number", "actual": None, "message": "Missing required field: b"}
    assert certain_mismatches([C, B, A], pa.schema({"a": pa.string(), "B": pa.int8()})) == [told]


def test_columns_that_nobody_promised_are_certain_if_strict() -> None:
    schema = pa.schema({"a": pa.string(), "more": pa.list_(pa.int8())})
    assert certain_mismatches([A], schema) == []
    assert certain_mismatches([A], schema, strict=True) == [
        {"field": "more", "expected": None, "actual": "number[]", "message": "Unexpected field: more"}
    ]
