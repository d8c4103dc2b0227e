"""Operations: parse and validate their JSON, plan them for two schemas, encode results and errors as JSON."""

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from penstock.core import merge as core_merge
from penstock.core.dataset.changes import Counts
from penstock.core.pipeline.aggregates import Aggregate, Function, parse_aggregate, result_type
from penstock.core.pipeline.operations import AppendOperation, DatasetRef, MergeOperation
from penstock.core.pipeline.parse import (
    MAX_ALIAS_LENGTH,
    MAX_INTEGER,
    MAX_TEXT_LENGTH,
    parse_operation,
    validate_operation,
)
from penstock.core.pipeline.plan import (
    AggregateColumn,
    ColumnSource,
    PlannedAppend,
    PlannedMerge,
    dataset_not_found,
    plan_operation,
    translate_error,
    version_not_found,
)
from penstock.core.pipeline.responses import MESSAGES, error_response, rebase_response, success_response
from penstock.core.selector import Column, Compare, Comparison, Literal
from penstock.errors import Invalid, NotFound, PenstockError, Unavailable

ID = "550e8400-e29b-41d4-a716-446655440000"
SUM, COUNT, AVG, MIN, MAX = Function

INT, LONG, FLOAT, DOUBLE = pa.int32(), pa.int64(), pa.float32(), pa.float64()
TEXT, DATE, TIME, BOOL = pa.string(), pa.date32(), pa.timestamp("us"), pa.bool_()


def money(precision: int = 12, scale: int = 2) -> pa.DataType:
    return pa.decimal128(precision, scale)


# The examples of the contract, verbatim.
TS_01 = """{"type": "append", "order": 1, "parameters": {"source": {"dataset_id": "a1b2c3d4-e5f6-7890-abcd-ef1234567890"}}}"""
TS_06 = """{"type": "append", "order": 2, "alias": "append_original_budgets", "parameters": {
    "source": {"dataset_id": "b2c3d4e5-f6a7-8901-bcde-f12345678901"},
    "source_selector": "budget_type = 'original'"}}"""
TS_13 = """{"type": "append", "order": 3, "parameters": {
    "source": {"dataset_id": "c3d4e5f6-a7b8-9012-cdef-123456789012", "dataset_version": 2},
    "aggregation": {"group_by": ["account_code", "cost_center_code"], "aggregations": [
        {"column": "total_budget", "expression": "SUM(amount)"},
        {"column": "budget_count", "expression": "COUNT(budget_id)"}]}}}"""
TS_15 = """{"type": "append", "order": 4, "parameters": {
    "source": {"dataset_id": "d4e5f6a7-b8c9-0123-def1-234567890123"},
    "source_selector": "amount > 10000 AND status = 'approved'",
    "aggregation": {"group_by": ["department_code"], "aggregations": [
        {"column": "high_value_total", "expression": "SUM(amount)"},
        {"column": "high_value_count", "expression": "COUNT(*)"},
        {"column": "avg_high_value", "expression": "AVG(amount)"}]}}}"""

EXAMPLES = {
    "TS-01": (TS_01, AppendOperation(1, None, DatasetRef(UUID("a1b2c3d4-e5f6-7890-abcd-ef1234567890")))),
    "TS-06": (
        TS_06,
        AppendOperation(
            2,
            "append_original_budgets",
            DatasetRef(UUID("b2c3d4e5-f6a7-8901-bcde-f12345678901")),
            "budget_type = 'original'",
        ),
    ),
    "TS-13": (
        TS_13,
        AppendOperation(
            3,
            None,
            DatasetRef(UUID("c3d4e5f6-a7b8-9012-cdef-123456789012"), 2),
            None,
            ("account_code", "cost_center_code"),
            (
                Aggregate("total_budget", "SUM(amount)", SUM, "amount"),
                Aggregate("budget_count", "COUNT(budget_id)", COUNT, "budget_id"),
            ),
        ),
    ),
    "TS-15": (
        TS_15,
        AppendOperation(
            4,
            None,
            DatasetRef(UUID("d4e5f6a7-b8c9-0123-def1-234567890123")),
            "amount > 10000 AND status = 'approved'",
            ("department_code",),
            (
                Aggregate("high_value_total", "SUM(amount)", SUM, "amount"),
                Aggregate("high_value_count", "COUNT(*)", COUNT, None),
                Aggregate("avg_high_value", "AVG(amount)", AVG, "amount"),
            ),
        ),
    ),
}


def parse_append(
    selector: str | None = None, group_by: tuple[str, ...] = (), order: int = 2, **outputs: str
) -> AppendOperation:
    aggregates = tuple(parse_aggregate(column, expression) for column, expression in outputs.items())
    return AppendOperation(order, None, DatasetRef(UUID(ID)), selector, group_by, aggregates)


def parse_merge(
    *keys: str, strategy: str = "upsert", selector: str | None = None, order_by: tuple[str, ...] = ()
) -> MergeOperation:
    return MergeOperation(2, None, DatasetRef(UUID(ID)), selector, keys, strategy, order_by)


def schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


def plan_error(payload: AppendOperation | MergeOperation, source: pa.Schema, working: pa.Schema) -> Invalid:
    with pytest.raises(Invalid) as raised:
        plan_operation(payload, source, working)
    return raised.value


def error_body(error: PenstockError) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(json.dumps(error_response(error)))["error"]
    return body


