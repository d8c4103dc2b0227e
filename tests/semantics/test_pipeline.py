"""A pipeline is read whole or refused with all that is wrong with it; what it says of itself reads as the same."""

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.pipeline.aggregates import Function, aggregate
from penstock.core.merge import STRATEGIES
from penstock.core.names import DatasetName
from penstock.core.pipeline.operations import MAX_WHOLE, Append, Merge, Ref
from penstock.core.pipeline.definition import MAX_ERRORS, MAX_NAME, MAX_OPERATIONS, Pipeline, check_output, read
from penstock.errors import Invalid

ID = "550e8400-e29b-41d4-a716-446655440000"
OTHER = "a1b2c3d4-e5f6-7890-abcd-ef1234567890"


def append(**members: Any) -> dict[str, Any]:
    return {"type": "append", **members, "parameters": {"source": {"dataset_id": OTHER}}}


def pipeline(*operations: Any, **members: Any) -> dict[str, Any]:
    return {"name": "monthly", "working": {"dataset_id": ID}, "operations": list(operations or [append()]), **members}


def errors(value: Any) -> list[dict[str, Any]]:
    with pytest.raises(Invalid) as caught:
        read(value)
    assert caught.value.reason == "bad_pipeline"
    found: list[dict[str, Any]] = json.loads(json.dumps(caught.value.context["errors"]))
    return found


def told(value: Any) -> list[tuple[str, str]]:
    return [(error["pointer"], error["code"]) for error in errors(value)]


# -- reading ----------------------------------------------------------------------------------------------------------


def test_a_pipeline_is_read() -> None:
    merge = {
        "type": "merge",
        "parameters": {
            "source": {"dataset_id": OTHER, "dataset_version": 4},
            "key_columns": "id",
            "strategy": "upsert",
        },
    }
    asked = pipeline(append(alias="first"), merge, output={"schema_name": "finance", "table_name": "totals"})
    asked["working"]["dataset_version"] = 3
    assert read(asked) == Pipeline(
        "monthly",
        Ref(UUID(ID), 3),
        (Append(0, "first", Ref(UUID(OTHER))), Merge(1, None, Ref(UUID(OTHER), 4), None, ("id",), "upsert")),
        DatasetName("finance", "totals"),
    )


def test_operations_run_by_their_order_and_not_by_their_place() -> None:
    read_in = read(pipeline(append(order=7), append(), append(order=0, alias="x")))
    assert [(each.order, each.alias) for each in read_in.operations] == [(0, "x"), (1, None), (7, None)]


def test_reading_changes_nothing_of_what_was_sent() -> None:
    asked = pipeline(append(order=3), append(order=2))
    before = deepcopy(asked)
    read(asked)
    assert asked == before


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        ([], ""),
        (None, ""),
        (pipeline(name=1), "/name"),
        (pipeline(name=""), "/name"),
        (pipeline(name=" \t"), "/name"),
        (pipeline(name="x" * (MAX_NAME + 1)), "/name"),
        (pipeline(name="a\x00"), "/name"),
        (pipeline(schedule="daily"), "/schedule"),
        (pipeline(working=ID), "/working"),
        (pipeline(working={}), "/working/dataset_id"),
        (pipeline(working={"dataset_id": "x"}), "/working/dataset_id"),
        (pipeline(working={"dataset_id": ID, "dataset_version": 0}), "/working/dataset_version"),
        (pipeline(working={"dataset_id": ID, "name": "x"}), "/working/name"),
        (pipeline(operations={}), "/operations"),
        (pipeline(operations=[]), "/operations"),
        (pipeline(output=None), "/output"),
        (pipeline(output="finance.totals"), "/output"),
        (pipeline(output={"schema_name": "a"}), "/output/table_name"),
        (pipeline(output={"schema_name": 1, "table_name": "b"}), "/output/schema_name"),
        (pipeline(output={"schema_name": "a", "table_name": "b", "x": 1}), "/output/x"),
        (pipeline(output={"schema_name": "a b", "table_name": "b"}), "/output"),
        (pipeline(output={"schema_name": "a", "table_name": ""}), "/output"),
    ],
)
def test_what_is_wrong_with_the_pipeline_itself_is_told_at_its_place(value: Any, pointer: str) -> None:
    (error,) = errors(value)
    assert list(error) == ["pointer", "code", "message"]
    assert (error["pointer"], error["code"]) == (pointer, "BAD_PIPELINE")


