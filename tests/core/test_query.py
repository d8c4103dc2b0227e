"""Parse queries and parameter values."""

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
from penstock.core.registry.lifecycle import TRANSITIONS, LifecycleState, find_transition
from penstock.core.registry.query import (
    QueryDatasetRef,
    QueryDraft,
    RegisteredQuery,
    assert_editable,
    assert_runnable,
    check_placeholders,
    parse_new_query,
    parse_query_update,
)
from penstock.core.registry.query_parameters import QueryParameter, parse_parameter_values
from penstock.core.registry.revisions import changed_members
from penstock.core.result_schema import FieldType
from penstock.errors import Invalid, Unsupported

SCHEMA = UUID("a1b2c3d4-e5f6-7890-abcd-ef1234567890")
SQL = "SELECT * FROM finance.orders WHERE region = $region AND day >= $since"
PARAMETERS = [{"name": "region", "type": "string"}, {"name": "since", "type": "date", "default": "2026-01-01"}]
DECLARED = (QueryParameter("region", FieldType.STRING), QueryParameter("since", FieldType.DATE, False, "2026-01-01"))
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def payload(**members: Any) -> dict[str, Any]:
    return {"name": "orders", "sql": SQL, "parameters": PARAMETERS, "returns_schema_id": str(SCHEMA), **members}


def query(**changes: Any) -> RegisteredQuery:
    draft = replace(parse_new_query(payload()), **changes)
    return RegisteredQuery(
        UUID(int=1), draft, (QueryDatasetRef("finance", "orders", 3),), 1, NOW, NOW, UUID(int=2), NOW, UUID(int=2)
    )


def error_pairs(use: Any, *args: Any) -> tuple[str, list[tuple[str, str]]]:
    with pytest.raises(Invalid) as raised:
        use(*args)
    assert all(item["message"] for item in raised.value.context["errors"])
    return raised.value.reason, [(item["pointer"], item["code"]) for item in raised.value.context["errors"]]


# -- parse ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (payload(), QueryDraft("orders", None, SQL, DECLARED, SCHEMA)),
        ({"entity": payload()}, QueryDraft("orders", None, SQL, DECLARED, SCHEMA)),
        (
            payload(description="d", state="DRAFT"),
            QueryDraft("orders", "d", SQL, DECLARED, SCHEMA, LifecycleState.DRAFT),
        ),
        (payload(parameters=None), QueryDraft("orders", None, SQL, (), SCHEMA)),
        (payload(returns_schema_id=f"{gts.QUERY_RETURNS}{SCHEMA}"), QueryDraft("orders", None, SQL, DECLARED, SCHEMA)),
        (payload(returns_schema_id=str(SCHEMA).upper()), QueryDraft("orders", None, SQL, DECLARED, SCHEMA)),
        (payload(name=" x" * 250, sql="x" * 100_000), QueryDraft(" x" * 250, None, "x" * 100_000, DECLARED, SCHEMA)),
    ],
)
def test_parse_new_query_returns_draft(body: Any, expected: QueryDraft) -> None:
    assert parse_new_query(body) == expected
    assert parse_new_query(expected.as_json()) == expected


def test_parse_query_update_accepts_response_of_server() -> None:
    displayed = query().as_json()
    assert parse_query_update(query(), displayed) == query().draft
    assert parse_new_query(displayed) == query().draft
    assert displayed["datasets"] == [{"schema_name": "finance", "table_name": "orders", "version": 3}]
    assert list(displayed) == [
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
        [("/parameters/1/name", "duplicate_parameter_name")],
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


@pytest.mark.parametrize(("body", "errors"), WRONG, ids=range(len(WRONG)))
def test_parse_new_query_reports_all_errors(body: Any, errors: list[tuple[str, str]]) -> None:
    assert error_pairs(parse_new_query, body) == ("bad_query", errors)
    if "state" not in body:
        assert error_pairs(parse_query_update, query(), body) == ("bad_query", errors)


@pytest.mark.parametrize("body", [None, [], "SELECT 1", {"entity": None}])
def test_parse_new_query_rejects_values_that_are_not_objects(body: Any) -> None:
    with pytest.raises(Invalid) as raised:
        parse_new_query(body)
    assert raised.value.reason == "bad_payload"


def test_parse_new_query_reports_at_most_a_hundred_errors() -> None:
    _, errors = error_pairs(parse_new_query, {f"member{i}": 1 for i in range(500)})
    assert len(errors) == 100


def test_parse_query_update_rejects_state_change() -> None:
    stored = query(state=LifecycleState.DEPRECATED)
    assert error_pairs(parse_query_update, stored, payload(state="ACTIVE")) == (
        "bad_query",
        [("/state", "immutable_state")],
    )
    for update in (payload(), payload(state="DEPRECATED")):
        assert parse_query_update(stored, update).state is LifecycleState.DEPRECATED


@pytest.mark.parametrize(
    ("result", "required", "default"),
    [
        ({}, True, None),
        ({"required": True}, True, None),
        ({"required": False}, False, None),
        ({"default": 0}, False, 0),
        ({"default": 0, "required": False}, False, 0),
        ({"default": None}, True, None),
        ({"default": 1e20}, False, 10**20),  # as every database returns it
    ],
)
def test_parse_new_query_default_makes_parameter_optional(result: dict[str, Any], required: bool, default: Any) -> None:
    [parsed] = parse_new_query(parameter(**result)).parameters
    assert (parsed.required, parsed.default) == (required, default)
    assert type(parsed.default) is type(default)


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
def test_check_placeholders_requires_exactly_declared_parameters(
    names: list[str], errors: list[tuple[str, str]]
) -> None:
    if errors:
        assert error_pairs(check_placeholders, parse_new_query(payload()), names) == ("bad_placeholders", errors)
    else:
        check_placeholders(parse_new_query(payload()), names)


# -- parameter values -------------------------------------------------------------------------------------------------

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


def read(field_type: str, value: Any) -> Any:
    return parse_parameter_values([QueryParameter("p", FieldType(field_type))], {"p": value})["p"]


@pytest.mark.parametrize(
    ("field_type", "value", "expected"), GOOD, ids=[f"{field_type} {value!r}" for field_type, value, _ in GOOD]
)
def test_parse_parameter_values_parses_by_type(field_type: str, value: Any, expected: Any) -> None:
    parsed = read(field_type, value)
    assert (type(parsed), repr(parsed)) == (type(expected), repr(expected)), "equal numbers have equal digits"


@pytest.mark.parametrize(("field_type", "values"), BAD)
def test_parse_parameter_values_rejects_values_of_other_types(field_type: str, values: Sequence[Any]) -> None:
    for value in values:
        assert error_pairs(read, field_type, value) == ("bad_parameters", [("/p", "bad_value")])


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**20), max_value=10**20))
def test_parse_parameter_values_normalizes_numbers(number: Decimal) -> None:
    values = [read("number", notation) for notation in (number, f"{number:f}", f"{number:e}", f"{number:f}000")]
    assert {repr(notation) for notation in values} == {repr(values[0])}
    assert values[0] == number
    assert isinstance(values[0], int) == (number % 1 == 0)


