"""JSON Patch and Merge Patch: results, limits, and unchanged arguments."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.payload.json_patch import MAX_DEPTH, MAX_OPERATIONS, apply_json_patch, apply_merge_patch
from penstock.errors import Conflict, Invalid

LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab/~", max_size=3)
NAMES = st.text("ab/~0", max_size=2)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


# -- merge patch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # RFC 7396, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_apply_merge_patch_follows_rfc_7396(target: Any, patch: Any, result: Any) -> None:
    assert apply_merge_patch(target, patch) == result


def test_apply_merge_patch_keeps_nulls_inside_arrays() -> None:
    assert apply_merge_patch({"a": 1}, {"a": [None, {"b": None}]}) == {"a": [None, {"b": None}]}


@given(JSON, JSON)
def test_apply_merge_patch_is_idempotent_and_changes_no_argument(target: Any, patch: Any) -> None:
    before = deepcopy((target, patch))
    once = apply_merge_patch(target, patch)
    assert apply_merge_patch(once, patch) == once
    assert (target, patch) == before


@given(JSON)
def test_apply_merge_patch_empty_patch_changes_nothing(target: Any) -> None:
    assert apply_merge_patch(target, {}) == (target if isinstance(target, dict) else {})


def test_apply_merge_patch_rejects_deep_patches() -> None:
    assert apply_merge_patch({}, deep(MAX_DEPTH)) == deep(MAX_DEPTH)
    for levels in (MAX_DEPTH + 1, 50_000):
        with pytest.raises(Invalid) as raised:
            apply_merge_patch({}, deep(levels))
        assert raised.value.reason == "bad_patch"


# -- JSON Patch -------------------------------------------------------------------------------------------------------


def op(text: str, *value: Any) -> dict[str, Any]:
    """Parse an operation: `move /a /b` moves from /a to /b. A value is an argument."""
    name, *pointers = text.split(" ")
    *source, path = pointers or [""]
    return {
        "op": name,
        "path": path,
        **({"from": source[0]} if source else {}),
        **({"value": value[0]} if value else {}),
    }


@pytest.mark.parametrize(
    ("target", "operations", "result"),
    [
        ({"foo": "bar"}, [op("add /baz", "qux")], {"foo": "bar", "baz": "qux"}),
        ({"foo": "bar"}, [op("add /foo", 1)], {"foo": 1}),
        ({"foo": ["bar", "baz"]}, [op("add /foo/1", "qux")], {"foo": ["bar", "qux", "baz"]}),
        ({"foo": ["bar"]}, [op("add /foo/1", "qux")], {"foo": ["bar", "qux"]}),
        ({"foo": ["bar"]}, [op("add /foo/-", ["abc"])], {"foo": ["bar", ["abc"]]}),
        ({"foo": []}, [op("add /foo/0", None)], {"foo": [None]}),
        (
            {"foo": "bar"},
            [op("add /child", {"a": {}}), op("add /child/a/b", 1)],
            {"foo": "bar", "child": {"a": {"b": 1}}},
        ),
        ({"foo": "bar"}, [op("add", [1])], [1]),
        ({"foo": 1, "bar": 2}, [op("remove /bar")], {"foo": 1}),
        ({"foo": [1, 2, 3]}, [op("remove /foo/1")], {"foo": [1, 3]}),
        ([[1, 2], [3]], [op("remove /0/0")], [[2], [3]]),
        ({"foo": 1}, [op("replace /foo", {"a": 2})], {"foo": {"a": 2}}),
        ({"foo": [1, 2]}, [op("replace /foo/1", 3)], {"foo": [1, 3]}),
        ({"foo": 1}, [op("replace", 5)], 5),
        ({"a": {"b": 1, "c": 2}, "d": {}}, [op("move /a/b /d/e")], {"a": {"c": 2}, "d": {"e": 1}}),
        ({"a": [1, 2, 3]}, [op("move /a/0 /a/2")], {"a": [2, 3, 1]}),
        ({"a": [1, 2, 3]}, [op("move /a/2 /a/-")], {"a": [1, 2, 3]}),
        ({"a": 1}, [op("move /a /a")], {"a": 1}),
        ({"a": {"b": 1}}, [op("move /a/b /a")], {"a": 1}),
        ({"ab": 1}, [op("move /ab /abc")], {"abc": 1}),
        ({"a": [1]}, [op("copy /a /b"), op("add /b/-", 2)], {"a": [1], "b": [1, 2]}),
        ({"a": 1}, [op("copy  /b")], {"a": 1, "b": {"a": 1}}),
        ({"a": 1}, [op("test /a", 1.0), op("replace /a", 2)], {"a": 2}),
        (
            {"a": {"x": [1, None], "y": "é"}},
            [op("test /a", {"y": "é", "x": [1, None]})],
            {"a": {"x": [1, None], "y": "é"}},
        ),
        ({"": 1, "a/b": 2, "m~n": 3, "~1": 4}, [op("remove /a~1b"), op("remove /m~0n"), op("remove /~01")], {"": 1}),
        ({"": {"": 1}}, [op("replace //", 2)], {"": {"": 2}}),
        ({"0": 1, "-": 2}, [op("replace /0", 3), op("remove /-")], {"0": 3}),
        ({"a": 1}, [], {"a": 1}),
        ({"a": 1}, [{"op": "remove", "path": "/a", "comment": "unknown members are ignored"}], {}),
    ],
)
def test_apply_json_patch_applies_operations_in_order(target: Any, operations: Any, result: Any) -> None:
    before = deepcopy((target, operations))
    assert apply_json_patch(target, operations) == result
    assert (target, operations) == before


@pytest.mark.parametrize(
    ("operations", "reported", "pointer"),
    [
        ({}, "array of operations", ""),
        (None, "array of operations", ""),
        (["remove"], "Operation 0: must be an object", ""),
        ([{"op": "remove"}], "path must be a JSON Pointer", ""),
        ([{"op": "remove", "path": 1}], "path must be a JSON Pointer", ""),
        ([{"path": "/a"}], "op must be one of add", "/a"),
        ([op("Add /a", 1)], "op must be one of add", "/a"),
        ([{"op": [], "path": "/a"}], "op must be one of add", "/a"),
        ([op("add /a")], "add requires a value", "/a"),
        ([op("replace /a")], "replace requires a value", "/a"),
        ([op("test /a")], "test requires a value", "/a"),
        ([op("move /b")], "from must be a JSON Pointer", ""),
        ([op("copy /b")], "from must be a JSON Pointer", ""),
        ([op("add a", 1)], "begin with '/'", "a"),
        ([op("copy b /a")], "begin with '/'", "b"),
        ([op("add /~", 1)], "'~0'", "/~"),
        ([op("add /a~2b", 1)], "'~0'", "/a~2b"),
        ([op("remove /none")], "member 'none' not found", "/none"),
        ([op("replace /none", 1)], "member 'none' not found", "/none"),
        ([op("test /none", None)], "member 'none' not found", "/none"),
        ([op("copy /none /b")], "member 'none' not found", "/none"),
        ([op("move /none /none")], "member 'none' not found", "/none"),
        ([op("add /none/b", 1)], "member 'none' not found", "/none/b"),
        ([op("add /n/b", 1)], "to an object or an array", "/n/b"),
        ([op("add /n/b/c", 1)], "a scalar value has no member", "/n/b/c"),
        ([op("remove /s/0")], "a scalar value has no member", "/s/0"),
        ([op("add /list/3", 1)], "beyond the end", "/list/3"),
        ([op("replace /list/2", 1)], "beyond the end", "/list/2"),
        ([op("remove /list/2")], "beyond the end", "/list/2"),
        ([op("remove /list/-")], "'-' is not an array index", "/list/-"),
        ([op("test /list/-", 1)], "'-' is not an array index", "/list/-"),
        ([op("add /list/01", 1)], "'01' is not an array index", "/list/01"),
        ([op("add /list/-1", 1)], "'-1' is not an array index", "/list/-1"),
        ([op("add /list/1e0", 1)], "'1e0' is not an array index", "/list/1e0"),
        ([op("add /list/١", 1)], "is not an array index", "/list/\\u0661"),
        ([op("add /list/" + "9" * 5_000, 1)], "is not an array index", "/list/" + "9" * 94),
        ([op("remove")], "whole document", ""),
        ([op("move  /a")], "into itself", "/a"),
        ([op("move /o /o/p")], "into itself", "/o/p"),
        ([op("add /x", 1), op("remove /y")], "Operation 1: member 'y' not found", "/y"),
        ([op("add /\ud800/x", 1)], "member '\\ud800' not found", "/\\ud800/x"),
        ([op("add " + "/a" * (MAX_DEPTH + 1), 1)], "more than 100 levels", "/a" * 50),
        ([op("add /deep", deep(MAX_DEPTH))], "more than 100 levels", ""),
        ([op("test /a", 1)] * (MAX_OPERATIONS + 1), "At most 1,000", ""),
    ],
)
def test_apply_json_patch_rejects_impossible_operations_with_number_and_pointer(
    operations: Any, reported: str, pointer: str
) -> None:
    target: Any = {"a": 1, "n": None, "s": "text", "list": [1, 2], "o": {"p": {}}}
    before = deepcopy(target)
    with pytest.raises(Invalid) as raised:
        apply_json_patch(target, operations)
    assert raised.value.reason == "bad_patch"
    assert reported in raised.value.message
    assert raised.value.context["pointer"] == pointer
    assert target == before


@pytest.mark.parametrize(
    ("value", "tested"),
    [(1, True), (0, False), (True, 1), (None, False), ("1", 1), ([1], [1, 2]), ({"a": 1}, {"a": 1, "b": 1}), ([0], [False]), ({}, [])],
)  # fmt: skip
def test_apply_json_patch_failed_test_raises_conflict(value: Any, tested: Any) -> None:
    with pytest.raises(Conflict) as raised:
        apply_json_patch({"a": value}, [op("remove /a"), op("add /a", value), op("test /a", tested)])
    assert raised.value.reason == "patch_test_failed"
    assert raised.value.context == {"pointer": "/a", "operation": 2}


def test_apply_json_patch_accepts_a_thousand_operations() -> None:
    assert apply_json_patch([], [op("add /-", 1)] * MAX_OPERATIONS) == [1] * MAX_OPERATIONS


@pytest.mark.parametrize("value", ["x" * 1_000, [1] * 500, {"name" * 20: {"b": None}}, 10**400])
def test_apply_json_patch_limits_copied_characters(value: Any) -> None:
    doubling = [op("copy /a /a/-")] * 60
    with pytest.raises(Invalid) as raised:
        apply_json_patch({"a": [value]}, doubling)
    assert "copies more than" in raised.value.message
    assert raised.value.context["pointer"] == "/a"


@pytest.mark.parametrize("operation_name", ["text", "name", "number", "list"])
def test_apply_json_patch_counts_every_copied_character(operation_name: str) -> None:
    def copied(size: int) -> Any:
        value = {"text": "x" * size, "name": {"x" * size: 1}, "number": 10**size, "list": [1] * size}[operation_name]
        return apply_json_patch({"a": value, "all": []}, [op("copy /a /all/-")] * MAX_OPERATIONS)

    assert len(json.dumps(copied(900))) > 900_000
    with pytest.raises(Invalid):
        copied(1_000)


def test_apply_json_patch_limits_depth_of_copies() -> None:
    pointer = "/a" * (MAX_DEPTH // 2)
    with pytest.raises(Invalid) as raised:
        apply_json_patch(deep(MAX_DEPTH // 2), [op(f"copy  {pointer}")] * 5)
    assert "more than 100 levels" in raised.value.message


@given(JSON, NAMES, JSON)
def test_apply_json_patch_added_value_can_be_removed(inner: Any, name: str, value: Any) -> None:
    target = {"in": inner}
    pointer = "/" + name.replace("~", "~0").replace("/", "~1")
    added = apply_json_patch(target, [op("add /x", {}), {"op": "add", "path": f"/x{pointer}", "value": value}])
    assert added == {**target, "x": {name: value}}
    operations = [{"op": "test", "path": f"/x{pointer}", "value": value}, op("remove /x")]
    assert apply_json_patch(added, operations) == target