def with_change(path: str, value: Any, example: str = TS_13) -> dict[str, Any]:
    """Return the example with another value at a path; `...` removes the member."""
    document: dict[str, Any] = json.loads(example)
    *parents, last = [int(step) if step.isdigit() else step for step in path.strip("/").split("/")]
    container: Any = document
    for step in parents:
        container = container[step]
    if value is ...:
        del container[last]
    else:
        container[last] = value
    return document


# -- parse ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_parse_operation_round_trips_contract_examples(name: str) -> None:
    text, expected = EXAMPLES[name]
    read = parse_operation(json.loads(text), 0)
    assert read == expected
    assert json.dumps(read.as_json()) == json.dumps(json.loads(text)), "with the members in the same order"


MERGE: dict[str, Any] = {
    "type": "merge",
    "order": 5,
    "alias": "latest",
    "parameters": {
        "source": {"dataset_id": ID, "dataset_version": 3},
        "source_selector": "amount > 0",
        "key_columns": ["id", "day"],
        "strategy": "deduplicate",
        "dedup_order_by": ["changed_at"],
    },
}


def test_parse_operation_round_trips_merge() -> None:
    read = parse_operation(MERGE, 0)
    assert read == MergeOperation(
        5, "latest", DatasetRef(UUID(ID), 3), "amount > 0", ("id", "day"), "deduplicate", ("changed_at",)
    )
    assert json.dumps(read.as_json()) == json.dumps(MERGE)


def test_parse_operation_trims_and_deduplicates_merge_columns() -> None:
    payload = deepcopy(MERGE)
    payload["parameters"] |= {"key_columns": " id ", "dedup_order_by": ["a", " a", "b "]}
    read = parse_operation(payload, 0)
    assert isinstance(read, MergeOperation)
    assert (read.keys, read.dedup_order_by) == (("id",), ("a", "b"))


@pytest.mark.parametrize(("input_value", "order"), [(..., 7), (0, 0), (12, 12), (3.0, 3), (MAX_INTEGER, MAX_INTEGER)])
def test_parse_operation_order_defaults_to_index(input_value: Any, order: int) -> None:
    assert parse_operation(with_change("order", input_value, TS_01), 7).order == order


def test_parse_operation_ignores_members_beside_parameters() -> None:
    assert parse_operation(with_change("comment", {"by": "me"}, TS_01), 0) == EXAMPLES["TS-01"][1]


@pytest.mark.parametrize(
    "text", [ID.upper(), "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"]
)
def test_parse_operation_accepts_any_uuid_digits(text: str) -> None:
    assert parse_operation(with_change("parameters/source/dataset_id", text), 0).source.dataset == UUID(text)


AGGREGATIONS = "/parameters/aggregation/aggregations"
TWICE = [{"column": "a", "expression": "SUM(x)"}, {"column": "a", "expression": "SUM(y)"}]
GROUPED = [{"column": "account_code", "expression": "SUM(x)"}]


@pytest.mark.parametrize(
    ("path", "value", "pointer"),
    [
        ("/order", -1, None),
        ("/order", "1", None),
        ("/order", True, None),
        ("/order", 1.5, None),
        ("/order", float("inf"), None),
        ("/order", None, None),
        ("/order", MAX_INTEGER + 1, None),
        ("/alias", 1, None),
        ("/alias", None, None),
        ("/alias", "x" * (MAX_ALIAS_LENGTH + 1), None),
        ("/alias", "\x00", None),
        ("/alias", "\ud800", None),
        ("/parameters", ..., None),
        ("/parameters", [], None),
        ("/parameters/sauce", 1, None),
        ("/parameters/source", ..., None),
        ("/parameters/source", ID, None),
        ("/parameters/source/name", "x", None),
        ("/parameters/source/dataset_id", ..., None),
        ("/parameters/source/dataset_id", "", None),
        ("/parameters/source/dataset_id", 7, None),
        ("/parameters/source/dataset_id", "not-a-uuid", None),
        ("/parameters/source/dataset_id", ID.replace("-", ""), None),
        ("/parameters/source/dataset_id", "{" + ID + "}", None),
        ("/parameters/source/dataset_id", ID + "\n", None),
        ("/parameters/source/dataset_version", 0, None),
        ("/parameters/source/dataset_version", "2", None),
        ("/parameters/source/dataset_version", None, None),
        ("/parameters/source_selector", 1, None),
        ("/parameters/source_selector", None, None),
        ("/parameters/aggregation", [], None),
        ("/parameters/aggregation", None, None),
        ("/parameters/aggregation/having", "x", None),
        ("/parameters/aggregation/group_by", ..., None),
        ("/parameters/aggregation/group_by", [], None),
        ("/parameters/aggregation/group_by", "account_code", None),
        ("/parameters/aggregation/group_by", ["a", 1], "/parameters/aggregation/group_by/1"),
        ("/parameters/aggregation/group_by", ["a", "b", "a"], "/parameters/aggregation/group_by/2"),
        ("/parameters/aggregation/group_by", ["x"] * 5_000, None),
        (AGGREGATIONS, ..., None),
        (AGGREGATIONS, [], None),
        (AGGREGATIONS, {}, None),
        (AGGREGATIONS, ["SUM(x)"], f"{AGGREGATIONS}/0"),
        (AGGREGATIONS, TWICE, f"{AGGREGATIONS}/1/column"),
        (AGGREGATIONS, GROUPED, f"{AGGREGATIONS}/0/column"),
        (f"{AGGREGATIONS}/1/column", ..., None),
        (f"{AGGREGATIONS}/1/column", 1, None),
        (f"{AGGREGATIONS}/1/column", "x" * (MAX_TEXT_LENGTH + 1), None),
        (f"{AGGREGATIONS}/1/expression", ..., None),
        (f"{AGGREGATIONS}/1/expression", None, None),
        (f"{AGGREGATIONS}/1/filter", "x", None),
    ],
)  # fmt: skip
def test_validate_operation_reports_bad_append_members_by_pointer(path: str, value: Any, pointer: str | None) -> None:
    _, (problem,) = validate_operation(with_change(path, value), 9)
    body = error_body(problem)
    assert (body["code"], body["message"]) == ("APPEND_000", "Invalid append operation")
    assert list(body["details"]) == ["pointer", "problem", "operation_order"]
    assert body["details"]["pointer"] == (pointer or path)
    assert body["details"]["operation_order"] == (3 if path != "/order" else 9), "the place, where the order is bad"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/alias", []),
        ("/parameters/aggregation", {}),
        ("/parameters/source", ...),
        ("/parameters/source/dataset_id", "x"),
        ("/parameters/key_columns", ...),
        ("/parameters/key_columns", []),
        ("/parameters/key_columns", "  "),
        ("/parameters/key_columns", ["a", ""]),
        ("/parameters/key_columns", {"a": 1}),
        ("/parameters/key_columns/1", 1),
        ("/parameters/key_columns", "\x00"),
        ("/parameters/strategy", ...),
        ("/parameters/strategy", "replace"),
        ("/parameters/strategy", ["upsert"]),
        ("/parameters/dedup_order_by", []),
        ("/parameters/dedup_order_by", 1),
        ("/parameters/dedup_order_by", " "),
    ],
)
def test_validate_operation_reports_bad_merge_members_by_pointer(path: str, value: Any) -> None:
    _, (problem,) = validate_operation(with_change(path, value, json.dumps(MERGE)), 9)
    body = error_body(problem)
    assert (body["code"], body["message"]) == ("MERGE_000", "Invalid merge operation")
    alias = [] if path == "/alias" else ["alias"]
    assert list(body["details"]) == ["pointer", "problem", "operation_order", *alias]
    assert (body["details"]["pointer"], body["details"]["operation_order"]) == (path, 5)


