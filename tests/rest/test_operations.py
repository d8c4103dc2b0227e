"""POST /datasets/{id}/operations: responses, errors, idempotency and limits."""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import httpx
import pytest

from penstock import failpoints
from penstock.core.caller import Role
from penstock.errors import CommitStateUnknown, Conflict, PenstockError
from penstock.rest.app import create_app
from penstock.rest.context import RestContext
from penstock.rest.routes import operations
from penstock.service.pipelines.run_worker import RunLimits, RunWorker
from rest.rest_client import OTHER_TENANT, RestClient, bearer, in_process_client, token, wait_for_run

CSV, JSON = {"content-type": "text/csv"}, {"content-type": "application/json"}
BUDGETS = [  # one version each
    "1,A1,C1,D1,10000,original,approved\n2,A1,C1,D1,20000,original,approved\n3,A2,C1,D2,30000,revised,draft\n",
    "4,A1,C2,D2,40000,original,approved\n",
    "5,A2,C2,D1,50000,revised,approved\n",
]
CSV_HEADER = "budget_id,account_code,cost_center_code,department_code,amount,budget_type,status\n"
SOURCE = CSV_HEADER.strip().split(",")
SUM_COLUMNS = ["total_budget", "budget_count", "high_value_total", "high_value_count"]
WORKING = [
    *({"name": name, "type": "int64" if name in ("budget_id", "amount") else "string"} for name in SOURCE),
    *({"name": name, "type": "int64"} for name in SUM_COLUMNS),
    {"name": "avg_high_value", "type": "double"},
]
COLUMNS = [column["name"] for column in WORKING]
ROWS_BEFORE = 2  # rows of the working dataset
UNKNOWN_ID = "550e8400-e29b-41d4-a716-446655440000"


