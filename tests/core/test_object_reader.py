"""The reader of JSON objects: every accessor, in both modes, and the errors of the interfaces in core."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.payload.object_reader import (
    MAX_ERRORS,
    MAX_INTEGER,
    MemberError,
    ObjectReader,
    Problem,
    ReaderRules,
    check_text,
    list_entries,
    raise_errors,
    unwrap_entity,
)
from penstock.core.pipeline.parse import PIPELINE_RULES, parse_operation
from penstock.core.registry.query import parse_new_query
from penstock.core.result_schema import parse_fields
from penstock.errors import Invalid

ID = "550e8400-e29b-41d4-a716-446655440000"


def to_error(problem: Problem, path: str, values: Mapping[str, Any]) -> Invalid:
    return Invalid("bad_member", f"{path} {problem.name} {dict(values)}", problem=problem, values=dict(values))


COLLECT = ReaderRules(to_error)
STRICT = ReaderRules(to_error, strict=True)
WITH_NULL = ReaderRules(to_error, null_is_absent=False)


def problems(reader: ObjectReader) -> list[tuple[str, Problem, dict[str, Any]]]:
    return [
        (member.pointer, member.error.context["problem"], member.error.context["values"]) for member in reader.errors
    ]


Accessor = Callable[[ObjectReader], Any]
ACCESSORS: dict[str, Accessor] = {
    "text": lambda reader: reader.text("x", "default", max_length=3),
    "flag": lambda reader: reader.flag("x", "default"),
    "integer": lambda reader: reader.integer("x", 1, "default"),
    "number": lambda reader: reader.integer("x", 1, "default", accept_float=True),
    "uuid": lambda reader: reader.uuid("x", "default"),
    "items": lambda reader: reader.items("x", 2),
    "texts": lambda reader: reader.texts("x", 2, max_length=3),
}

VALID: list[tuple[str, Any, Any]] = [
    ("text", "abc", "abc"),
    ("text", "", ""),
    ("flag", True, True),
    ("flag", False, False),
    ("integer", 1, 1),
    ("integer", MAX_INTEGER, MAX_INTEGER),
    ("number", 2.0, 2),
    ("number", 2, 2),
    ("uuid", ID, UUID(ID)),
    ("uuid", ID.upper(), UUID(ID)),
    ("items", [1, None], [1, None]),
    ("texts", ["a", "b"], ["a", "b"]),
]


@pytest.mark.parametrize(("accessor", "value", "expected"), VALID)
@pytest.mark.parametrize("rules", [COLLECT, STRICT, WITH_NULL])
def test_accessor_valid_value_returns_it(rules: ReaderRules, accessor: str, value: Any, expected: Any) -> None:
    reader = ObjectReader({"x": value}, rules)
    result = ACCESSORS[accessor](reader)
    assert (result, type(result)) == (expected, type(expected))
    assert reader.errors == []


BAD: list[tuple[str, Any, Any, str, Problem, dict[str, Any]]] = [
    ("text", 5, "default", "/x", Problem.NOT_TEXT, {}),
    ("text", "abcd", "default", "/x", Problem.TEXT_TOO_LONG, {"length": 4, "max_length": 3}),
    ("text", "a\x00", "default", "/x", Problem.INVALID_CHARACTERS, {}),
    ("text", "\ud800", "default", "/x", Problem.INVALID_CHARACTERS, {}),
    ("flag", 1, "default", "/x", Problem.NOT_A_FLAG, {}),
    ("flag", "true", "default", "/x", Problem.NOT_A_FLAG, {}),
    ("integer", 0, "default", "/x", Problem.NOT_AN_INTEGER, {"minimum": 1}),
    ("integer", MAX_INTEGER + 1, "default", "/x", Problem.NOT_AN_INTEGER, {"minimum": 1}),
    ("integer", True, "default", "/x", Problem.NOT_AN_INTEGER, {"minimum": 1}),
    ("integer", 2.0, "default", "/x", Problem.NOT_AN_INTEGER, {"minimum": 1}),
    ("integer", "2", "default", "/x", Problem.NOT_AN_INTEGER, {"minimum": 1}),
    ("number", 2.5, "default", "/x", Problem.NOT_AN_INTEGER, {"minimum": 1}),
    ("number", 2.0**63, "default", "/x", Problem.NOT_AN_INTEGER, {"minimum": 1}),
    ("number", float("inf"), "default", "/x", Problem.NOT_AN_INTEGER, {"minimum": 1}),
    ("number", float("nan"), "default", "/x", Problem.NOT_AN_INTEGER, {"minimum": 1}),
    ("uuid", 5, "default", "/x", Problem.NOT_A_UUID, {}),
    ("uuid", f"{{{ID}}}", "default", "/x", Problem.NOT_A_UUID, {}),
    ("uuid", ID.replace("-", ""), "default", "/x", Problem.NOT_A_UUID, {}),
    ("uuid", f"urn:uuid:{ID}", "default", "/x", Problem.NOT_A_UUID, {}),
    ("items", "ab", [], "/x", Problem.NOT_A_LIST, {}),
    ("items", [], [], "/x", Problem.EMPTY_LIST, {}),
    ("items", [1, 2, 3], [1, 2], "/x", Problem.TOO_MANY_ITEMS, {"count": 3, "max_items": 2}),
    ("texts", ["a", 5], ["a"], "/x/1", Problem.NOT_TEXT, {}),
    ("texts", ["abcd", "b"], ["b"], "/x/0", Problem.TEXT_TOO_LONG, {"length": 4, "max_length": 3}),
]


@pytest.mark.parametrize(("accessor", "value", "default", "pointer", "problem", "values"), BAD)
def test_accessor_bad_value_is_collected_and_read_as_default(
    accessor: str, value: Any, default: Any, pointer: str, problem: Problem, values: dict[str, Any]
) -> None:
    reader = ObjectReader({"x": value}, COLLECT)
    assert ACCESSORS[accessor](reader) == default
    assert problems(reader) == [(pointer, problem, values)]


@pytest.mark.parametrize(("accessor", "value", "default", "pointer", "problem", "values"), BAD)
def test_accessor_bad_value_is_raised_by_a_strict_reader(
    accessor: str, value: Any, default: Any, pointer: str, problem: Problem, values: dict[str, Any]
) -> None:
    with pytest.raises(Invalid) as raised:
        ACCESSORS[accessor](ObjectReader({"x": value}, STRICT))
    assert raised.value.context == {"problem": problem, "values": values}
    assert raised.value.message.startswith(pointer[1:])


@pytest.mark.parametrize("accessor", ACCESSORS.values(), ids=ACCESSORS)
def test_accessor_absent_member_returns_default(accessor: Accessor) -> None:
    for members, rules in [({}, STRICT), ({"x": None}, STRICT), ({}, WITH_NULL)]:
        reader = ObjectReader(members, rules)
        assert accessor(reader) in ("default", [])
        assert reader.errors == []


@pytest.mark.parametrize("accessor", ACCESSORS.values(), ids=ACCESSORS)
def test_accessor_null_is_a_bad_value_if_null_is_not_absent(accessor: Accessor) -> None:
    reader = ObjectReader({"x": None}, WITH_NULL)
    assert accessor(reader) in ("default", [])
    assert [pointer for pointer, _, _ in problems(reader)] == ["/x"]


def test_items_accepts_an_empty_list_on_request() -> None:
    assert ObjectReader({"x": []}, STRICT).items("x", 2, accept_empty=True) == []


def test_text_required_and_missing_is_an_error() -> None:
    reader = ObjectReader({"y": None}, COLLECT)
    assert (reader.text("x", "", required=True), reader.text("y", "", required=True)) == ("", "")
    assert problems(reader) == [("/x", Problem.MISSING_MEMBER, {}), ("/y", Problem.MISSING_MEMBER, {})]
    with pytest.raises(Invalid, match="x MISSING_MEMBER"):
        ObjectReader({}, STRICT).text("x", "", required=True)


def test_read_collects_the_error_of_the_function() -> None:
    def fail(value: Any) -> None:
        raise Invalid("bad_member", f"bad {value}")

    reader = ObjectReader({"a": 1, "b": 2, "c": None}, COLLECT)
    assert (reader.read("a", str), reader.read("b", fail), reader.read("c", fail)) == ("1", None, None)
    assert reader.read("d", str, required=Invalid("bad_member", "needs d")) is None
    assert reader.read("e", str, required=True) is None
    pointers = [(member.pointer, member.error.message) for member in reader.errors]
    assert pointers == [("/b", "bad 2"), ("/d", "needs d"), ("/e", "e MISSING_MEMBER {}")]
    with pytest.raises(Invalid, match="bad 2"):
        ObjectReader({"b": 2}, STRICT).read("b", fail)


def test_check_members_reports_missing_before_unknown_members() -> None:
    reader = ObjectReader({"z": 1, "b": 2, "a": 3}, COLLECT, "/at")
    reader.check_members(required=("b", "c"), optional=("d",))
    valid = {"valid": ("b", "c", "d")}
    assert problems(reader) == [
        ("/at/c", Problem.MISSING_MEMBER, {}),
        ("/at/z", Problem.UNKNOWN_MEMBER, valid),
        ("/at/a", Problem.UNKNOWN_MEMBER, valid),
    ]


def test_reject_unknown_ignored_members_are_accepted_but_not_listed() -> None:
    reader = ObjectReader({"a": 1, "id": 2, "b": 3}, COLLECT)
    reader.reject_unknown(("a",), ignored=("id",))
    assert problems(reader) == [("/b", Problem.UNKNOWN_MEMBER, {"valid": ("a",)})]


def test_reject_unknown_strict_names_the_first_in_alphabetical_order_and_the_members_read() -> None:
    reader = ObjectReader({"z": 1, "b": 2, "a": True}, STRICT)
    reader.flag("a", None)
    reader.text("c", None)
    reader.text("c", None)
    with pytest.raises(Invalid, match="b UNKNOWN_MEMBER") as raised:
        reader.reject_unknown()
    assert raised.value.context["values"] == {"valid": ("a", "c")}


def test_reject_unknown_escapes_the_pointer_by_the_rules() -> None:
    for rules, pointer in [(COLLECT, "/a/~\\xe9"), (replace(COLLECT, escape=PIPELINE_RULES.escape), "/a~1~0é")]:
        reader = ObjectReader({"a/~é": 1}, rules)
        reader.reject_unknown(())
        assert [member.pointer for member in reader.errors] == [pointer]


def test_object_shares_errors_and_extends_the_pointer() -> None:
    reader = ObjectReader({"a": {"b": {"c": 5}}}, COLLECT)
    inner = reader.object("a", required=("b",)).object("b", required=("c", "d"))
    inner.text("c", "")
    assert problems(reader) == [("/a/b/d", Problem.MISSING_MEMBER, {}), ("/a/b/c", Problem.NOT_TEXT, {})]
    assert inner.errors is reader.errors


def test_object_absent_or_bad_is_read_as_empty_without_further_errors() -> None:
    reader = ObjectReader({"bad": [1]}, COLLECT)
    for name in ("absent", "bad"):
        inner = reader.object(name, required=("x",))
        assert inner.text("x", "default", required=False) == "default"
    assert problems(reader) == [("/bad", Problem.NOT_AN_OBJECT, {})]
    with pytest.raises(Invalid, match="NOT_AN_OBJECT"):
        ObjectReader([], STRICT)


def test_object_reader_value_is_not_an_object_reports_no_missing_members() -> None:
    reader = ObjectReader("text", COLLECT, "/at")
    reader.check_members(required=("a",))
    reader.text("b", "", required=True)
    assert (reader.is_object, problems(reader)) == (False, [("/at", Problem.NOT_AN_OBJECT, {})])


def test_list_entries_replaces_an_error_by_the_errors_that_it_contains() -> None:
    inner = [{"pointer": "/fields/0/name", "message": "m", "code": "c"}]
    errors = [
        MemberError("/fields", Invalid("bad_field", "several", errors=inner)),
        MemberError.of("/name", "missing_member.required", {"member": "name"}),
    ]
    error = {"pointer": "/name", "message": "name is required", "code": "missing_member"}
    assert list_entries(errors) == [*inner, error]


def test_raise_errors_reports_the_first_and_a_bounded_number() -> None:
    raise_errors("bad_query", [])
    errors = [MemberError.of(f"/{i}", "missing_member.required", {"member": str(i)}) for i in range(MAX_ERRORS + 20)]
    with pytest.raises(Invalid) as raised:
        raise_errors("bad_query", errors)
    assert "0 is required (119 more in errors)" in raised.value.message
    assert len(raised.value.context["errors"]) == MAX_ERRORS


def test_check_text_names_the_value_in_its_message() -> None:
    assert check_text("abc", "reason", 3) == "abc"
    messages = []
    for value in (5, "abcd", "\x00"):
        with pytest.raises(Invalid) as raised:
            check_text(value, "reason", 3)
        messages.append((raised.value.reason, raised.value.message))
    assert messages == [
        ("not_text", "reason must be a string"),
        ("text_too_long", "reason has 4 characters. At most 3 are allowed"),
        ("bad_text", "reason must not contain NUL or an unpaired surrogate"),
    ]


def test_unwrap_entity_returns_the_object_with_or_without_wrapper() -> None:
    assert unwrap_entity({"entity": {"a": 1}}, "x") == unwrap_entity({"a": 1}, "x") == {"a": 1}
    for payload in ([], {"entity": 5}, None):
        with pytest.raises(Invalid, match="must be a JSON object: x"):
            unwrap_entity(payload, "x")


# Errors of each interface: the same problem has the code and the message of its contract.


def test_pipeline_rules_have_a_sentence_for_every_problem_of_an_operation() -> None:
    values = {"valid": ("a", "b"), "length": 2_000, "max_length": 1_000, "minimum": 1, "count": 3_000, "max_items": 2}
    sentences = {
        problem: PIPELINE_RULES.to_error(problem, "x", {**values, "expected": "a cat"}).message
        for problem in Problem
        if problem is not Problem.NOT_A_FLAG  # an operation has no boolean member
    }
    assert sentences[Problem.UNKNOWN_MEMBER] == "is not a valid member. Valid members: a, b"
    assert sentences[Problem.TEXT_TOO_LONG] == "has 2,000 characters; at most 1,000 are allowed"
    assert sentences[Problem.NOT_AN_INTEGER] == f"must be an integer from 1 to {MAX_INTEGER}"
    assert sentences[Problem.BAD_VALUE] == "must be a cat"


def test_operation_error_has_the_code_of_its_contract_and_a_pointer() -> None:
    for type in ("append", "merge"):
        with pytest.raises(Invalid) as raised:
            parse_operation({"type": type, "parameters": {"source": {"dataset_id": 5}}}, 0)
        error = raised.value
        assert (error.reason, error.message) == (f"{type}_000", f"Invalid {type} operation")
    with pytest.raises(Invalid) as raised:
        parse_operation({"type": "append", "parameters": {"source": {"dataset_id": 5}}}, 0)
    assert raised.value.context == {
        "pointer": "/parameters/source/dataset_id",
        "problem": f"must be a UUID, such as {ID}",
        "operation_order": 0,
    }


def test_query_and_field_errors_are_collected_with_pointers() -> None:
    with pytest.raises(Invalid) as raised:
        parse_new_query({"x": 1, "name": 5, "sql": "SELECT 1", "parameters": [{"name": "p", "y": 1}]})
    entries = [(entry["pointer"], entry["code"]) for entry in raised.value.context["errors"]]
    assert entries == [
        ("/x", "unknown_member"),
        ("/name", "not_text"),
        ("/parameters/0/y", "unknown_member"),
        ("/parameters/0/type", "missing_member"),
        ("/returns_schema_id", "missing_member"),
    ]
    with pytest.raises(Invalid) as raised:
        parse_fields([{"name": "a", "type": "string", "optional": None, "x": 1}, 5, {"name": "a", "type": "object"}])
    assert (raised.value.reason, raised.value.context["field"]) == ("non_scalar_field", "a")
    assert [(entry["pointer"], entry["code"]) for entry in raised.value.context["errors"]] == [
        ("/fields/0/optional", "bad_field"),
        ("/fields/0", "unknown_member"),
        ("/fields/1", "bad_field"),
        ("/fields/2/name", "duplicate_field_name"),
        ("/fields/2/type", "non_scalar_field"),
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)


@given(JSON, st.sampled_from(list(ACCESSORS.values())))
def test_strict_reader_raises_the_first_error_that_a_collecting_reader_records(value: Any, accessor: Accessor) -> None:
    collecting = ObjectReader({"x": value}, COLLECT)
    collected, strict = accessor(collecting), ObjectReader({"x": value}, STRICT)
    if collecting.errors:
        with pytest.raises(Invalid) as raised:
            accessor(strict)
        assert raised.value.message == collecting.errors[0].error.message
    else:
        assert repr(accessor(strict)) == repr(collected)
