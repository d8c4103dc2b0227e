"""Filter expressions: parse, bind and bounds, against an oracle.

The oracle evaluates an unbound tree over rows of plain Python values, without Arrow. Every valid expression is evaluated by
the oracle, by Arrow in memory, and by Arrow over a Parquet file whose row groups can be skipped by their statistics.
"""

import math
import pickle
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from engines.selector_oracle import is_double
from penstock.core import selector
from penstock.core.selector import (
    And,
    Arithmetic,
    ArithmeticOperator,
    Between,
    Column,
    Compare,
    Comparison,
    In,
    Interval,
    IsNull,
    Like,
    Literal,
    Node,
    Not,
    Or,
    Wildcard,
    bind,
    bounds,
    columns,
    parse,
)
from penstock.engines.arrow.selector import _ARITHMETIC_FUNCTIONS, _COMPARE_FUNCTIONS, _WILDCARD_REGEX, to_arrow_filter
from penstock.errors import Invalid

NAN = float("nan")
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "tiny": pa.int8(),
        "small": pa.int32(),
        "big": pa.int64(),
        "price": pa.decimal128(10, 2),
        "rate": pa.float64(),
        "weight": pa.float32(),
        "flat": pa.float64(),
        "name": pa.string(),
        "city": pa.string(),
        "odd `name": pa.string(),
        "active": pa.bool_(),
        "raw": pa.binary(),
        "day": pa.date32(),
        "date": pa.date32(),
        "seen": pa.timestamp("us"),
        "made": pa.timestamp("us", "UTC"),
        "tags": pa.list_(pa.string()),
        "place": pa.struct({"x": pa.int64()}),
    }
)
VALUES: dict[str, list[Any]] = {
    "tiny": [1, -128, None, 127, 0, 5, -1, 2],
    "small": [10, None, -7, 2**31 - 1, 0, 100, -(2**31)],
    "big": [2**63 - 1, -(2**63), None, 0, 2**53 + 1, 42, -1, 7, 1000],
    "price": [Decimal("1.50"), None, Decimal("-2.25"), Decimal("0.00"), Decimal("99999999.99"), Decimal("10.00")],
    "rate": [1.5, NAN, None, -0.0, 0.0, -2.5, math.inf, -math.inf, 0.1, 1e300, 5.0],
    "weight": [0.5, None, NAN, 0.10000000149011612, 2.0, -3.0],
    "flat": [5.0, NAN],  # minimum and maximum are 5 in every row group
    "name": [
        "ann",
        "Ann",
        "",
        None,
        "éva",
        "a%b",
        "a_b",
        "a\\b",
        "日本語",
        "line\nbreak",
        "it's",
        "anna",
        "zoë",
        'q"q',
    ],
    "city": ["ann", None, "Ü", "bo", "a%b"],
    "odd `name": ["x", None, "y"],
    "active": [True, False, None],
    "raw": [b"", None, b"\xff", b"a"],
    "day": [date(2026, 1, 31), None, date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)],
    "date": [date(2026, 1, 31), date(2026, 2, 1), None],
    "seen": [datetime(2026, 1, 31, 10), None, datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2024, 2, 29)],
    "made": [datetime(2026, 1, 31, 10, tzinfo=UTC), datetime(2024, 2, 29, tzinfo=UTC), None],
    "tags": [["a"], None, [], [None]],
    "place": [{"x": 1}, None, {"x": None}],
}
ROWS = [{"id": n, **{name: some[n % len(some)] for name, some in VALUES.items()}} for n in range(66)]
TABLE = pa.Table.from_pylist(ROWS, SCHEMA)
BATCH = pa.RecordBatch.from_pylist(ROWS, SCHEMA)


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> ds.Dataset:
    path: Path = tmp_path_factory.mktemp("selector") / "rows.parquet"
    pq.write_table(TABLE, path, row_group_size=11)
    return ds.dataset(path)


# -- the oracle -------------------------------------------------------------------------------------------------------


DOUBLES = frozenset(field.name for field in SCHEMA if pa.types.is_floating(field.type))