@pytest.mark.parametrize("strategy", [name for name, write in core_merge.STRATEGIES.items() if not write.deduplicates])
def test_validate_operation_accepts_order_for_deduplicate_only(strategy: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_operation(with_change("parameters/strategy", strategy, json.dumps(MERGE)), 0)
    assert raised.value.context["pointer"] == "/parameters/dedup_order_by"


def test_validate_operation_escapes_pointers() -> None:
    payload = json.loads(TS_01)
    payload["parameters"] |= {"a~b/c": 1, "\ud800": 1, "x" * 1_000: 1}
    _, problems = validate_operation(payload, 0)
    pointers = ["/parameters/a~0b~1c", "/parameters/\\ud800", f"/parameters/{'x' * 60}"]
    assert [problem.context["pointer"] for problem in problems] == pointers


def test_validate_operation_reports_all_errors() -> None:
    payload = {
        "type": "append",
        "alias": 1,
        "parameters": {"source": {}, "x": 1, "aggregation": {"group_by": [1, "a", 2], "aggregations": [{}]}},
    }
    operation, problems = validate_operation(payload, 4)
    assert operation is None
    assert [problem.context["pointer"] for problem in problems] == [
        "/alias",
        "/parameters/x",
        "/parameters/source/dataset_id",
        "/parameters/aggregation/group_by/0",
        "/parameters/aggregation/group_by/2",
        "/parameters/aggregation/aggregations/0/column",
        "/parameters/aggregation/aggregations/0/expression",
    ]
    assert {problem.context["operation_order"] for problem in problems} == {4}
    with pytest.raises(Invalid) as raised:
        parse_operation(payload, 4)
    assert raised.value.context == problems[0].context, "a single operation reports its first error"


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        ({"type": "filter", "parameters": {}}, "/type"),
        ({"type": "APPEND", "parameters": {}}, "/type"),
        ({"type": ["append"]}, "/type"),
        ({"type": "\ud800"}, "/type"),
        ({}, "/type"),
        ([], ""),
        ("append", ""),
        (None, ""),
    ],
)
def test_validate_operation_unknown_type_lists_valid_types(value: Any, pointer: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_operation(value, 6)
    body = error_body(raised.value)
    assert body["code"] == "UNKNOWN_OPERATION"
    assert "append, merge" in body["message"]
    assert body["message"].isascii()
    assert body["details"] == {"pointer": pointer, "types": ["append", "merge"], "operation_order": 6}


# -- aggregates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "function", "column"),
    [
        ("SUM(amount)", SUM, "amount"),
        ("SUM( amount\t)", SUM, "amount"),
        ("COUNT(budget_id)", COUNT, "budget_id"),
        ("COUNT(*)", COUNT, None),
        ("COUNT( * )", COUNT, None),
        ("COUNT(`*`)", COUNT, "*"),
        ("AVG(amount_local)", AVG, "amount_local"),
        ("MIN_AGG(date_posted)", MIN, "date_posted"),
        ("MAX_AGG(amount)", MAX, "amount"),
        ("SUM(net amount)", SUM, "net amount"),
        ("SUM(x)", SUM, "x"),
        ("SUM(größe)", SUM, "größe"),
        ("SUM(` x`)", SUM, " x"),
        ("SUM( `amount (EUR)` )", SUM, "amount (EUR)"),
        ("SUM(`a``b`)", SUM, "a`b"),
    ],
)
def test_parse_aggregate_accepts_function_and_column(expression: str, function: Function, column: str | None) -> None:
    assert parse_aggregate("out", expression) == Aggregate("out", expression, function, column)


