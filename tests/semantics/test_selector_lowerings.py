"""A selector keeps the same rows in Arrow, DuckDB and Spark, and they are those that the oracle keeps.

Many conditions are asked in one query, a column each: a job of Spark's takes longer than a hundred of them. DuckDB and
Spark thereby also tell FALSE from unknown; the Arrow lowering is a filter, and tells only what is kept.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import SOAK
from penstock.core.selector import Comparison, Node, Operation, Wild, bind, parse
from penstock.core.selector.decimal256 import BASE, PLACES, places
from penstock.engines.arrow.selector import expression
from penstock.engines.duckdb import selector as in_duckdb
from penstock.engines.duckdb import connection as sql
from penstock.errors import Invalid
from semantics.selector_cases import BAD, CONSTANT, DOUBLES, GOOD, NAN, ROWS, SCHEMA, VALUES
from semantics.selector_oracle import truth

Truths = list[list[bool | None]]  # of each condition, for each row
Ask = Callable[[Sequence[Node], pa.Table], Truths]

TABLE = pa.Table.from_pylist(ROWS, SCHEMA)
AT_ONCE = 150  # conditions in one query


def by_oracle(nodes: Sequence[Node], table: pa.Table) -> Truths:
    rows = table.to_pylist()
    return [[truth(node, row, DOUBLES) for row in rows] for node in nodes]


def by_arrow(nodes: Sequence[Node], table: pa.Table) -> Truths:
    """TRUE for the rows that it keeps, unknown for the others."""
    told = []
    for node in nodes:
        kept = set(table.filter(expression(node, table.schema))["id"].to_pylist())
        told.append([True if n in kept else None for n in table["id"].to_pylist()])
    return told


def by_duckdb(nodes: Sequence[Node], table: pa.Table) -> Truths:
    asked = [in_duckdb.condition(node, table.schema, f"s{n}") for n, node in enumerate(nodes)]
    values = {name: value for each in asked for name, value in each.values.items()}
    with duckdb.connect() as db:
        db.register("rows", table)
        told = sql.table(
            db, f"SELECT {', '.join(f'{each.sql} AS c{n}' for n, each in enumerate(asked))} FROM rows", **values
        )
    return [column.to_pylist() for column in told.columns]


@pytest.fixture(scope="session")
def by_spark(spark: Any) -> Ask:
    from penstock.engines.spark.selector import condition
    from penstock.engines.spark.session import for_merging

    ours = for_merging(spark)

    def ask(nodes: Sequence[Node], table: pa.Table) -> Truths:
        frame = ours.createDataFrame(table).coalesce(1)
        told = frame.select("id", *(condition(node, table.schema).alias(f"c{n}") for n, node in enumerate(nodes)))
        return [column.to_pylist() for column in told.toArrow().sort_by("id").columns[1:]]

    return ask


@pytest.fixture(params=["arrow", "duckdb", "spark"])
def ask(request: pytest.FixtureRequest) -> Ask:
    found: Ask = request.getfixturevalue("by_spark") if request.param == "spark" else ASK[request.param]
    return found


ASK: dict[str, Ask] = {"arrow": by_arrow, "duckdb": by_duckdb}


def judge(ask: Ask, texts: Sequence[str], table: pa.Table) -> None:
    nodes = [parse(text) for text in texts]
    for text, want, told in zip(texts, by_oracle(nodes, table), ask(nodes, table), strict=True):
        if ask is by_arrow:
            want = [it or None for it in want]
        wrong = [row for row, a, b in zip(table.to_pylist(), want, told, strict=True) if a is not b]
        assert not wrong, f"{text[:200]}: wrong for {wrong[0]}; {len(wrong)} rows in all"


# -- the table of expressions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, len(GOOD), AT_ONCE), ids=lambda n: f"from {n}")
@pytest.mark.parametrize("ask", [by_arrow, by_duckdb], ids=["arrow", "duckdb"])
def test_every_engine_keeps_the_rows_of_the_oracle(first: int, ask: Ask) -> None:
    judge(ask, GOOD[first : first + AT_ONCE], TABLE)


IN_SPARK = GOOD if SOAK else GOOD[::30]  # it takes minutes to read them all


@pytest.mark.parametrize("first", range(0, len(IN_SPARK), AT_ONCE), ids=lambda n: f"from {n}")
def test_spark_keeps_the_rows_of_the_oracle(first: int, by_spark: Ask) -> None:
    judge(by_spark, IN_SPARK[first : first + AT_ONCE], TABLE)


def test_what_holds_without_rows_holds_in_every_engine(ask: Ask) -> None:
    nodes = [parse(text) for text in CONSTANT]
    told = dict(zip(CONSTANT, (column[0] for column in ask(nodes, TABLE.slice(0, 1))), strict=True))
    expected = {text: it or None for text, it in CONSTANT.items()} if ask is by_arrow else CONSTANT
    assert told == expected


def test_the_oracle_knows_what_holds_without_rows() -> None:
    assert {text: truth(parse(text), {}, DOUBLES) for text in CONSTANT} == CONSTANT


@pytest.mark.parametrize("text", BAD)
def test_what_is_refused_is_refused_alike(text: str) -> None:
    from penstock.engines.spark.selector import condition

    problem, position = BAD[text]
    for lower in (expression, in_duckdb.condition, condition):
        with pytest.raises(Invalid) as told:
            lower(parse(text), SCHEMA)
        assert told.value.reason == "bad_selector"
        assert told.value.context["parse_error"].startswith(problem)
        assert told.value.context.get("position") == position


def test_a_missing_column_is_told_by_every_lowering() -> None:
    from penstock.engines.spark.selector import condition

    for lower in (expression, in_duckdb.condition, condition):
        with pytest.raises(Invalid) as told:
            lower(parse("tiny = 1 AND Tiny = 1"), SCHEMA)
        assert (told.value.reason, told.value.context["column"]) == ("no_such_column", "Tiny")


def test_sql_holds_no_word_of_the_user() -> None:
    made = in_duckdb.condition(
        parse("name IN ('evil', \"x\") OR big = 4711 OR name LIKE 'ev_l%' OR price < 47.11"), SCHEMA
    )
    assert not [word for word in ("evil", "4711", "47.11", "ev") if word in made.sql]
    assert [*made.values.values()] == ["evil", "x", 4711, "ev.l.*", "47.11"]


# -- stored rows ------------------------------------------------------------------------------------------------------

FILTERS = {  # of x = 5, 5, NaN, NULL: least and greatest leave NaN out, so a row group can be skipped wrongly
    "x != 5": [2],
    "NOT x = 5": [2],
    "NOT x > 4": [2],
    "NOT x < 6": [2],
    "x > 4": [0, 1],
    "x >= x": [0, 1],
    "x IN (5)": [0, 1],
    "x NOT IN (5, 6)": [2],
    "x / 0 IS NULL": [0, 1, 2, 3],
}


@pytest.mark.parametrize("engine", ["arrow", "duckdb", "spark"])
def test_nan_is_found_where_statistics_leave_it_out(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = str(tmp_path / "x.parquet")
    pq.write_table(pa.table({"id": range(4), "x": [5.0, 5.0, NAN, None]}), path)
    stored = request.getfixturevalue("stored_in_spark") if engine == "spark" else STORED[engine]
    assert {text: sorted(stored(parse(text), path)) for text in FILTERS} == FILTERS


def stored_in_arrow(node: Node, path: str) -> list[int]:
    rows = ds.dataset(path)
    kept: list[int] = rows.to_table(filter=expression(node, rows.schema))["id"].to_pylist()
    return kept


def stored_in_duckdb(node: Node, path: str) -> list[int]:
    where = in_duckdb.condition(node, pq.read_schema(path))
    with duckdb.connect() as db:
        found = sql.run(db, f"SELECT id FROM read_parquet($path) WHERE {where.sql}", path=path, **where.values)
    return [n for (n,) in found]


@pytest.fixture
def stored_in_spark(spark: Any) -> Callable[[Node, str], list[int]]:
    from penstock.engines.spark.selector import condition
    from penstock.engines.spark.session import for_merging

    ours = for_merging(spark)

    def stored(node: Node, path: str) -> list[int]:
        kept = ours.read.parquet(path).filter(condition(node, pq.read_schema(path)))
        found: list[int] = kept.toArrow()["id"].to_pylist()
        return found

    return stored


STORED: dict[str, Callable[[Node, str], list[int]]] = {"arrow": stored_in_arrow, "duckdb": stored_in_duckdb}


def test_a_pattern_of_many_parts_ends(ask: Ask) -> None:
    schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    rows = pa.table({"id": range(3), "name": ["a" * 3_000, "a" * 3_000 + "b", "ab" * 1_000]}, schema)
    judge(ask, [f"name LIKE '{'%a' * 40}{end}'" for end in ("%b", "%c", "_", "")] + [f"name LIKE '{'a%' * 900}'"], rows)


# -- random conditions over random rows -------------------------------------------------------------------------------
# The text has every operand in parentheses, so that it cannot be misread; how text is read is judged elsewhere.

INTEGERS = {"tiny": 8, "short": 16, "small": 32, "big": 64, "other": 64}
DECIMALS = {"price": (10, 2), "cents": (18, 0), "exact": (38, 18), "part": (38, 38)}
ANY_VALUE: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for name, bits in INTEGERS.items()},
    **{
        name: st.integers(1 - 10**digits, 10**digits - 1).map(
            lambda n, scale=scale: Decimal((n < 0, _digits(n), -scale))
        )
        for name, (digits, scale) in DECIMALS.items()
    },
    "rate": st.floats(),
    "speed": st.floats(),
    "weight": st.floats(width=32),
    "name": st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    "city": st.text("ab%_\\é🦆", max_size=4),
}


def _digits(number: int) -> tuple[int, ...]:
    return tuple(map(int, str(abs(number))))


ROW = st.fixed_dictionaries(
    {name: st.sampled_from(some) | ANY_VALUE.get(name, st.none()) for name, some in VALUES.items()}
)
TABLES = st.lists(ROW, min_size=1, max_size=8).map(
    lambda rows: pa.Table.from_pylist([{"id": n, **row} for n, row in enumerate(rows)], SCHEMA)
)
NUMBERS = st.one_of(
    st.sampled_from([*INTEGERS, *DECIMALS, *sorted(DOUBLES), "NULL"]),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(
        ["0", "-1", "0.5", "-2.25", "1e3", "0.1", "1e-30", "9007199254740993", "1e60", "-9223372036854775808"]
    ),
)
SUMS = st.recursive(
    NUMBERS,
    lambda inner: st.builds("({}) {} ({})".format, inner, st.sampled_from("+-*/"), inner) | inner.map("-({})".format),
    max_leaves=4,
)
TEXTS = st.sampled_from(["name", "city", "'ann'", "'a%b'", "'é'", "''", '"zoë"', "'🦆'", "NULL"])
DAYS = st.sampled_from(["day", "due", "DATE '2026-01-31'", "DATE '1969-12-31'", "NULL"])
TRUTHS = st.sampled_from(["active", "open", "TRUE", "FALSE", "NULL"])
OPS = st.sampled_from([*Comparison]).map(lambda op: op.value)
MAYBE_NOT = st.sampled_from(["", "NOT "])
ITEMS = st.lists(st.sampled_from(["1", "-7", "NULL", "0", "1.5", "-0.0", "1e2", "1e60"]), min_size=1, max_size=4)
CONDITIONS = st.recursive(
    st.one_of(
        *(st.builds("({}) {} ({})".format, side, OPS, side) for side in (SUMS, SUMS, TEXTS, DAYS, TRUTHS)),
        *(
            st.builds("({}) {}BETWEEN ({}) AND ({})".format, side, MAYBE_NOT, side, side)
            for side in (SUMS, TEXTS, DAYS)
        ),
        st.builds("({}) {}IN ({})".format, SUMS, MAYBE_NOT, ITEMS.map(", ".join)),
        st.builds("({}) {}LIKE '{}'".format, TEXTS, MAYBE_NOT, st.text("an%_bé🦆", max_size=5)),
        st.builds("({}) IS {}NULL".format, st.one_of(SUMS, TEXTS, DAYS), MAYBE_NOT),
        TRUTHS,
    ),
    lambda inner: st.one_of(
        inner.map("NOT ({})".format),
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["AND", "OR", "=", "!="]), inner),
    ),
    max_leaves=5,
)


def _is_bound(text: str) -> bool:
    """Not so where more digits may be needed than there are: that is refused, as judged above."""
    try:
        return bool(bind(parse(text), SCHEMA))
    except Invalid as refusal:
        if "digits" not in refusal.message:
            raise
        return False


MANY = st.lists(CONDITIONS.filter(_is_bound), min_size=1, max_size=20)


@pytest.mark.parametrize("ask", [by_arrow, by_duckdb], ids=["arrow", "duckdb"])
@settings(max_examples=1_000 if SOAK else 25)
@given(texts=MANY, table=TABLES)
def test_random_conditions_over_random_rows(ask: Ask, texts: list[str], table: pa.Table) -> None:
    judge(ask, texts, table)


@settings(max_examples=150 if SOAK else 4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=MANY, table=TABLES)
def test_random_conditions_over_random_rows_in_spark(by_spark: Ask, texts: list[str], table: pa.Table) -> None:
    judge(by_spark, texts, table)


# -- numbers as places ------------------------------------------------------------------------------------------------

WHOLE = st.integers(1 - 10**76, 10**76 - 1)


@given(WHOLE, WHOLE)
def test_numbers_sort_as_their_places_do(left: int, right: int) -> None:
    assert (places(left) < places(right)) == (left < right)
    assert (places(left) == places(right)) == (left == right)


@given(WHOLE)
def test_places_add_up(number: int) -> None:
    told = places(number)
    assert sum(place * BASE**k for k, place in enumerate(reversed(told))) == number
    assert len(told) == PLACES
    assert all(0 <= place < BASE for place in told[1:])


def test_the_tables_of_the_lowerings_are_complete() -> None:
    from penstock.engines.spark.selector import CALCULATE, COMPARE

    assert (set(COMPARE), set(CALCULATE), set(in_duckdb.REGEX)) == (set(Comparison), set(Operation), set(Wild))
