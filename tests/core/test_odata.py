"""OData filters and query options."""

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from odatapy.errors import UriParserException
from odatapy.server.eval import evaluate_filter
from odatapy.server.uri.expression_parser import ExpressionParser

from catalog.odata_cases import CASES, FIELDS, ROWS
from penstock.core.odata import (
    MAX_DEPTH,
    MAX_ITEMS,
    MAX_LAMBDAS,
    MAX_LENGTH,
    CaseFold,
    Exists,
    FieldKind,
    LetterCase,
    MatchKind,
    Node,
    ODataAnd,
    ODataCompare,
    ODataComparison,
    ODataField,
    ODataIn,
    ODataLiteral,
    ODataNot,
    ODataOr,
    OrderBy,
    QueryOptions,
    TextMatch,
    TruthTest,
    next_page,
    options,
    parse,
)
from penstock.errors import Invalid

N, X, FLAG = (
    ODataField("n", FieldKind.INTEGER),
    ODataField("x", FieldKind.NUMBER),
    ODataField("flag", FieldKind.BOOLEAN),
)
NAME, LABEL = ODataField("name", FieldKind.TEXT), ODataField("label", FieldKind.TEXT, "tags")
ID, AT, DAY = ODataField("id", FieldKind.GUID), ODataField("at", FieldKind.INSTANT), ODataField("day", FieldKind.DATE)
TRUE, FALSE, NULL = (
    ODataLiteral(True, FieldKind.BOOLEAN),
    ODataLiteral(False, FieldKind.BOOLEAN),
    ODataLiteral(None, None),
)


def equals(left: ODataField | CaseFold, value: Any, field_kind: FieldKind) -> ODataCompare:
    return ODataCompare(ODataComparison.EQ, left, ODataLiteral(value, field_kind))


SET = equals(FLAG, True, FieldKind.BOOLEAN)
UNSET = equals(FLAG, False, FieldKind.BOOLEAN)
HAS_B = TextMatch(MatchKind.ANYWHERE, NAME, ODataLiteral("b", FieldKind.TEXT))
ONE, TWO = equals(N, 1, FieldKind.INTEGER), equals(N, 2, FieldKind.INTEGER)
TEN = datetime(2026, 1, 31, 10, tzinfo=UTC)

