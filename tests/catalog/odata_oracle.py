"""Reference implementation of OData filters: draw random filters, write them as OData, evaluate them in Python.

It shares no code with Penstock's parser and tree. A filter is a tuple. A value is one of

    ("field", name)  ("part", name)  ("literal", value)  (function, value)       function: tolower, toupper

and a condition one of

    (op, value, value)  ("in", value, literals)  (match, value, value)           match: contains, startswith, endswith
    ("flag", name)  ("not", condition)  ("and", conditions)  ("or", conditions)
    ("is", condition, op, constant)  ("any", condition or None)  ("all", condition)
"""

import operator
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from catalog.odata_cases import CASED, ROWS

Row = dict[str, Any]
Spec = tuple[Any, ...]

ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}
MATCHES: dict[str, Callable[[str, str], bool]] = {
    "contains": operator.contains,
    "startswith": str.startswith,
    "endswith": str.endswith,
}
OPS = ("eq", "ne", *ORDERINGS)
LONG = 12  # `k` of a row whose name is too long to be repeated in one filter


def is_true(spec: Spec, row: Row, part: Row | None = None) -> bool:
    """Return whether a row matches a filter."""
    return truth(spec, row, part) is True


def truth(spec: Spec, row: Row, part: Row | None = None) -> bool | None:
    """Return the value of a condition; None: null."""
    match spec:
        case "eq", left, right:
            return bool(value(left, row, part) == value(right, row, part))
        case "ne", left, right:
            return bool(value(left, row, part) != value(right, row, part))
        case ("gt" | "ge" | "lt" | "le") as op, left, right:
            a, b = value(left, row, part), value(right, row, part)
            return a is not None and b is not None and ORDERINGS[op](a, b)
        case "in", left, items:
            return value(left, row, part) in [value(item, row, part) for item in items]
        case ("contains" | "startswith" | "endswith") as match_kind, left, right:
            a, b = value(left, row, part), value(right, row, part)
            return None if a is None or b is None else MATCHES[match_kind](a, b)
        case "flag", name:
            return None if row[name] is None else bool(row[name])
        case "not", operand:
            negated = truth(operand, row, part)
            return None if negated is None else not negated
        case "and", parts:
            values = [truth(condition, row, part) for condition in parts]
            return False if False in values else None if None in values else True
        case "or", parts:
            values = [truth(condition, row, part) for condition in parts]
            return True if True in values else None if None in values else False
        case "is", operand, op, constant:
            result = truth(operand, row, part)
            if op in ORDERINGS:
                return result is not None and constant is not None and ORDERINGS[op](result, constant)
            return (result is constant) == (op == "eq")
        case "any", None:
            return bool(row["tags"])
        case "any", body:
            return any(truth(body, row, condition) is True for condition in row["tags"])
        case "all", body:
            return all(truth(body, row, condition) is True for condition in row["tags"])
    raise ValueError(spec)


def value(spec: Spec, row: Row, part: Row | None) -> Any:
    match spec:
        case "field", name:
            return row[name]
        case "part", name:
            assert part is not None
            return part[name]
        case "literal", plain:
            return plain
        case ("tolower" | "toupper") as function, (("tolower" | "toupper"), inner):
            return value((function, inner), row, part)
        case ("tolower" | "toupper") as function, inner:
            text = value(inner, row, part)
            is_folded_by_unicode = inner[0] == "literal" or inner[1] in CASED
            return None if text is None else _fold(text, function == "tolower", is_folded_by_unicode)
    raise ValueError(spec)


def _fold(text: str, lower: bool, is_folded_by_unicode: bool) -> str:
    """Fold text; text without a folded copy is folded from A to Z only."""
    if is_folded_by_unicode:
        return text.lower() if lower else text.upper()
    return "".join((char.lower() if lower else char.upper()) if char.isascii() else char for char in text)


def to_text(spec: Spec) -> str:
    """Return the expression as OData text with minimal parentheses."""
    match spec:
        case "field", name:
            return str(name)
        case "part", name:
            return f"t/{name}"
        case "literal", plain:
            return literal(plain)
        case ("tolower" | "toupper") as function, inner:
            return f"{function}({to_text(inner)})"
        case ("contains" | "startswith" | "endswith") as match_kind, left, right:
            return f"{match_kind}({to_text(left)},{to_text(right)})"
        case "flag", name:
            return str(name)
        case "in", left, items:
            return f"{to_text(left)} in ({', '.join(to_text(item) for item in items)})"
        case "not", inner:
            return f"not {_within(inner, 'in', 'flag', *MATCHES, 'any', 'all', 'not')}"
        case "and", parts:
            return " and ".join(
                _within(part, *OPS, "in", "flag", "not", *MATCHES, "any", "all", "is") for part in parts
            )
        case "or", parts:
            return " or ".join(to_text(part) for part in parts)
        case "is", inner, op, constant:
            unparenthesized = (
                ("not", *MATCHES, "any", "all") if op in ORDERINGS else ("not", *MATCHES, *ORDERINGS, "any", "all")
            )
            return f"{_within(inner, *unparenthesized)} {op} {literal(constant)}"
        case "any", None:
            return "tags/any()"
        case ("any" | "all") as quantifier, body:
            return f"tags/{quantifier}(t: {to_text(body)})"
        case op, left, right:
            return f"{to_text(left)} {op} {to_text(right)}"
    raise ValueError(spec)