def value(node: Node, row: dict[str, Any]) -> Any:
    """Evaluate the unbound tree for one row; None is unknown. Exact numbers are Fractions, doubles are floats."""
    match node:
        case Column(name):
            return _exact(row[name])
        case Literal(inner):
            return _exact(inner)
        case Compare(op, left, right):
            return _compare(op, value(left, row), value(right, row))
        case Between(inner, low, high):
            operand, low_value, high_value = _as_one_type((inner, low, high), row)
            truths = [_compare(Comparison.GE, operand, low_value), _compare(Comparison.LE, operand, high_value)]
            return False if False in truths else None if None in truths else True
        case In(inner, items):
            operand, *others = _as_one_type((inner, *items), row)
            truths = [_compare(Comparison.EQ, operand, other) for other in others]
            return True if True in truths else None if None in truths else False
        case Like(inner, pattern):
            text = value(inner, row)
            regex = "".join({Wildcard.ANY: ".*", Wildcard.ONE: "."}.get(part) or re.escape(part) for part in pattern)
            return None if text is None else re.fullmatch(regex, text, re.DOTALL) is not None
        case IsNull(inner):
            return value(inner, row) is None
        case Not(inner):
            return None if (truth := value(inner, row)) is None else not truth
        case And(parts):
            truths = [value(part, row) for part in parts]
            return False if False in truths else None if None in truths else True
        case Or(parts):
            truths = [value(part, row) for part in parts]
            return True if True in truths else None if None in truths else False
        case Arithmetic(op, left, right):
            return _calculate(op, value(left, row), value(right, row))
    raise AssertionError(f"the oracle does not support {node}")


def _as_one_type(nodes: tuple[Node, ...], row: dict[str, Any]) -> list[Any]:
    """Return the values of the operands of one operator: doubles if one of them is a double."""
    values = [value(node, row) for node in nodes]
    if not any(is_double(node, DOUBLES) for node in nodes):
        return values
    return [None if value_ is None else float(value_) for value_ in values]