TREES: dict[str, Node] = {
    "n eq 1": ONE,
    "1 eq n": ONE,
    "n ne 1": ODataNot(ONE),
    "1 lt n": ODataCompare(ODataComparison.GT, N, ODataLiteral(1, FieldKind.INTEGER)),
    "1 ge n": ODataCompare(ODataComparison.LE, N, ODataLiteral(1, FieldKind.INTEGER)),
    "n le x": ODataCompare(ODataComparison.LE, N, X),
    "n eq 1 or n eq 2 and flag": ODataOr((ONE, ODataAnd((TWO, FLAG)))),
    "n eq 1 or n eq 2 or flag": ODataOr((ONE, TWO, FLAG)),
    "(n eq 1 or n eq 2) or flag": ODataOr((ONE, TWO, FLAG)),
    "n eq 1 or (n eq 2 or flag)": ODataOr((ONE, ODataOr((TWO, FLAG)))),
    "(n eq 1 or n eq 2) and flag": ODataAnd((ODataOr((ONE, TWO)), FLAG)),
    "flag": FLAG,
    "flag eq true": SET,
    "(not not flag) eq false": UNSET,
    "not flag and flag": ODataAnd((ODataNot(FLAG), FLAG)),
    "not flag eq true": UNSET,
    "not flag eq false": SET,
    "not flag eq null": ODataCompare(ODataComparison.EQ, FLAG, NULL),
    "(flag and n eq 1) eq null": TruthTest(ODataAnd((FLAG, ONE)), None),
    "not (flag and n eq 1) eq true": TruthTest(ODataAnd((FLAG, ONE)), False),
    "(n eq 1 or n eq 2) eq null": FALSE,
    "flag eq false": equals(FLAG, False, FieldKind.BOOLEAN),
    "not not not flag": ODataNot(FLAG),
    "not (n ne 1)": ONE,
    "not n in (1)": ODataNot(ODataIn(N, (ODataLiteral(1, FieldKind.INTEGER),))),
    "n in (1, 2.5, null)": ODataIn(
        N, (ODataLiteral(1, FieldKind.INTEGER), ODataLiteral(Decimal("2.5"), FieldKind.NUMBER), NULL)
    ),
    "n gt 1 eq true": ODataCompare(ODataComparison.GT, N, ODataLiteral(1, FieldKind.INTEGER)),
    "x eq 1e3": equals(X, Decimal("1E+3"), FieldKind.NUMBER),
    "x eq -0.50": equals(X, Decimal("-0.50"), FieldKind.NUMBER),
    "n eq null": ODataCompare(ODataComparison.EQ, N, NULL),
    "1 eq 1": TRUE,
    "null gt 1": FALSE,
    "1 in (1.0)": TRUE,
    "contains('abc', 'b')": TRUE,
    "contains(null, 'b')": ODataLiteral(None, FieldKind.BOOLEAN),
    "contains(null, 'b') eq null": TRUE,
    "contains(name, 'b') eq null": TruthTest(HAS_B, None),
    "contains(name, 'b') ne null": ODataNot(TruthTest(HAS_B, None)),
    "contains(name, 'b') ge false": ODataNot(TruthTest(HAS_B, None)),
    "contains(name, 'b') lt true": TruthTest(HAS_B, False),
    "contains(name, 'b') eq false eq null": FALSE,
    "tags/all(t: contains(t/label, 'b'))": ODataNot(
        Exists(
            "tags", ODataNot(TruthTest(TextMatch(MatchKind.ANYWHERE, LABEL, ODataLiteral("b", FieldKind.TEXT)), True))
        )
    ),
    "startswith(tolower(name), toupper('aß'))": TextMatch(
        MatchKind.START,
        CaseFold(LetterCase.LOWER, NAME),
        CaseFold(LetterCase.UPPER, ODataLiteral("aß", FieldKind.TEXT)),
    ),
    "endswith(toupper(tolower(name)), '')": TextMatch(
        MatchKind.END, CaseFold(LetterCase.UPPER, NAME), ODataLiteral("", FieldKind.TEXT)
    ),
    "name eq 'it''s'": equals(NAME, "it's", FieldKind.TEXT),
    "name eq ''''": equals(NAME, "'", FieldKind.TEXT),
    "name eq ' and n eq 1'": equals(NAME, " and n eq 1", FieldKind.TEXT),
    "id eq ABCDEF01-2345-6789-abcd-ef0123456789": equals(
        ID, UUID("abcdef01-2345-6789-abcd-ef0123456789"), FieldKind.GUID
    ),
    "id eq '12345678-2345-6789-abcd-ef0123456789'": equals(
        ID, UUID("12345678-2345-6789-abcd-ef0123456789"), FieldKind.GUID
    ),
    "at eq 2026-01-31T10:00:00Z": equals(AT, TEN, FieldKind.INSTANT),
    "at eq 2026-01-31T10:00": equals(AT, TEN, FieldKind.INSTANT),
    "at eq '2026-01-31T09:30:00-00:30'": equals(AT, TEN, FieldKind.INSTANT),
    "at eq 2026-01-31T10:00:00.123456000000Z": equals(AT, TEN.replace(microsecond=123456), FieldKind.INSTANT),
    "at eq 2026-01-31T10:00:00.5Z": equals(AT, TEN.replace(microsecond=500000), FieldKind.INSTANT),
    "at eq 2026-01-31": equals(AT, TEN.replace(hour=0), FieldKind.INSTANT),
    "day eq 2026-01-31": equals(DAY, date(2026, 1, 31), FieldKind.DATE),
    "day eq '2026-01-31'": equals(DAY, date(2026, 1, 31), FieldKind.DATE),
    "tags/any()": Exists("tags", None),
    "tags/any(t: t/label eq 'a')": Exists("tags", equals(LABEL, "a", FieldKind.TEXT)),
    "tags/all(t: t/label eq 'a')": ODataNot(Exists("tags", ODataNot(equals(LABEL, "a", FieldKind.TEXT)))),
    "tags/all(t: t/label ne name)": ODataNot(Exists("tags", ODataCompare(ODataComparison.EQ, LABEL, NAME))),
    "tags/any(n: n/label eq 'a' and n eq 1)": Exists("tags", ODataAnd((equals(LABEL, "a", FieldKind.TEXT), ONE))),
}