def _within(spec: Spec, *unparenthesized: str) -> str:
    return to_text(spec) if spec[0] in unparenthesized else f"({to_text(spec)})"


def literal(plain: Any) -> str:
    match plain:
        case None:
            return "null"
        case bool():
            return str(plain).lower()
        case str():
            return "'" + plain.replace("'", "''") + "'"
        case datetime():  # in different time zones
            minutes = -15 if plain.year > 2026 else 15 * (plain.second % 8)
            zone = timezone(timedelta(minutes=minutes))
            return plain.astimezone(zone).isoformat()
        case date():
            return plain.isoformat()
        case UUID():
            return str(plain).upper() if plain.int % 2 else f"'{plain}'"
    return str(plain)


WORDS = [
    "",
    "a",
    "A",
    "alpha",
    "ALPHA",
    "ß",
    "ss",
    "Ä",
    "ä",
    "\u0308",
    "%",
    "_",
    "\\",
    "'",
    "🦆",
    "Ω",
    "ς",
    "{}",
    "?",
    ":n",
]
VALUES: dict[str, list[Any]] = {
    "n": [-(2**63), -1, 0, 1, 2, 7, 2**63 - 1, 0.5, 1e19, 2.0],
    "x": [-0.5, 0, 0.1, 1.5, 1e300, -1e300, 1],
    "flag": [True, False],
    "id": [UUID(int=1), UUID(int=2), UUID(int=2**128 - 1), UUID(int=99)],
    "at": [datetime(2026, 1, 31, 10, tzinfo=UTC), datetime(2026, 1, 31, 10, 0, 0, 1, UTC), datetime(2025, 1, 1, tzinfo=UTC)],
    "day": [date(2026, 1, 31), date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31)],
    "name": WORDS,
    "note": WORDS,
    "label": ["red", "RED", "", "ß"],
    "size": [0, 1, 2, 3],
}  # fmt: skip
ALIKE = {"n": "x", "x": "n", "name": "note", "note": "name"}  # fields that can be compared with one another


def draw_filter() -> st.SearchStrategy[Spec]:
    parts = st.recursive(
        draw_test("part", ["label", "size"]) | draw_test("field", ["n", "name"]), _combine, max_leaves=4
    )
    lambdas = st.tuples(st.just("any"), st.none() | parts) | st.tuples(st.just("all"), parts)
    fields = ["n", "x", "flag", "id", "at", "day", "name", "note"]
    flag = st.just(("flag", "flag"))
    return st.recursive(st.one_of(*[draw_test("field", fields)] * 4, flag, lambdas), _combine, max_leaves=12)


def _combine(inner: st.SearchStrategy[Spec]) -> st.SearchStrategy[Spec]:
    several = st.lists(inner, min_size=2, max_size=4)
    return st.one_of(
        st.tuples(st.just("and"), several),
        st.tuples(st.just("or"), several),
        st.tuples(st.just("not"), inner),
        st.tuples(
            st.just("is"),
            inner.filter(lambda spec: spec[0] != "flag"),
            st.sampled_from(["eq", "eq", "ne", "ne", *ORDERINGS]),
            st.sampled_from([True, False, None]),
        ),
    )  # fmt: skip


@st.composite
def draw_test(draw: st.DrawFn, source: str, names: list[str]) -> Spec:
    name = draw(st.sampled_from(names))
    left: Spec = (source, name)
    text = isinstance(VALUES[name][0], str)
    if text and draw(st.booleans()):
        left = draw(st.sampled_from([("tolower", left), ("toupper", left), ("tolower", ("toupper", left))]))
    values = st.sampled_from(
        VALUES[name] + [row[name] for row in ROWS if row.get(name) is not None and row["k"] != LONG]
    )
    literals = values.map(lambda plain: ("literal", plain)) | st.just(("literal", None))
    test_kind = draw(st.sampled_from(["op", "op", "in", "match"]))
    if test_kind == "in":
        return "in", left, draw(st.lists(literals, min_size=1, max_size=4))
    right = ("field", ALIKE[name]) if name in ALIKE and draw(st.integers(0, 4)) == 0 else draw(literals)
    if test_kind == "match" and text:
        return draw(st.sampled_from(list(MATCHES))), left, right
    op = draw(st.sampled_from(OPS))
    return (op, right, left) if draw(st.booleans()) else (op, left, right)