def _exact(value: Any) -> Any:
    return Fraction(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else value


def _pair(left: Any, right: Any) -> tuple[Any, Any]:
    return (float(left), float(right)) if isinstance(left, float) or isinstance(right, float) else (left, right)


def _compare(op: Comparison, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    left, right = _pair(left, right)
    return {
        Comparison.EQ: left == right,
        Comparison.NE: left != right,
        Comparison.LT: left < right,
        Comparison.LE: left <= right,
        Comparison.GT: left > right,
        Comparison.GE: left >= right,
    }[op]


def _calculate(op: ArithmeticOperator, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    if op is ArithmeticOperator.DIVIDE:
        return None if right == 0 else _divide(float(left), float(right))
    left, right = _pair(left, right)
    return {
        ArithmeticOperator.ADD: left + right,
        ArithmeticOperator.SUBTRACT: left - right,
        ArithmeticOperator.MULTIPLY: left * right,
    }[op]


def _divide(left: float, right: float) -> float:
    try:
        return left / right
    except OverflowError:
        return math.copysign(math.inf, left) * math.copysign(1, right)


def selected_ids(node: Node) -> list[int]:
    return [row["id"] for row in ROWS if value(node, row) is True]


def ids(table: pa.Table) -> list[int]:
    return table["id"].to_pylist()


def is_inside(value: Any, interval: Interval) -> bool:
    return (
        value is not None
        and value == value
        and (interval.low is None or value >= interval.low)
        and (interval.high is None or value <= interval.high)
    )


def assert_equal_results(text: str, parquet: ds.Dataset) -> list[int]:
    node = parse(text)
    expected, bound = selected_ids(node), bind(node, SCHEMA)
    filtered = to_arrow_filter(node, SCHEMA)
    assert ids(TABLE.filter(filtered)) == expected, text
    assert BATCH.filter(filtered).column("id").to_pylist() == expected, f"{text}, of a batch"
    assert ids(parquet.to_table(columns=["id"], filter=filtered)) == expected, f"{text}, over Parquet"
    assert parquet.count_rows(filter=filtered) == len(expected), f"{text}, counted"
    assert bind(bound, SCHEMA) == bound, f"{text}, bound twice"
    for name, interval in bounds(bound).items():
        outside = [n for n in expected if not is_inside(ROWS[n][name], interval)]
        assert not outside, f"{text} selects rows {outside} outside {name} {interval}"
    return expected


# -- valid expressions ------------------------------------------------------------------------------------------------

LITERALS = {
    "tiny": ["0", "-128", "5", "1000", "2.5", "-1", "1e2", "5.0", "NULL"],
    "small": ["0", "-7", "2147483648", "1e1", ".5", "99999999999999999999"],
    "big": ["9223372036854775807", "-9223372036854775808", "9223372036854775808", "42", "1e60", "9007199254740993"],
    "price": ["1.5", "1.50", "-2.25", "0", "1.505", "1e1", "99999999.99", "NULL"],
    "rate": ["1.5", "0", "-0.0", "0.1", "1e300", "-2.5", "5", "1e-400", "NULL"],
    "weight": ["0.5", "0.1", "2", "-3e0"],
    "flat": ["5", "4", "flat"],
    "name": ["'ann'", '"ann"', "''", "'éva'", "'it''s'", '"q""q"', "'日本語'", "'a%b'", "city", "NULL"],
    "`odd ``name`": ["'x'", "`odd ``name`"],
    "active": ["TRUE", "false", "NULL", "active"],
    "raw": ["raw"],
    "day": ["DATE '2026-01-31'", "date '1969-12-31'", "date", "NULL"],
    "date": ["DATE '2026-01-31'", "day"],
    "seen": ["TIMESTAMP '2026-01-31 10:00:00'", "TIMESTAMP '1969-12-31T23:59:59.999999'"],
    "made": ["TIMESTAMP '2026-01-31 10:00:00Z'", "timestamp '2024-02-29 00:00:00Z'"],
}
COMPARED = [
    f"{column} {op} {literal}"
    for column, literals in LITERALS.items()
    for literal in literals
    for op in ("=", "!=", "<", "<=", ">", ">=")
]
FLIPPED = [f"{literal} {op} {column}" for column, (literal, *_) in LITERALS.items() for op in ("=", "<>", "<", ">=")]
CROSSED = [f"{a} {op} {b}" for a in LITERALS for b in LITERALS for op in ("=", "<") if {a, b} <= {*list(LITERALS)[:6]}]
LISTED = [
    f"{column} {form}"
    for column, literals in LITERALS.items()
    if len(fixed := [it for it in literals if it not in LITERALS and "odd" not in it and it not in ("city", "raw")]) > 1
    for form in (
        f"IN ({', '.join(fixed)})",
        f"NOT IN ({', '.join(fixed)})",
        f"in ({fixed[0]}, NULL)",
        f"NOT IN ({fixed[0]}, NULL)",
        f"BETWEEN {fixed[0]} AND {fixed[1]}",
        f"not between {fixed[1]} and {fixed[0]}",
        f"BETWEEN NULL AND {fixed[0]}",
    )
]
NULLED = [f"`{name.replace('`', '``')}` IS {no}NULL" for name in SCHEMA.names for no in ("", "NOT ")]
PATTERNS = [
    "ann",
    "a%",
    "%n%",
    "_nn",
    "",
    "%",
    "_",
    "___",
    "a\\%b",
    "a\\_b",
    "a\\\\b",
    "line%",
    "%本%",
    "a.b",
    "\\a%",
    "(",
    "é%",
]
LIKED = [f"{column} {no}LIKE '{pattern}'" for column in ("name", "city") for pattern in PATTERNS for no in ("", "NOT ")]
CALCULATED = [
    f"{left} {op} {right} {test}"
    for left in ("tiny", "big", "price", "rate", "-small", "NULL", "3")
    for op in "+-*/"
    for right in ("tiny", "big", "price", "rate", "2", "0.5", "-0", "NULL")
    for test in ("> 1", "IS NULL")
]
SPELLED = [
    "active",
    "NOT active",
    "not not active",
    "NULL",
    "TRUE",
    "FALSE",
    "NOT NULL",
    "1 = 1",
    "NULL = NULL",
    "NULL IS NULL",
    "active = NULL OR TRUE",
    "active AND NULL",
    "active OR NULL",
    "active=FALSE",
    "(tiny > 1) = (big > 1)",
    "(tiny > 1) IS NULL",
    "NOT tiny = 1",
    "NOT (tiny = 1) AND active",
    "tiny = 1 OR tiny = 2 AND active",
    "(tiny = 1 OR tiny = 2) AND active",
    "tiny = 1 oR name = 'ann' aNd nOt active",
    "tiny+1*2 = 3",
    "(tiny+1)*2 = 4",
    "10 - 3 - 2 = 5",
    "8 / 2 / 2 = 2",
    "- -tiny = tiny",
    "-(tiny) < 0",
    "2 - -3 = 5",
    "-tiny*2 > 0",
    "-big = 9223372036854775808",
    "big * big = 1764",
    "big + big + big > 9223372036854775807",
    "price * price * price > 1",
    "price + 0.001 > 1.5",
    "1 / 3 = 0.3333333333333333",
    "tiny / tiny = 1",
    "rate - rate = 0",
    "NOT rate - rate = 0",
    "rate != rate",
    "NOT rate > 1 AND NOT rate <= 1",
    "NOT rate BETWEEN -1e9 AND 1e9",
    "rate IN (0)",
    "rate IN (-0.0)",
    "rate NOT IN (0, 5)",
    "rate = 5 OR rate = 0.1",
    "rate = 5 AND 0 = 1",
    "rate = 5 OR 1 = 1",
    "tiny IN (1, 2.5, NULL)",
    "price BETWEEN tiny AND big",
    "name = city",
    "name LIKE 'a%' AND name < 'b'",
    "name < 'b' OR name > 'y'",
    "name >= 'a' AND name < 'b' OR name IN ('zoë', 'éva')",
    "tiny > 5 AND tiny < 3 OR tiny = 127",
    "tiny > 5 AND tiny < 3",
    "tags IS NULL OR place IS NOT NULL",
    "day > DATE '2000-01-01' AND seen < TIMESTAMP '2026-01-01 00:00:00.5'",
    'date = DATE "2026-01-31"',
    "`date` = day",
    "\n\ttiny\r\n=\u00a01 ",
    "tiny=1and active",
    "name = 'line\nbreak'",
    "weight * 2 = 1",
    "weight = 0.10000000149011612",
    "small * 1e300 * 1e300 > 0",
    "rate / 0.0 IS NULL AND rate IS NOT NULL",
]
GOOD = [*COMPARED, *FLIPPED, *CROSSED, *LISTED, *NULLED, *LIKED, *CALCULATED, *SPELLED]


def test_selector_expression_table_is_large() -> None:
    assert len(GOOD) > 800


@pytest.mark.parametrize("text", GOOD)
def test_selector_oracle_arrow_and_parquet_select_equal_rows(text: str, parquet: ds.Dataset) -> None:
    assert_equal_results(text, parquet)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("tiny = 127", lambda row: row["tiny"] == 127),
        ("NOT tiny = 127", lambda row: row["tiny"] not in (None, 127)),
        ("tiny NOT IN (1, NULL)", lambda _: False),
        ("rate != 1.5", lambda row: row["rate"] is not None and row["rate"] != 1.5),
        ("NOT rate > 0", lambda row: row["rate"] is not None and not row["rate"] > 0),
        ("tiny / 0 IS NULL", lambda _: True),
        ("name = 'Ann'", lambda row: row["name"] == "Ann"),
        ("name LIKE 'A%'", lambda row: row["name"] is not None and row["name"].startswith("A")),
        ("active", lambda row: row["active"] is True),
        ("small > 2.5", lambda row: row["small"] is not None and row["small"] >= 3),
        ("weight = 0.1", lambda _: False),  # a float32 differs from 0.1: both are compared as doubles
    ],
)
def test_selector_semantics_in_plain_python(
    text: str, rows: Callable[[dict[str, Any]], bool], parquet: ds.Dataset
) -> None:
    assert assert_equal_results(text, parquet) == [row["id"] for row in ROWS if rows(row)]


def test_selector_finds_nan_that_statistics_omit(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [5.0, 5.0, NAN], "y": [20.0, 30.0, NAN]}), tmp_path / "x.parquet")
    dataset = ds.dataset(tmp_path / "x.parquet")
    for text, count in {
        "x != 5": 1,
        "NOT x = 5": 1,
        "NOT y > 10": 1,
        "x NOT BETWEEN x AND NULL": 1,
        "y > 10": 2,
        "x = 5": 2,
        "x IN (5)": 2,
    }.items():
        filtered = to_arrow_filter(parse(text), dataset.schema)
        assert (dataset.to_table(filter=filtered).num_rows, dataset.count_rows(filter=filtered)) == (count, count), text