@dataclass(frozen=True)
class OperationDatasets:
    client: RestClient
    working: str
    budgets: str  # a source of three versions
    narrow: str  # a working dataset of few columns
    ledger: str  # keys and amounts, for merges

    def execute(self, operation: Any, code: int = 200, **options: Any) -> httpx.Response:
        """Execute an operation on the working dataset; `@name` stands for a dataset id."""
        return self.client(
            "POST", f"/datasets/{self.working}/operations", code=code, json=self.with_ids(operation), **options
        )

    def with_ids(self, operation: Any) -> Any:
        ids = {"budgets": self.budgets, "narrow": self.narrow, "ledger": self.ledger, "working": self.working}
        return json.loads(re.sub('"@([a-z]+)"', lambda match: f'"{ids[match[1]]}"', json.dumps(operation)))

    def rows(self, dataset: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.client("GET", f"/datasets/{dataset}/rows").json()["value"]
        return rows

    def version(self, dataset: str) -> int:
        version: int = self.client("GET", f"/datasets/{dataset}").json()["version"]
        return version


def create_operation_datasets(client: RestClient) -> OperationDatasets:
    def create(name: str, schema: list[dict[str, Any]]) -> str:
        id: str = client("POST", "/datasets", code=201, json={"name": name, "schema": schema}).json()["id"]
        return id

    def append_csv(dataset: str, rows: str) -> None:
        client("POST", f"/datasets/{dataset}/rows", content=rows, headers=CSV)

    first, *later = BUDGETS
    budgets = client(
        "POST", "/datasets?name=finance.budgets", code=201, content=CSV_HEADER + first, headers=CSV
    ).json()["id"]
    for rows in later:
        append_csv(budgets, CSV_HEADER + rows)
    working = create("finance.transactions", WORKING)
    append_csv(working, "budget_id,account_code\n100,A1\n101,A2\n")
    narrow = create(
        "finance.narrow", [{"name": name, "type": "string"} for name in ("account_code", "amount", "status")]
    )
    ledger = client(
        "POST", "/datasets?name=finance.ledger", code=201, content="budget_id,amount\n1,7\n1,8\n,9\n", headers=CSV
    )
    return OperationDatasets(client, working, budgets, narrow, ledger.json()["id"])


@pytest.fixture
def operation_datasets(client: RestClient) -> OperationDatasets:
    return create_operation_datasets(client)


def append(source: str = "@budgets", order: int | None = None, **parameters: Any) -> dict[str, Any]:
    members = {"source": {"dataset_id": source, **parameters.pop("pin", {})}, **parameters}
    return {"type": "append", **({} if order is None else {"order": order}), "parameters": members}


def merge(**parameters: Any) -> dict[str, Any]:
    defaults = {"source": {"dataset_id": "@budgets"}, "key_columns": ["budget_id"], "strategy": "upsert"}
    return {"type": "merge", "parameters": {**defaults, **parameters}}


def aggregation(group_by: list[str], *aggregates: tuple[str, str]) -> dict[str, Any]:
    aggregations = [{"column": column, "expression": expression} for column, expression in aggregates]
    return {"aggregation": {"group_by": group_by, "aggregations": aggregations}}


# --- results


@dataclass(frozen=True)
class Example:
    operation: dict[str, Any]
    appended: list[tuple[Any, ...]]  # values of `columns`, in any order
    columns: list[str]
    aggregated: bool
    filtered: bool


EXAMPLES = {
    "TS-01: all rows": Example(
        append(order=1),
        [(1, "A1", 10000), (2, "A1", 20000), (3, "A2", 30000), (4, "A1", 40000), (5, "A2", 50000)],
        ["budget_id", "account_code", "amount"],
        aggregated=False,
        filtered=False,
    ),
    "TS-06: only original budgets": Example(
        {**append(order=2, source_selector="budget_type = 'original'"), "alias": "append_original_budgets"},
        [(1, "original"), (2, "original"), (4, "original")],
        ["budget_id", "budget_type"],
        aggregated=False,
        filtered=True,
    ),
    "TS-13: totals of version 2": Example(
        append(
            order=3,
            pin={"dataset_version": 2},
            **aggregation(
                ["account_code", "cost_center_code"],
                ("total_budget", "SUM(amount)"),
                ("budget_count", "COUNT(budget_id)"),
            ),
        ),
        [("A1", "C1", 30000, 2, None), ("A1", "C2", 40000, 1, None), ("A2", "C1", 30000, 1, None)],
        ["account_code", "cost_center_code", "total_budget", "budget_count", "amount"],
        aggregated=True,
        filtered=False,
    ),
    "TS-15: approved high values": Example(
        append(
            order=4,
            source_selector="amount > 10000 AND status = 'approved'",
            **aggregation(
                ["department_code"],
                ("high_value_total", "SUM(amount)"),
                ("high_value_count", "COUNT(*)"),
                ("avg_high_value", "AVG(amount)"),
            ),
        ),
        [("D1", 70000, 2, 35000.0), ("D2", 40000, 1, 40000.0)],
        ["department_code", "high_value_total", "high_value_count", "avg_high_value"],
        aggregated=True,
        filtered=True,
    ),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_contract_example_returns_exact_response(
    spark: Any, operation_datasets: OperationDatasets, example: str
) -> None:
    case = EXAMPLES[example]
    response = operation_datasets.execute(case.operation)
    assert response.headers["content-type"] == "application/json"
    body = {
        "success": True,
        "operation": "append",
        "order": case.operation["order"],
        **{name: case.operation[name] for name in ("alias",) if name in case.operation},
        "result": {
            "rows_appended": len(case.appended),
            "source_dataset_id": operation_datasets.budgets,
            "working_dataset_rows_before": ROWS_BEFORE,
            "working_dataset_rows_after": ROWS_BEFORE + len(case.appended),
            "execution_time_ms": 0,
            "aggregated": case.aggregated,
            "filtered": case.filtered,
        },
    }
    assert without_times(response) == json.dumps(body)
    new_rows = [
        row for row in operation_datasets.rows(operation_datasets.working) if row["budget_id"] not in (100, 101)
    ]
    assert sorted(tuple(row[name] for name in case.columns) for row in new_rows) == sorted(case.appended)
    assert operation_datasets.version(operation_datasets.working) == 3


def without_times(response: httpx.Response) -> str:
    return re.sub(r'"execution_time_ms": \d+', '"execution_time_ms": 0', response.text)


def test_merge_returns_row_counts(spark: Any, operation_datasets: OperationDatasets) -> None:
    response = operation_datasets.execute(merge(source_selector="budget_id <= 2", strategy="upsert"))
    counts = {"inserted": 2, "updated": 0, "deleted": 0, "total": 4}
    body = {
        "success": True,
        "operation": "merge",
        "order": 0,
        "result": {
            **counts,
            "source_dataset_id": operation_datasets.budgets,
            "working_dataset_rows_before": ROWS_BEFORE,
            "working_dataset_rows_after": 4,
            "execution_time_ms": 0,
            "filtered": True,
        },
    }
    assert without_times(response) == json.dumps(body)


def test_append_without_rows_succeeds_without_new_version(spark: Any, operation_datasets: OperationDatasets) -> None:
    result = operation_datasets.execute(append(source_selector="amount < 0")).json()["result"]
    assert (result["rows_appended"], result["working_dataset_rows_after"]) == (0, ROWS_BEFORE)
    assert operation_datasets.version(operation_datasets.working) == 2


def test_operation_accepts_dataset_name(operation_datasets: OperationDatasets) -> None:
    empty = operation_datasets.client(
        "POST", "/datasets", code=201, json={"name": "finance.none", "schema": WORKING}
    ).json()["id"]
    response = operation_datasets.client("POST", "/datasets/finance.transactions/operations", json=append(empty))
    assert response.json()["result"]["rows_appended"] == 0
    (run,) = operation_datasets.client("GET", "/runs").json()["value"]
    assert (run["name"], run["pipeline_id"]) == ("append into finance.transactions", None)
    assert run["results"] == [response.json()]


# --- errors


@dataclass(frozen=True)
class ErrorCase:
    operation: Any
    status: int
    code: str
    message: str
    details: dict[str, Any]
    working: str = "working"


def not_found(column: str, context: str) -> dict[str, Any]:
    return {"column": column, "context": context, "source_columns": SOURCE}


AGGREGATES = ["SUM", "COUNT", "AVG", "MIN_AGG", "MAX_AGG"]
IN_AGGREGATION = "Column referenced in aggregation not found in source dataset"
IN_EXPRESSION = "Column referenced in expression not found in source dataset"
TYPE_MISMATCH = "Column types do not match"
INVALID_SELECTOR = "Failed to parse source_selector expression"
EXTRA_COLUMNS = "Appended rows contain columns not in working dataset"
INVALID_SHAPE = "Invalid append operation"
ERROR_CASES = {
    "an unknown dataset": ErrorCase(
        append(UNKNOWN_ID, 2), 404, "APPEND_001", "Dataset not found", {"dataset_id": UNKNOWN_ID}
    ),
    "an unknown dataset, pinned": ErrorCase(
        append(UNKNOWN_ID, pin={"dataset_version": 3}),
        404,
        "APPEND_001",
        "Dataset not found",
        {"dataset_id": UNKNOWN_ID},
    ),
    "an unknown version": ErrorCase(
        append(pin={"dataset_version": 5}),
        404,
        "APPEND_002",
        "Dataset version not found",
        {"dataset_id": "@budgets", "requested_version": 5, "actual_version": 3},
    ),
    "columns missing in the working dataset": ErrorCase(
        append(),
        400,
        "APPEND_003",
        EXTRA_COLUMNS,
        {
            "extra_columns": ["budget_id", "budget_type", "cost_center_code", "department_code"],
            "working_columns": ["account_code", "amount", "status"],
        },
        "narrow",
    ),
    "an output column missing in the working dataset": ErrorCase(
        append(**aggregation(["account_code"], ("median", "MEDIAN(x)"))),
        400,
        "APPEND_003",
        EXTRA_COLUMNS,
        {"extra_columns": ["median"], "working_columns": COLUMNS},
    ),
    "an invalid selector": ErrorCase(
        append(source_selector="invalid syntax here"),
        400,
        "APPEND_004",
        INVALID_SELECTOR,
        {"expression": "invalid syntax here", "parse_error": "Expected comparison operator at position 8"},
    ),
    "an unknown aggregate function": ErrorCase(
        append(**aggregation(["account_code"], ("total_budget", "MEDIAN(amount)"))),
        400,
        "APPEND_005",
        "Invalid aggregation function",
        {"expression": "MEDIAN(amount)", "supported_functions": AGGREGATES},
    ),
    "an unknown group-by column": ErrorCase(
        append(**aggregation(["nonexistent_column"], ("total_budget", "SUM(amount)"))),
        400,
        "APPEND_006",
        IN_AGGREGATION,
        not_found("nonexistent_column", "group_by"),
    ),
    "an aggregate of an unknown column": ErrorCase(
        append(**aggregation(["account_code"], ("total_budget", "SUM(nonexistent_column)"))),
        400,
        "APPEND_006",
        IN_AGGREGATION,
        not_found("nonexistent_column", "aggregation"),
    ),
    "a selector with an unknown column": ErrorCase(
        append(source_selector="nonexistent_column = 1"),
        400,
        "APPEND_006",
        IN_EXPRESSION,
        not_found("nonexistent_column", "source_selector"),
    ),
    "types that do not widen": ErrorCase(
        append(**aggregation(["account_code"], ("status", "COUNT(*)"))),
        400,
        "APPEND_007",
        TYPE_MISMATCH,
        {
            "column": "status",
            "source_type": "int64",
            "working_type": "string",
            "problem": "COUNT(*) is int64, which does not widen to string",
        },
    ),
    "no source": ErrorCase(
        {"type": "append", "order": 7, "parameters": {}},
        400,
        "APPEND_000",
        INVALID_SHAPE,
        {"pointer": "/parameters/source", "problem": "is required", "operation_order": 7},
    ),
    "an unknown operation": ErrorCase(
        {"type": "explode"},
        400,
        "UNKNOWN_OPERATION",
        "Unknown operation 'explode'. Valid types: append, merge",
        {"pointer": "/type", "types": ["append", "merge"]},
    ),
    "a merge from an unknown dataset": ErrorCase(
        merge(source={"dataset_id": UNKNOWN_ID}), 404, "MERGE_001", "Dataset not found", {"dataset_id": UNKNOWN_ID}
    ),
}


@pytest.mark.parametrize("name", ERROR_CASES)
def test_operation_error_matches_contract(operation_datasets: OperationDatasets, name: str) -> None:
    case = ERROR_CASES[name]
    datasets = replace(operation_datasets, working=getattr(operation_datasets, case.working))
    response = datasets.execute(case.operation, case.status)
    details = {**datasets.with_ids(case.details), "operation_order": case.operation.get("order", 0)}
    assert response.json() == {"error": {"code": case.code, "message": case.message, "details": details}}
    assert datasets.version(datasets.working) == (2 if case.working == "working" else 1)


def test_unknown_working_dataset_returns_operation_error(operation_datasets: OperationDatasets) -> None:
    for working in (UNKNOWN_ID, "finance.nowhere", "nowhere"):
        for operation, code in ((append(), "APPEND_001"), (merge(), "MERGE_001")):
            body = replace(operation_datasets, working=working).execute({**operation, "order": 5}, 404).json()
            details = {"dataset_id": working, "operation_order": 5}
            assert body == {"error": {"code": code, "message": "Dataset not found", "details": details}}
    assert operation_datasets.client("GET", "/runs").json()["value"] == []


def test_merge_with_duplicate_keys_writes_nothing(spark: Any, operation_datasets: OperationDatasets) -> None:
    for selector, code in (("budget_id IS NULL", "MERGE_005"), ("budget_id = 1", "MERGE_006")):
        error = operation_datasets.execute(
            merge(source={"dataset_id": "@ledger"}, source_selector=selector), 400
        ).json()["error"]
        assert error["code"] == code
        assert error["details"]["operation_order"] == 0
    assert operation_datasets.version(operation_datasets.working) == 2


def test_operation_on_read_only_dataset_is_rejected(operation_datasets: OperationDatasets) -> None:
    dataset = {"name": "finance.closed", "schema": WORKING, "read_only": True}
    closed = operation_datasets.client("POST", "/datasets", code=201, json=dataset).json()["id"]
    body = replace(operation_datasets, working=closed).execute(append(), 409).json()
    message, details = "Dataset finance.closed is read-only", {"dataset": "finance.closed", "operation_order": 0}
    assert body == {"error": {"code": "READ_ONLY", "message": message, "details": details}}


INVALID_BODIES: list[tuple[dict[str, Any], int, str]] = [
    ({"content": b"{", "headers": JSON}, 400, "BAD_JSON"),
    ({"content": b'{"type": "append", "type": "merge"}', "headers": JSON}, 400, "BAD_JSON"),
    ({"content": b"[]", "headers": JSON}, 400, "UNKNOWN_OPERATION"),
    ({"content": b"", "headers": JSON}, 400, "BAD_JSON"),
    ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 415, "UNSUPPORTED_MEDIA_TYPE"),
    ({"content": b"{}", "headers": {"content-type": "application/patch+json"}}, 415, "UNSUPPORTED_MEDIA_TYPE"),
    ({"content": b"{}", "headers": {**JSON, "content-encoding": "gzip"}}, 415, "UNSUPPORTED_MEDIA_TYPE"),
    ({"json": append(UNKNOWN_ID), "headers": {"accept": "text/csv"}}, 406, "NOT_ACCEPTABLE"),
    ({"content": b" " * (4 << 20) + b"{}", "headers": JSON}, 413, "BODY_TOO_LARGE"),
    ({"json": {"type": "append"}, "params": {"version": "1"}}, 400, "UNKNOWN_PARAMETER"),
    ({"json": append(UNKNOWN_ID), "headers": {"idempotency-key": "x" * 300}}, 400, "BAD_IDEMPOTENCY_KEY"),
]


@pytest.mark.parametrize(("options", "status", "code"), INVALID_BODIES, ids=lambda value: str(value)[:50])
def test_bad_bodies_return_operation_errors(
    operation_datasets: OperationDatasets, options: Any, status: int, code: str
) -> None:
    body = operation_datasets.client(
        "POST", f"/datasets/{operation_datasets.working}/operations", code=status, **options
    ).json()
    assert body["error"]["code"] == code


def test_viewer_gets_operation_error_and_missing_token_problem_document(operation_datasets: OperationDatasets) -> None:
    path = f"/datasets/{operation_datasets.working}/operations"
    error = operation_datasets.client.as_caller(Role.VIEWER)(
        "POST", path, code=403, json=append(operation_datasets.budgets)
    ).json()["error"]
    assert (error["code"], error["details"]) == ("ROLE_TOO_LOW", {"required_role": "analytics.developer"})
    operation_datasets.client.as_caller(Role.DEVELOPER)("POST", path, code=404, json=append(UNKNOWN_ID))
    response = operation_datasets.client.without_token()(
        "POST", path, code=401, json=append(operation_datasets.budgets)
    )
    assert response.headers["content-type"] == "application/problem+json"
    forged_response = operation_datasets.client.without_token()(
        "POST", path, code=401, json=append(operation_datasets.budgets), headers=bearer("e30.e30.e30")
    )
    assert forged_response.headers["content-type"] == "application/problem+json"


def test_dataset_of_other_tenant_returns_same_error_as_unknown_one(operation_datasets: OperationDatasets) -> None:
    other_client = operation_datasets.client.as_caller(tenant=OTHER_TENANT)
    own_id = other_client("POST", "/datasets", code=201, json={"name": "m.own", "schema": WORKING}).json()["id"]
    unknown_id = str(uuid4())
    for working, source in ((own_id, "{}"), ("{}", own_id), ("{}", "{}")):
        existing_text, unknown_text = (
            other_client(
                "POST", f"/datasets/{working.format(id)}/operations", code=404, json=append(source.format(id))
            ).text
            for id in (operation_datasets.budgets, unknown_id)
        )
        assert existing_text.replace(operation_datasets.budgets, unknown_id) == unknown_text
    assert operation_datasets.client("GET", "/runs").json()["value"] == []


ERRORS: list[tuple[PenstockError, int, bool]] = [
    (Conflict("dataset_locked", "another merge holds the dataset; try again later"), 409, True),
    (CommitStateUnknown("commit_unanswered", "the database at db.internal:5432 did not answer"), 500, False),
]


@pytest.mark.parametrize(("raised", "status", "retry"), ERRORS, ids=lambda value: str(value)[:30])
def test_commit_error_is_returned_as_operation_error(
    operation_datasets: OperationDatasets, spark: Any, raised: PenstockError, status: int, retry: bool
) -> None:
    def fail() -> None:
        raise raised

    with failpoints.armed("stage.synced", fail):
        response = operation_datasets.execute(append(), status)
    error = response.json()["error"]
    assert error["code"] == raised.reason.upper()
    assert "db.internal" not in response.text
    assert ("retry-after" in response.headers) == retry
    assert operation_datasets.version(operation_datasets.working) == 2


# --- idempotency and limits


def test_same_idempotency_key_returns_same_response(spark: Any, operation_datasets: OperationDatasets) -> None:
    key = {"idempotency-key": "january"}
    first, second = (operation_datasets.execute(append(order=1), headers=key).text for _ in range(2))
    assert first == second
    assert operation_datasets.version(operation_datasets.working) == 3
    assert len(operation_datasets.client("GET", "/runs").json()["value"]) == 1
    error = operation_datasets.execute(append(source_selector="amount > 1"), 409, headers=key).json()["error"]
    assert error["code"] == "KEY_REUSED"


def test_idempotency_key_of_failed_operation_can_be_reused(spark: Any, operation_datasets: OperationDatasets) -> None:
    key = {"idempotency-key": "january"}
    operation_datasets.execute(append(UNKNOWN_ID), 404, headers=key)
    assert operation_datasets.execute(append(), headers=key).json()["result"]["rows_appended"] == 5


@pytest.fixture
def blocked_runs() -> Iterator[threading.Event]:
    """Stop every run before its first operation until the event is set."""
    released = threading.Event()
    with failpoints.armed("stage.begun", lambda: released.wait(60) and None):
        try:
            yield released
        finally:
            released.set()


def test_slow_operation_continues_as_run(
    spark: Any,
    operation_datasets: OperationDatasets,
    rest_context: RestContext,
    blocked_runs: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations, "_WAIT_SHARE", 0.0)  # respond as soon as the run is queued
    client = in_process_client(create_app(rest_context), token())
    response = replace(operation_datasets, client=client).execute(append(source_selector="amount < 0"), 202)
    run = response.json()
    assert response.headers["location"] == f"/runs/{run['id']}"
    assert response.headers["retry-after"] == "1"
    assert run["state"] in ("queued", "running")
    blocked_runs.set()
    ended = wait_for_run(client, run)
    assert ended["state"] == "succeeded"
    assert ended["results"][0]["result"]["rows_appended"] == 0


def test_full_queue_returns_retry_after(
    operation_datasets: OperationDatasets,
    rest_context: RestContext,
    blocked_runs: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations, "_WAIT_SHARE", 0.0)  # respond as soon as the run is queued
    run_worker = RunWorker(rest_context.workspace, RunLimits(max_concurrent=1, max_queued=1, max_queued_per_tenant=1))
    limited = replace(
        operation_datasets, client=in_process_client(create_app(replace(rest_context, run_worker=run_worker)), token())
    )
    try:
        first = limited.execute(append(order=1), 202).json()["id"]
        while run_worker.queued_count():
            pass
        limited.execute(append(order=2), 202)
        rejected = limited.execute(append(order=3), 503)
        assert rejected.headers["retry-after"] == "1"
        assert rejected.json()["error"]["code"] == "TOO_MANY_RUNS"
        assert rejected.json()["error"]["details"] == {"operation_order": 3}
        assert limited.client("GET", f"/runs/{first}").json()["state"] == "running"
    finally:
        for run in limited.client("GET", "/runs").json()["value"]:
            limited.client("POST", f"/runs/{run['id']}/cancel", code=202)
        blocked_runs.set()
        run_worker.close()
