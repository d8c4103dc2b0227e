"""Append cases: source rows, the request, and the expected rows or the expected error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

NAN = float("nan")
INT, LONG, FLOAT, DOUBLE = pa.int32(), pa.int64(), pa.float32(), pa.float64()
TEXT, BYTES, DATE, BOOL = pa.string(), pa.binary(), pa.date32(), pa.bool_()
TIME, UTC_TIME = pa.timestamp("us"), pa.timestamp("us", "UTC")

Types = Mapping[str, pa.DataType | pa.Field]


def money(precision: int, scale: int) -> pa.DataType:
    return pa.decimal128(precision, scale)


def required(data_type: pa.DataType) -> pa.Field:
    return pa.field("", data_type, nullable=False)


def schema(types: Types) -> pa.Schema:
    fields = {
        name: data_type if isinstance(data_type, pa.Field) else pa.field(name, data_type)
        for name, data_type in types.items()
    }
    return pa.schema([field_.with_name(name) for name, field_ in fields.items()])


@dataclass(frozen=True)
class AppendInput:
    source: Types
    rows: Sequence[tuple[Any, ...]]
    working: Types
    selector: str | None = None
    group_by: Sequence[str] = ()
    aggregates: Mapping[str, str] = field(default_factory=dict)

    @property
    def table(self) -> pa.Table:
        types = schema(self.source)
        return pa.Table.from_pylist([dict(zip(types.names, row, strict=True)) for row in self.rows], types)


@dataclass(frozen=True)
class AppendCase:
    name: str
    append: AppendInput
    expect: Sequence[tuple[Any, ...]]  # in the columns of the working dataset, in any order


@dataclass(frozen=True)
class RejectedAppend:
    name: str
    append: AppendInput
    reason: str
    column: str


D = Decimal
MAX_LONG, MIN_LONG = 2**63 - 1, -(2**63)
HUGE, NEGATIVE = D(10**38 - 1), D(1 - 10**38)  # a minus sign would round to 28 digits

CASES = [
    AppendCase(
        "columns are matched by name and widened; missing columns are NULL",
        AppendInput(
            {"b": INT, "a": FLOAT, "c": INT, "d": money(5, 2)},
            [(1, 1.5, 7, D("1.25")), (None, None, None, None)],
            {"a": DOUBLE, "more": TEXT, "b": LONG, "c": money(12, 2), "d": money(9, 4)},
        ),
        [(1.5, None, 1, D("7.00"), D("1.2500")), (None, None, None, None, None)],
    ),
    AppendCase(
        "only rows with TRUE are appended",
        AppendInput({"n": INT}, [(1,), (5,), (None,), (9,)], {"n": INT}, "NOT n = 5"),
        [(1,), (9,)],
    ),
    AppendCase("an append without rows is valid", AppendInput({"n": INT}, [(1,), (None,)], {"n": INT}, "n > 1"), []),
    AppendCase(
        "the selector can use columns that grouping removes",
        AppendInput(
            {"k": TEXT, "n": INT, "state": TEXT},
            [("a", 1, "open"), ("a", 2, "shut"), ("b", 4, "shut"), ("a", 8, "open")],
            {"k": TEXT, "n": LONG},
            "state = 'open'",
            ["k"],
            {"n": "SUM(n)"},
        ),
        [("a", 9)],
    ),
    AppendCase(
        "NULL is a group, NaN is a group, and zero has no sign",
        AppendInput(
            {"x": DOUBLE, "y": TEXT},
            [(NAN, None), (float("-nan"), None), (0.0, "z"), (-0.0, "z"), (None, None), (None, None), (None, "")],
            {"rows": LONG, "x": DOUBLE, "y": TEXT},
            None,
            ["x", "y"],
            {"rows": "COUNT(*)"},
        ),
        [(2, NAN, None), (2, 0.0, "z"), (2, None, None), (1, None, "")],
    ),
    AppendCase(
        "NULL is ignored; a group with only NULL has NULL for all functions but COUNT",
        AppendInput(
            {"k": INT, "n": INT, "d": money(9, 2), "e": money(38, 2), "x": FLOAT},
            [(1, None, None, None, None), (2, 3, D("1.10"), D("1.10"), 0.5), (2, None, None, None, None)],
            {"k": INT, "rows": LONG, "c": LONG, "s": LONG, "a": DOUBLE, "ds": money(20, 2), "da": money(9, 2),
             "es": money(38, 2), "ea": money(38, 2), "xs": DOUBLE, "xa": DOUBLE, "low": INT},
            None,
            ["k"],
            {"rows": "COUNT(*)", "c": "COUNT(n)", "s": "SUM(n)", "a": "AVG(n)", "ds": "SUM(d)", "da": "AVG(d)",
             "es": "SUM(e)", "ea": "AVG(e)", "xs": "SUM(x)", "xa": "AVG(x)", "low": "MIN_AGG(n)"},
        ),
        [
            (1, 1, 0, None, None, None, None, None, None, None, None, None),
            (2, 2, 1, 3, 3.0, D("1.10"), D("1.10"), D("1.10"), D("1.10"), 0.5, 0.5, 3),
        ],
    ),
    AppendCase(
        "half-up rounds away from zero, and only once",
        AppendInput(
            {"k": TEXT, "d": money(18, 2), "e": money(38, 20), "f": money(27, 2)},
            [
                ("tie", D("0.01"), D("0.1"), D("0.01")), ("tie", D("0.02"), D("0.2"), D("0.09")),
                ("below zero", D("-0.01"), D("-0.1"), D("-0.01")), ("below zero", D("-0.02"), D("-0.2"), D("-0.09")),
                # slightly below a tie: rounding in two steps would see a tie
                ("nearly", D("0.04"), D("0.04999999999999999999"), D("0.04")),
                ("nearly", D("0.05"), D("0.05"), D("0.05")), ("nearly", D("0.05"), D("0.05"), D("0.05")),
            ],
            {"k": TEXT, "same": money(18, 2), "fewer": money(18, 1), "more": money(22, 6), "many": money(38, 30),
             "e": money(38, 1), "all": money(38, 37), "f": money(9, 1)},
            None,
            ["k"],
            {"same": "AVG(d)", "fewer": "AVG(d)", "more": "AVG(d)", "many": "AVG(d)", "e": "AVG(e)", "all": "AVG(e)",
             "f": "AVG(f)"},
        ),
        [
            ("tie", D("0.02"), D("0.0"), D("0.015"), D("0.015"), D("0.2"), D("0.15"), D("0.1")),
            ("below zero", D("-0.02"), D("0.0"), D("-0.015"), D("-0.015"), D("-0.2"), D("-0.15"), D("-0.1")),
            ("nearly", D("0.05"), D("0.0"), D("0.046667"), D("0.046666666666666666666666666667"), D("0.0"),
             D("0.0499999999999999999966666666666666667"), D("0.0")),
        ],
    ),
    AppendCase(
        "an average slightly below a tie is rounded down",
        AppendInput(
            {"k": INT, "d": money(27, 10)},
            [(1, D("0.0499999999")), *[(1, D("0.05"))] * 29],
            {"k": INT, "d": money(9, 1)},
            None,
            ["k"],
            {"d": "AVG(d)"},
        ),
        [(1, D("0.0"))],
    ),
    AppendCase(
        "intermediate sums may exceed the result type",
        AppendInput(
            {"k": INT, "n": LONG, "d": money(38, 0), "e": money(38, 37)},
            [
                (1, MAX_LONG, HUGE, D("9.9")), (1, MAX_LONG, HUGE, D("9.9")), (1, -MAX_LONG, NEGATIVE, D("-9.9")),
                (2, MIN_LONG, NEGATIVE, D("-9.9")), (2, -1, D(-1), D("-0.2")), (2, 1, D(1), D("0.2")),
                (3, 10**18, D(10**20), D("1e-37")), (3, -1, D(-1), D("-1")),
            ],
            {"k": INT, "n": LONG, "d": money(38, 0), "e": money(38, 37)},
            None,
            ["k"],
            {"n": "SUM(n)", "d": "SUM(d)", "e": "SUM(e)"},
        ),
        [
            (1, MAX_LONG, HUGE, D("9.9")),
            (2, MIN_LONG, NEGATIVE, D("-9.9")),
            (3, 10**18 - 1, D(10**20 - 1), D("-0.9999999999999999999999999999999999999")),
        ],
    ),
    AppendCase(
        "an average fits although its sum does not",
        AppendInput(
            {"k": INT, "n": LONG, "d": money(38, 0)},
            [(1, MAX_LONG, HUGE), (1, MAX_LONG, HUGE), (1, MAX_LONG, HUGE), (2, MIN_LONG, NEGATIVE), (2, MIN_LONG, D(1))],
            {"k": INT, "n": DOUBLE, "d": money(38, 0)},
            None,
            ["k"],
            {"n": "AVG(n)", "d": "AVG(d)"},
        ),
        [(1, float(MAX_LONG), HUGE), (2, float(MIN_LONG), D(-(5 * 10**37 - 1)))],
    ),
    AppendCase(
        "minimum and maximum of every type; NaN is the greatest number",
        AppendInput(
            {"k": INT, "x": DOUBLE, "t": TEXT, "b": BOOL, "y": BYTES, "d": DATE, "at": TIME, "utc": UTC_TIME,
             "m": money(9, 2)},
            [
                (1, NAN, "Z", True, b"\xff", date(1969, 12, 31), datetime(1500, 1, 1), datetime(2026, 1, 1, tzinfo=UTC),
                 D("-1.50")),
                (1, -1.0, "a", False, b"\x00\x01", date(2026, 1, 1), datetime(2026, 1, 1),
                 datetime(1900, 1, 1, tzinfo=UTC), D("1.25")),
                (1, 2.0, "é", None, b"\x00", None, None, None, None),
            ],
            {"k": INT} | {
                f"{name}{end}": data_type
                for name, data_type in {"x": DOUBLE, "t": TEXT, "b": BOOL, "y": BYTES, "d": DATE, "at": TIME,
                                   "utc": UTC_TIME, "m": money(12, 3)}.items()
                for end in "01"
            },
            None,
            ["k"],
            {f"{name}{end}": f"{'MIN' if end == '0' else 'MAX'}_AGG({name})"
             for name in ("x", "t", "b", "y", "d", "at", "utc", "m") for end in "01"},
        ),
        [(1, -1.0, NAN, "Z", "é", False, True, b"\x00", b"\xff", date(1969, 12, 31), date(2026, 1, 1),
          datetime(1500, 1, 1), datetime(2026, 1, 1), datetime(1900, 1, 1, tzinfo=UTC),
          datetime(2026, 1, 1, tzinfo=UTC), D("-1.500"), D("1.250"))],
    ),
    AppendCase(
        "an aggregate fills two columns, also wider ones",
        AppendInput(
            {"k": pa.int8(), "n": pa.int16()},
            [(1, 300), (1, 700)],
            {"n": money(10, 2), "again": LONG, "k": LONG, "top": INT},
            None,
            ["k"],
            {"n": "SUM(n)", "again": "SUM(n)", "top": "MAX_AGG(n)"},
        ),
        [(D("1000.00"), 1000, 1, 700)],
    ),
    AppendCase(
        "lists and structs are kept, and their fields are widened",
        AppendInput(
            {"l": pa.list_(pa.int8()), "s": pa.struct([("a.b", FLOAT), ("n", pa.int8())])},
            [([1, None, -7], {"a.b": 0.5, "n": 99}), (None, None), ([], {"a.b": None, "n": None})],
            {"l": pa.list_(LONG), "s": pa.struct([("a.b", DOUBLE), ("n", money(2, 0))])},
        ),
        [
            ([1, None, -7], {"a.b": 0.5, "n": D(99)}), (None, None), ([], {"a.b": None, "n": None}),
        ],
    ),
    AppendCase(
        "column names may contain any character",
        AppendInput(
            {"_metadata": INT, "a.b": TEXT, "a`b": INT, "A": INT, "a": INT, "größe ,;{}()=\t%'\"": INT, "s0": INT},
            [(1, "x", 2, 3, 4, 5, 6), (1, "y", 2, 3, 4, 5, 6), (1, "x", 0, 3, 4, 5, 6)],
            {"A": INT, "a": INT, "a.b": TEXT, "a`b": LONG, "_metadata": INT, "größe ,;{}()=\t%'\"": INT, "s0": LONG},
            "`_metadata` = 1 AND `a``b` > 0 AND A = 3",
            ["A", "a", "a.b", "_metadata", "größe ,;{}()=\t%'\""],
            {"a`b": "SUM(`a``b`)", "s0": "COUNT(s0)"},
        ),
        [(3, 4, "x", 2, 1, 5, 1), (3, 4, "y", 2, 1, 5, 1)],
    ),
]  # fmt: skip


def _aggregate_input(
    data_type: pa.DataType, values: Sequence[Any], working: pa.DataType | pa.Field, expression: str
) -> AppendInput:
    """Return an input with an invalid value in group 2 of column `v`."""
    return AppendInput(
        {"k": INT, "u": INT, "v": data_type},
        [(1, 1, values[0]), *((2, 2, value) for value in values[1:])],
        {"k": INT, "u": LONG, "v": working},
        None,
        ["k"],
        {"u": "SUM(u)", "v": expression},
    )


DOES_NOT_FIT, NULL = "value_does_not_fit", "null_in_required_column"
REJECTED = [
    RejectedAppend("an integer", AppendInput({"u": INT, "v": INT}, [(1, 10), (1, 999)], {"u": money(3, 0), "v": money(3, 1)}),
            DOES_NOT_FIT, "v"),
    RejectedAppend("a number in a list",
            AppendInput({"v": pa.list_(LONG)}, [([1],), ([1, 100],)], {"v": pa.list_(money(2, 0))}), DOES_NOT_FIT, "v"),
    RejectedAppend("a sum of longs", _aggregate_input(LONG, [1, MAX_LONG, 1], LONG, "SUM(v)"), DOES_NOT_FIT, "v"),
    RejectedAppend("a sum of longs below zero", _aggregate_input(LONG, [1, MIN_LONG, -1], money(38, 0), "SUM(v)"), DOES_NOT_FIT, "v"),
    RejectedAppend("a sum of longs as a decimal", _aggregate_input(LONG, [1, 60, 40], money(2, 0), "SUM(v)"), DOES_NOT_FIT, "v"),
    RejectedAppend("a sum of decimals", _aggregate_input(money(4, 2), [D(1), D(60), D(40)], money(4, 2), "SUM(v)"), DOES_NOT_FIT, "v"),
    RejectedAppend("a sum of 39 digits", _aggregate_input(money(38, 0), [D(1), HUGE, D(1)], money(38, 0), "SUM(v)"), DOES_NOT_FIT, "v"),
    RejectedAppend("an average", _aggregate_input(money(5, 2), [D(1), D(100), D(101)], money(4, 2), "AVG(v)"), DOES_NOT_FIT, "v"),
    RejectedAppend("an average that is rounded up", _aggregate_input(money(38, 2), [D(1), D("9.96"), D("9.95")], money(2, 1), "AVG(v)"),
            DOES_NOT_FIT, "v"),
    RejectedAppend("a maximum", _aggregate_input(money(6, 2), [D(1), D(100)], money(4, 2), "MAX_AGG(v)"), DOES_NOT_FIT, "v"),
    RejectedAppend("NULL", AppendInput({"u": INT, "v": TEXT}, [(None, "a"), (1, None)], {"u": INT, "v": required(TEXT)}), NULL, "v"),
    RejectedAppend("NULL in a group", _aggregate_input(INT, [1, None], required(INT), "MIN_AGG(v)"), NULL, "v"),
    RejectedAppend("NULL as a key", AppendInput({"k": INT}, [(1,), (None,)], {"k": required(INT), "n": required(LONG)}, None, ["k"],
                                   {"n": "COUNT(k)"}), NULL, "k"),
]  # fmt: skip
