"""Test the SQL of OData query options against cases and a reference implementation."""

import math
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog import odata_oracle
from catalog.odata_cases import CASES, ROWS
from conftest import examples
from penstock.core.odata import Collection, FieldKind, QueryOptions, options
from penstock.core.registry.query import WRAPPER_PARAMETER_PREFIX
from penstock.core.result_schema import FieldType, ResultField
from penstock.core.result_schema.odata_fields import odata_fields, selected_fields
from penstock.engines.duckdb import odata_sql
from penstock.engines.duckdb.odata_sql import WrappedQuery
from penstock.errors import Invalid, Unsupported

STRING, NUMBER, BOOLEAN, DATE, DATETIME = FieldType

FIELDS = [
    ResultField("k", NUMBER),
    *(ResultField(name, STRING, optional=True) for name in ("name", "note")),
    *(ResultField(name, NUMBER, optional=True) for name in ("n", "x")),
    ResultField("flag", BOOLEAN, optional=True),
    ResultField("at", DATETIME, optional=True),
    ResultField("day", DATE, optional=True),
]


def make_table(n: pa.DataType, at: pa.DataType, day: pa.DataType, text: pa.DataType) -> pa.Table:
    schema = pa.schema(
        {"k": pa.int32(), "name": text, "note": pa.string(), "n": n, "x": pa.float64(), "flag": pa.bool_(), "at": at, "day": day}
    )  # fmt: skip
    return pa.table(
        [pa.array([convert(row[field.name], field.type) for row in ROWS], field.type) for field in schema], schema
    )


def convert(value: Any, data_type: pa.DataType) -> Any:
    if isinstance(value, date) and pa.types.is_string(data_type):
        return value.isoformat()
    return Decimal(value) if value is not None and pa.types.is_decimal(data_type) else value


TABLES = {  # the same rows in other types of results
    "with zones": make_table(pa.int64(), pa.timestamp("us", "UTC"), pa.date32(), pa.string()),
    "without": make_table(pa.decimal128(38, 0), pa.timestamp("us"), pa.date64(), pa.large_string()),
    "as text": make_table(pa.decimal128(38, 10), pa.string(), pa.string(), pa.dictionary(pa.int8(), pa.string())),
}


@pytest.fixture(scope="module")
def db() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'America/New_York'")  # results do not depend on this setting
        yield db


def parse_options(fields: list[ResultField], **query_options: Any) -> QueryOptions:
    pairs = [(f"${name}", str(value)) for name, value in query_options.items()]
    return options(pairs, odata_fields(fields), default_top=50, max_top=200)


def run(db: duckdb.DuckDBPyConnection, wrapped: WrappedQuery, query: str, **tables: pa.Table) -> pa.Table:
    for name, table in tables.items():
        db.register(name, table)
    return db.sql(f"{wrapped.before}({query}){wrapped.after}", params=dict(wrapped.parameters)).to_arrow_table()


def filter_keys(db: duckdb.DuckDBPyConnection, table: pa.Table, text: str) -> list[int]:
    page = odata_sql.page_query(parse_options(FIELDS, filter=text, select="k", orderby="k"), FIELDS, table.schema)
    return run(db, page, "SELECT * FROM rows", rows=table)["k"].to_pylist()


# -- filters ----------------------------------------------------------------------------------------------------------

APPLICABLE_CASES = [text for text in CASES if "tags" not in text and not re.search(r"\bid\b", text)]
DUCKDB_RESULTS = {
    # numbers are exact
    "n eq 9.223372036854775807e18": [5],
    "n eq 1.00000000000000000000001": [],
    # each letter is folded separately, also letters outside A to Z
    "toupper(name) eq 'STRASSE'": [6],
    "toupper(name) eq toupper('straße')": [5],
    "endswith(toupper(name), 'SSE')": [6],
    "tolower(name) eq tolower('İstanbul ΣΊΣΥΦΟΣ')": [],
    "toupper(note) eq 'ÄB'": [7, 8],
    "toupper(note) eq 'äB'": [],
    "tolower(note) eq 'Äb'": [],
    "tolower(note) eq 'äb'": [7, 8],
    "contains(toupper(note), 'Ï')": [9],
}