NO_AGGREGATES = [
    "MEDIAN(amount)", "sum(amount)", "Sum(amount)", "SUM(a)+SUM(b)", "SUM(SUM(a))", "SUM(*)", "AVG(*)", "MIN_AGG(*)",
    "MAX_AGG( * )", "MIN(a)", "MAX(a)", "SUM()", "SUM( )", "SUM", "SUM(a", "SUM a", "SUM (a)", " SUM(a)", "SUM(a) ",
    "SUM(a)\n", "SUM(a\nb)", "SUM(`a)", "SUM(``)", "SUM(a`b)", "(a)", "", "COUNT(DISTINCT(a))", "SUM(a);DROP TABLE x",
    "COUNT(DISTINCT amount)", "COUNT(distinct amount)", "SUM(ALL amount)", "SUM(amount,budget_id)", "SUM(*amount)",
]  # fmt: skip


@pytest.mark.parametrize("expression", NO_AGGREGATES)
def test_parse_aggregate_unsupported_expression_fails_in_planning(expression: str) -> None:
    payload = parse_operation(with_change(f"{AGGREGATIONS}/0/expression", expression), 0)
    assert isinstance(payload, AppendOperation)
    source = schema(account_code=TEXT, cost_center_code=TEXT, amount=LONG, budget_id=LONG)
    working = schema(account_code=TEXT, cost_center_code=TEXT, total_budget=LONG, budget_count=LONG)
    body = error_body(plan_error(payload, source, working))
    assert (body["code"], body["details"]["expression"]) == ("APPEND_005", expression)


@pytest.mark.parametrize(
    ("function", "input_value", "working", "result"),
    [
        (COUNT, None, LONG, LONG),
        (COUNT, TEXT, LONG, LONG),
        (COUNT, money(), money(), LONG),
        (COUNT, pa.list_(LONG), LONG, LONG),
        (SUM, pa.int8(), LONG, LONG),
        (SUM, INT, LONG, LONG),
        (SUM, LONG, money(), LONG),
        (SUM, FLOAT, DOUBLE, DOUBLE),
        (SUM, DOUBLE, DOUBLE, DOUBLE),
        (SUM, money(12, 2), money(20, 4), money(20, 4)),
        (SUM, money(12, 2), money(10, 2), money(10, 2)),
        (SUM, money(12, 4), money(20, 2), money(12, 4)),
        (SUM, money(), DOUBLE, money()),
        (SUM, TEXT, TEXT, None),
        (SUM, BOOL, LONG, None),
        (SUM, DATE, DATE, None),
        (AVG, INT, DOUBLE, DOUBLE),
        (AVG, FLOAT, DOUBLE, DOUBLE),
        (AVG, LONG, money(), DOUBLE),
        (AVG, money(12, 4), money(10, 2), money(10, 2)),
        (AVG, money(12, 2), money(20, 6), money(20, 6)),
        (AVG, money(), DOUBLE, money()),
        (AVG, TEXT, DOUBLE, None),
        (AVG, BOOL, DOUBLE, None),
        (AVG, TIME, TIME, None),
        (MIN, INT, LONG, INT),
        (MIN, FLOAT, FLOAT, FLOAT),
        (MAX, TEXT, TEXT, TEXT),
        (MAX, DATE, DATE, DATE),
        (MAX, TIME, TIME, TIME),
        (MAX, BOOL, BOOL, BOOL),
        (MIN, money(12, 2), money(10, 2), money(10, 2)),
        (MIN, money(12, 4), money(20, 2), money(12, 4)),
        (MAX, pa.list_(LONG), pa.list_(LONG), None),
        (MIN, pa.struct([("a", LONG)]), LONG, None),
    ],
)
def test_result_type_of_aggregates(
    function: Function, input_value: pa.DataType | None, working: pa.DataType, result: pa.DataType | None
) -> None:
    assert result_type(function, input_value, working) == result


# -- plan an append ---------------------------------------------------------------------------------------------------

BUDGET = schema(account_code=TEXT, amount=INT, description=TEXT)


def test_plan_append_provides_every_working_column_in_order() -> None:
    source = schema(amount=INT, account_code=TEXT)
    working = schema(account_code=TEXT, note=TEXT, amount=LONG)
    assert plan_operation(parse_append(), source, working) == PlannedAppend(
        None, (), (), (ColumnSource("account_code", TEXT, "account_code"), ColumnSource("note", TEXT, None), ColumnSource("amount", LONG, "amount")), working
    )  # fmt: skip


def test_plan_append_ts_06_binds_selector_to_source() -> None:
    source = schema(budget_type=TEXT, amount=LONG)
    payload = parse_operation(json.loads(TS_06), 0)
    planned = plan_operation(payload, source, source)
    assert planned.selector == Compare(Comparison.EQ, Column("budget_type", TEXT), Literal("original", TEXT))