@pytest.mark.parametrize("text", TREES)
def test_odata_parse_returns_expected_tree(text: str) -> None:
    assert parse(text, FIELDS) == TREES[text]


def test_odata_parse_accepts_fields_named_like_operators() -> None:
    fields = dict.fromkeys(("eq", "and", "in", "any", "contains", "desc"), FieldKind.BOOLEAN)
    tree = parse("eq eq and and in in (true) and contains and any or desc", fields)
    fields_by_name = {name: ODataField(name, FieldKind.BOOLEAN) for name in fields}
    assert tree == ODataOr(
        (
            ODataAnd(
                (
                    ODataCompare(ODataComparison.EQ, fields_by_name["eq"], fields_by_name["and"]),
                    ODataIn(fields_by_name["in"], (TRUE,)),
                    fields_by_name["contains"],
                    fields_by_name["any"],
                )
            ),
            fields_by_name["desc"],
        )
    )


BAD: dict[str, tuple[int, str]] = {  # position and part of the message
    "": (0, "expected a field, a value or a condition"),
    "   ": (3, "expected a field, a value or a condition"),
    "n": (0, "n is integer"),
    "name": (0, "expected a condition, but name is text"),
    "'text'": (0, "expected a condition"),
    "5": (0, "5 is integer"),
    "null": (0, "null is not a condition"),
    "not null": (4, "null is not a condition"),
    "tolower(name)": (0, "tolower(name) is text"),
    "n eq": (4, "expected a field, a value or a condition"),
    "eq 1": (0, "unknown field 'eq'"),
    "n eq 1 and": (10, "expected a field, a value or a condition"),
    "n eq 1 or or n eq 2": (10, "unknown field 'or'"),
    "n eq 1 n eq 2": (7, "expected an operator, and, or, or the end"),
    "n eq 1)": (6, "expected an operator, and, or, or the end"),
    "(n eq 1": (7, "')'"),
    "()": (1, "expected a field"),
    "((n eq 1)": (9, "')'"),
    "n EQ 1": (2, "expected an operator"),
    "n eq 1 AND n eq 2": (7, "expected an operator"),
    "NOT flag": (0, "unknown field 'NOT'"),
    "flag and n EQ 1": (11, "expected an operator"),
    "flag eq True": (8, "unknown field 'True'"),
    "N eq 1": (0, "unknown field 'N'"),
    "n = 1": (2, "unexpected character '='"),
    "n eq 1; drop": (6, "unexpected character ';'"),
    'name eq "a"': (8, "unexpected character '\"'"),
    "name eq 'a": (8, "a quote is not closed"),
    "name eq 'a''": (8, "a quote is not closed"),
    "name eq 'a' 'b'": (12, "expected an operator"),
    "name eq 'a\0b'": (8, "NUL"),
    "name eq '\ud800'": (8, "surrogate"),
    "n eq 1and n eq 2": (5, "unexpected character '1'"),
    "n eq - 1": (5, "unexpected character '-'"),
    "n eq -flag": (5, "unexpected character '-'"),
    "n add 1 eq 2": (2, "expected an operator"),
    "n eq 9223372036854775808": (5, "64 bits"),
    "n eq -9223372036854775809": (5, "64 bits"),
    "n eq " + "9" * 5000: (5, "64 bits"),
    "x eq INF": (5, "INF and NaN"),
    "x eq -INF": (5, "INF and NaN"),
    "x eq NaN": (5, "INF and NaN"),
    "x eq 1e309": (5, "between"),
    "x eq 1e-400": (5, "between"),
    "x eq 1e99999999999": (5, "between"),
    "x eq .5": (5, "unexpected character '.'"),
    "x eq 5.": (6, "unexpected character '.'"),
    "name eq 1": (5, "name is text and 1 is integer; they cannot be compared; write text in quotes"),
    "n eq '1'": (2, "n is integer and '1' is text; they cannot be compared; write it without quotes"),
    "flag eq 1": (5, "flag is boolean and 1 is integer"),
    "flag eq 'true'": (5, "flag is boolean and 'true' is text"),
    "n eq true": (2, "n is integer and true is boolean"),
    "n eq name": (2, "n is integer and name is text; they cannot be compared"),
    "id eq 'x'": (3, "id is GUID and 'x' is text; a GUID looks like"),
    "id eq '{00000000-0000-0000-0000-000000000001}'": (3, "a GUID looks like"),
    "id eq 1": (3, "id is GUID and 1 is integer"),
    "name eq 00000000-0000-0000-0000-000000000001": (5, "write text in quotes"),
    "at eq 'yesterday'": (3, "an instant looks like"),
    "at eq 2026-02-30T00:00:00Z": (6, "not a calendar date"),
    "at eq '2026-01-31T25:00:00Z'": (3, "not a calendar date"),
    "at eq 0001-01-01T00:00:00+01:00": (6, "outside of the years"),
    "at eq 2026-01-31T10:00:00 02:00": (26, "expected an operator"),
    "at eq 1": (3, "at is instant and 1 is integer"),
    "at eq 2026-01-31T10:00:00.1234567Z": (6, "at most 6 decimal places"),
    "at eq '2026-01-31T10:00:00.000000000001Z'": (3, "at most 6 decimal places"),
    "day eq 2026-02-30": (7, "not a calendar date"),
    "day eq 0000-01-01": (7, "not a calendar date"),
    "day eq 2026-01-31T00:00:00Z": (4, "day is date and 2026-01-31 00:00:00+00:00 is instant"),
    "day eq '31.01.2026'": (4, "a date looks like"),
    "day eq at": (4, "day is date and at is instant"),
    "n in 1": (5, "expected '('"),
    "n in ()": (6, "expected a field"),
    "n in (1,)": (8, "expected a field"),
    "n in (1": (7, "',' or ')'"),
    "n in (x)": (6, "expected a literal"),
    "n in (1, 'a')": (2, "n is integer and 'a' is text"),
    "(n eq 1) in (true)": (9, "in requires a field or a value"),
    "not n eq 1": (4, "put the comparison after not in parentheses"),
    "n eq 1 eq 1": (7, "a condition can be compared only with true, false and null"),
    "n eq 1 eq flag": (7, "a condition can be compared only with"),
    "n lt 2 lt 3": (7, "a condition can be compared only with"),
    "contains(name)": (13, "expected ','"),
    "contains(name, 'a', 'b')": (18, "expected ')'"),
    "contains(n, 'a')": (9, "contains requires text, but n is integer"),
    "contains(name, 1)": (15, "contains requires text, but 1 is integer"),
    "contains(name, flag)": (15, "flag is boolean"),
    "contains(name, n eq 1)": (15, "this is a condition"),
    "contains (name, 'a') eq 1": (21, "a condition can be compared only with"),
    "tolower() eq 'a'": (8, "expected a field"),
    "tolower(n) eq 'a'": (8, "tolower requires text"),
    "length(name) eq 1": (0, "unknown function 'length'. Valid functions: contains, startswith, endswith, tolower, toupper"),
    "substringof('a', name)": (0, "unknown function"),
    "__class__ eq 1": (0, "unknown field '__class__'"),
    "name/length eq 1": (4, "expected an operator"),
    "tags": (4, "after the collection tags"),
    "tags eq null": (5, "after the collection tags"),
    "tags/label eq 'red'": (5, "expected any or all"),
    "tags/some(t: true)": (5, "expected any or all"),
    "tags/any": (8, "expected '('"),
    "tags/any(": (9, "expected a variable"),
    "tags/any(t)": (10, "expected ':'"),
    "tags/any(t:)": (11, "expected a field"),
    "tags/any(t: t)": (13, "'/' and a field of t"),
    "tags/any(t: t/)": (14, "a field of tags"),
    "tags/any(t: t/label)": (12, "label is text"),
    "tags/any(t: t/label eq 'a'": (26, "')'"),
    "tags/any(t: u/label eq 'a')": (12, "unknown field 'u'"),
    "tags/any(t: t/nothing eq 'a')": (14, "Valid fields: label, size"),
    "tags/any(t: t/size eq 1) and t/size eq 1": (29, "unknown field 't'"),
    "tags/any(t: tags/any(u: u/size eq 1))": (17, "cannot be nested"),
    "tags/all()": (9, "expected a variable"),
    "name/any(t: true)": (4, "expected an operator"),
}  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_odata_parse_rejects_bad_text_with_position(text: str) -> None:
    position, words = BAD[text]
    with pytest.raises(Invalid) as raised:
        parse(text, FIELDS)
    facts = raised.value.context
    assert (facts["position"], facts["option"]) == (position, "$filter")
    assert words in raised.value.message
    assert raised.value.reason == ("unknown_field" if "field" in facts else "bad_filter")


