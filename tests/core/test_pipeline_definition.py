"""Parse pipeline definitions, report all errors, round-trip as JSON."""

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.merge import STRATEGIES
from penstock.core.names import DatasetName
from penstock.core.pipeline.aggregates import Function, parse_aggregate
from penstock.core.pipeline.definition import (
    MAX_ERRORS,
    MAX_NAME_LENGTH,
    MAX_OPERATIONS,
    PipelineDefinition,
    check_output,
    parse_pipeline,
)
from penstock.core.pipeline.operations import AppendOperation, DatasetRef, MergeOperation
from penstock.core.pipeline.parse import MAX_INTEGER
from penstock.errors import Invalid

ID = "550e8400-e29b-41d4-a716-446655440000"
OTHER = "a1b2c3d4-e5f6-7890-abcd-ef1234567890"


def append(**members: Any) -> dict[str, Any]:
    return {"type": "append", **members, "parameters": {"source": {"dataset_id": OTHER}}}


def pipeline(*operations: Any, **members: Any) -> dict[str, Any]:
    return {"name": "monthly", "working": {"dataset_id": ID}, "operations": list(operations or [append()]), **members}


def errors(value: Any) -> list[dict[str, Any]]:
    with pytest.raises(Invalid) as raised:
        parse_pipeline(value)
    assert raised.value.reason == "bad_pipeline"
    parsed_errors: list[dict[str, Any]] = json.loads(json.dumps(raised.value.context["errors"]))
    return parsed_errors


def pointers_and_codes(value: Any) -> list[tuple[str, str]]:
    return [(error["pointer"], error["code"]) for error in errors(value)]


# -- parse ------------------------------------------------------------------------------------------------------------


def test_parse_pipeline_returns_definition() -> None:
    merge = {
        "type": "merge",
        "parameters": {
            "source": {"dataset_id": OTHER, "dataset_version": 4},
            "key_columns": "id",
            "strategy": "upsert",
        },
    }
    request = pipeline(append(alias="first"), merge, output={"schema_name": "finance", "table_name": "totals"})
    request["working"]["dataset_version"] = 3
    assert parse_pipeline(request) == PipelineDefinition(
        "monthly",
        DatasetRef(UUID(ID), 3),
        (
            AppendOperation(0, "first", DatasetRef(UUID(OTHER))),
            MergeOperation(1, None, DatasetRef(UUID(OTHER), 4), None, ("id",), "upsert"),
        ),
        DatasetName("finance", "totals"),
    )


def test_parse_pipeline_sorts_operations_by_order() -> None:
    read_in = parse_pipeline(pipeline(append(order=7), append(), append(order=0, alias="x")))
    assert [(item.order, item.alias) for item in read_in.operations] == [(0, "x"), (1, None), (7, None)]


def test_parse_pipeline_does_not_change_its_input() -> None:
    request = pipeline(append(order=3), append(order=2))
    before = deepcopy(request)
    parse_pipeline(request)
    assert request == before


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        ([], ""),
        (None, ""),
        (pipeline(name=1), "/name"),
        (pipeline(name=""), "/name"),
        (pipeline(name=" \t"), "/name"),
        (pipeline(name="x" * (MAX_NAME_LENGTH + 1)), "/name"),
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
def test_parse_pipeline_reports_errors_of_pipeline_by_pointer(value: Any, pointer: str) -> None:
    (error,) = errors(value)
    assert list(error) == ["pointer", "code", "message"]
    assert (error["pointer"], error["code"]) == (pointer, "BAD_PIPELINE")


@pytest.mark.parametrize("member", ["name", "working", "operations"])
def test_parse_pipeline_reports_missing_members(member: str) -> None:
    request = pipeline()
    del request[member]
    assert pointers_and_codes(request) == [(f"/{member}", "BAD_PIPELINE")]


def test_parse_pipeline_keeps_errors_of_operations() -> None:
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


def test_parse_pipeline_reports_all_errors() -> None:
    merge = {"type": "merge", "alias": "a", "parameters": {"source": {"dataset_id": OTHER}, "strategy": "x"}}
    request = pipeline(append(alias="a"), {"type": "filter", "order": 0}, merge, "append", output={}, more=1)
    del request["name"]
    assert pointers_and_codes(request) == [
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
    ("operations", "indices"),
    [
        ([append(order=1), append(order=1)], [1]),
        ([append(order=1), append()], [1]),
        ([append(), append(order=0)], [1]),
        ([append(order=2), append(order=2.0), append()], [1, 2]),
    ],
)
def test_parse_pipeline_rejects_duplicate_order(operations: list[Any], indices: list[int]) -> None:
    assert pointers_and_codes(pipeline(*operations)) == [
        (f"/operations/{index}/order", "DUPLICATE_ORDER") for index in indices
    ]


def test_parse_pipeline_rejects_duplicate_alias() -> None:
    request = pipeline(append(alias="a"), append(alias="A"), append(), append(alias="a"))
    assert pointers_and_codes(request) == [("/operations/3/alias", "DUPLICATE_ALIAS")]


def test_parse_pipeline_does_not_report_invalid_orders_as_duplicates() -> None:
    assert pointers_and_codes(pipeline(append(order=True), append(order=1))) == [("/operations/0/order", "APPEND_000")]


