"""A query is read as it was sent or refused with all that is wrong; its parameters get values of their types."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.registry import gts
from penstock.core.result_schema import FieldType
from penstock.core.registry.revisions import changed
from penstock.core.registry.lifecycle import TRANSITIONS, State, transition
from penstock.core.registry.query_parameters import Parameter, values
from penstock.core.registry.query import (Draft, Query, Reference, assert_editable, assert_runnable, check_placeholders, drafted, revised)
from penstock.errors import Invalid, Unsupported

SCHEMA = UUID("a1b2c3d4-e5f6-7890-abcd-ef1234567890")
SQL = "SELECT * FROM finance.orders WHERE region = $region AND day >= $since"
PARAMETERS = [{"name": "region", "type": "string"}, {"name": "since", "type": "date", "default": "2026-01-01"}]
DECLARED = (Parameter("region", FieldType.STRING), Parameter("since", FieldType.DATE, False, "2026-01-01"))
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def payload(**members: Any) -> dict[str, Any]:
    return {"name": "orders", "sql": SQL, "parameters": PARAMETERS, "returns_schema_id": str(SCHEMA), **members}


def query(**changes: Any) -> Query:
    draft = replace(drafted(payload()), **changes)
    return Query(UUID(int=1), draft, (Reference("finance", "orders", 3),), 1, NOW, NOW, UUID(int=2), NOW, UUID(int=2))


def refused(use: Any, *args: Any) -> tuple[str, list[tuple[str, str]]]:
    with pytest.raises(Invalid) as refusal:
        use(*args)
    assert all(each["message"] for each in refusal.value.context["errors"])
    return refusal.value.reason, [(each["pointer"], each["code"]) for each in refusal.value.context["errors"]]


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        (payload(), Draft("orders", None, SQL, DECLARED, SCHEMA)),
        ({"entity": payload()}, Draft("orders", None, SQL, DECLARED, SCHEMA)),
        (payload(description="d", state="DRAFT"), Draft("orders", "d", SQL, DECLARED, SCHEMA, State.DRAFT)),
        (payload(parameters=None), Draft("orders", None, SQL, (), SCHEMA)),
        (payload(returns_schema_id=f"{gts.QUERY_RETURNS}{SCHEMA}"), Draft("orders", None, SQL, DECLARED, SCHEMA)),
        (payload(returns_schema_id=str(SCHEMA).upper()), Draft("orders", None, SQL, DECLARED, SCHEMA)),
        (payload(name=" x" * 250, sql="x" * 100_000), Draft(" x" * 250, None, "x" * 100_000, DECLARED, SCHEMA)),
    ],
)
def test_a_query_is_read_as_it_was_sent(sent: Any, meant: Draft) -> None:
    assert drafted(sent) == meant
    assert drafted(meant.as_json()) == meant


def test_a_query_can_be_sent_back_as_it_was_shown() -> None:
    shown = query().as_json()
    assert revised(query(), shown) == query().draft
    assert drafted(shown) == query().draft
    assert shown["datasets"] == [{"schema_name": "finance", "table_name": "orders", "version": 3}]
    assert list(shown) == [
        "id", "name", "description", "sql", "parameters", "returns_schema_id", "state", "datasets", "version",
        "state_changed_at", "created_at", "created_by", "updated_at", "updated_by",
    ]  # fmt: skip


def parameter(**members: Any) -> dict[str, Any]:
    return payload(parameters=[{"name": "p", "type": "number", **members}])


WRONG: list[tuple[Any, list[tuple[str, str]]]] = [
    ({}, [("/name", "missing_member"), ("/sql", "missing_member"), ("/returns_schema_id", "missing_member")]),
    (payload(name=" ", colour=1), [("/colour", "unknown_member"), ("/name", "missing_member")]),
    (payload(name="x" * 501), [("/name", "text_too_long")]),
    (payload(name=7, description=[]), [("/name", "not_text"), ("/description", "not_text")]),
    (payload(sql=" \n"), [("/sql", "missing_member")]),
    (payload(name="a/b"), [("/name", "bad_query_name")]),
    (payload(name="what?"), [("/name", "bad_query_name")]),
    (payload(name="#1"), [("/name", "bad_query_name")]),
    (payload(sql="x" * 100_001), [("/sql", "text_too_long")]),
    (payload(sql="SELECT '\0'"), [("/sql", "bad_text")]),
    (payload(returns_schema_id="orders"), [("/returns_schema_id", "bad_schema_id")]),
    (payload(returns_schema_id=7), [("/returns_schema_id", "bad_schema_id")]),
    (payload(returns_schema_id=f"gts.a.b.c.d.v1~{SCHEMA}"), [("/returns_schema_id", "bad_schema_id")]),
    (payload(state="ARCHIVED"), [("/state", "bad_state")]),
    (payload(parameters={}), [("/parameters", "bad_parameter")]),
    (payload(parameters=[{"name": "p", "type": "number"}] * 101), [("/parameters", "too_many_parameters")]),
    (payload(parameters=["p"]), [("/parameters/0", "bad_parameter")]),
    (
        payload(name=None, parameters=[{}, {"name": "1p", "type": "money", "required": 1, "size": 2}]),
        [
            ("/name", "missing_member"),
            ("/parameters/0/name", "missing_member"),
            ("/parameters/0/type", "missing_member"),
            ("/parameters/1/size", "unknown_member"),
            ("/parameters/1/name", "bad_parameter_name"),
            ("/parameters/1/type", "bad_parameter_type"),
            ("/parameters/1/required", "bad_parameter"),
        ],
    ),
    (parameter(name="p" * 129), [("/parameters/0/name", "bad_parameter_name")]),
    (parameter(name="p\n"), [("/parameters/0/name", "bad_parameter_name")]),
    (parameter(name="Format"), [("/parameters/0/name", "reserved_parameter_name")]),
    (parameter(name="versions"), [("/parameters/0/name", "reserved_parameter_name")]),
    (parameter(type=["number"]), [("/parameters/0/type", "bad_parameter_type")]),
    (
        payload(parameters=[{"name": name, "type": "string"} for name in ("p", "P")]),
        [("/parameters/1/name", "doubled_parameter_name")],
    ),
    (parameter(required=True, default=1), [("/parameters/0/required", "required_with_default")]),
    (parameter(default="1"), [("/parameters/0/default", "bad_value")]),
    (parameter(default=True), [("/parameters/0/default", "bad_value")]),
    (parameter(default=10**38), [("/parameters/0/default", "bad_value")]),
    (parameter(type="boolean", default="true"), [("/parameters/0/default", "bad_value")]),
    (parameter(type="string", default="\ud800"), [("/parameters/0/default", "bad_value")]),
    (parameter(type="date", default="2026-02-30"), [("/parameters/0/default", "bad_value")]),
    (parameter(type="datetime", default="2026-02-01"), [("/parameters/0/default", "bad_value")]),
]


@pytest.mark.parametrize(("sent", "errors"), WRONG, ids=range(len(WRONG)))
def test_all_that_is_wrong_is_told_at_once(sent: Any, errors: list[tuple[str, str]]) -> None:
    assert refused(drafted, sent) == ("bad_query", errors)
    if "state" not in sent:
        assert refused(revised, query(), sent) == ("bad_query", errors)


@pytest.mark.parametrize("sent", [None, [], "SELECT 1", {"entity": None}])
def test_a_query_is_an_object(sent: Any) -> None:
    with pytest.raises(Invalid) as refusal:
        drafted(sent)
    assert refusal.value.reason == "bad_payload"


def test_no_more_than_a_hundred_errors_are_told() -> None:
    _, errors = refused(drafted, {f"member{i}": 1 for i in range(500)})
    assert len(errors) == 100


def test_the_state_does_not_change_by_a_change() -> None:
    now = query(state=State.DEPRECATED)
    assert refused(revised, now, payload(state="ACTIVE")) == ("bad_query", [("/state", "state_is_fixed")])
    for sent in (payload(), payload(state="DEPRECATED")):
        assert revised(now, sent).state is State.DEPRECATED


@pytest.mark.parametrize(
    ("said", "required", "default"),
    [
        ({}, True, None),
        ({"required": True}, True, None),
        ({"required": False}, False, None),
        ({"default": 0}, False, 0),
        ({"default": 0, "required": False}, False, 0),
        ({"default": None}, True, None),
        ({"default": 1e20}, False, 10**20),  # as it comes back from every database
    ],
)
def test_a_default_makes_a_parameter_optional(said: dict[str, Any], required: bool, default: Any) -> None:
    [found] = drafted(parameter(**said)).parameters
    assert (found.required, found.default) == (required, default)
    assert type(found.default) is type(default)


# -- placeholders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "errors"),
    [
        (["region", "since"], []),
        (["SINCE", "Region", "region"], []),
        (["region", "since", "1"], [("/sql", "undeclared_parameter")]),
        (["region", "sine"], [("/sql", "undeclared_parameter"), ("/parameters/1/name", "unused_parameter")]),
        ([], [("/parameters/0/name", "unused_parameter"), ("/parameters/1/name", "unused_parameter")]),
    ],
)
def test_the_sql_uses_what_is_declared_and_nothing_else(names: list[str], errors: list[tuple[str, str]]) -> None:
    if errors:
        assert refused(check_placeholders, drafted(payload()), names) == ("bad_placeholders", errors)
    else:
        check_placeholders(drafted(payload()), names)


# -- values -----------------------------------------------------------------------------------------------------------

_EAST = timezone(timedelta(hours=2))

GOOD: list[tuple[str, Any, Any]] = [
    ("string", "", ""),
    ("string", "5", "5"),
    ("number", "5", 5),
    ("number", "-0", 0),
    ("number", 5, 5),
    ("number", "5.0", 5),
    ("number", 5.0, 5),
    ("number", "1e3", 1000),
    ("number", "0.10", Decimal("0.1")),
    ("number", 0.1, Decimal("0.1")),
    ("number", "12.5e-1", Decimal("1.25")),
    ("number", Decimal("1.50"), Decimal("1.5")),
    ("number", "9" * 38, 10**38 - 1),
    ("number", "-" + "9" * 37 + ".50", Decimal("-" + "9" * 37 + ".5")),
    ("number", "0." + "0" * 37 + "1", Decimal("1e-38")),
    ("boolean", "true", True),
    ("boolean", False, False),
    ("date", "2026-02-28", date(2026, 2, 28)),
    ("date", date(2026, 2, 28), date(2026, 2, 28)),
    ("datetime", "2026-02-28T10:00:00Z", datetime(2026, 2, 28, 10, tzinfo=UTC)),
    ("datetime", "2026-02-28t10:00:00.1234567z", datetime(2026, 2, 28, 10, 0, 0, 123456, tzinfo=UTC)),
    ("datetime", "2026-02-28T10:00:00+02:00", datetime(2026, 2, 28, 8, tzinfo=UTC)),
    ("datetime", "2026-02-28T10:00:00", datetime(2026, 2, 28, 10, tzinfo=UTC)),
    ("datetime", datetime(2026, 2, 28, 10), datetime(2026, 2, 28, 10, tzinfo=UTC)),
    ("datetime", datetime(2026, 2, 28, 10, tzinfo=_EAST), datetime(2026, 2, 28, 8, tzinfo=UTC)),
]
BAD: list[tuple[str, Sequence[Any]]] = [
    ("string", [5, True, ["x"], "a\0b", "\ud800", "x" * 100_001]),
    ("number", ["", " 5", "+5", "05", ".5", "5.", "five", "NaN", "Infinity", "1_000", "0x10", "٥", "1e38", "1e-39"]),
    ("number", [float("nan"), float("inf"), Decimal("NaN"), Decimal("Infinity"), True, [5], 10**38, 10**5000]),
    ("number", ["1e999999999", "1e999999999999", "1e-999999999", "9" * 38 + ".5", "0." + "0" * 38 + "1"]),
    ("boolean", ["True", "1", "", 1, 0, "yes"]),
    ("date", ["2026-02-30", "2026-2-1", "20260201", "2026-02-01T00:00:00", 20260201, datetime(2026, 2, 1), ""]),
    (
        "datetime",
        ["2026-02-01", "2026-02-01T25:00:00", "2026-02-01 10:00:00", "0001-01-01T00:00:00+05:00", 0, NOW.date()],
    ),
]


def read(kind: str, value: Any) -> Any:
    return values([Parameter("p", FieldType(kind))], {"p": value})["p"]


@pytest.mark.parametrize(("kind", "value", "meant"), GOOD, ids=[f"{kind} {value!r}" for kind, value, _ in GOOD])
def test_a_value_is_read_by_its_type(kind: str, value: Any, meant: Any) -> None:
    found = read(kind, value)
    assert (type(found), repr(found)) == (type(meant), repr(meant)), "equal numbers are the same, digit by digit"


@pytest.mark.parametrize(("kind", "many"), BAD)
def test_what_is_no_value_of_the_type_is_refused(kind: str, many: Sequence[Any]) -> None:
    for value in many:
        assert refused(read, kind, value) == ("bad_parameters", [("/p", "bad_value")])


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**20), max_value=10**20))
def test_a_number_is_the_same_however_it_is_written(number: Decimal) -> None:
    ways = [read("number", way) for way in (number, f"{number:f}", f"{number:e}", f"{number:f}000")]
    assert {repr(way) for way in ways} == {repr(ways[0])}
    assert ways[0] == number
    assert isinstance(ways[0], int) == (number % 1 == 0)


@given(st.one_of(st.text(max_size=40), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.text())))
def test_whatever_is_given_becomes_a_value_or_an_error(value: Any) -> None:
    for kind in FieldType:
        try:
            found = read(kind, value)
        except Invalid as refusal:
            assert refusal.reason == "bad_parameters"  # noqa: PT017
        else:
            assert read(kind, found) == found


def test_defaults_fill_what_is_not_given() -> None:
    wanted = (*DECLARED, Parameter("rest", FieldType.NUMBER, required=False))
    meant = {"region": "EMEA", "since": date(2026, 1, 1), "rest": None}
    assert values(wanted, {"region": "EMEA"}) == meant
    assert values(wanted, {"region": "EMEA", "since": None, "rest": None}) == meant
    assert values(wanted, {"region": "EMEA", "since": "2026-02-01", "rest": "0"}) == {
        "region": "EMEA", "since": date(2026, 2, 1), "rest": 0,
    }  # fmt: skip
    assert values((), {}) == {}


def test_all_that_is_wrong_with_the_values_is_told_at_once() -> None:
    reason, errors = refused(values, DECLARED, {"Region": "EMEA", "since": "today", "x": 1})
    assert reason == "bad_parameters"
    assert errors == [
        ("/Region", "unknown_parameter"),
        ("/x", "unknown_parameter"),
        ("/region", "missing_parameter"),
        ("/since", "bad_value"),
    ]


# -- states -----------------------------------------------------------------------------------------------------------

MEMBERS = {"name", "description", "sql", "parameters", "returns_schema_id"}


@pytest.mark.parametrize(
    ("state", "members", "left"),
    [
        (State.DRAFT, MEMBERS, None),
        (State.ACTIVE, MEMBERS, None),
        (State.DEPRECATED, {"description"}, None),
        (State.DEPRECATED, set(), None),
        (State.DEPRECATED, MEMBERS, ["name", "parameters", "returns_schema_id", "sql"]),
        (State.ARCHIVED, {"description"}, ["description"]),
        (State.ARCHIVED, set(), []),  # a write that changes nothing is a write
    ],
)
def test_each_state_says_what_may_still_change(state: State, members: set[str], left: list[str] | None) -> None:
    if left is None:
        assert_editable(state, members)
        return
    with pytest.raises(Unsupported) as refusal:
        assert_editable(state, members)
    assert (refusal.value.reason, refusal.value.context["members"]) == ("read_only_state", left)


def test_what_changed_is_told_by_member() -> None:
    before = query().draft
    assert changed(before, before, MEMBERS) == set()
    after = drafted(
        payload(name="x", description="d", sql="SELECT 1", parameters=[], returns_schema_id=str(UUID(int=0)))
    )
    assert changed(before, after, MEMBERS) == MEMBERS


@pytest.mark.parametrize("current", State)
@pytest.mark.parametrize("to", State)
def test_a_query_moves_along_the_paths_of_schemas(current: State, to: State) -> None:
    if found := TRANSITIONS.get((current, to)):
        assert transition(current, to, "query") is found
        return
    with pytest.raises(Unsupported, match="query") as refusal:
        transition(current, to, "query")
    assert refusal.value.reason == "illegal_transition"
    assert refusal.value.context["possible"] == [str(end) for start, end in TRANSITIONS if start is current]


@pytest.mark.parametrize("state", State)
def test_all_but_archived_queries_can_be_run(state: State) -> None:
    if state is not State.ARCHIVED:
        assert_runnable(query(state=state))
        return
    with pytest.raises(Unsupported) as refusal:
        assert_runnable(query(state=state))
    assert refusal.value.reason == "query_archived"