def test_selector_bounds_skip_row_groups(tmp_path: Path) -> None:
    rows = pa.table({"x": [float(n) for n in range(100)], "n": range(100), "s": [f"{n:02}" for n in range(100)]})
    pq.write_table(rows, tmp_path / "x.parquet", row_group_size=10)
    (fragment,) = ds.dataset(tmp_path / "x.parquet").get_fragments()
    for text in ("x >= 95", "n IN (91, 99)", "s LIKE '93%'", "n > 92.5", "x BETWEEN 91 AND 92 AND n != 3"):
        assert len(fragment.split_by_row_group(to_arrow_filter(parse(text), rows.schema))) == 1, text


# -- invalid expressions ----------------------------------------------------------------------------------------------

MISREAD = {
    "invalid syntax here": "Expected comparison operator at position 8",
    "": "Expected column or value at position 0",
    "  ": "Expected column or value at position 2",
    "a = 1 b": "Expected AND, OR or end of expression at position 6",
    "a =": "Expected column or value at position 3",
    "= 1": "Expected column or value at position 0",
    "a = = 1": "Expected column or value at position 4",
    "a == 1": "Expected column or value at position 3",
    "a ! 1": "Unexpected character '!' at position 2",
    "(a = 1": "Expected AND, OR or ')' at position 6",
    "(a b)": "Expected comparison operator at position 3",
    "a = 1)": "Expected AND, OR or end of expression at position 5",
    "()": "Expected column or value at position 1",
    "a AND": "Expected column or value at position 5",
    "a AND b c": "Expected comparison operator at position 8",
    "a AND OR b": "Expected column or value at position 6",
    "NOT": "Expected column or value at position 3",
    "a NOT 3": "Expected IN, BETWEEN or LIKE at position 6",
    "a = NOT b": "Expected column or value at position 4",
    "a < b < c": "Expected AND, OR or end of expression at position 6",
    "a = 1 IS NULL": "Expected AND, OR or end of expression at position 6",
    "a IS 3": "Expected NULL or NOT NULL at position 5",
    "a IS NOT TRUE": "Expected NULL at position 9",
    "a IN 1": "Expected '(' at position 5",
    "a IN ()": "Expected column or value at position 6",
    "a IN (b)": "Expected literal at position 6",
    "a IN (1 + 1)": "Expected literal at position 6",
    "a IN (1,)": "Expected column or value at position 8",
    "a IN (1": "Expected ',' or ')' at position 7",
    "a IN (SELECT 1)": "Expected literal at position 6",
    "a BETWEEN 1": "Expected AND at position 11",
    "a BETWEEN 1 OR 2": "Expected AND at position 12",
    "a LIKE b": "Expected pattern in quotes at position 7",
    "a LIKE 'x\\'": "Pattern ends with its escape character at position 7",
    "a = 'x": "Unclosed quote at position 4",
    "a = 'it''s": "Unclosed quote at position 4",
    "`a = 1": "Unclosed quote at position 0",
    "`` = 1": "Unclosed quote at position 0",
    "a.b = 1": "Unexpected character '.' at position 1",
    "a = 1.2.3": "Expected AND, OR or end of expression at position 7",
    "a = 1e": "Expected AND, OR or end of expression at position 5",
    "a = 0x10": "Expected AND, OR or end of expression at position 5",
    "a = 1e999": "Number out of range at position 4",
    "a = -1e99999999999999999999": "Number out of range at position 5",
    "a = DATE '2026-02-30'": "Expected DATE like '2026-01-31' at position 9",
    "a = DATE '20260131'": "Expected DATE like '2026-01-31' at position 9",
    "a = DATE 5": "Expected AND, OR or end of expression at position 9",
    "a = TIMESTAMP '2026-01-31'": "Expected TIMESTAMP like '2026-01-31 10:00:00' at position 14",
    "a = TIMESTAMP '2026-01-31 10:00:00+02:00'": "Expected TIMESTAMP like '2026-01-31 10:00:00' at position 14",
    "a = TIMESTAMP '2026-01-31 25:00:00'": "Expected TIMESTAMP like '2026-01-31 10:00:00' at position 14",
    "a = '\ud800'": "Invalid Unicode in quotes at position 4",
    "éa ñ": "Expected comparison operator at position 3",
    "invalid syntax ;": "Expected comparison operator at position 8",
}
INJECTED = [
    "a = 1; DROP TABLE x",
    "a = 1 -- and the rest",
    "a = 1 /* hidden */",
    "a = 1 # hidden",
    "1 = 1 UNION SELECT * FROM users",
    "a = (SELECT 1)",
    "a = pg_sleep(10)",
    "__import__('os').system('true')",
    "a = $1",
    "a = :name",
    "a = ?",
    "a = {0}",
    "a[0] = 1",
    "a = 'x' || 'y'",
    "a::text = 'x'",
    "CAST(a AS text) = 'x'",
    "a = x'00'",
    "a = @@version",
    "a = 1\x00",
    "a = \uff11",
    "lambda: 1",
]