def test_plan_append_ts_13_groups_and_aggregates_replace_source_columns() -> None:
    source = schema(budget_id=LONG, cost_center_code=TEXT, account_code=TEXT, amount=money(), unused=DATE)
    working = schema(budget_count=LONG, account_code=TEXT, amount=LONG, total_budget=money(18), cost_center_code=TEXT)
    total, count = AggregateColumn(SUM, "amount", money(18)), AggregateColumn(COUNT, "budget_id", LONG)
    assert plan_operation(parse_operation(json.loads(TS_13), 0), source, working) == PlannedAppend(
        None,
        ("account_code", "cost_center_code"),
        (total, count),
        (
            ColumnSource("budget_count", LONG, count),
            ColumnSource("account_code", TEXT, "account_code"),
            # neither a group nor an aggregate: the column `amount` of the source is not used
            ColumnSource("amount", LONG, None),
            ColumnSource("total_budget", money(18), total),
            ColumnSource("cost_center_code", TEXT, "cost_center_code"),
        ),
        working,
    )


def test_plan_append_ts_15_selector_reads_columns_removed_by_grouping() -> None:
    source = schema(department_code=TEXT, amount=LONG, status=TEXT)
    working = schema(department_code=TEXT, high_value_total=LONG, high_value_count=LONG, avg_high_value=DOUBLE)
    planned = plan_operation(parse_operation(json.loads(TS_15), 0), source, working)
    assert isinstance(planned, PlannedAppend)
    assert planned.selector is not None
    assert planned.aggregates == (
        AggregateColumn(SUM, "amount", LONG), AggregateColumn(COUNT, None, LONG), AggregateColumn(AVG, "amount", DOUBLE)
    )  # fmt: skip


def test_plan_append_output_may_have_name_of_input() -> None:
    planned = plan_operation(
        parse_append(group_by=("account_code",), amount="SUM(amount)"), BUDGET, schema(account_code=TEXT, amount=LONG)
    )
    assert isinstance(planned, PlannedAppend)
    assert planned.feeds[1] == ColumnSource("amount", LONG, AggregateColumn(SUM, "amount", LONG))


# The error bodies of the contract, with the order of the operation.
BODIES: dict[str, tuple[PenstockError, str]] = {
    "001": (
        dataset_not_found(parse_append()),
        """{"error": {"code": "APPEND_001", "message": "Dataset not found", "details": {
            "dataset_id": "550e8400-e29b-41d4-a716-446655440000", "operation_order": 2}}}""",
    ),
    "002": (
        version_not_found(AppendOperation(2, None, DatasetRef(UUID(ID), 5)), 3),
        """{"error": {"code": "APPEND_002", "message": "Dataset version not found", "details": {
            "dataset_id": "550e8400-e29b-41d4-a716-446655440000", "requested_version": 5, "actual_version": 3,
            "operation_order": 2}}}""",
    ),
    "003": (
        plan_error(parse_append(), schema(fiscal_year=INT, budget_type=TEXT, amount=INT), BUDGET),
        """{"error": {"code": "APPEND_003", "message": "Appended rows contain columns not in working dataset",
            "details": {"extra_columns": ["budget_type", "fiscal_year"],
            "working_columns": ["account_code", "amount", "description"], "operation_order": 2}}}""",
    ),
    "004": (
        plan_error(parse_append("invalid syntax here"), BUDGET, BUDGET),
        """{"error": {"code": "APPEND_004", "message": "Failed to parse source_selector expression", "details": {
            "expression": "invalid syntax here", "parse_error": "Expected comparison operator at position 8",
            "operation_order": 2}}}""",
    ),
    "005": (
        plan_error(parse_append(group_by=("account_code",), amount="MEDIAN(amount)"), BUDGET, BUDGET),
        """{"error": {"code": "APPEND_005", "message": "Invalid aggregation function", "details": {
            "expression": "MEDIAN(amount)", "supported_functions": ["SUM", "COUNT", "AVG", "MIN_AGG", "MAX_AGG"],
            "operation_order": 2}}}""",
    ),
    "006": (
        plan_error(parse_append(group_by=("nonexistent_column",), amount="SUM(amount)"), BUDGET, BUDGET),
        """{"error": {"code": "APPEND_006", "message": "Column referenced in aggregation not found in source dataset",
            "details": {"column": "nonexistent_column", "context": "group_by",
            "source_columns": ["account_code", "amount", "description"], "operation_order": 2}}}""",
    ),
}  # fmt: skip


@pytest.mark.parametrize("number", BODIES)
def test_plan_append_errors_match_contract(number: str) -> None:
    error, body = BODIES[number]
    assert json.dumps(error_response(error)) == json.dumps(json.loads(body)), "with the members in the same order"
    assert isinstance(error, NotFound if number in ("001", "002") else Invalid)


def test_plan_append_missing_selector_column_has_own_message() -> None:
    assert error_body(plan_error(parse_append("fee > 1 AND cost > 1"), BUDGET, BUDGET)) == {
        "code": "APPEND_006",
        "message": "Column referenced in expression not found in source dataset",
        "details": {
            "column": "fee",
            "context": "source_selector",
            "source_columns": ["account_code", "amount", "description"],
            "operation_order": 2,
        },
    }


def test_plan_append_missing_input_column_is_reported_for_aggregation() -> None:
    body = error_body(plan_error(parse_append(group_by=("account_code",), amount="SUM(fee)"), BUDGET, BUDGET))
    assert (body["code"], body["details"]["column"], body["details"]["context"]) == ("APPEND_006", "fee", "aggregation")