@pytest.mark.parametrize("table_name", TABLES)
def test_page_query_each_filter_case_returns_expected_rows(db: duckdb.DuckDBPyConnection, table_name: str) -> None:
    assert len(APPLICABLE_CASES) > 250
    mismatches = {
        text: (actual, want)
        for text in APPLICABLE_CASES
        if (actual := filter_keys(db, TABLES[table_name], text)) != (want := DUCKDB_RESULTS.get(text, CASES[text]))
    }
    assert mismatches == {}


FLAG = st.just(("flag", "flag"))
TESTS = odata_oracle.draw_test("field", ["n", "x", "flag", "at", "day", "name", "note"])
FILTERS = st.recursive(st.one_of(TESTS, TESTS, TESTS, FLAG), odata_oracle._combine, max_leaves=12)
FOLDED = {("İ", True): "i", ("ß", False): "ẞ"}


@pytest.fixture(scope="module")
def _fold_by_character() -> Iterator[None]:
    def folded(text: str, lower: bool, of_a_literal: bool) -> str:
        fold = str.lower if lower else str.upper
        return (
            fold(text)
            if of_a_literal
            else "".join(FOLDED.get((character, lower), fold(character)) for character in text)
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(odata_oracle, "CASED", ())
        patch.setattr(odata_oracle, "_fold", folded)
        yield


@pytest.mark.usefixtures("_fold_by_character")
@settings(max_examples=examples(150, soak=3_000))
@given(spec=FILTERS, table_name=st.sampled_from(list(TABLES)))
def test_page_query_random_filters_match_the_oracle(db: duckdb.DuckDBPyConnection, spec: Any, table_name: str) -> None:
    assert filter_keys(db, TABLES[table_name], odata_oracle.to_text(spec)) == [
        row["k"] for row in ROWS if odata_oracle.is_true(spec, row)
    ]


@pytest.mark.parametrize("function", ["tolower", "toupper"])
@pytest.mark.parametrize("text", ["Straße", "ΣΊΣΥΦΟΣ", "Σίσυφος", "İstanbul", "ﬁne", "ŉ", "Ǆ", "ı", "ẞ"])
def test_folded_text_equals_its_own_folded_literal(db: duckdb.DuckDBPyConnection, function: str, text: str) -> None:
    column = {"a": (STRING, pa.array([text, None]))}
    for condition in (
        f"{function}(a) eq {function}('{text}')",
        f"{function}('{text}') eq {function}(a)",
        f"{function}(a) in ('x', {function}('{text}'), null)",
        f"contains({function}(a), {function}('{text}'))",
        f"startswith({function}('{text}'), {function}(a))",
    ):
        expected = [0, 1] if "null" in condition else [0]
        assert filter_positions(db, column, condition) == expected, condition


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" or ".join(["n eq 1"] * 999), [1]),
        (" and ".join(["flag"] * 1_100), [1, 4, 7, 9, 13]),
        (f"n in ({','.join(map(str, range(500)))})", [1, 2, 4, 7, 8, 9, 12, 13, 14]),
        (f"not (x in ({','.join(map(str, range(500)))}))", [1, 2, 4, 5, 6, 8, 9, 11, 13, 14]),
        ("not (" * 48 + "n eq 1" + ")" * 48, [1]),
        ("(n eq 1 or flag and " * 32 + "flag" + " and flag or n eq 1)" * 32, [1, 4, 7, 9, 13]),
        ("((" * 49 + "flag" + " or n eq 1) and flag)" * 49, [1, 4, 7, 9, 13]),
    ],
    ids=lambda it: it[:20] if isinstance(it, str) else "",
)
def test_page_query_large_filters_are_supported(db: duckdb.DuckDBPyConnection, text: str, expected: list[int]) -> None:
    assert filter_keys(db, TABLES["with zones"], text) == expected


def filter_positions(
    db: duckdb.DuckDBPyConnection, columns: dict[str, tuple[FieldType, pa.Array]], text: str
) -> list[int]:
    """Return the positions of the rows that match a filter."""
    table = pa.table(
        {"k": range(len(next(iter(columns.values()))[1]))} | {name: values for name, (_, values) in columns.items()}
    )
    fields = [
        ResultField("k", NUMBER),
        *(ResultField(name, field_type, optional=True) for name, (field_type, _) in columns.items()),
    ]
    page = odata_sql.page_query(parse_options(fields, filter=text, select="k", orderby="k"), fields, table.schema)
    return run(db, page, "SELECT * FROM rows", rows=table)["k"].to_pylist()