@pytest.mark.parametrize(("text", "problem"), MISREAD.items())
def test_selector_parse_reports_first_error_with_position(text: str, problem: str) -> None:
    with pytest.raises(Invalid) as reported:
        parse(text)
    position = int(problem.rsplit(" ", 1)[1])
    assert reported.value.reason == "bad_selector"
    assert reported.value.context == {"expression": text, "parse_error": problem, "position": position}


@pytest.mark.parametrize("text", INJECTED)
def test_selector_parse_rejects_unsupported_syntax(text: str) -> None:
    with pytest.raises(Invalid) as reported:
        parse(text)
    assert reported.value.reason == "bad_selector"


@pytest.mark.parametrize("text", ["'; DROP TABLE x; --", "x' OR '1'='1", "\\", "{0} %s $1 `", "\x00", "' OR TRUE"])
def test_selector_parse_quoted_text_is_literal(text: str) -> None:
    for quote in "'\"":
        node = parse(f"name = {quote}{text.replace(quote, quote * 2)}{quote}")
        assert node == Compare(Comparison.EQ, Column("name"), Literal(text))
        assert ids(TABLE.filter(to_arrow_filter(node, SCHEMA))) == []
    assert parse(f"`{text.replace('`', '``')}` = 1") == Compare(Comparison.EQ, Column(text), Literal(1))