@pytest.mark.parametrize(
    ("selector", "problem"),
    [
        ("", "Expected column or value at position 0"),
        ("  \t", "Expected column or value at position 3"),
        ("amount = 'x'", "amount is int32 and 'x' is string; they cannot be compared; write a number without quotes"),
        ("amount", "A filter expression requires a condition, but amount is int32"),
        ("a" * 10_001, "More than 10,000 characters"),
    ],
)
def test_plan_append_bad_selector_is_a_parse_error(selector: str, problem: str) -> None:
    body = error_body(plan_error(parse_append(selector), BUDGET, BUDGET))
    assert body["code"] == "APPEND_004"
    assert list(body["details"]) == ["expression", "parse_error", "operation_order"]
    assert body["details"]["parse_error"] == problem
    assert selector.startswith(body["details"]["expression"].removesuffix("…"))
    assert len(body["details"]["expression"]) < 200


# Each row fixes the error of the row before.
ORDER_OF_CHECKS = [
    ("a b", ("zz", "g"), {"q": "MEDIAN(zz)", "w": "SUM(zz)"}, "APPEND_004", "parse_error"),
    ("zz = 1", ("zz", "g"), {"q": "MEDIAN(zz)", "w": "SUM(zz)"}, "APPEND_006", "source_selector"),
    ("g = 1", ("zz", "g"), {"q": "MEDIAN(zz)", "w": "SUM(zz)"}, "APPEND_006", "group_by"),
    ("g = 1", ("h", "g"), {"q": "MEDIAN(zz)", "w": "SUM(zz)"}, "APPEND_003", ["h"]),
    ("g = 1", ("g",), {"q": "MEDIAN(zz)", "w": "SUM(zz)"}, "APPEND_003", ["q"]),
    ("g = 1", ("g",), {"v": "MEDIAN(zz)", "w": "SUM(zz)"}, "APPEND_005", "MEDIAN(zz)"),
    ("g = 1", ("g",), {"v": "MAX_AGG(zz)", "q": "MEDIAN(zz)"}, "APPEND_006", "aggregation"),
    ("g = 1", ("g",), {"v": "MAX_AGG(t)", "q": "MEDIAN(zz)"}, "APPEND_003", ["q"]),
    ("g = 1", ("g",), {"v": "MAX_AGG(t)", "w": "MEDIAN(zz)"}, "APPEND_005", "MEDIAN(zz)"),
    ("g = 1", ("g",), {"v": "MAX_AGG(t)", "w": "SUM(zz)"}, "APPEND_006", "aggregation"),
    ("g = 1", ("g",), {"v": "MAX_AGG(t)", "w": "SUM(g)"}, "APPEND_007", "v"),
    ("g = 1", (), {}, "APPEND_003", ["h", "t"]),
]


@pytest.mark.parametrize(("selector", "group_by", "outputs", "code", "detail"), ORDER_OF_CHECKS)
def test_plan_append_checks_run_in_documented_order(
    selector: str, group_by: tuple[str, ...], outputs: dict[str, str], code: str, detail: Any
) -> None:
    source, working = schema(g=LONG, h=LONG, t=TEXT), schema(g=INT if not outputs else LONG, v=LONG, w=LONG)
    body = error_body(plan_error(parse_append(selector, group_by, **outputs), source, working))
    assert body["code"] == code
    assert detail in [*body["details"], *body["details"].values()]


@pytest.mark.parametrize(
    ("input_value", "working", "fits"),
    [
        (INT, INT, True),
        (pa.int8(), pa.int16(), True),
        (INT, LONG, True),
        (LONG, INT, False),
        (FLOAT, DOUBLE, True),
        (DOUBLE, FLOAT, False),
        (INT, DOUBLE, False),
        (LONG, DOUBLE, False),
        (INT, money(), True),
        (LONG, money(20, 0), True),
        (money(), LONG, False),
        (money(), DOUBLE, False),
        (DOUBLE, money(), False),
        (money(10, 2), money(12, 2), True),
        (money(10, 2), money(12, 4), True),
        (money(10, 2), money(10, 4), False),
        (money(12, 2), money(10, 2), False),
        (money(12, 4), money(14, 2), False),
        (DATE, TIME, False),
        (TIME, DATE, False),
        (TIME, pa.timestamp("us", "UTC"), False),
        (TEXT, LONG, False),
        (LONG, TEXT, False),
        (BOOL, INT, False),
        (TEXT, pa.binary(), False),
        (pa.list_(INT), pa.list_(LONG), True),
        (pa.list_(LONG), pa.list_(INT), False),
    ],
)
@pytest.mark.parametrize("grouped", [False, True])
def test_plan_append_widens_and_never_narrows_columns(
    input_value: pa.DataType, working: pa.DataType, fits: bool, grouped: bool
) -> None:
    source, target = schema(c=input_value), schema(c=working, n=LONG)
    payload = parse_append(group_by=("c",), n="COUNT(*)") if grouped else parse_append()
    if fits:
        planned = plan_operation(payload, source, target)
        assert isinstance(planned, PlannedAppend)
        assert planned.feeds[0] == ColumnSource("c", working, "c")
        return
    body = error_body(plan_error(payload, source, target))
    assert (body["code"], body["message"]) == ("APPEND_007", "Column types do not match")
    assert list(body["details"]) == ["column", "source_type", "working_type", "problem", "operation_order"]
    assert list(body["details"].values())[:3] == ["c", str(input_value), str(working)]


