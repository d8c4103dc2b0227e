"""OData options put around a query keep the rows of the oracle, in an order that never changes."""

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

from catalog import odata_oracle as oracle
from catalog.odata_cases import CASES, ROWS
from conftest import SOAK
from penstock.core.result_schema import Field, FieldType
from penstock.core.odata import Collection, Kind, Options, options
from penstock.core.registry.query import OURS
from penstock.engines.duckdb import odata_sql as odata
from penstock.engines.duckdb.odata_sql import Wrapped
from penstock.errors import Invalid, Unsupported

STRING, NUMBER, BOOLEAN, DATE, DATETIME = FieldType

FIELDS = [
    Field("k", NUMBER),
    *(Field(name, STRING, optional=True) for name in ("name", "note")),
    *(Field(name, NUMBER, optional=True) for name in ("n", "x")),
    Field("flag", BOOLEAN, optional=True),
    Field("at", DATETIME, optional=True),
    Field("day", DATE, optional=True),
]


def made(n: pa.DataType, at: pa.DataType, day: pa.DataType, text: pa.DataType) -> pa.Table:
    schema = pa.schema(
        {"k": pa.int32(), "name": text, "note": pa.string(), "n": n, "x": pa.float64(), "flag": pa.bool_(), "at": at, "day": day}
    )  # fmt: skip
    return pa.table([pa.array([fitted(row[it.name], it.type) for row in ROWS], it.type) for it in schema], schema)


def fitted(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, date) and pa.types.is_string(kind):
        return value.isoformat()
    return Decimal(value) if value is not None and pa.types.is_decimal(kind) else value


MAKES = {  # the same rows, as results may bring them
    "with zones": made(pa.int64(), pa.timestamp("us", "UTC"), pa.date32(), pa.string()),
    "without": made(pa.decimal128(38, 0), pa.timestamp("us"), pa.date64(), pa.large_string()),
    "as text": made(pa.decimal128(38, 10), pa.string(), pa.string(), pa.dictionary(pa.int8(), pa.string())),
}


@pytest.fixture(scope="module")
def db() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'America/New_York'")  # what is asked does not depend on it
        yield db


def asked(fields: list[Field], **given: Any) -> Options:
    pairs = [(f"${name}", str(value)) for name, value in given.items()]
    return options(pairs, odata.kinds(fields), default_top=50, max_top=200)


def run(db: duckdb.DuckDBPyConnection, wrapped: Wrapped, query: str, **tables: pa.Table) -> pa.Table:
    for name, table in tables.items():
        db.register(name, table)
    return db.sql(f"{wrapped.before}({query}){wrapped.after}", params=dict(wrapped.parameters)).to_arrow_table()


def found(db: duckdb.DuckDBPyConnection, table: pa.Table, text: str) -> list[int]:
    page = odata.page(asked(FIELDS, filter=text, select="k", orderby="k"), FIELDS, table.schema)
    return run(db, page, "SELECT * FROM rows", rows=table)["k"].to_pylist()


# -- filters ----------------------------------------------------------------------------------------------------------

APPLY = [text for text in CASES if "tags" not in text and not re.search(r"\bid\b", text)]
OTHERWISE = {
    # numbers are exact
    "n eq 9.223372036854775807e18": [5],
    "n eq 1.00000000000000000000001": [],
    # letters are folded one by one, and those beyond A to Z too
    "toupper(name) eq 'STRASSE'": [6],
    "toupper(name) eq toupper('straße')": [6],
    "endswith(toupper(name), 'SSE')": [6],
    "tolower(name) eq tolower('İstanbul ΣΊΣΥΦΟΣ')": [],
    "toupper(note) eq 'ÄB'": [7, 8],
    "toupper(note) eq 'äB'": [],
    "tolower(note) eq 'Äb'": [],
    "tolower(note) eq 'äb'": [7, 8],
    "contains(toupper(note), 'Ï')": [9],
}


@pytest.mark.parametrize("make", MAKES)
def test_every_expression_keeps_its_rows(db: duckdb.DuckDBPyConnection, make: str) -> None:
    assert len(APPLY) > 250
    wrong = {
        text: (kept, want)
        for text in APPLY
        if (kept := found(db, MAKES[make], text)) != (want := OTHERWISE.get(text, CASES[text]))
    }
    assert wrong == {}