def test_selector_parse_quoted_keyword_is_column() -> None:
    assert parse("`NULL` = `and`") == Compare(Comparison.EQ, Column("NULL"), Column("and"))
    assert parse("date = timestamp") == Compare(Comparison.EQ, Column("date"), Column("timestamp"))
    assert parse("ıN = 1") == Compare(Comparison.EQ, Column("ıN"), Literal(1))  # its upper case is IN


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = '" + "x" * 10_000 + "'", "10,000 characters"),
        ("(" * 101 + "a" + ")" * 101, "100 levels"),
        ("(" * 9_000, "100 levels"),
        ("NOT " * 2_000 + "a", "100 levels"),
        ("- " * 4_000 + "a = 1", "100 levels"),
        ("a + " * 2_400 + "a = 1", "2,000 columns, values and operators"),
        ("a + " * 101 + "a = 1", "100 levels"),
        ("(" * 90 + "a" + " + a" * 90 + " + a)" * 90 + " = 1", "100 levels"),
        ("1 / (" * 30 + "a" + ")" * 30 + " = 1", "10,000 steps"),
        ("(" * 30 + "a" + " BETWEEN FALSE AND TRUE)" * 30, "10,000 steps"),
        ("(" * 30 + "a" + " IN (TRUE))" * 30, "10,000 steps"),
        (" OR ".join(["a=1"] * 700), "2,000 columns, values and operators"),
        ("a IN (" + ", ".join(["1"] * 2_000) + ")", "2,000 columns, values and operators"),
    ],
)
def test_selector_parse_names_exceeded_limit(text: str, problem: str) -> None:
    with pytest.raises(Invalid) as reported:
        parse(text)
    assert problem in reported.value.message


@pytest.mark.parametrize(
    "text",
    [
        "(" * 99 + "tiny = 1" + ")" * 99,
        "NOT " * 98 + "tiny = 1",
        "1 / (" * 6 + "tiny" + ")" * 6 + " = 1",
        "(" * 6 + "active" + " IN (TRUE)) BETWEEN FALSE AND TRUE)" * 3,
        "tiny" + " + 1" * 17 + " = 18",
        "rate" + " + 1" * 99 + " = 104",
        " OR ".join(f"tiny={n}" for n in range(600)),
        " AND ".join(f"big<>{n}" for n in range(600)),
        "small IN (" + ", ".join(map(str, range(1_700))) + ")",
        "name LIKE '" + "_" * 9_000 + "'",
        "name LIKE '" + "a%" * 4_500 + "'",
        "name = '" + "x" * 9_000 + "'",
    ],
    ids=lambda text: text[:20],
)
def test_selector_parse_accepts_expressions_within_limits(text: str, parquet: ds.Dataset) -> None:
    assert_equal_results(text, parquet)