@pytest.mark.parametrize(
    ("expression", "input_value", "working", "result"),
    [
        ("SUM(c)", INT, INT, "int64"),
        ("SUM(c)", INT, DOUBLE, "int64"),
        ("SUM(c)", FLOAT, FLOAT, "double"),
        ("SUM(c)", TEXT, TEXT, "string"),
        ("SUM(c)", money(12, 4), money(12, 2), "decimal128(12, 4)"),
        ("SUM(c)", money(), DOUBLE, "decimal128(12, 2)"),
        ("AVG(c)", INT, LONG, "double"),
        ("AVG(c)", INT, money(), "double"),
        ("AVG(c)", money(), DOUBLE, "decimal128(12, 2)"),
        ("AVG(c)", BOOL, DOUBLE, "bool"),
        ("COUNT(c)", TEXT, INT, "int64"),
        ("COUNT(*)", TEXT, DOUBLE, "int64"),
        ("MIN_AGG(c)", DATE, TIME, "date32[day]"),
        ("MAX_AGG(c)", LONG, INT, "int64"),
        ("MAX_AGG(c)", pa.list_(INT), pa.list_(INT), "list<item: int32>"),
    ],
)
def test_plan_append_rejects_aggregates_of_other_types(
    expression: str, input_value: pa.DataType, working: pa.DataType, result: str
) -> None:
    payload = parse_append(group_by=("g",), out=expression)
    body = error_body(plan_error(payload, schema(g=TEXT, c=input_value), schema(g=TEXT, out=working)))
    assert body["code"] == "APPEND_007"
    assert list(body["details"].values())[:3] == ["out", result, str(working)]


@pytest.mark.parametrize(
    "payload", [parse_append(), parse_append(group_by=("g",), n="COUNT(*)")], ids=["raw", "grouped"]
)
def test_plan_append_rejects_missing_required_column(payload: AppendOperation) -> None:
    required = pa.field("id", LONG, nullable=False)
    source = schema(g=TEXT) if not payload.group_by else schema(g=TEXT, id=LONG)
    body = error_body(plan_error(payload, source, pa.schema([("g", TEXT), ("n", LONG), required])))
    assert body["code"] == "APPEND_007"
    assert list(body["details"].values())[:3] == ["id", None, "int64"]


def test_plan_append_distinguishes_names_by_case() -> None:
    assert error_body(plan_error(parse_append(), schema(Amount=INT), BUDGET))["details"]["extra_columns"] == ["Amount"]


def test_translate_error_reports_values_that_do_not_fit_as_type_error() -> None:
    error = Invalid("value_does_not_fit", "column 'a': too many digits", column="a")
    assert error_response(translate_error(parse_append(), error)) == {
        "error": {
            "code": "APPEND_007",
            "message": "Column types do not match",
            "details": {"problem": "column 'a': too many digits", "column": "a", "operation_order": 2},
        }
    }


# -- plan a merge -----------------------------------------------------------------------------------------------------


def test_plan_merge_operation_may_widen_working_dataset() -> None:
    source = schema(amount=LONG, id=LONG, at=TIME)
    working = schema(id=INT, note=TEXT, amount=LONG, at=TIME)
    payload = parse_merge("id", strategy="deduplicate", selector="amount > 1", order_by=("at",))
    assert plan_operation(payload, source, working) == PlannedMerge(
        Compare(Comparison.GT, Column("amount", LONG), Literal(1, LONG)),
        ("id",),
        "deduplicate",
        ("at",),
        ("id", "amount", "at"),
        schema(id=LONG, note=TEXT, amount=LONG, at=TIME),
    )


KEYED = schema(id=LONG, amount=LONG)


@pytest.mark.parametrize(
    ("payload", "source", "code", "facts"),
    [
        (parse_merge("zz", selector="a b"), schema(id=TEXT), "MERGE_007", {"expression": "a b"}),
        (
            parse_merge("zz", selector="zz = 1"),
            schema(id=TEXT),
            "MERGE_007",
            {"column": "zz", "context": "source_selector"},
        ),
        (parse_merge("zz"), schema(id=TEXT), "MERGE_003", {"side": "source", "missing": ["zz"]}),
        (parse_merge("b"), schema(b=TEXT, id=TEXT), "MERGE_003", {"side": "target", "missing": ["b"]}),
        (parse_merge("id"), schema(id=pa.list_(LONG)), "MERGE_003", {"side": "source", "column": "id"}),
        (parse_merge("id"), schema(id=TEXT), "MERGE_004", {"column": "id", "expected": "int64", "actual": "string"}),
        (parse_merge("id"), schema(id=LONG, fee=LONG), "MERGE_004", {"extra_columns": ["fee"]}),
        (parse_merge("id"), schema(id=LONG, Amount=LONG), "MERGE_004", {"columns": ["amount", "Amount"]}),
        (parse_merge("id", strategy="deduplicate", order_by=("at",)), KEYED, "MERGE_004", {"missing": ["at"]}),
        (
            parse_merge("id", strategy="deduplicate", order_by=("amount",)),
            schema(id=LONG, amount=pa.list_(LONG)),
            "MERGE_004",
            {},
        ),
    ],
)
def test_plan_merge_operation_reports_errors_of_merge(
    payload: MergeOperation, source: pa.Schema, code: str, facts: dict[str, Any]
) -> None:
    body = error_body(plan_error(payload, source, KEYED))
    assert body["code"] == code
    assert body["details"] == {**body["details"], **facts, "operation_order": 2}
    assert list(body["details"])[-1] == "operation_order"


def test_plan_merge_operation_inserts_need_required_columns() -> None:
    working = pa.schema([("id", LONG), pa.field("amount", LONG, nullable=False)])
    assert error_body(plan_error(parse_merge("id"), schema(id=LONG), working))["code"] == "MERGE_004"
    assert isinstance(plan_operation(parse_merge("id", strategy="update"), schema(id=LONG), working), PlannedMerge)