@pytest.mark.parametrize("member", ["name", "working", "operations"])
def test_a_pipeline_needs_its_members(member: str) -> None:
    asked = pipeline()
    del asked[member]
    assert told(asked) == [(f"/{member}", "BAD_PIPELINE")]


def test_an_operation_keeps_its_own_error() -> None:
    broken = append(order=5)
    broken["parameters"]["source"]["dataset_id"] = "x"
    assert errors(pipeline(append(), broken)) == [
        {
            "pointer": "/operations/1/parameters/source/dataset_id",
            "code": "APPEND_000",
            "message": "Invalid append operation",
            "details": {
                "problem": "must be a UUID, such as 550e8400-e29b-41d4-a716-446655440000",
                "operation_order": 5,
            },
        }
    ]


def test_all_that_is_wrong_is_told_at_once() -> None:
    merge = {"type": "merge", "alias": "a", "parameters": {"source": {"dataset_id": OTHER}, "strategy": "x"}}
    asked = pipeline(append(alias="a"), {"type": "filter", "order": 0}, merge, "append", output={}, more=1)
    del asked["name"]
    assert told(asked) == [
        ("/name", "BAD_PIPELINE"),
        ("/more", "BAD_PIPELINE"),
        ("/output/schema_name", "BAD_PIPELINE"),
        ("/output/table_name", "BAD_PIPELINE"),
        ("/operations/1/order", "DUPLICATE_ORDER"),
        ("/operations/2/alias", "DUPLICATE_ALIAS"),
        ("/operations/1/type", "UNKNOWN_OPERATION"),
        ("/operations/2/parameters/key_columns", "MERGE_000"),
        ("/operations/2/parameters/strategy", "MERGE_000"),
        ("/operations/3", "UNKNOWN_OPERATION"),
    ]


@pytest.mark.parametrize(
    ("operations", "places"),
    [
        ([append(order=1), append(order=1)], [1]),
        ([append(order=1), append()], [1]),
        ([append(), append(order=0)], [1]),
        ([append(order=2), append(order=2.0), append()], [1, 2]),
    ],
)
def test_two_operations_cannot_have_one_order(operations: list[Any], places: list[int]) -> None:
    assert told(pipeline(*operations)) == [(f"/operations/{place}/order", "DUPLICATE_ORDER") for place in places]


def test_two_operations_cannot_have_one_alias() -> None:
    asked = pipeline(append(alias="a"), append(alias="A"), append(), append(alias="a"))
    assert told(asked) == [("/operations/3/alias", "DUPLICATE_ALIAS")]


def test_an_order_that_is_none_is_not_told_as_doubled() -> None:
    assert told(pipeline(append(order=True), append(order=1))) == [("/operations/0/order", "APPEND_000")]


def test_a_pipeline_has_room_for_a_thousand_operations() -> None:
    assert len(read(pipeline(*[append()] * MAX_OPERATIONS)).operations) == MAX_OPERATIONS == 1_000
    assert told(pipeline(*[append()] * (MAX_OPERATIONS + 1))) == [("/operations", "BAD_PIPELINE")]


def test_one_operation_cannot_make_the_list_of_errors_long() -> None:
    broken = append()
    broken["parameters"]["aggregation"] = {"group_by": [1] * 4_000, "aggregations": []}
    assert len(errors(pipeline(broken))) == MAX_ERRORS


@pytest.mark.parametrize(("broken", "told_of"), [(1, "1 error;"), (2, "2 errors;"), (500, "100 errors or more;")])
def test_the_sentence_counts_the_errors_and_the_list_ends_somewhere(broken: int, told_of: str) -> None:
    with pytest.raises(Invalid, match=told_of) as caught:
        read(pipeline(*[{"type": "filter"}] * broken))
    assert len(caught.value.context["errors"]) == min(broken, MAX_ERRORS)