FLAG = st.just(("flag", "flag"))
TESTS = oracle.tests("field", ["n", "x", "flag", "at", "day", "name", "note"])
FILTERS = st.recursive(st.one_of(TESTS, TESTS, TESTS, FLAG), oracle._joined, max_leaves=12)
FOLDED = {("İ", True): "i", ("ß", False): "ẞ"}


@pytest.fixture(scope="module")
def _letter_by_letter() -> Iterator[None]:
    def folded(text: str, lower: bool, of_a_literal: bool) -> str:
        fold = str.lower if lower else str.upper
        return fold(text) if of_a_literal else "".join(FOLDED.get((it, lower), fold(it)) for it in text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle, "CASED", ())
        patch.setattr(oracle, "_folded", folded)
        yield


@pytest.mark.usefixtures("_letter_by_letter")
@settings(max_examples=3_000 if SOAK else 150)
@given(spec=FILTERS, make=st.sampled_from(list(MAKES)))
def test_random_filters_keep_the_rows_of_the_oracle(db: duckdb.DuckDBPyConnection, spec: Any, make: str) -> None:
    assert found(db, MAKES[make], oracle.written(spec)) == [row["k"] for row in ROWS if oracle.holds(spec, row)]


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
def test_large_filters_are_read(db: duckdb.DuckDBPyConnection, text: str, expected: list[int]) -> None:
    assert found(db, MAKES["with zones"], text) == expected


def kept(db: duckdb.DuckDBPyConnection, kinds: dict[str, tuple[FieldType, pa.Array]], text: str) -> list[int]:
    """The places of the rows that a filter keeps."""
    table = pa.table(
        {"k": range(len(next(iter(kinds.values()))[1]))} | {name: each for name, (_, each) in kinds.items()}
    )
    fields = [Field("k", NUMBER), *(Field(name, kind, optional=True) for name, (kind, _) in kinds.items())]
    page = odata.page(asked(fields, filter=text, select="k", orderby="k"), fields, table.schema)
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
def test_numbers_are_compared_as_exactly_as_the_column_holds_them(
    db: duckdb.DuckDBPyConnection, values: pa.Array, text: str, expected: list[int]
) -> None:
    assert kept(db, {"a": (NUMBER, values)}, text) == expected


MOMENT = datetime(2026, 1, 31, 10)
SAID = [
    "2026-01-31T10:00:00",
    "2026-01-31t10:00:00z",
    "2026-01-31T15:30:00.000000001+05:30",
    "2026-01-31T09:59:59.999999-00:00",
]