@pytest.mark.parametrize(
    ("error", "code", "message", "details"),
    [
        (
            core_merge.null_keys("source", {"id": 3}),
            "MERGE_005",
            "Key columns contain NULL",
            {"side": "source", "nulls": {"id": 3}},
        ),
        (core_merge.duplicate_keys(["id"], 2, [7]), "MERGE_006", "Source rows contain duplicate keys", {"rows": 2}),
    ],
)
def test_translate_error_maps_row_errors_to_merge_codes(
    error: Invalid, code: str, message: str, details: dict[str, Any]
) -> None:
    all_details = {"problem": error.message, **details, "operation_order": 2}
    assert error_body(translate_error(parse_merge("id"), error)) == {
        "code": code,
        "message": message,
        "details": all_details,
    }


def test_translate_error_adds_the_operation_to_errors_without_code() -> None:
    other = translate_error(parse_merge("id"), Unavailable("spark_lost"))
    assert (type(other), other.reason, other.context) == (Unavailable, "spark_lost", {"operation_order": 2})
    assert translate_error(parse_append(), core_merge.null_keys("source", {"id": 1})).reason == "null_keys"


@pytest.mark.parametrize(("type", "code"), [("append", "APPEND_004"), ("merge", "MERGE_007")])
@pytest.mark.parametrize("character", ["\x00", "\ud800"])
def test_validate_operation_unstorable_character_in_selector_is_a_parse_error(
    type: str, code: str, character: str
) -> None:
    parameters = {"source": {"dataset_id": ID}, "source_selector": f"a = '{character}'"}
    parameters |= {"key_columns": "a", "strategy": "upsert"} if type == "merge" else {}
    _, (error,) = validate_operation({"type": type, "alias": "first", "parameters": parameters}, 3)
    assert (error.reason.upper(), error.context["pointer"]) == (code, "/parameters/source_selector")
    assert error.context["parse_error"] == f"Unexpected character {character!a} at position 5"
    assert (error.context["operation_order"], error.context["alias"]) == (3, "first")
    error.context["expression"].encode()
    assert "\x00" not in error.context["expression"]


def test_operation_errors_and_responses_name_the_alias() -> None:
    payload = AppendOperation(2, "budgets", DatasetRef(UUID(ID), 5), "b = 1")
    errors = [
        dataset_not_found(payload),
        version_not_found(payload, 3),
        plan_error(payload, schema(a=LONG), schema(a=LONG)),
    ]
    assert [error.context["alias"] for error in errors] == ["budgets"] * 3
    assert success_response(payload, Counts(inserted=1), 2, 3)["alias"] == "budgets"
    assert "alias" not in success_response(replace(payload, alias=None), Counts(inserted=1), 2, 3)


def test_rebase_response_shifts_the_counts_of_the_working_dataset() -> None:
    append, merge = parse_append(), parse_merge("id")
    for operation, total in ((append, {}), (merge, {"total": 503})):
        response = rebase_response(success_response(operation, Counts(inserted=1), 2, 3), 500)
        result = response["result"]
        assert (result["working_dataset_rows_before"], result["working_dataset_rows_after"]) == (502, 503)
        assert {name: result[name] for name in total} == total


@pytest.mark.parametrize("number", ["001", "002"])
def test_not_found_errors_of_merge_equal_those_of_append(number: str) -> None:
    payload = MergeOperation(2, None, DatasetRef(UUID(ID), 5), None, ("id",), "upsert")
    error = dataset_not_found(payload) if number == "001" else version_not_found(payload, 3)
    as_append = BODIES[number][0]
    assert (error.reason, error.message, error.context) == (f"merge_{number}", as_append.message, as_append.context)
    assert isinstance(error, NotFound)


def test_messages_cover_every_code_of_both_operations() -> None:
    assert list(MESSAGES) == [f"{operation}_{number:03}" for operation in ("append", "merge") for number in range(8)]


# -- responses --------------------------------------------------------------------------------------------------------


def test_success_response_of_append_matches_contract() -> None:
    body = """{"success": true, "operation": "append", "order": 2, "result": {"rows_appended": 142,
        "source_dataset_id": "550e8400-e29b-41d4-a716-446655440000", "working_dataset_rows_before": 1000,
        "working_dataset_rows_after": 1142, "execution_time_ms": 23, "aggregated": true, "filtered": false}}"""
    response = success_response(parse_append(group_by=("a",), b="COUNT(*)"), Counts(inserted=142), 1000, 23)
    assert json.dumps(response) == json.dumps(json.loads(body))


def test_success_response_reports_filtered_and_aggregated() -> None:
    result = success_response(parse_append("amount > 1"), Counts(), 5, 0)["result"]
    assert (result["filtered"], result["aggregated"]) == (True, False)
    assert (result["rows_appended"], result["working_dataset_rows_after"]) == (0, 5)


def test_success_response_of_merge_reports_counts() -> None:
    response = success_response(parse_merge("id", selector="amount > 1"), Counts(3, 2, 1), 10, 4)
    assert json.dumps(response) == json.dumps(
        {
            "success": True,
            "operation": "merge",
            "order": 2,
            "result": {
                "inserted": 3,
                "updated": 2,
                "deleted": 1,
                "total": 12,
                "source_dataset_id": ID,
                "working_dataset_rows_before": 10,
                "working_dataset_rows_after": 12,
                "execution_time_ms": 4,
                "filtered": True,
            },
        }
    )