# -- saying it again --------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
NAMES = st.sampled_from(["a", "b c", "größe", "id", "x`y"])
REFS = st.builds(Ref, st.uuids(), st.none() | st.integers(1, MAX_WHOLE))
SELECTORS = st.none() | TEXT
EXPRESSIONS = st.builds("{}({})".format, st.sampled_from([*Function, "MEDIAN"]), NAMES | st.just("*")) | TEXT
ALIASES = st.none() | TEXT


@st.composite
def appends(draw: st.DrawFn) -> Append:
    columns = draw(st.lists(NAMES, max_size=4, unique=True))
    cut = draw(st.integers(1, len(columns) - 1)) if len(columns) > 1 else 0
    group_by, outputs = (columns[:cut], columns[cut:]) if cut else ([], [])
    aggregates = tuple(aggregate(column, draw(EXPRESSIONS)) for column in outputs)
    return Append(0, draw(ALIASES), draw(REFS), draw(SELECTORS), tuple(group_by), aggregates)


@st.composite
def merges(draw: st.DrawFn) -> Merge:
    keys = tuple(draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)))
    strategy = draw(st.sampled_from(list(STRATEGIES)))
    order_by = draw(st.lists(NAMES, max_size=2, unique=True)) if STRATEGIES[strategy].deduplicates else []
    return Merge(0, draw(ALIASES), draw(REFS), draw(SELECTORS), keys, strategy, tuple(order_by))


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    drawn = draw(
        st.lists(
            appends() | merges(),
            min_size=1,
            max_size=4,
            unique_by=lambda each: object() if each.alias is None else each.alias,
        )
    )
    orders = draw(st.lists(st.integers(0, 9), min_size=len(drawn), max_size=len(drawn), unique=True).map(sorted))
    operations = tuple(replace(each, order=order) for each, order in zip(drawn, orders, strict=True))
    output = draw(st.none() | st.just(DatasetName("Finance", "totals_2")))
    return Pipeline(draw(TEXT.filter(str.strip)), draw(REFS), operations, output)


@given(pipelines(), st.randoms())
def test_reading_what_a_pipeline_says_of_itself_gives_the_same(meant: Pipeline, chance: Any) -> None:
    said = json.loads(json.dumps(meant.as_json()))
    assert read(said) == meant
    chance.shuffle(said["operations"])
    assert read(said) == meant, "wherever its operations stand"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


@given(pipelines(), st.data())
def test_whatever_is_sent_is_read_or_refused(meant: Pipeline, data: st.DataObject) -> None:
    said = json.loads(json.dumps(meant.as_json()))
    place, key = data.draw(st.sampled_from(list(_places(said))))
    place[key] = data.draw(JSON)
    found, errors = None, list[Any]()
    try:
        found = read(said)
    except Invalid as refusal:
        errors = refusal.context["errors"]
    assert (found is None) == bool(errors)
    assert found is None or read(found.as_json()) == found
    assert json.dumps(errors, allow_nan=False, ensure_ascii=False).encode()


def _places(value: Any) -> Any:
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


# -- where the result goes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "output"), [(None, None), (5, None), (3, DatasetName("a", "b")), (None, DatasetName("a", "b"))]
)
def test_the_result_may_follow_the_newest_version_or_go_elsewhere(
    version: int | None, output: DatasetName | None
) -> None:
    check_output(Pipeline("p", Ref(UUID(ID), version), (), output), 5)


def test_an_old_version_needs_an_output() -> None:
    with pytest.raises(Invalid) as caught:
        check_output(Pipeline("p", Ref(UUID(ID), 4), ()), 5)
    assert caught.value.reason == "output_needed"
    assert caught.value.context == {
        "pointer": "/output", "dataset_id": ID, "requested_version": 4, "actual_version": 5
    }  # fmt: skip