@pytest.mark.parametrize(
    ("text", "problem"),
    {
        "name = 5": "name is string and 5 is int64; they cannot be compared; write text in quotes",
        "5 = name": "5 is int64 and name is string; they cannot be compared; write text in quotes",
        "tiny = 'x'": "tiny is int8 and 'x' is string; they cannot be compared; write a number without quotes",
        "name = tiny": "name is string and tiny is int8; they cannot be compared",
        "price < name": "price is decimal128(10, 2) and name is string; they cannot be compared",
        "active = 1": "active is bool and 1 is int64; they cannot be compared; write TRUE or FALSE",
        "day = '2026-01-31'": "'2026-01-31' is string; they cannot be compared; write DATE '2026-01-31'",
        "seen = '2026-01-31'": "write TIMESTAMP '2026-01-31 10:00:00'",
        "seen > DATE '2026-01-31'": "write TIMESTAMP '2026-01-31 10:00:00'",
        "made > TIMESTAMP '2026-01-31 10:00:00'": "write TIMESTAMP '2026-01-31 10:00:00Z'",
        "seen > TIMESTAMP '2026-01-31 10:00:00Z'": "write TIMESTAMP '2026-01-31 10:00:00'",
        "seen < made": "seen is timestamp[us] and made is timestamp[us, tz=UTC]; they cannot be compared",
        "day < seen": "day is date32[day] and seen is timestamp[us]; they cannot be compared",
        "raw = 'a'": "raw is binary and 'a' is string; they cannot be compared",
        "tiny IN (1, 'x')": "tiny is int8 and 'x' is string",
        "tiny BETWEEN NULL AND 'x'": "tiny is int8 and 'x' is string",
        "1 = 'x'": "1 is int64 and 'x' is string",
        "tags = tags": "Only IS NULL and IS NOT NULL apply to nested values: tags is list<",
        "place = NULL": "Only IS NULL and IS NOT NULL apply to nested values: place is struct<",
        "tiny": "A filter expression requires a condition, but tiny is int8",
        "1": "A filter expression requires a condition, but 1 is int64",
        "'true'": "A filter expression requires a condition, but 'true' is string",
        "tiny + 1": "A filter expression requires a condition, but the result is decimal128(4, 0)",
        "active AND name": "AND requires a condition, but name is string",
        "tiny OR active": "OR requires a condition, but tiny is int8",
        "NOT tiny": "NOT requires a condition, but tiny is int8",
        "name + 1 = 2": "+ requires numbers, but name is string",
        "-name = 2": "- requires numbers, but name is string",
        "day - 1 = day": "- requires numbers, but day is date32[day]",
        "(tiny = 1) * 2 = 2": "* requires numbers, but the condition is bool",
        "tiny LIKE '1%'": "LIKE requires text, but tiny is int8",
        "big * big * big * big = 1": "The result may need 79 digits, but at most 76 are exact",
    }.items(),
)
def test_selector_bind_names_incompatible_types(text: str, problem: str) -> None:
    with pytest.raises(Invalid) as reported:
        bind(parse(text), SCHEMA)
    assert reported.value.reason == "bad_selector"
    assert problem in reported.value.message
    assert reported.value.context["parse_error"] == reported.value.message


def test_selector_bind_reports_missing_column_before_types() -> None:
    with pytest.raises(Invalid) as reported:
        bind(parse("name = 5 AND Tiny = 1 AND other = 2"), SCHEMA)
    assert reported.value.reason == "column_not_found"
    assert reported.value.context == {"column": "Tiny", "columns": SCHEMA.names}


# -- the tree ---------------------------------------------------------------------------------------------------------


def test_selector_columns_returns_columns_of_expression() -> None:
    text = "a + b > 1 AND (c IN (1) OR NOT `d e` LIKE 'f') AND g BETWEEN h AND 3 AND i IS NULL"
    assert columns(parse(text)) == {"a", "b", "c", "d e", "g", "h", "i"}
    assert columns(parse("1 = 1")) == frozenset()


def test_selector_nodes_are_comparable_and_hashable() -> None:
    node = parse("a = 1 AND NOT b LIKE 'x%'")
    assert node == parse("a=1 and b not like 'x%'")
    assert hash(node) == hash(parse("(a = 1) AND (NOT (b LIKE 'x%'))"))
    assert pickle.loads(pickle.dumps(node)) == node