CENTS = pa.array(
    [Decimal("-0.01"), Decimal("0.00"), Decimal("99.99"), Decimal("9999999999999999.99"), None], pa.decimal128(18, 2)
)
LARGE = pa.array([0, 2**53, 2**53 + 1, 2**64 - 1, None], pa.uint64())
SMALL = pa.array([-128, 0, 127, None], pa.int8())
NEAR = pa.array([0.1, -0.0, 2.0**53, math.inf, None], pa.float64())
SINGLE = pa.array([0.5, 0.1, None], pa.float32())


@pytest.mark.parametrize(
    ("values", "text", "expected"),
    [
        (CENTS, "a eq 99.99", [2]), (CENTS, "a eq 99.990", [2]), (CENTS, "a eq 99.991", []), (CENTS, "a gt 99.989", [2, 3]),
        (CENTS, "a lt 99.991", [0, 1, 2]), (CENTS, "a ge -0.011", [0, 1, 2, 3]), (CENTS, "a le -0.001", [0]),
        (CENTS, "a eq 9999999999999999.99", [3]), (CENTS, "a gt 9999999999999999", [3]), (CENTS, "a lt 1e300", [0, 1, 2, 3]),
        (CENTS, "a gt -1e300", [0, 1, 2, 3]), (CENTS, "a gt 1e300", []), (CENTS, "not (a gt 1e300)", [0, 1, 2, 3, 4]),
        (CENTS, "not (a lt 1e300)", [4]), (CENTS, "a in (0, 99.99, 0.001, 1e300, null)", [1, 2, 4]), (CENTS, "a in (0.001)", []),
        (CENTS, "not (a in (0.001))", [0, 1, 2, 3, 4]), (CENTS, "a ne 99.991", [0, 1, 2, 3, 4]), (CENTS, "a lt 1e-300", [0, 1]),
        (LARGE, "a eq 9007199254740993", [2]), (LARGE, "a eq 9007199254740993.0", [2]), (LARGE, "a gt 9007199254740992.5", [2, 3]),
        (LARGE, "a le 9007199254740992.5", [0, 1]), (LARGE, "a ge 18446744073709551615.0", [3]), (LARGE, "a gt -1", [0, 1, 2, 3]),
        (LARGE, "a lt -0.5", []), (LARGE, "a le 18446744073709551615.5", [0, 1, 2, 3]), (LARGE, "a ge 18446744073709551615.5", []),
        (SMALL, "a lt 128", [0, 1, 2]), (SMALL, "a gt -128.5", [0, 1, 2]), (SMALL, "a ge 127.5", []), (SMALL, "a ne 1000", [0, 1, 2, 3]),
        (NEAR, "a eq 0.1", [0]), (NEAR, "a eq 0", [1]), (NEAR, "a in (0)", [1]), (NEAR, f"a in ({', '.join(map(str, range(200)))})", [1]),
        (NEAR, "a eq 9007199254740993", [2]), (NEAR, "a ge 1e308", [3]), (NEAR, "not (a lt 1)", [2, 3, 4]),
        (SINGLE, "a eq 0.5", [0]), (SINGLE, "a eq 0.1", []), (SINGLE, "a gt 0.1", [0, 1]),
    ],
)  # fmt: skip
def test_filter_numbers_are_compared_exactly(
    db: duckdb.DuckDBPyConnection, values: pa.Array, text: str, expected: list[int]
) -> None:
    assert filter_positions(db, {"a": (NUMBER, values)}, text) == expected


MOMENT = datetime(2026, 1, 31, 10)
TEXT_INSTANTS = [
    "2026-01-31T10:00:00",
    "2026-01-31t10:00:00z",
    "2026-01-31T15:30:00.000000001+05:30",
    "2026-01-31T09:59:59.999999-00:00",
]


