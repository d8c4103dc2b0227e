"""Filter expression cases: rows with difficult values, valid and invalid expressions."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

NAN = float("nan")
ODD = "odd `na.me\" $1 'x"

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "tiny": pa.int8(),
        "short": pa.int16(),
        "small": pa.int32(),
        "big": pa.int64(),
        "other": pa.int64(),
        "price": pa.decimal128(10, 2),
        "cents": pa.decimal128(18, 0),
        "exact": pa.decimal128(38, 18),
        "part": pa.decimal128(38, 38),
        "rate": pa.float64(),
        "speed": pa.float64(),
        "weight": pa.float32(),
        "name": pa.string(),
        "city": pa.string(),
        ODD: pa.string(),
        "active": pa.bool_(),
        "open": pa.bool_(),
        "raw": pa.binary(),
        "day": pa.date32(),
        "due": pa.date32(),
        "seen": pa.timestamp("us"),
        "made": pa.timestamp("us", "UTC"),
        "tags": pa.list_(pa.string()),
        "place": pa.struct({"x": pa.int64()}),
    }
)
DOUBLES = frozenset({"rate", "speed", "weight"})
NINES = Decimal("9" * 20 + "." + "9" * 18)

# The lengths differ, so that rows combine the values of every two columns in many ways.
VALUES: dict[str, list[Any]] = {
    "tiny": [1, -128, None, 127, 0, 5, -1],
    "short": [1, 2**15 - 1, None, -(2**15), 0],
    "small": [10, None, -7, 2**31 - 1, 0, 100, -(2**31), 1],
    "big": [2**63 - 1, -(2**63), None, 0, 2**53 + 1, 42, -1, 7, 1000],
    "other": [-1, 2**63 - 1, 0, None, 42, -(2**63), 2**53],
    "price": [Decimal("1.50"), None, Decimal("-2.25"), Decimal("0.00"), Decimal("99999999.99"), Decimal("10.00")],
    "cents": [Decimal(10**18 - 1), Decimal(1 - 10**18), None, Decimal(0), Decimal(2**53 + 1)],
    "exact": [NINES, NINES.copy_negate(), Decimal("0.000000000000000001"), None, Decimal("0.1"), Decimal(0), Decimal("-5.5")],
    "part": [Decimal("0." + "9" * 38), None, Decimal("-0." + "0" * 37 + "1"), Decimal(0), Decimal("0.5")],
    "rate": [1.5, NAN, None, -0.0, 0.0, -2.5, math.inf, -math.inf, 0.1, 1e300, 5.0],
    "speed": [NAN, 0.0, 5.0, None, -0.0, math.inf, 1.5, 5e-324],
    "weight": [0.5, None, NAN, 0.10000000149011612, 2.0, -0.0, -3.0],
    "name": [
        "ann", "Ann", "", None, "éva", "e\u0301va", "a%b", "a_b", "a\\b", "日本語", "line\nbreak", "it's", "anna", "zoë",
        'q"q', "🦆", "\ufffd", "a b ", "aab", "[a]", "a.b",
    ],
    "city": ["ann", None, "Ü", "bo", "a%b", "", "🦆", "zoë"],
    ODD: ["x", None, "y"],
    "active": [True, False, None],
    "open": [False, None, True, True, None],
    "raw": [b"", None, b"\xff", b"a"],
    "day": [date(2026, 1, 31), None, date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31), date(1500, 3, 1)],
    "due": [date(2026, 1, 31), date(1, 1, 1), None, date(1969, 12, 31), date(2026, 2, 1)],
    "seen": [
        datetime(2026, 1, 31, 10), None, datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2024, 3, 31, 2, 30),
        datetime(1, 1, 1),
    ],
    "made": [
        datetime(2026, 1, 31, 10, tzinfo=UTC), datetime(2024, 3, 31, 2, 30, tzinfo=UTC), None,
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
    "tags": [["a"], None, [], [None]],
    "place": [{"x": 1}, None, {"x": None}],
}  # fmt: skip
ROWS = [{"id": n, **{name: some[n % len(some)] for name, some in VALUES.items()}} for n in range(77)]

LITERALS = {
    "tiny": ["0", "-128", "1000", "2.5", "1e2", "NULL"],
    "small": ["-7", "2147483648", ".5", "99999999999999999999"],
    "big": ["9223372036854775807", "-9223372036854775808", "9223372036854775808", "42", "1e60", "9007199254740993"],
    "price": ["1.5", "-2.25", "1.505", "99999999.99", "NULL"],
    "cents": ["999999999999999999", "9007199254740993", "-0.5"],
    "exact": ["0.1", "0.000000000000000001", "1e30", "-5.5", "0.0000000000000000000000000000000000001"],
    "part": ["0.5", "0", "1", "1e37", "-0.00000000000000000000000000000000000001"],
    "rate": ["1.5", "0", "-0.0", "0.1", "1e300", "1e-400", "NULL"],
    "weight": ["0.5", "0.1", "2", "0.10000000149011612"],
    "name": ["'ann'", '"ann"', "''", "'it''s'", "'日本語'", "'\ue000'", "'🦆'", "NULL"],
    "active": ["TRUE", "false", "NULL"],
    "day": ["DATE '2026-01-31'", "date '1969-12-31'", "DATE '0001-01-01'", "NULL"],
    "seen": ["TIMESTAMP '2026-01-31 10:00:00'", "TIMESTAMP '1969-12-31T23:59:59.999999'"],
    "made": ["TIMESTAMP '2026-01-31 10:00:00Z'", "timestamp '9999-12-31 23:59:59.999999Z'"],
}
NUMBERS = ["tiny", "small", "big", "price", "exact", "part", "rate", "weight"]
COMPARED = [
    f"{column} {op} {literal}"
    for column, literals in LITERALS.items()
    for literal in literals
    for op in ("=", "!=", "<", ">=")
]
CROSSED = [
    *(f"{a} {op} {b}" for a in NUMBERS for b in NUMBERS for op in ("=", "<=")),
    *(f"rate {op} speed" for op in ("=", "!=", "<", "<=", ">", ">=")),
    *(f"{a} {op} {b}" for a, b in (("name", "city"), ("day", "due"), ("active", "open")) for op in ("=", "!=", ">")),
]
LISTED = [
    f"{column} {form}"
    for column, (first, second, *_) in LITERALS.items()
    for form in (
        f"IN ({', '.join(LITERALS[column])})",
        f"NOT IN ({first}, {second})",
        f"NOT IN ({first}, NULL)",
        f"BETWEEN {first} AND {second}",
        f"NOT BETWEEN {second} AND {first}",
        f"BETWEEN NULL AND {first}",
    )
]
PATTERNS = [
    "ann", "a%", "%n%", "_nn", "", "%", "_", "___", "%%", "_%_", "%a%b", "a%a%", "a\\%b", "a\\_b", "a\\\\b", "line%",
    "%本%", "a.b", "\\a%", "[a]", "(", "é%", "%va", "\\%", "^a", "%$", "% ", "🦆", "%\n%",
]  # fmt: skip
LIKED = [f"name {no}LIKE '{pattern}'" for pattern in PATTERNS for no in ("", "NOT ")]
CALCULATED = [
    f"{left} {op} {right} {test}"
    for left in ("tiny", "big", "price", "exact", "rate", "NULL")
    for op in "+-*/"
    for right in ("small", "other", "cents", "weight", "-0", "NULL")
    for test in ("> 1", "IS NULL")
]
WIDE = [  # more than 38 digits on the way
    "big * other > 0",
    "big * other * big = 0",
    "-(big * big) IN (-1764, -1, NULL)",
    "big * big NOT IN (85070591730234615847396907784232501249, 1)",
    "big * big * price BETWEEN -10 AND 1e37",
    "NOT big * other * tiny <= -1",
    "big * other - big * other = 0",
    "(big + other) * (big - other) = big * big - other * other",
    "exact + 1 > 100000000000000000000",
    "exact - exact = 0",
    "exact * 3 < -0.000000000000000003",
    "exact * tiny != exact * short",
    "exact > part",
    "part * cents > 0.99",
    "part * 0.5 = part * 0.25 + part * 0.25",
    "part * big + 1 > part * tiny",
    "exact * cents > 99999999999999999999999999999999999999",
    "cents * cents * cents > 1",
    "exact * cents IS NULL",
    "big * big * big / 3 > 1e10",
    "big * other * big * 1.5 = rate",
    "exact * cents < weight",
    "big * big * 0.1 / 0 IS NULL",
    "(big * other > 1) = (exact * 2 > 1)",
]
LOGICAL = [
    "active",
    "NOT active",
    "active AND open",
    "active OR open",
    "NOT (active AND open) = (NOT active OR NOT open)",
    "active = open OR active IS NULL",
    "(active OR NULL) IS NULL",
    "(active AND NULL) IS NULL",
    "(tiny > 1) = (big > 1)",
    "(tiny > 1) IN (TRUE, NULL)",
    "(rate > 1) IS NULL",
    "(rate > speed) = FALSE",
    "NOT rate > 1",
    "NOT rate > 1 AND NOT rate <= 1",
    "NOT rate = speed",
    "NOT rate BETWEEN -1e9 AND speed",
    "rate != rate",
    "rate - rate = 0",
    "rate * 0 = 0",
    "rate / speed > 1",
    "1 / rate < 0",
    "-rate = 0",
    "rate IN (0)",
    "rate NOT IN (-0.0, 5)",
    "big IN (9007199254740992, 1e60)",
    "big BETWEEN 9007199254740992 AND 1e60",
    "big = rate OR big / 1 = 9007199254740992",
    "cents + rate > 0",
    "cents / 100 = 90071992547409.93",
    "raw = raw",
    "raw IS NULL OR tags IS NULL AND place IS NOT NULL",
    "small / tiny / short = 1",
    "tiny = 1 OR tiny = 5 AND active",
    "name > city AND name LIKE '%a%' OR NOT name IN ('zoë', 'éva')",
    "name = 'éva' OR name = 'e\u0301va' AND name != 'éva'",
    "`odd ``na.me\" $1 'x` = 'x'",
    "`odd ``na.me\" $1 'x` IS NULL",
    "day > DATE '2000-01-01' AND seen < TIMESTAMP '2026-01-31 10:00:00.000001'",
]
QUOTED = ["'; DROP TABLE rows; --", "x' OR '1'='1", "\\", "{0} %s $1 ` ?", "' OR TRUE", "${x}", "\\'", "$selector_0"]
HARMLESS = [
    *("name = '{}'".format(text.replace("'", "''")) for text in QUOTED),
    *('name != "{}"'.format(text.replace('"', '""')) for text in QUOTED),
    *("name LIKE '%{}'".format(text.replace("'", "''").replace("\\", "\\\\")) for text in QUOTED),
]
LONG_SUM = "tiny" + " + 1 - 2" * 35 + " = -34"  # the second half has more than 38 digits
LIMITS = [
    "(" * 99 + "tiny = 1" + ")" * 99,
    "NOT " * 98 + "tiny = 1",
    "1 / (" * 6 + "tiny" + ")" * 6 + " = 1",
    "rate" + " + 1" * 99 + " = 104",
    LONG_SUM,
    "tiny" + " * 1" * 17 + " = 5",
    " OR ".join(f"tiny={n}" for n in range(600)),
    " AND ".join(f"big<>{n}" for n in range(600)),
    "small IN (" + ", ".join(map(str, range(1_700))) + ")",
    "rate NOT IN (" + ", ".join(map(str, range(1_000))) + ")",
    "name NOT IN (" + ", ".join(f"'{n}'" for n in range(1_000)) + ", 'ann')",
    "name LIKE '" + "_" * 9_000 + "'",
    "name LIKE '" + "a%" * 4_500 + "'",
    "name = '" + "x" * 9_000 + "'",
]
GOOD = [*COMPARED, *CROSSED, *LISTED, *LIKED, *CALCULATED, *WIDE, *LOGICAL, *HARMLESS, *LIMITS]

# Conditions without columns, and their values.
CONSTANT: dict[str, bool | None] = {
    "TRUE": True,
    "NULL": None,
    "NOT NULL": None,
    "NULL IS NULL": True,
    "NULL = NULL": None,
    "NULL AND FALSE": False,
    "NULL OR TRUE": True,
    "1 IN (2, NULL)": None,
    "1 NOT IN (2, NULL)": None,
    "1 IN (1, NULL)": True,
    "NULL IN (1)": None,
    "5 BETWEEN NULL AND 4": False,
    "5 BETWEEN NULL AND 6": None,
    "0.1 + 0.2 = 0.3": True,
    "1 / 2 = 0.5": True,
    "1 / 3 = 0.3333333333333333": True,
    "1 / 0 IS NULL": True,
    "1 / -0.0 > 0": None,
    "0 / 0 = 0": None,
    "-0.0 = 0": True,
    "9223372036854775807 + 1 = 9223372036854775808": True,
    "-9223372036854775808 - 1 < -9223372036854775808": True,
    "9223372036854775807 * 9223372036854775807 = 85070591730234615847396907784232501249": True,
    "127 + 1 = 128": True,
    "1e300 * 1e300 > 1e308": True,
    "1e300 * 1e300 - 1e300 * 1e300 = 0": False,
    "1e300 * 1e300 - 1e300 * 1e300 != 0": True,
    "NOT 1e300 * 1e300 - 1e300 * 1e300 > 0": True,
    "9007199254740993 = 9007199254740992": False,
    "9007199254740993 / 1 = 9007199254740992": True,
    "'a' < 'B'": False,
    "'Z' < 'a'": True,
    "'\uffff' < '\U0001f986'": True,
    "'a' = 'a '": False,
    "'' IS NULL": False,
    "'🦆' LIKE '_'": True,
    "'e\u0301' LIKE '_'": False,
    "'A' LIKE 'a'": False,
    "'a\nb' LIKE 'a_b'": True,
    "'a\n' LIKE 'a'": False,
    "'100%' LIKE '100\\%'": True,
    "'1000' LIKE '100\\%'": False,
    "'\\' LIKE '\\\\'": True,
    "NULL LIKE '%'": None,
    "FALSE < TRUE": True,
    "DATE '2024-02-29' < DATE '2024-03-01'": True,
    "DATE '0001-01-01' < DATE '1582-10-10'": True,
    "TIMESTAMP '2026-01-31 10:00:00' = TIMESTAMP '2026-01-31T10:00:00.000000'": True,
    "TIMESTAMP '2026-03-29 02:30:00' < TIMESTAMP '2026-03-29 03:30:00'": True,
    "TIMESTAMP '2026-01-31 10:00:00Z' < TIMESTAMP '2026-01-31 10:00:00.000001Z'": True,
}

# Invalid expressions: the beginning of the message, and the position.
BAD = {
    "invalid syntax here": ("Expected comparison operator at position 8", 8),
    "": ("Expected column or value at position 0", 0),
    " \n ": ("Expected column or value at position 3", 3),
    "tiny = 1 name": ("Expected AND, OR or end of expression at position 9", 9),
    "tiny == 1": ("Expected column or value at position 6", 6),
    "tiny = 1; DROP TABLE rows": ("Unexpected character ';' at position 8", 8),
    "tiny = 1 -- and more": ("Unexpected character '-' at position 9", 9),
    "tiny = 1 /* more */": ("Expected column or value at position 10", 10),
    "tiny = 1 UNION SELECT 1": ("Expected AND, OR or end of expression at position 9", 9),
    "tiny IN (SELECT 1)": ("Expected literal at position 9", 9),
    "sleep(10) = 1": ("Expected comparison operator at position 5", 5),
    "name = 'x' || 'y'": ("Unexpected character '|' at position 11", 11),
    "name LIKE 'x' ESCAPE '!'": ("Expected AND, OR or end of expression at position 14", 14),
    "name LIKE 'x\\'": ("Pattern ends with its escape character at position 10", 10),
    "name = 'x": ("Unclosed quote at position 7", 7),
    "tiny = $1": ("Unexpected character '$' at position 7", 7),
    "tiny = ?": ("Unexpected character '?' at position 7", 7),
    "tiny::text = '1'": ("Unexpected character ':' at position 4", 4),
    "tiny < 1 < 2": ("Expected AND, OR or end of expression at position 9", 9),
    "((tiny = 1)": ("Expected AND, OR or ')' at position 11", 11),
    "day = DATE '2026-02-30'": ("Expected DATE like '2026-01-31' at position 11", 11),
    "'🦆' = name x": ("Expected AND, OR or end of expression at position 11", 11),
    "tiny = 1e999": ("Number out of range at position 7", 7),
    "name = 5": ("name is string and 5 is int64; they cannot be compared; write text in quotes", None),
    "day = seen": ("day is date32[day] and seen is timestamp[us]; they cannot be compared", None),
    "seen = made": ("seen is timestamp[us] and made is timestamp[us, tz=UTC]; they cannot be compared", None),
    "tags = tags": ("Only IS NULL and IS NOT NULL apply to nested values: tags is list<", None),
    "tiny": ("A filter expression requires a condition, but tiny is int8", None),
    "exact * exact = 1": ("The result may need 77 digits, but at most 76 are exact. Compare smaller numbers", None),
}