@given(st.one_of(st.text(max_size=40), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.text())))
def test_parse_parameter_values_of_any_value_returns_value_or_error(value: Any) -> None:
    for field_type in FieldType:
        try:
            parsed = read(field_type, value)
        except Invalid as raised:
            assert raised.reason == "bad_parameters"  # noqa: PT017
        else:
            assert read(field_type, parsed) == parsed


def test_parse_parameter_values_uses_defaults() -> None:
    parameters = (*DECLARED, QueryParameter("rest", FieldType.NUMBER, required=False))
    expected = {"region": "EMEA", "since": date(2026, 1, 1), "rest": None}
    assert parse_parameter_values(parameters, {"region": "EMEA"}) == expected
    assert parse_parameter_values(parameters, {"region": "EMEA", "since": None, "rest": None}) == expected
    assert parse_parameter_values(parameters, {"region": "EMEA", "since": "2026-02-01", "rest": "0"}) == {
        "region": "EMEA", "since": date(2026, 2, 1), "rest": 0,
    }  # fmt: skip
    assert parse_parameter_values((), {}) == {}


def test_parse_parameter_values_reports_all_errors() -> None:
    reason, errors = error_pairs(parse_parameter_values, DECLARED, {"Region": "EMEA", "since": "today", "x": 1})
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
    ("state", "members", "rejected_members"),
    [
        (LifecycleState.DRAFT, MEMBERS, None),
        (LifecycleState.ACTIVE, MEMBERS, None),
        (LifecycleState.DEPRECATED, {"description"}, None),
        (LifecycleState.DEPRECATED, set(), None),
        (LifecycleState.DEPRECATED, MEMBERS, ["name", "parameters", "returns_schema_id", "sql"]),
        (LifecycleState.ARCHIVED, {"description"}, ["description"]),
        (LifecycleState.ARCHIVED, set(), []),  # a write without changes is rejected, too
    ],
)
def test_assert_editable_allows_members_by_query_state(
    state: LifecycleState, members: set[str], rejected_members: list[str] | None
) -> None:
    if rejected_members is None:
        assert_editable(state, members)
        return
    with pytest.raises(Unsupported) as raised:
        assert_editable(state, members)
    assert (raised.value.reason, raised.value.context["members"]) == ("read_only_state", rejected_members)


def test_changed_members_compares_json() -> None:
    before = query().draft
    assert changed_members(before, before, MEMBERS) == set()
    after = parse_new_query(
        payload(name="x", description="d", sql="SELECT 1", parameters=[], returns_schema_id=str(UUID(int=0)))
    )
    assert changed_members(before, after, MEMBERS) == MEMBERS


@pytest.mark.parametrize("current", LifecycleState)
@pytest.mark.parametrize("to", LifecycleState)
def test_find_transition_applies_to_queries(current: LifecycleState, to: LifecycleState) -> None:
    if transition := TRANSITIONS.get((current, to)):
        assert find_transition(current, to, "query") is transition
        return
    with pytest.raises(Unsupported, match="query") as raised:
        find_transition(current, to, "query")
    assert raised.value.reason == "illegal_transition"
    assert raised.value.context["possible"] == [str(end) for start, end in TRANSITIONS if start is current]


@pytest.mark.parametrize("state", LifecycleState)
def test_assert_runnable_rejects_archived_queries_only(state: LifecycleState) -> None:
    if state is not LifecycleState.ARCHIVED:
        assert_runnable(query(state=state))
        return
    with pytest.raises(Unsupported) as raised:
        assert_runnable(query(state=state))
    assert raised.value.reason == "query_archived"
