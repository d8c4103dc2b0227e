"""Test filter expressions on Arrow, DuckDB and Spark against a reference implementation.

Many conditions are evaluated in one query, one column each, because a Spark job takes longer than a hundred of them.
DuckDB and Spark thereby also distinguish FALSE from unknown; the Arrow expression is a filter and shows only TRUE.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import date, datetime
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

from conftest import SOAK, examples
from engines.selector_cases import BAD, CONSTANT, DOUBLES, GOOD, NAN, ROWS, SCHEMA, VALUES
from engines.selector_oracle import truth
from penstock.core.selector import ArithmeticOperator, Comparison, Node, Wildcard, bind, parse
from penstock.core.selector.decimal256 import BASE, LIMB_COUNT, split_limbs
from penstock.engines.arrow.selector import to_arrow_filter
from penstock.engines.duckdb import connection
from penstock.engines.duckdb import selector as duckdb_selector
from penstock.errors import Invalid

Truths = list[list[bool | None]]  # of each condition, for each row
Evaluate = Callable[[Sequence[Node], pa.Table], Truths]

TABLE = pa.Table.from_pylist(ROWS, SCHEMA)
CONDITIONS_PER_QUERY = 150  # conditions in one query


def evaluate_with_oracle(nodes: Sequence[Node], table: pa.Table) -> Truths:
    rows = table.to_pylist()
    return [[truth(node, row, DOUBLES) for row in rows] for node in nodes]


def evaluate_with_arrow(nodes: Sequence[Node], table: pa.Table) -> Truths:
    """Return True for selected rows, None for the others."""
    truths = []
    for node in nodes:
        selected_ids = set(table.filter(to_arrow_filter(node, table.schema))["id"].to_pylist())
        truths.append([True if n in selected_ids else None for n in table["id"].to_pylist()])
    return truths


def evaluate_with_duckdb(nodes: Sequence[Node], table: pa.Table) -> Truths:
    conditions = [duckdb_selector.to_duckdb_condition(node, table.schema, f"s{n}") for n, node in enumerate(nodes)]
    values = {name: value for condition in conditions for name, value in condition.values.items()}
    with duckdb.connect() as db:
        db.register("rows", table)
        result = connection.fetch_table(
            db,
            f"SELECT {', '.join(f'{condition.sql} AS c{n}' for n, condition in enumerate(conditions))} FROM rows",
            **values,
        )
    return [column.to_pylist() for column in result.columns]


@pytest.fixture(scope="session")
def evaluate_with_spark(spark: Any) -> Evaluate:
    from penstock.engines.spark.selector import to_spark_condition
    from penstock.engines.spark.session import isolated_session

    isolated = isolated_session(spark)

    def evaluate(nodes: Sequence[Node], table: pa.Table) -> Truths:
        frame = isolated.createDataFrame(table).coalesce(1)
        result = frame.select(
            "id", *(to_spark_condition(node, table.schema).alias(f"c{n}") for n, node in enumerate(nodes))
        )
        return [column.to_pylist() for column in result.toArrow().sort_by("id").columns[1:]]

    return evaluate


@pytest.fixture(params=["arrow", "duckdb", "spark"])
def evaluate(request: pytest.FixtureRequest) -> Evaluate:
    function: Evaluate = (
        request.getfixturevalue("evaluate_with_spark") if request.param == "spark" else EVALUATORS[request.param]
    )
    return function


EVALUATORS: dict[str, Evaluate] = {"arrow": evaluate_with_arrow, "duckdb": evaluate_with_duckdb}


def assert_matches_oracle(evaluate: Evaluate, texts: Sequence[str], table: pa.Table) -> None:
    nodes = [parse(text) for text in texts]
    for text, expected, actual in zip(texts, evaluate_with_oracle(nodes, table), evaluate(nodes, table), strict=True):
        if evaluate is evaluate_with_arrow:
            expected = [value or None for value in expected]
        wrong = [row for row, a, b in zip(table.to_pylist(), expected, actual, strict=True) if a is not b]
        assert not wrong, f"{text[:200]}: wrong for {wrong[0]}; {len(wrong)} rows in all"


# -- expression cases -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, len(GOOD), CONDITIONS_PER_QUERY), ids=lambda n: f"from {n}")
@pytest.mark.parametrize("evaluate", [evaluate_with_arrow, evaluate_with_duckdb], ids=["arrow", "duckdb"])
def test_filter_each_case_matches_the_oracle(first: int, evaluate: Evaluate) -> None:
    assert_matches_oracle(evaluate, GOOD[first : first + CONDITIONS_PER_QUERY], TABLE)


SPARK_CASES = GOOD if SOAK else GOOD[::30]  # all cases take minutes


@pytest.mark.parametrize("first", range(0, len(SPARK_CASES), CONDITIONS_PER_QUERY), ids=lambda n: f"from {n}")
def test_filter_each_case_matches_the_oracle_on_spark(first: int, evaluate_with_spark: Evaluate) -> None:
    assert_matches_oracle(evaluate_with_spark, SPARK_CASES[first : first + CONDITIONS_PER_QUERY], TABLE)


def test_filter_constant_conditions_have_expected_values(evaluate: Evaluate) -> None:
    nodes = [parse(text) for text in CONSTANT]
    actual = dict(zip(CONSTANT, (column[0] for column in evaluate(nodes, TABLE.slice(0, 1))), strict=True))
    expected = {text: it or None for text, it in CONSTANT.items()} if evaluate is evaluate_with_arrow else CONSTANT
    assert actual == expected


def test_selector_oracle_constant_conditions_have_expected_values() -> None:
    assert {text: truth(parse(text), {}, DOUBLES) for text in CONSTANT} == CONSTANT


@pytest.mark.parametrize("text", BAD)
def test_filter_invalid_text_has_the_same_error_on_every_engine(text: str) -> None:
    from penstock.engines.spark.selector import to_spark_condition

    problem, position = BAD[text]
    for translate in (to_arrow_filter, duckdb_selector.to_duckdb_condition, to_spark_condition):
        with pytest.raises(Invalid) as error:
            translate(parse(text), SCHEMA)
        assert error.value.reason == "bad_selector"
        assert error.value.context["parse_error"].startswith(problem)
        assert error.value.context.get("position") == position


def test_filter_missing_column_is_an_error_on_every_engine() -> None:
    from penstock.engines.spark.selector import to_spark_condition

    for translate in (to_arrow_filter, duckdb_selector.to_duckdb_condition, to_spark_condition):
        with pytest.raises(Invalid) as error:
            translate(parse("tiny = 1 AND Tiny = 1"), SCHEMA)
        assert (error.value.reason, error.value.context["column"]) == ("column_not_found", "Tiny")


def test_duckdb_condition_contains_no_user_text() -> None:
    condition = duckdb_selector.to_duckdb_condition(
        parse("name IN ('evil', \"x\") OR big = 4711 OR name LIKE 'ev_l%' OR price < 47.11"), SCHEMA
    )
    assert not [word for word in ("evil", "4711", "47.11", "ev") if word in condition.sql]
    assert [*condition.values.values()] == ["evil", "x", 4711, "ev.l.*", "47.11"]


# -- stored rows ------------------------------------------------------------------------------------------------------

FILTERS = {  # x = 5, 5, NaN, NULL: minimum and maximum ignore NaN, so a row group could be skipped by mistake
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
def test_filter_nan_is_found_despite_statistics(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = str(tmp_path / "x.parquet")
    pq.write_table(pa.table({"id": range(4), "x": [5.0, 5.0, NAN, None]}), path)
    stored = request.getfixturevalue("filter_file_with_spark") if engine == "spark" else FILE_FILTERS[engine]
    assert {text: sorted(stored(parse(text), path)) for text in FILTERS} == FILTERS


def filter_file_with_arrow(node: Node, path: str) -> list[int]:
    rows = ds.dataset(path)
    ids: list[int] = rows.to_table(filter=to_arrow_filter(node, rows.schema))["id"].to_pylist()
    return ids


def filter_file_with_duckdb(node: Node, path: str) -> list[int]:
    condition = duckdb_selector.to_duckdb_condition(node, pq.read_schema(path))
    with duckdb.connect() as db:
        rows = connection.execute(
            db, f"SELECT id FROM read_parquet($path) WHERE {condition.sql}", path=path, **condition.values
        )
    return [n for (n,) in rows]


@pytest.fixture
def filter_file_with_spark(spark: Any) -> Callable[[Node, str], list[int]]:
    from penstock.engines.spark.selector import to_spark_condition
    from penstock.engines.spark.session import isolated_session

    isolated = isolated_session(spark)

    def stored(node: Node, path: str) -> list[int]:
        rows = isolated.read.parquet(path).filter(to_spark_condition(node, pq.read_schema(path)))
        ids: list[int] = rows.toArrow()["id"].to_pylist()
        return ids

    return stored


FILE_FILTERS: dict[str, Callable[[Node, str], list[int]]] = {
    "arrow": filter_file_with_arrow,
    "duckdb": filter_file_with_duckdb,
}


def test_filter_like_with_many_wildcards_terminates(evaluate: Evaluate) -> None:
    schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    rows = pa.table({"id": range(3), "name": ["a" * 3_000, "a" * 3_000 + "b", "ab" * 1_000]}, schema)
    assert_matches_oracle(
        evaluate,
        [f"name LIKE '{'%a' * 40}{end}'" for end in ("%b", "%c", "_", "")] + [f"name LIKE '{'a%' * 900}'"],
        rows,
    )


# -- random conditions and rows ---------------------------------------------------------------------------------------
# Every operand of the text is in parentheses, so the text is unambiguous; other tests cover parsing.

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
    """Return False for conditions that need too many digits, which are rejected."""
    try:
        return bool(bind(parse(text), SCHEMA))
    except Invalid as error:
        if "digits" not in error.message:
            raise
        return False


MANY = st.lists(CONDITIONS.filter(_is_bound), min_size=1, max_size=20)


@pytest.mark.parametrize("evaluate", [evaluate_with_arrow, evaluate_with_duckdb], ids=["arrow", "duckdb"])
@settings(max_examples=examples(25, soak=1_000))
@given(texts=MANY, table=TABLES)
def test_filter_random_conditions_match_the_oracle(evaluate: Evaluate, texts: list[str], table: pa.Table) -> None:
    assert_matches_oracle(evaluate, texts, table)


@settings(max_examples=examples(4, soak=150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=MANY, table=TABLES)
def test_filter_random_conditions_match_the_oracle_on_spark(
    evaluate_with_spark: Evaluate, texts: list[str], table: pa.Table
) -> None:
    assert_matches_oracle(evaluate_with_spark, texts, table)


# -- numbers as digits ------------------------------------------------------------------------------------------------

INTEGERS_76_DIGITS = st.integers(1 - 10**76, 10**76 - 1)


@given(INTEGERS_76_DIGITS, INTEGERS_76_DIGITS)
def test_wide_digits_sort_like_numbers(left: int, right: int) -> None:
    assert (split_limbs(left) < split_limbs(right)) == (left < right)
    assert (split_limbs(left) == split_limbs(right)) == (left == right)


@given(INTEGERS_76_DIGITS)
def test_wide_digits_add_up_to_the_number(number: int) -> None:
    digits = split_limbs(number)
    assert sum(digit * BASE**k for k, digit in enumerate(reversed(digits))) == number
    assert len(digits) == LIMB_COUNT
    assert all(0 <= digit < BASE for digit in digits[1:])


def test_engine_function_tables_are_complete() -> None:
    from penstock.engines.spark.selector import CALCULATE, COMPARE

    assert (set(COMPARE), set(CALCULATE), set(duckdb_selector.REGEX)) == (
        set(Comparison),
        set(ArithmeticOperator),
        set(Wildcard),
    )


# -- dates that the calendar and the time zones of Java do not have ---------------------------------------------------


@pytest.mark.spark
def test_spark_filter_of_old_dates_in_files_selects_the_rows_of_arrow(tmp_path: Path) -> None:
    path = tmp_path / "dates.parquet"
    pq.write_table(DATES, path, row_group_size=2)
    process = subprocess.run(
        [sys.executable, "-c", DATES_SCRIPT, str(path), json.dumps(DATE_CONDITIONS)],
        env={**os.environ, "TZ": "Pacific/Apia"},  # it skipped 2011-12-30
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert process.returncode == 0, process.stderr
    expected = {
        text: sorted(DATES.filter(to_arrow_filter(bind(parse(text), DATES.schema), DATES.schema))["id"].to_pylist())
        for text in DATE_CONDITIONS
    }
    assert json.loads(process.stdout) == expected
    assert all(expected.values())


_DAYS = ["0001-01-01", "1582-10-04", "1582-10-10", "1582-10-15", "1899-12-31", "2011-12-30", "2026-02-22"]
DATES = pa.table(
    {
        "id": pa.array(range(len(_DAYS))),
        "d": pa.array([date.fromisoformat(day) for day in _DAYS]),
        "naive": pa.array([datetime.fromisoformat(f"{day}T12:34:56.789012") for day in _DAYS], pa.timestamp("us")),
        "instant": pa.array([datetime.fromisoformat(f"{day}T12:34:56Z") for day in _DAYS], pa.timestamp("us", "UTC")),
    }
)
DATE_CONDITIONS = [
    *(f"d = DATE '{day}'" for day in _DAYS),
    *(f"naive = TIMESTAMP '{day} 12:34:56.789012'" for day in _DAYS),
    *(f"instant = TIMESTAMP '{day} 12:34:56Z'" for day in _DAYS),
    "d < DATE '1582-10-15'",
    "instant <= TIMESTAMP '1582-10-10 12:34:56Z'",
    "d IN (DATE '1582-10-10', DATE '2011-12-30')",
]
DATES_SCRIPT = """
import json, sys
import pyarrow.parquet as pq
from penstock.core.pipeline.plan import SourceFiles
from penstock.core.selector import bind, parse
from penstock.engines.spark.append import select_rows
from penstock.engines.spark.session import get_or_start_session, isolated_session
path, conditions = sys.argv[1], json.loads(sys.argv[2])
schema = pq.read_schema(path)
files = SourceFiles(schema, (path,), 7, 1000)
spark = isolated_session(get_or_start_session("local[1]", {"spark.driver.memory": "512m"}))
def selected(text):
    rows = select_rows(spark, files, bind(parse(text), schema), ["id"], "")
    return sorted(row.id for row in rows.collect())
print(json.dumps({text: selected(text) for text in conditions}))
"""