def test_selector_lowering_tables_are_complete() -> None:
    assert (set(_COMPARE_FUNCTIONS), set(_ARITHMETIC_FUNCTIONS), set(_WILDCARD_REGEX)) == (
        set(Comparison),
        set(ArithmeticOperator),
        set(Wildcard),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        "tiny = 1": {"tiny": Interval(1, 1)},
        "1 < tiny": {"tiny": Interval(1, None)},
        "tiny > 1 AND tiny <= 5 AND name = 'x'": {"tiny": Interval(1, 5), "name": Interval("x", "x")},
        "tiny = 1 OR tiny = 5": {"tiny": Interval(1, 5)},
        "tiny = 1 OR name = 'x'": {},
        "tiny > 1 OR tiny < 0": {"tiny": Interval(None, None)},
        "tiny = 1 OR tiny IS NULL": {},
        "tiny IN (5, NULL, 2)": {"tiny": Interval(2, 5)},
        "tiny > 5 AND tiny < 3": {"tiny": Interval(5, 3)},
        "NOT tiny > 5": {},
        "tiny != 5": {},
        "tiny + 1 = 5": {},
        "tiny = small": {},
        "tiny > 2.5": {"tiny": Interval(3, None)},
        "tiny = 2.5": {"tiny": Interval(3, 2)},
        "big < 1e30": {"big": Interval(None, 2**63 - 1)},
        "big < 1e60": {},
        "rate < 1": {"rate": Interval(None, 1.0)},
        "price BETWEEN 1 AND 2.5": {"price": Interval(Decimal(1), Decimal("2.5"))},
        "name LIKE 'ab%'": {"name": Interval("ab", "ac")},
        "name LIKE 'a\\_'": {"name": Interval("a_", "a_")},
        "name LIKE '%a'": {},
        "name LIKE '\U0010ffff%'": {"name": Interval("\U0010ffff", None)},
        "active": {"active": Interval(True, True)},
        "day >= DATE '2026-01-31'": {"day": Interval(date(2026, 1, 31), None)},
        "TRUE": {},
    }.items(),
)
def test_selector_bounds_returns_expected_intervals(text: str, expected: dict[str, Interval]) -> None:
    assert bounds(bind(parse(text), SCHEMA)) == expected


# -- random trees -----------------------------------------------------------------------------------------------------
# Every operand of the text is in parentheses, so the text is unambiguous. The oracle evaluates the tree of `parse`;
# tests above check trees of text without parentheses.

NUMBERS = st.one_of(
    st.sampled_from(["tiny", "small", "big", "price", "rate", "weight", "flat", "NULL"]),
    st.integers(-200, 200).map(str),
    st.sampled_from(["2147483647", "-9223372036854775808", "9007199254740993", "0.5", "-2.25", "1e3", "0.1"]),
)
SUMS = st.recursive(
    NUMBERS,
    lambda inner: st.builds("({}) {} ({})".format, inner, st.sampled_from("+-*/"), inner) | inner.map("-({})".format),
    max_leaves=3,
)
TEXTS = st.sampled_from(["name", "city", "'ann'", "'a%b'", "'é'", "''", '"zoë"', "NULL"])
DAYS = st.sampled_from(["day", "date", "DATE '2026-01-31'", "DATE '1969-12-31'", "NULL"])
OPS = st.sampled_from([*Comparison]).map(lambda op: op.value)
ATOMS = st.one_of(
    *(st.builds("({}) {} ({})".format, side, OPS, side) for side in (SUMS, TEXTS, DAYS)),
    st.builds("({}) {}BETWEEN ({}) AND ({})".format, SUMS, st.sampled_from(["", "NOT "]), SUMS, SUMS),
    st.builds(
        "({}) {}IN ({})".format,
        SUMS,
        st.sampled_from(["", "NOT "]),
        st.lists(st.sampled_from(["1", "-7", "NULL", "0", "1.5", "1e2"]), min_size=1, max_size=4).map(", ".join),
    ),
    st.builds("({}) LIKE '{}'".format, TEXTS, st.text("an%_bé", max_size=4)),
    st.builds("({}) IS {}NULL".format, st.one_of(SUMS, TEXTS, DAYS), st.sampled_from(["", "NOT "])),
    st.sampled_from(["active", "TRUE", "FALSE", "NULL"]),
)
CONDITIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        inner.map("NOT ({})".format),
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["AND", "OR"]), inner),
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["=", "!="]), inner),
    ),
    max_leaves=6,
)


@settings(max_examples=examples(250, soak=2_500))
@given(CONDITIONS)
def test_selector_random_conditions_agree_on_all_engines(parquet: ds.Dataset, text: str) -> None:
    assert_equal_results(text, parquet)


WORDS = st.sampled_from(["a", "1", "'x'", "(", ")", "AND", "NOT", "IN", ",", "=", "-", "LIKE", "IS", "NULL", "BETWEEN"])


@settings(max_examples=examples(300, soak=3_000))
@given(st.text(max_size=40) | st.lists(WORDS).map(" ".join))
def test_selector_parse_of_any_text_returns_tree_or_raises_invalid(text: str) -> None:
    try:
        reported = {"position": 0, "tree": parse(text)}
    except Invalid as raised:
        reported = raised.as_dict()
    assert reported.get("tree") or reported["reason"] == "bad_selector"
    assert 0 <= reported["position"] <= len(text)


def test_selector_limits_match_documentation() -> None:
    assert (selector.MAX_LENGTH, selector.MAX_NODES, selector.MAX_DEPTH) == (10_000, 2_000, 100)
    assert selector.MAX_STEPS == 10_000