def test_odata_parse_unknown_field_lists_valid_fields() -> None:
    with pytest.raises(Invalid) as raised:
        parse("nmae eq 'a'", FIELDS)
    assert raised.value.as_dict() == {
        "kind": "Invalid",
        "reason": "unknown_field",
        "message": "$filter: unknown field 'nmae'. Valid fields: k, name, note, n, x, flag, id, at, day, tags",
        "field": "nmae",
        "available": list(FIELDS),
        "option": "$filter",
        "position": 0,
    }


LONG_LIST = f"n in ({','.join(['1'] * MAX_ITEMS)})"
LIMITS: dict[str, tuple[str, str]] = {  # at the limit, above the limit
    "characters": (
        "n eq 1" + " " * (MAX_LENGTH - 6),
        "n eq 1" + " " * (MAX_LENGTH - 5),
    ),
    "parentheses": (
        "(" * MAX_DEPTH + "flag" + ")" * MAX_DEPTH,
        "(" * (MAX_DEPTH + 1) + "flag" + ")" * (MAX_DEPTH + 1),
    ),
    "nots": (
        "not " * MAX_DEPTH + "flag",
        "not " * (MAX_DEPTH + 1) + "flag",
    ),
    "functions": (
        "tolower(" * (MAX_DEPTH - 1) + "name" + ")" * (MAX_DEPTH - 1) + " eq 'a'",
        "tolower(" * 1000 + "name" + ")" * 1000 + " eq 'a'",
    ),
    "elements": (
        LONG_LIST,
        LONG_LIST.replace("1)", "1,1)"),
    ),
    "nodes": (
        " or ".join([LONG_LIST] * 3 + ["n eq 1"] * 400),
        " or ".join([LONG_LIST] * 4),
    ),
    "lambdas": (
        " or ".join(["tags/any()"] * MAX_LAMBDAS),
        " or ".join(["tags/any()"] * (MAX_LAMBDAS + 1)),
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_odata_parse_reports_exceeded_limits(name: str) -> None:
    good, bad = LIMITS[name]
    parse(good, FIELDS)
    with pytest.raises(Invalid) as raised:
        parse(bad, FIELDS)
    assert raised.value.reason == "bad_filter"
    assert any(word in raised.value.message for word in ("more than", "at most"))


def test_odata_parse_flattens_a_thousand_terms() -> None:
    tree = parse(" or ".join(["n eq 1"] * 1000), FIELDS)
    assert tree == ODataOr((ONE,) * 1000)


def test_odata_parse_chained_constant_comparisons_stay_flat() -> None:
    assert parse("n lt 5" + " eq false" * 1000, FIELDS) == parse("n lt 5", FIELDS)


SNIPPETS = ["n", "name", "flag", "tags", "t", "/", "any", "all", "(", ")", ":", ",", "eq", "ne", "gt", "in", "and", "or", "not",
            "contains", "tolower", "1", "-1", "1.5", "'a'", "'", "null", "true", "2026-01-31", "2026-01-31T10:00:00Z", " ", "é", "\0"]  # fmt: skip


@given(st.lists(st.sampled_from(SNIPPETS), max_size=25).map(" ".join) | st.text(max_size=60))
@example("2026-99-99T99:99:99Z eq at")
@example("n eq 1\u00a0")
def test_odata_parse_of_any_text_returns_tree_or_position(text: str) -> None:
    position = 0
    try:
        parse(text, FIELDS)
    except Invalid as raised:
        position = raised.context["position"]
    assert 0 <= position <= len(text)


# odatapy parses the same language without a table of fields. Cases with different results, by reason.
NO_FIELD_TYPES = "odatapy has no field types, so it cannot convert a literal to the type of the other operand"
NULL_COMPARISONS = "in odatapy a comparison with null is null; in OData it is false"
NULL_IN_LISTS = "in odatapy no list contains null"
NOT_PRECEDENCE = "in odatapy `not` has a lower precedence than eq"
CASE_FOLDING = "odatapy folds all letters, and folds step by step"
ALL_DIGITS = "odatapy compares all digits; in Penstock a number is the nearest double"
DIFFERENCES: dict[str, list[str]] = {
    NO_FIELD_TYPES: [
        "id eq '00000000-0000-0000-0000-000000000001'",
        "id eq 'abcdef01-2345-6789-ABCD-ef0123456789'",
        "id lt '00000000-0000-0000-0000-000000000002'",
        "id in ('00000000-0000-0000-0000-000000000001', 00000000-0000-0000-0000-000000000002)",
        "at eq '2026-01-31T10:00:00Z'",
        "at eq 2026-06-01",
        "at eq '2026-06-01'",
        "2026-06-01 eq at",
        "at lt 2026-01-01",
        "at ge 2026-01-01 and at lt 2026-02-01",
        "at in (2026-01-31T10:00:00Z, 2026-06-01)",
        "day eq '2026-01-31'",
        "'2026-01-31' eq day",
        "day ge '2026-01-31' and day le '2026-02-28'",
        "day in (2026-01-31, '2024-02-29')",
        "2026-01-31 eq 2026-01-31T00:00:00Z",
        "'2026-01-31' eq 2026-01-31",
    ],
    NULL_COMPARISONS: [
        "not (n gt null)",
        "not (name in ('alpha', 'Alpha'))",
        "not name in ('alpha')",
        "not (n in (1, 2))",
        "not (flag and n gt 0)",
        "not (n gt 1)",
        "not (n ge 1)",
        "not (n lt 1)",
        "not (n le 1)",
        "not (x gt n)",
        "not (name gt note)",
        "n gt 1 eq false",
        "tags/any(t: not (t/size gt 5))",
        "tags/all(t: not (t/size lt 3))",
    ],
    NULL_IN_LISTS: [
        "name in ('alpha',null)",
        "name in (null)",
        "n in (null, 9223372036854775807)",
        "flag in (null)",
        "tags/any(t: t/size in (null))",
    ],
    NOT_PRECEDENCE: ["not flag eq false", "not flag eq true", "not flag ne true"],
    CASE_FOLDING: [
        "toupper(note) eq 'ÄB'",
        "toupper(note) eq 'äB'",
        "tolower(note) eq 'Äb'",
        "tolower(note) eq 'äb'",
        "contains(toupper(note), 'Ï')",
        "tolower(toupper(name)) eq 'strasse'",
        "tolower(toupper(name)) eq 'straße'",
    ],
    ALL_DIGITS: ["n eq 1.00000000000000000000001"],
}
REASONS = {text: reason for reason, texts in DIFFERENCES.items() for text in texts}


@pytest.mark.parametrize("text", CASES)
def test_odata_parse_and_odatapy_select_equal_rows(text: str) -> None:
    try:
        tree = ExpressionParser.parse_string(text)
        rows = [row["k"] for row in ROWS if evaluate_filter(row, tree)]  # type: ignore[arg-type]
    except UriParserException:
        rows = None  # type: ignore[assignment]
    if text in REASONS:
        assert rows != CASES[text], f"equal results, although {REASONS[text]}"
    else:
        assert rows == CASES[text]


def test_odatapy_differences_are_all_used() -> None:
    assert REASONS.keys() <= CASES.keys()


def read(*pairs: tuple[str, str]) -> QueryOptions:
    return options(pairs, FIELDS, default_top=50, max_top=200, also=("strict",), selectable=("metadata",))


DEFAULTS = QueryOptions(filter=None, orderby=(), top=50, skip=0, select=None, count=False, search=())
READ: list[tuple[list[tuple[str, str]], QueryOptions]] = [
    ([], DEFAULTS),
    ([("$filter", "n eq 1")], replace(DEFAULTS, filter=ONE)),
    ([("$top", "0")], replace(DEFAULTS, top=0, limit=0)),
    ([("$top", "010")], replace(DEFAULTS, top=10, limit=10)),
    ([("$top", "200")], replace(DEFAULTS, top=200, limit=200)),
    ([("$top", "2147483648")], replace(DEFAULTS, top=200, limit=2**31)),
    ([("$skip", "2147483648")], replace(DEFAULTS, skip=2**31)),
    ([("$top", "10"), ("$skip", "20")], replace(DEFAULTS, top=10, skip=20, limit=10)),
    ([("$count", "true")], replace(DEFAULTS, count=True)),
    ([("$count", "false")], DEFAULTS),
    ([("$select", "name")], replace(DEFAULTS, select=("name",))),
    ([("$select", " name , tags,metadata,name")], replace(DEFAULTS, select=("name", "tags", "metadata"))),
    ([("$select", "*")], DEFAULTS),
    ([("$select", "name,*")], DEFAULTS),
    ([("$orderby", "name")], replace(DEFAULTS, orderby=(OrderBy(NAME),))),
    ([("$orderby", " name  desc , n asc")], replace(DEFAULTS, orderby=(OrderBy(NAME, True), OrderBy(N)))),
    ([("$search", "")], DEFAULTS),
    ([("$search", "big  Duck big")], replace(DEFAULTS, search=("big", "Duck"))),
    ([("$search", '"big duck" pond')], replace(DEFAULTS, search=("big duck", "pond"))),
    ([("$search", 'a"b c"d ""')], replace(DEFAULTS, search=("a", "b c", "d"))),
    ([("$search", "%_'")], replace(DEFAULTS, search=("%_'",))),
    ([("strict", "1"), ("strict", "2")], DEFAULTS),
]


@pytest.mark.parametrize(("pairs", "expected"), READ, ids=lambda value: str(value) if isinstance(value, list) else "")
def test_odata_options_parses_all_options(pairs: list[tuple[str, str]], expected: QueryOptions) -> None:
    assert read(*pairs) == expected


REFUSED: list[tuple[list[tuple[str, str]], str, str]] = [
    (
        [("$expand", "tags")],
        "unknown_option",
        "Unknown query option '$expand'. Valid options: $filter, $orderby, $top, $skip",
    ),
    ([("$Filter", "n eq 1")], "unknown_option", "Unknown query option '$Filter'"),
    ([("filter", "n eq 1")], "unknown_option", "Unknown query option 'filter'"),
    ([("page", "2")], "unknown_option", "$skiptoken, strict"),
    ([("", "")], "unknown_option", "Unknown query option ''"),
    ([("$top", "1"), ("$top", "1")], "bad_option", "$top: specified twice"),
    ([("$top", "-1")], "bad_option", "$top: expected an integer from 0 to 2147483648"),
    ([("$top", "")], "bad_option", "expected an integer"),
    ([("$top", "1.0")], "bad_option", "expected an integer"),
    ([("$top", " 1")], "bad_option", "expected an integer"),
    ([("$top", "1_0")], "bad_option", "expected an integer"),
    ([("$top", "٣")], "bad_option", "expected an integer"),
    ([("$top", "9" * 5000)], "bad_option", "expected an integer"),
    ([("$skip", "2147483649")], "bad_option", "$skip: expected an integer"),
    ([("$skip", "-1")], "bad_option", "expected an integer"),
    ([("$count", "1")], "bad_option", "$count: expected true or false"),
    ([("$count", "True")], "bad_option", "expected true or false"),
    ([("$select", "")], "unknown_field", "$select: unknown field ''. Valid fields: k, name"),
    ([("$select", "name,nope")], "unknown_field", "unknown field 'nope'"),
    ([("$orderby", "")], "bad_option", "$orderby: expected a field"),
    ([("$orderby", "name,")], "bad_option", "expected a field"),
    ([("$orderby", "nope desc")], "unknown_field", "$orderby: unknown field 'nope'"),
    ([("$orderby", "metadata")], "unknown_field", "unknown field 'metadata'"),
    ([("$orderby", "tags")], "bad_option", "tags is a collection"),
    ([("$orderby", "name DESC")], "bad_option", "expected asc or desc after name, not 'DESC'"),
    ([("$orderby", "name asc desc")], "bad_option", "'asc desc'"),
    ([("$orderby", "name, n, name desc")], "bad_option", "field name is specified twice"),
    ([("$search", '"open')], "bad_option", "$search: a quote is not closed"),
    ([("$search", "x" * 1001)], "bad_option", "more than 1,000 characters"),
    ([("$search", "a\0")], "bad_option", "NUL"),
    ([("$filter", "")], "bad_filter", "position 0"),
]


@pytest.mark.parametrize(("pairs", "reason", "words"), REFUSED, ids=lambda value: str(value)[:60])
def test_odata_options_rejects_bad_options(pairs: list[tuple[str, str]], reason: str, words: str) -> None:
    with pytest.raises(Invalid) as raised:
        read(*pairs)
    assert raised.value.reason == reason
    assert words in raised.value.message
    assert raised.value.context["option"] == pairs[0][0]


def test_next_page_repeats_query_with_the_position_and_the_rest_of_top() -> None:
    pairs = [("$filter", "name eq 'Ä&b+c' or n eq 1"), ("$skip", "20"), ("$top", "10"), ("strict", "1")]
    link = next_page(pairs, replace(read(*pairs), top=4), ("x", None, 3), 4)
    assert link is not None
    assert link.startswith("$filter=name%20eq%20%27%C3%84%26b%2Bc%27%20or%20n%20eq%201&strict=1&$skiptoken=")
    following = read(*parse_qsl(link, strict_parsing=True))
    assert following == replace(read(*pairs), skip=0, top=4, limit=6, after=("x", None, 3))
    last = next_page(parse_qsl(link), following, ("y", True, 4), 4)
    assert last is not None
    assert read(*parse_qsl(last)) == replace(following, top=2, limit=2, after=("y", True, 4))
    assert next_page(parse_qsl(last), read(*parse_qsl(last)), ("z", True, 5), 2) is None


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_next_page_keeps_parameters_of_other_components(text: str) -> None:
    pairs = [("strict", text)]
    link = next_page(pairs, read(*pairs), (1,), 50)
    assert link is not None
    assert parse_qsl(link, keep_blank_values=True)[0] == ("strict", text)


def test_next_page_uses_page_size_of_server() -> None:
    link = next_page([("$top", "1000")], read(("$top", "1000")), (1,), 200)
    assert link is not None
    following = read(*parse_qsl(link))
    assert (following.top, following.limit) == (200, 800)


def test_next_page_is_none_after_the_last_item() -> None:
    assert next_page([("$top", "0")], read(("$top", "0")), (1,), 0) is None
    assert next_page([("$top", "2")], read(("$top", "2")), (1,), 2) is None
    assert next_page([], read(), None, 50) is None


@given(st.text(max_size=200))
def test_skiptoken_of_any_text_is_invalid(text: str) -> None:
    with pytest.raises(Invalid) as raised:
        read(("$skiptoken", text))
    assert (raised.value.reason, raised.value.context) == ("bad_skiptoken", {"option": "$skiptoken"})