@pytest.mark.parametrize(
    "kind", [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")], ids=str
)
def test_instants_of_every_unit_are_compared(db: duckdb.DuckDBPyConnection, kind: pa.DataType) -> None:
    if kind.tz is not None and kind.unit in ("s", "ms"):
        kind = pa.timestamp("us", kind.tz)  # what DuckDB makes of it
    columns = {"a": (DATETIME, pa.array([MOMENT, datetime(1969, 12, 31, 23, 59, 59), None], kind))}
    for text, expected in {
        "a eq 2026-01-31T10:00:00Z": [0], "a ge 2026-01-31T11:00:00+01:00": [0], "a lt 1970-01-01": [1], "a ne null": [0, 1],
        "a gt 0001-01-01": [0, 1], "a lt 9999-12-31T23:59:59Z": [0, 1], "a gt 9999-12-31": [], "a in ('2026-01-31T10:00:00Z')": [0],
        "a gt 2026-01-31T09:59:59.999999Z": [0], "not (a lt 9999-12-31)": [2],
    }.items():  # fmt: skip
        assert kept(db, columns, text) == expected, text


def test_instants_that_are_text_are_compared_by_their_moment(db: duckdb.DuckDBPyConnection) -> None:
    columns = {"a": (DATETIME, pa.array([*SAID, "soon", None]))}
    assert kept(db, columns, "a eq 2026-01-31T10:00:00Z") == [0, 1, 2]
    assert kept(db, columns, "a lt 2026-01-31T10:00:00Z") == [3]
    assert kept(db, columns, "a ne null") == [0, 1, 2, 3]  # what names no moment is none


def test_columns_of_unlike_types_are_compared_with_one_another(db: duckdb.DuckDBPyConnection) -> None:
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
        assert kept(db, numbers, text) == expected, text

    late = datetime(2026, 1, 31, 10, 0, 1)
    moments = {
        "n": (DATETIME, pa.array([MOMENT, late, None, datetime(1, 1, 1)], pa.timestamp("us"))),
        "z": (DATETIME, pa.array([MOMENT, MOMENT, None, datetime(1, 1, 1)], pa.timestamp("us", "UTC"))),
        "f": (DATETIME, pa.array([MOMENT, late, None, MOMENT], pa.timestamp("ns"))),
        "t": (DATETIME, pa.array([SAID[1], SAID[3], None, "0001-01-01T00:00:00"])),
    }
    for text, expected in {
        "n eq z": [0, 2, 3], "z lt n": [1], "t eq n": [0, 2, 3], "z gt t": [1], "f eq n": [0, 1, 2], "t lt f": [1, 3], "z eq f": [0, 2],
    }.items():  # fmt: skip
        assert kept(db, moments, text) == expected, text

    days = {
        "d": (DATE, pa.array([date(2026, 1, 31), date(1, 1, 1), None], pa.date32())),
        "t": (DATE, pa.array(["2026-01-31", "0001-01-02", None])),
    }
    assert (kept(db, days, "d eq t"), kept(db, days, "d lt t")) == ([0, 2], [1])


def test_what_duckdb_calls_otherwise_is_compared_as_the_text_or_the_number_that_arrives(
    db: duckdb.DuckDBPyConnection,
) -> None:
    query = """SELECT 'z'::ENUM('z', 'a') AS word, uuid '00000000-0000-0000-0000-00000000000a' AS id, sum(9007199254740993) AS total
        UNION ALL SELECT 'a', NULL, 7"""
    fields = [Field("word", STRING), Field("id", STRING, optional=True), Field("total", NUMBER)]
    have = db.sql(query).to_arrow_table().schema
    for text, expected in {
        "word lt 'b'": ["a"], "id eq '00000000-0000-0000-0000-00000000000a'": ["z"], "contains(id, 'a')": ["z"],
        "total eq 9007199254740993": ["z"], "total eq 9007199254740992": [], "total lt 8": ["a"],
    }.items():  # fmt: skip
        assert run(db, odata.page(asked(fields, filter=text), fields, have), query)["word"].to_pylist() == expected, (
            text
        )
    ordered = run(db, odata.page(asked(fields, orderby="word"), fields, have), query)
    assert ordered["word"].to_pylist() == ["a", "z"]  # and not in the order of the ENUM
    assert ordered["word"].type == pa.string()


def test_nothing_that_was_written_becomes_sql() -> None:
    text = (
        "name eq 'marked''--' or contains(tolower(note), 'marked''--') or n in (31337, 31337.5) or n gt 31337.5 "
        "or at eq 3133-07-31T00:00:00Z or day lt 3133-07-31 or startswith('marked', name)"
    )
    for table in MAKES.values():
        wrapped = odata.page(asked(FIELDS, filter=text), FIELDS, table.schema)
        assert not re.search("marked|31337|3133", wrapped.before + wrapped.after)
        assert set(wrapped.parameters) == set(re.findall(r"\$(\w+)", wrapped.after))
        assert all(name.startswith(OURS) for name in wrapped.parameters)


# -- columns, order, pages --------------------------------------------------------------------------------------------

SOME = pa.table({
    "b": pa.array([2, 1, None, 1, 2], pa.int64()),
    "a": ["x", None, "y", "x", "x"],
    "more": [1, 2, 3, 4, 5],
    "tags": pa.array([["p"], [], None, ["q"], ["o"]], pa.list_(pa.string())),
})  # fmt: skip
THREE = [
    Field("a", STRING, optional=True),
    Field("b", NUMBER, optional=True),
    Field("tags", STRING, optional=True, array=True),
]


def rows_of(db: duckdb.DuckDBPyConnection, wrapped: Wrapped, table: pa.Table = SOME) -> list[tuple[Any, ...]]:
    got = run(db, wrapped, "SELECT * FROM result", result=table)
    return list(zip(*(column.to_pylist() for column in got.columns), strict=True))


def test_declared_fields_are_selected_and_order_ties_with_null_lowest(db: duckdb.DuckDBPyConnection) -> None:
    wrapped = odata.page(asked(THREE), THREE, SOME.schema)
    assert run(db, wrapped, "SELECT * FROM result", result=SOME).column_names == ["a", "b", "tags"]
    told = [(None, 1, []), ("x", 1, ["q"]), ("x", 2, ["o"]), ("x", 2, ["p"]), ("y", None, None)]
    assert rows_of(db, wrapped) == told
    descending = odata.page(asked(THREE, orderby="b desc"), THREE, SOME.schema)
    assert rows_of(db, descending) == [told[2], told[3], told[0], told[1], told[4]]
    both = odata.page(asked(THREE, orderby="b, a desc"), THREE, SOME.schema)
    assert rows_of(db, both) == [told[4], told[1], told[0], told[2], told[3]]


def test_select_names_the_columns_and_does_not_change_the_order(db: duckdb.DuckDBPyConnection) -> None:
    chosen = asked(THREE, select="tags,b")
    assert [field.name for field in odata.selected(chosen, THREE)] == ["tags", "b"]
    assert odata.selected(asked(THREE), THREE) == tuple(THREE)
    got = run(db, odata.page(chosen, THREE, SOME.schema), "SELECT * FROM result", result=SOME)
    assert got.to_pydict() == {"tags": [[], ["q"], ["o"], ["p"], None], "b": [1, 1, 2, 2, None]}


def test_pages_make_the_whole_and_show_whether_there_is_more(db: duckdb.DuckDBPyConnection) -> None:
    whole = rows_of(db, odata.page(asked(THREE), THREE, SOME.schema))
    pages = [rows_of(db, odata.page(asked(THREE, top=2, skip=skip), THREE, SOME.schema)) for skip in (0, 2, 4, 6)]
    assert pages == [whole[:3], whole[2:5], whole[4:], []]
    assert len(rows_of(db, odata.page(asked(THREE, top=0), THREE, SOME.schema))) == 1


def test_all_rows_come_without_a_limit_and_in_order_if_asked(db: duckdb.DuckDBPyConnection) -> None:
    many = pa.table({"a": [str(n) for n in range(1_000)], "b": pa.array(range(1_000), pa.int64())})
    got = rows_of(db, odata.rows(asked(THREE, filter="b ge 10", orderby="b desc"), THREE, many.schema), many)
    assert [b for _, b in got] == list(range(999, 9, -1))
    assert "ORDER" not in odata.rows(asked(THREE, filter="b ge 10"), THREE, many.schema).after


@pytest.mark.parametrize(("text", "expected"), [("b eq 2", 2), ("a ne 'x'", 2), ("true", 5), ("false", 0)])
def test_rows_are_counted_whatever_the_page(db: duckdb.DuckDBPyConnection, text: str, expected: int) -> None:
    chosen = asked(THREE, filter=text, top=1, skip=1, orderby="a", select="a", count="true")
    assert rows_of(db, odata.count(chosen, THREE, SOME.schema)) == [(expected,)]


def test_a_field_that_the_result_lacks_is_null_and_not_selected(db: duckdb.DuckDBPyConnection) -> None:
    lacking = [*(Field(f"{kind}_", kind, optional=True) for kind in FieldType), *THREE]
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
            chosen = asked(lacking, filter=text, orderby=f"{name} desc")
            got = run(db, odata.page(chosen, lacking, SOME.schema), "SELECT * FROM result", result=SOME)
            assert (got.num_rows, got.column_names) == (expected, ["a", "b", "tags"]), text
    of_nulls = pa.schema({"a": pa.null()})
    assert run(db, odata.page(asked(THREE, filter="a ne 'x'"), THREE, of_nulls), "SELECT NULL AS a").num_rows == 1


def test_a_result_without_the_selected_fields_keeps_its_rows(db: duckdb.DuckDBPyConnection) -> None:
    lacking = [Field("z", STRING), *THREE]
    got = run(
        db,
        odata.page(asked(lacking, select="z", filter="b eq 2"), lacking, SOME.schema),
        "SELECT * FROM result",
        result=SOME,
    )
    assert got.num_rows == 2
    assert not {field.name for field in lacking} & set(got.column_names)


def test_columns_are_told_apart_by_their_place(db: duckdb.DuckDBPyConnection) -> None:
    query = """SELECT 1 AS a, 2 AS "A", 3 AS "odd "" name", 4 AS b, 5 AS b, 6 AS "0" """
    have = db.sql(query).to_arrow_table().schema
    fields = [Field("A", NUMBER), Field("b", NUMBER), Field("a", NUMBER)]
    page = odata.page(asked(fields, filter="A eq 2 and a eq 1 and b eq 4", orderby="A"), fields, have)
    assert run(db, page, query).to_pydict() == {"A": [2], "b": [4], "a": [1]}


# -- what cannot be asked ---------------------------------------------------------------------------------------------


def test_fields_are_of_the_kinds_that_literals_are_read_as() -> None:
    every = [*(Field(kind, kind) for kind in FieldType), Field("many", DATE, array=True)]
    assert odata.kinds(every) == {
        "string": Kind.TEXT,
        "number": Kind.NUMBER,
        "boolean": Kind.BOOLEAN,
        "date": Kind.DATE,
        "datetime": Kind.INSTANT,
        "many": Collection({}),
    }


@pytest.mark.parametrize(
    ("given", "reason", "said"),
    [
        ({"filter": "tags eq 'x'"}, "bad_filter", "tags is an array"),
        ({"filter": "a eq 'x' or tags/any()"}, "bad_filter", "position 12: tags is an array"),
        ({"filter": "tags/any(t: t eq 'x')"}, "bad_filter", "tags is an array"),
        ({"filter": "contains(tags, 'x')"}, "bad_filter", "tags is an array"),
        ({"orderby": "tags"}, "bad_option", "tags is a collection and has no order"),
        ({"filter": "more eq 1"}, "unknown_field", "there are a, b, tags"),
        ({"select": "more"}, "unknown_field", "there are a, b, tags"),
    ],
)
def test_arrays_and_strangers_are_neither_filtered_nor_ordered_by(given: Any, reason: str, said: str) -> None:
    with pytest.raises(Invalid, match=re.escape(said)) as refused:
        asked(THREE, **given)
    assert refused.value.reason == reason


@pytest.mark.parametrize("wrap", [odata.page, odata.rows, odata.count])
def test_a_query_has_no_search(wrap: Any) -> None:
    with pytest.raises(Invalid) as refused:
        wrap(asked(THREE, search="x"), THREE, SOME.schema)
    assert (refused.value.reason, refused.value.context) == ("bad_option", {"option": "$search"})


@pytest.mark.parametrize(("given"), [{"filter": "a eq 'x'"}, {"orderby": "a"}, {"filter": "contains(tolower(a), 'x')"}])
@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.date32(), pa.list_(pa.string()), pa.struct({"x": pa.string()})], ids=str
)
def test_a_column_that_is_not_as_promised_is_not_asked_about(given: Any, kind: pa.DataType) -> None:
    with pytest.raises(Unsupported) as refused:
        odata.page(asked(THREE, **given), THREE, pa.schema({"a": kind}))
    assert (refused.value.reason, refused.value.context) == ("unfit_column", {"field": "a"})


@pytest.mark.parametrize("given", [{"filter": "a eq 'x'"}, {"orderby": "a"}, {"filter": "a ne null"}])
def test_a_required_field_that_is_missing_is_not_asked_about(given: Any) -> None:
    promised = [Field("a", STRING), Field("b", STRING, optional=True)]
    with pytest.raises(Unsupported) as refused:
        odata.page(asked(promised, **given), promised, pa.schema({"c": pa.string()}))
    assert (refused.value.reason, refused.value.context) == ("unfit_column", {"field": "a"})
    odata.page(asked(promised, filter="b eq 'x'", orderby="b"), promised, pa.schema({"c": pa.string()}))


def test_a_moment_is_told_without_the_zone_of_the_session(db: duckdb.DuckDBPyConnection) -> None:
    fields, have = [Field("at", DATETIME)], pa.schema({"at": pa.timestamp("us", "UTC")})
    page = odata.page(asked(fields, filter="at eq 2026-01-31T10:00:00Z"), fields, have)
    got = run(db, page, "SELECT TIMESTAMPTZ '2026-01-31 10:00:00+00' AS at")
    assert got["at"].cast(pa.int64()).to_pylist() == [int(MOMENT.replace(tzinfo=UTC).timestamp()) * 10**6]