def test_parse_pipeline_accepts_a_thousand_operations() -> None:
    assert len(parse_pipeline(pipeline(*[append()] * MAX_OPERATIONS)).operations) == MAX_OPERATIONS == 1_000
    assert pointers_and_codes(pipeline(*[append()] * (MAX_OPERATIONS + 1))) == [("/operations", "BAD_PIPELINE")]


def test_parse_pipeline_limits_errors_of_one_operation() -> None:
    broken = append()
    broken["parameters"]["aggregation"] = {"group_by": [1] * 4_000, "aggregations": []}
    assert len(errors(pipeline(broken))) == MAX_ERRORS


@pytest.mark.parametrize(
    ("broken", "expected_message"), [(1, "1 error\\."), (2, "2 errors\\."), (500, "100 errors or more\\.")]
)
def test_parse_pipeline_message_counts_errors_and_list_is_limited(broken: int, expected_message: str) -> None:
    with pytest.raises(Invalid, match=expected_message) as raised:
        parse_pipeline(pipeline(*[{"type": "filter"}] * broken))
    assert len(raised.value.context["errors"]) == min(broken, MAX_ERRORS)


# -- as JSON ----------------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
NAMES = st.sampled_from(["a", "b c", "größe", "id", "x`y"])
REFS = st.builds(DatasetRef, st.uuids(), st.none() | st.integers(1, MAX_INTEGER))
SELECTORS = st.none() | TEXT
EXPRESSIONS = st.builds("{}({})".format, st.sampled_from([*Function, "MEDIAN"]), NAMES | st.just("*")) | TEXT
ALIASES = st.none() | TEXT


@st.composite
def appends(draw: st.DrawFn) -> AppendOperation:
    columns = draw(st.lists(NAMES, max_size=4, unique=True))
    cut = draw(st.integers(1, len(columns) - 1)) if len(columns) > 1 else 0
    group_by, outputs = (columns[:cut], columns[cut:]) if cut else ([], [])
    aggregates = tuple(parse_aggregate(column, draw(EXPRESSIONS)) for column in outputs)
    return AppendOperation(0, draw(ALIASES), draw(REFS), draw(SELECTORS), tuple(group_by), aggregates)


@st.composite
def merges(draw: st.DrawFn) -> MergeOperation:
    keys = tuple(draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)))
    strategy = draw(st.sampled_from(list(STRATEGIES)))
    order_by = draw(st.lists(NAMES, max_size=2, unique=True)) if STRATEGIES[strategy].deduplicates else []
    return MergeOperation(0, draw(ALIASES), draw(REFS), draw(SELECTORS), keys, strategy, tuple(order_by))


@st.composite
def pipelines(draw: st.DrawFn) -> PipelineDefinition:
    drawn = draw(
        st.lists(
            appends() | merges(),
            min_size=1,
            max_size=4,
            unique_by=lambda item: object() if item.alias is None else item.alias,
        )
    )
    orders = draw(st.lists(st.integers(0, 9), min_size=len(drawn), max_size=len(drawn), unique=True).map(sorted))
    operations = tuple(replace(item, order=order) for item, order in zip(drawn, orders, strict=True))
    output = draw(st.none() | st.just(DatasetName("Finance", "totals_2")))
    return PipelineDefinition(draw(TEXT.filter(str.strip)), draw(REFS), operations, output)


@given(pipelines(), st.randoms())
def test_parse_pipeline_round_trips_as_json(definition: PipelineDefinition, rng: Any) -> None:
    result = json.loads(json.dumps(definition.as_json()))
    assert parse_pipeline(result) == definition
    rng.shuffle(result["operations"])
    assert parse_pipeline(result) == definition, "the order in the list has no effect"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


@given(pipelines(), st.data())
def test_parse_pipeline_of_any_value_returns_definition_or_raises_invalid(
    definition: PipelineDefinition, data: st.DataObject
) -> None:
    result = json.loads(json.dumps(definition.as_json()))
    index, key = data.draw(st.sampled_from(list(_containers_and_keys(result))))
    index[key] = data.draw(JSON)
    parsed, errors = None, list[Any]()
    try:
        parsed = parse_pipeline(result)
    except Invalid as raised:
        errors = raised.context["errors"]
    assert (parsed is None) == bool(errors)
    assert parsed is None or parse_pipeline(parsed.as_json()) == parsed
    assert json.dumps(errors, allow_nan=False, ensure_ascii=False).encode()


def _containers_and_keys(value: Any) -> Any:
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _containers_and_keys(value[key])


# -- output -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "output"), [(None, None), (5, None), (3, DatasetName("a", "b")), (None, DatasetName("a", "b"))]
)
def test_check_output_accepts_newest_version_or_output(version: int | None, output: DatasetName | None) -> None:
    check_output(PipelineDefinition("p", DatasetRef(UUID(ID), version), (), output), 5)


def test_check_output_rejects_old_version_without_output() -> None:
    with pytest.raises(Invalid) as raised:
        check_output(PipelineDefinition("p", DatasetRef(UUID(ID), 4), ()), 5)
    assert raised.value.reason == "output_needed"
    assert raised.value.context == {
        "pointer": "/output", "dataset_id": ID, "requested_version": 4, "actual_version": 5
    }  # fmt: skip