@pytest.mark.parametrize(
    "data_type", [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")], ids=str
)
def test_filter_timestamps_of_every_unit_are_compared(db: duckdb.DuckDBPyConnection, data_type: pa.DataType) -> None:
    if data_type.tz is not None and data_type.unit in ("s", "ms"):
        data_type = pa.timestamp("us", data_type.tz)  # the value in DuckDB
    columns = {"a": (DATETIME, pa.array([MOMENT, datetime(1969, 12, 31, 23, 59, 59), None], data_type))}
    for text, expected in {
        "a eq 2026-01-31T10:00:00Z": [0], "a ge 2026-01-31T11:00:00+01:00": [0], "a lt 1970-01-01": [1], "a ne null": [0, 1],
        "a gt 0001-01-01": [0, 1], "a lt 9999-12-31T23:59:59Z": [0, 1], "a gt 9999-12-31": [], "a in ('2026-01-31T10:00:00Z')": [0],
        "a gt 2026-01-31T09:59:59.999999Z": [0], "not (a lt 9999-12-31)": [2],
    }.items():  # fmt: skip
        assert filter_positions(db, columns, text) == expected, text


def test_filter_text_timestamps_are_compared_by_instant(db: duckdb.DuckDBPyConnection) -> None:
    columns = {"a": (DATETIME, pa.array([*TEXT_INSTANTS, "soon", None]))}
    assert filter_positions(db, columns, "a eq 2026-01-31T10:00:00Z") == [0, 1]
    assert filter_positions(db, columns, "a gt 2026-01-31T10:00:00Z") == [2]
    assert filter_positions(db, columns, "a lt 2026-01-31T10:00:00.000001Z") == [0, 1, 2, 3]
    assert filter_positions(db, columns, "a lt 2026-01-31T10:00:00Z") == [3]
    assert filter_positions(db, columns, "a ne null") == [0, 1, 2, 3]  # invalid timestamps are NULL


def test_filter_columns_of_different_types_are_compared(db: duckdb.DuckDBPyConnection) -> None:
    numbers = {
        "i": (NUMBER, pa.array([2**53 + 1, 1, None, -5], pa.int64())),
        "d": (NUMBER, pa.array([Decimal(2**53 + 1), Decimal("1.01"), None, Decimal(-5)], pa.decimal128(20, 2))),
        "h": (NUMBER, pa.array([Decimal(10**37), Decimal(1), None, None], pa.decimal128(38, 0))),
        "x": (NUMBER, pa.array([2.0**53, 1.01, 0.0, -5.0], pa.float64())),
    }
    for text, expected in {
        "i eq d": [0, 2, 3], "i lt d": [1], "d ge i": [0, 1, 3], "i ne d": [1], "x eq i": [0, 3], "x eq d": [0, 1, 3],
        "h gt i": [0], "h ge d": [0], "h eq d": [2], "h ne i": [0, 3],
    }.items():  # fmt: skip
        assert filter_positions(db, numbers, text) == expected, text

    late = datetime(2026, 1, 31, 10, 0, 1)
    moments = {
        "n": (DATETIME, pa.array([MOMENT, late, None, datetime(1, 1, 1)], pa.timestamp("us"))),
        "z": (DATETIME, pa.array([MOMENT, MOMENT, None, datetime(1, 1, 1)], pa.timestamp("us", "UTC"))),
        "f": (DATETIME, pa.array([MOMENT, late, None, MOMENT], pa.timestamp("ns"))),
        "t": (DATETIME, pa.array([TEXT_INSTANTS[1], TEXT_INSTANTS[3], None, "0001-01-01T00:00:00"])),
    }
    for text, expected in {
        "n eq z": [0, 2, 3], "z lt n": [1], "t eq n": [0, 2, 3], "z gt t": [1], "f eq n": [0, 1, 2], "t lt f": [1, 3], "z eq f": [0, 2],
    }.items():  # fmt: skip
        assert filter_positions(db, moments, text) == expected, text

    days = {
        "d": (DATE, pa.array([date(2026, 1, 31), date(1, 1, 1), None], pa.date32())),
        "t": (DATE, pa.array(["2026-01-31", "0001-01-02", None])),
    }
    assert (filter_positions(db, days, "d eq t"), filter_positions(db, days, "d lt t")) == ([0, 2], [1])


def test_filter_enum_uuid_and_hugeint_are_compared_in_their_arrow_types(
    db: duckdb.DuckDBPyConnection,
) -> None:
    query = """SELECT 'z'::ENUM('z', 'a') AS word, uuid '00000000-0000-0000-0000-00000000000a' AS id, sum(9007199254740993) AS total
        UNION ALL SELECT 'a', NULL, 7"""
    fields = [ResultField("word", STRING), ResultField("id", STRING, optional=True), ResultField("total", NUMBER)]
    result_schema = db.sql(query).to_arrow_table().schema
    for text, expected in {
        "word lt 'b'": ["a"], "id eq '00000000-0000-0000-0000-00000000000a'": ["z"], "contains(id, 'a')": ["z"],
        "total eq 9007199254740993": ["z"], "total eq 9007199254740992": [], "total lt 8": ["a"],
    }.items():  # fmt: skip
        assert (
            run(db, odata_sql.page_query(parse_options(fields, filter=text), fields, result_schema), query)[
                "word"
            ].to_pylist()
            == expected
        ), text
    ordered = run(db, odata_sql.page_query(parse_options(fields, orderby="word"), fields, result_schema), query)
    assert ordered["word"].to_pylist() == ["a", "z"]  # and not in the order of the ENUM
    assert ordered["word"].type == pa.string()


def test_page_query_contains_no_user_text() -> None:
    text = (
        "name eq 'marked''--' or contains(tolower(note), 'marked''--') or n in (31337, 31337.5) or n gt 31337.5 "
        "or at eq 3133-07-31T00:00:00Z or day lt 3133-07-31 or startswith('marked', name)"
    )
    for table in TABLES.values():
        wrapped = odata_sql.page_query(parse_options(FIELDS, filter=text), FIELDS, table.schema)
        assert not re.search("marked|31337|3133", wrapped.before + wrapped.after)
        assert set(wrapped.parameters) == set(re.findall(r"\$(\w+)", wrapped.after))
        assert all(name.startswith(WRAPPER_PARAMETER_PREFIX) for name in wrapped.parameters)


# -- columns, order, pages --------------------------------------------------------------------------------------------

SAMPLE = pa.table({
    "b": pa.array([2, 1, None, 1, 2], pa.int64()),
    "a": ["x", None, "y", "x", "x"],
    "more": [1, 2, 3, 4, 5],
    "tags": pa.array([["p"], [], None, ["q"], ["o"]], pa.list_(pa.string())),
})  # fmt: skip
THREE = [
    ResultField("a", STRING, optional=True),
    ResultField("b", NUMBER, optional=True),
    ResultField("tags", STRING, optional=True, array=True),
]


def rows_of(db: duckdb.DuckDBPyConnection, wrapped: WrappedQuery, table: pa.Table = SAMPLE) -> list[tuple[Any, ...]]:
    result = run(db, wrapped, "SELECT * FROM result", result=table)
    return list(zip(*(column.to_pylist() for column in result.columns), strict=True))


def test_page_query_orders_by_declared_fields_with_null_lowest(db: duckdb.DuckDBPyConnection) -> None:
    wrapped = odata_sql.page_query(parse_options(THREE), THREE, SAMPLE.schema)
    assert run(db, wrapped, "SELECT * FROM result", result=SAMPLE).column_names == ["a", "b", "tags"]
    expected_rows = [(None, 1, []), ("x", 1, ["q"]), ("x", 2, ["o"]), ("x", 2, ["p"]), ("y", None, None)]
    assert rows_of(db, wrapped) == expected_rows
    descending = odata_sql.page_query(parse_options(THREE, orderby="b desc"), THREE, SAMPLE.schema)
    assert rows_of(db, descending) == [
        expected_rows[2],
        expected_rows[3],
        expected_rows[0],
        expected_rows[1],
        expected_rows[4],
    ]
    both = odata_sql.page_query(parse_options(THREE, orderby="b, a desc"), THREE, SAMPLE.schema)
    assert rows_of(db, both) == [
        expected_rows[4],
        expected_rows[1],
        expected_rows[0],
        expected_rows[2],
        expected_rows[3],
    ]


def test_page_query_select_does_not_change_the_order(db: duckdb.DuckDBPyConnection) -> None:
    chosen = parse_options(THREE, select="tags,b")
    assert [field.name for field in selected_fields(chosen, THREE)] == ["tags", "b"]
    assert selected_fields(parse_options(THREE), THREE) == tuple(THREE)
    result = run(db, odata_sql.page_query(chosen, THREE, SAMPLE.schema), "SELECT * FROM result", result=SAMPLE)
    assert result.to_pydict() == {"tags": [[], ["q"], ["o"], ["p"], None], "b": [1, 1, 2, 2, None]}


def test_page_query_pages_cover_all_rows_with_one_extra_row(db: duckdb.DuckDBPyConnection) -> None:
    all_rows = rows_of(db, odata_sql.page_query(parse_options(THREE), THREE, SAMPLE.schema))
    pages = [
        rows_of(db, odata_sql.page_query(parse_options(THREE, top=2, skip=skip), THREE, SAMPLE.schema))
        for skip in (0, 2, 4, 6)
    ]
    assert pages == [all_rows[:3], all_rows[2:5], all_rows[4:], []]
    assert len(rows_of(db, odata_sql.page_query(parse_options(THREE, top=0), THREE, SAMPLE.schema))) == 1


def test_rows_query_has_no_limit_and_orders_only_by_orderby(db: duckdb.DuckDBPyConnection) -> None:
    many = pa.table({"a": [str(n) for n in range(1_000)], "b": pa.array(range(1_000), pa.int64())})
    result = rows_of(
        db, odata_sql.rows_query(parse_options(THREE, filter="b ge 10", orderby="b desc"), THREE, many.schema), many
    )
    assert [b for _, b in result] == list(range(999, 9, -1))
    assert "ORDER" not in odata_sql.rows_query(parse_options(THREE, filter="b ge 10"), THREE, many.schema).after


@pytest.mark.parametrize(("text", "expected"), [("b eq 2", 2), ("a ne 'x'", 2), ("true", 5), ("false", 0)])
def test_count_query_ignores_the_page(db: duckdb.DuckDBPyConnection, text: str, expected: int) -> None:
    chosen = parse_options(THREE, filter=text, top=1, skip=1, orderby="a", select="a", count="true")
    assert rows_of(db, odata_sql.count_query(chosen, THREE, SAMPLE.schema)) == [(expected,)]


def test_page_query_missing_optional_field_is_null(db: duckdb.DuckDBPyConnection) -> None:
    lacking = [*(ResultField(f"{field_type}_", field_type, optional=True) for field_type in FieldType), *THREE]
    for name, literal in {
        "string_": "'x'",
        "number_": "1",
        "boolean_": "true",
        "date_": "2026-01-31",
        "datetime_": "2026-01-31",
    }.items():
        for text, expected in {
            f"{name} eq null": 5,
            f"{name} eq {literal}": 0,
            f"{name} ne {literal}": 5,
            f"{name} lt {literal}": 0,
        }.items():
            chosen = parse_options(lacking, filter=text, orderby=f"{name} desc")
            result = run(
                db, odata_sql.page_query(chosen, lacking, SAMPLE.schema), "SELECT * FROM result", result=SAMPLE
            )
            assert (result.num_rows, result.column_names) == (expected, ["a", "b", "tags"]), text
    of_nulls = pa.schema({"a": pa.null()})
    assert (
        run(
            db, odata_sql.page_query(parse_options(THREE, filter="a ne 'x'"), THREE, of_nulls), "SELECT NULL AS a"
        ).num_rows
        == 1
    )


def test_page_query_without_selected_fields_keeps_rows(db: duckdb.DuckDBPyConnection) -> None:
    lacking = [ResultField("z", STRING), *THREE]
    result = run(
        db,
        odata_sql.page_query(parse_options(lacking, select="z", filter="b eq 2"), lacking, SAMPLE.schema),
        "SELECT * FROM result",
        result=SAMPLE,
    )
    assert result.num_rows == 2
    assert not {field.name for field in lacking} & set(result.column_names)


def test_page_query_addresses_columns_by_position(db: duckdb.DuckDBPyConnection) -> None:
    query = """SELECT 1 AS a, 2 AS "A", 3 AS "odd "" name", 4 AS b, 5 AS b, 6 AS "0" """
    result_schema = db.sql(query).to_arrow_table().schema
    fields = [ResultField("A", NUMBER), ResultField("b", NUMBER), ResultField("a", NUMBER)]
    page = odata_sql.page_query(
        parse_options(fields, filter="A eq 2 and a eq 1 and b eq 4", orderby="A"), fields, result_schema
    )
    assert run(db, page, query).to_pydict() == {"A": [2], "b": [4], "a": [1]}


# -- unsupported query options ----------------------------------------------------------------------------------------


def test_odata_fields_returns_the_kind_of_each_field() -> None:
    all_fields = [
        *(ResultField(field_type, field_type) for field_type in FieldType),
        ResultField("many", DATE, array=True),
    ]
    assert odata_fields(all_fields) == {
        "string": FieldKind.TEXT,
        "number": FieldKind.NUMBER,
        "boolean": FieldKind.BOOLEAN,
        "date": FieldKind.DATE,
        "datetime": FieldKind.INSTANT,
        "many": Collection({}),
    }


@pytest.mark.parametrize(
    ("query_options", "reason", "message"),
    [
        ({"filter": "tags eq 'x'"}, "bad_filter", "tags is an array"),
        ({"filter": "a eq 'x' or tags/any()"}, "bad_filter", "position 12: tags is an array"),
        ({"filter": "tags/any(t: t eq 'x')"}, "bad_filter", "tags is an array"),
        ({"filter": "contains(tags, 'x')"}, "bad_filter", "tags is an array"),
        ({"orderby": "tags"}, "bad_option", "tags is a collection and cannot be sorted by"),
        ({"filter": "more eq 1"}, "unknown_field", "Valid fields: a, b, tags"),
        ({"select": "more"}, "unknown_field", "Valid fields: a, b, tags"),
    ],
)
def test_parse_options_arrays_and_unknown_fields_are_invalid(query_options: Any, reason: str, message: str) -> None:
    with pytest.raises(Invalid, match=re.escape(message)) as error:
        parse_options(THREE, **query_options)
    assert error.value.reason == reason


@pytest.mark.parametrize("wrap", [odata_sql.page_query, odata_sql.rows_query, odata_sql.count_query])
def test_queries_reject_the_search_option(wrap: Any) -> None:
    with pytest.raises(Invalid) as error:
        wrap(parse_options(THREE, search="x"), THREE, SAMPLE.schema)
    assert (error.value.reason, error.value.context) == ("bad_option", {"option": "$search"})


@pytest.mark.parametrize(
    "query_options", [{"filter": "a eq 'x'"}, {"orderby": "a"}, {"filter": "contains(tolower(a), 'x')"}]
)
@pytest.mark.parametrize(
    "data_type", [pa.int64(), pa.date32(), pa.list_(pa.string()), pa.struct({"x": pa.string()})], ids=str
)
def test_page_query_field_of_another_type_is_unsupported(query_options: Any, data_type: pa.DataType) -> None:
    with pytest.raises(Unsupported) as error:
        odata_sql.page_query(parse_options(THREE, **query_options), THREE, pa.schema({"a": data_type}))
    assert (error.value.reason, error.value.context) == ("field_mismatch", {"field": "a"})


@pytest.mark.parametrize("query_options", [{"filter": "a eq 'x'"}, {"orderby": "a"}, {"filter": "a ne null"}])
def test_page_query_missing_required_field_is_unsupported(query_options: Any) -> None:
    declared = [ResultField("a", STRING), ResultField("b", STRING, optional=True)]
    with pytest.raises(Unsupported) as error:
        odata_sql.page_query(parse_options(declared, **query_options), declared, pa.schema({"c": pa.string()}))
    assert (error.value.reason, error.value.context) == ("field_mismatch", {"field": "a"})
    odata_sql.page_query(
        parse_options(declared, filter="b eq 'x'", orderby="b"), declared, pa.schema({"c": pa.string()})
    )


def test_page_query_timestamps_ignore_the_session_time_zone(db: duckdb.DuckDBPyConnection) -> None:
    fields, result_schema = [ResultField("at", DATETIME)], pa.schema({"at": pa.timestamp("us", "UTC")})
    page = odata_sql.page_query(parse_options(fields, filter="at eq 2026-01-31T10:00:00Z"), fields, result_schema)
    result = run(db, page, "SELECT TIMESTAMPTZ '2026-01-31 10:00:00+00' AS at")
    assert result["at"].cast(pa.int64()).to_pylist() == [int(MOMENT.replace(tzinfo=UTC).timestamp()) * 10**6]
