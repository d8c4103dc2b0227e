"""One operation on one dataset: the answer is the operation's own, to the letter, whether it is done or refused."""

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
from rest.rest_client import OTHER, Client, bearer, in_process_client, token, wait_for_run

CSV, JSON = {"content-type": "text/csv"}, {"content-type": "application/json"}
BUDGETS = [  # one version each
    "1,A1,C1,D1,10000,original,approved\n2,A1,C1,D1,20000,original,approved\n3,A2,C1,D2,30000,revised,draft\n",
    "4,A1,C2,D2,40000,original,approved\n",
    "5,A2,C2,D1,50000,revised,approved\n",
]
HEAD = "budget_id,account_code,cost_center_code,department_code,amount,budget_type,status\n"
SOURCE = HEAD.strip().split(",")
SUMS = ["total_budget", "budget_count", "high_value_total", "high_value_count"]
WORKING = [
    *({"name": name, "type": "int64" if name in ("budget_id", "amount") else "string"} for name in SOURCE),
    *({"name": name, "type": "int64"} for name in SUMS),
    {"name": "avg_high_value", "type": "double"},
]
COLUMNS = [column["name"] for column in WORKING]
BEFORE = 2  # rows of the working dataset
ABSENT = "550e8400-e29b-41d4-a716-446655440000"


@dataclass(frozen=True)
class Books:
    client: Client
    working: str
    budgets: str  # a source of three versions
    narrow: str  # a working dataset of few columns
    ledger: str  # keys and amounts, for merges

    def do(self, operation: Any, code: int = 200, **options: Any) -> httpx.Response:
        """Send it to the working dataset. Where it says `"budgets"`, the source's id is meant."""
        return self.client(
            "POST", f"/datasets/{self.working}/operations", code=code, json=self.meant(operation), **options
        )

    def meant(self, operation: Any) -> Any:
        ids = {"budgets": self.budgets, "narrow": self.narrow, "ledger": self.ledger, "working": self.working}
        return json.loads(re.sub('"@([a-z]+)"', lambda found: f'"{ids[found[1]]}"', json.dumps(operation)))

    def rows(self, dataset: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client("GET", f"/datasets/{dataset}/rows").json()["value"]
        return found

    def version(self, dataset: str) -> int:
        found: int = self.client("GET", f"/datasets/{dataset}").json()["version"]
        return found


def books(client: Client) -> Books:
    def made(name: str, schema: list[dict[str, Any]]) -> str:
        id: str = client("POST", "/datasets", code=201, json={"name": name, "schema": schema}).json()["id"]
        return id

    def filled(dataset: str, rows: str) -> None:
        client("POST", f"/datasets/{dataset}/rows", content=rows, headers=CSV)

    first, *later = BUDGETS
    budgets = client("POST", "/datasets?name=finance.budgets", code=201, content=HEAD + first, headers=CSV).json()["id"]
    for rows in later:
        filled(budgets, HEAD + rows)
    working = made("finance.transactions", WORKING)
    filled(working, "budget_id,account_code\n100,A1\n101,A2\n")
    narrow = made("finance.narrow", [{"name": name, "type": "string"} for name in ("account_code", "amount", "status")])
    ledger = client(
        "POST", "/datasets?name=finance.ledger", code=201, content="budget_id,amount\n1,7\n1,8\n,9\n", headers=CSV
    )
    return Books(client, working, budgets, narrow, ledger.json()["id"])


@pytest.fixture
def there(client: Client) -> Books:
    return books(client)


def append(source: str = "@budgets", order: int | None = None, **parameters: Any) -> dict[str, Any]:
    meant = {"source": {"dataset_id": source, **parameters.pop("pin", {})}, **parameters}
    return {"type": "append", **({} if order is None else {"order": order}), "parameters": meant}


def merge(**parameters: Any) -> dict[str, Any]:
    defaults = {"source": {"dataset_id": "@budgets"}, "key_columns": ["budget_id"], "strategy": "upsert"}
    return {"type": "merge", "parameters": {**defaults, **parameters}}


def grouped(by: list[str], *aggregates: tuple[str, str]) -> dict[str, Any]:
    listed = [{"column": column, "expression": expression} for column, expression in aggregates]
    return {"aggregation": {"group_by": by, "aggregations": listed}}


# --- done


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
            **grouped(
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
    "TS-15: high values that were approved": Example(
        append(
            order=4,
            source_selector="amount > 10000 AND status = 'approved'",
            **grouped(
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
def test_contract_example_returns_exact_response(spark: Any, there: Books, example: str) -> None:
    it = EXAMPLES[example]
    answer = there.do(it.operation)
    assert answer.headers["content-type"] == "application/json"
    body = {
        "success": True,
        "operation": "append",
        "order": it.operation["order"],
        **{name: it.operation[name] for name in ("alias",) if name in it.operation},
        "result": {
            "rows_appended": len(it.appended),
            "source_dataset_id": there.budgets,
            "working_dataset_rows_before": BEFORE,
            "working_dataset_rows_after": BEFORE + len(it.appended),
            "execution_time_ms": 0,
            "aggregated": it.aggregated,
            "filtered": it.filtered,
        },
    }
    assert timeless(answer) == json.dumps(body)
    new = [row for row in there.rows(there.working) if row["budget_id"] not in (100, 101)]
    assert sorted(tuple(row[name] for name in it.columns) for row in new) == sorted(it.appended)
    assert there.version(there.working) == 3


def timeless(answer: httpx.Response) -> str:
    return re.sub(r'"execution_time_ms": \d+', '"execution_time_ms": 0', answer.text)


def test_merge_returns_row_counts(spark: Any, there: Books) -> None:
    changed = there.do(merge(source_selector="budget_id <= 2", strategy="upsert"))
    counts = {"inserted": 2, "updated": 0, "deleted": 0, "total": 4}
    body = {
        "success": True,
        "operation": "merge",
        "order": 0,
        "result": {
            **counts,
            "source_dataset_id": there.budgets,
            "working_dataset_rows_before": BEFORE,
            "working_dataset_rows_after": 4,
            "execution_time_ms": 0,
            "filtered": True,
        },
    }
    assert timeless(changed) == json.dumps(body)


def test_append_without_rows_succeeds_without_new_version(spark: Any, there: Books) -> None:
    result = there.do(append(source_selector="amount < 0")).json()["result"]
    assert (result["rows_appended"], result["working_dataset_rows_after"]) == (0, BEFORE)
    assert there.version(there.working) == 2


def test_operation_accepts_dataset_name(there: Books) -> None:
    empty = there.client("POST", "/datasets", code=201, json={"name": "finance.none", "schema": WORKING}).json()["id"]
    answer = there.client("POST", "/datasets/finance.transactions/operations", json=append(empty))
    assert answer.json()["result"]["rows_appended"] == 0
    (run,) = there.client("GET", "/runs").json()["value"]
    assert (run["name"], run["pipeline_id"]) == ("append into finance.transactions", None)
    assert run["results"] == [answer.json()]


# --- refused


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
TYPES = "Column types do not match"
SELECTOR = "Failed to parse source_selector expression"
EXTRA = "Appended rows contain columns not in working dataset"
SHAPE = "Invalid append operation"
REFUSALS = {
    "an unknown dataset": ErrorCase(append(ABSENT, 2), 404, "APPEND_001", "Dataset not found", {"dataset_id": ABSENT}),
    "an unknown dataset, pinned": ErrorCase(
        append(ABSENT, pin={"dataset_version": 3}), 404, "APPEND_001", "Dataset not found", {"dataset_id": ABSENT}
    ),
    "an unknown version": ErrorCase(
        append(pin={"dataset_version": 5}),
        404,
        "APPEND_002",
        "Dataset version not found",
        {"dataset_id": "@budgets", "requested_version": 5, "actual_version": 3},
    ),
    "columns that the working dataset lacks": ErrorCase(
        append(),
        400,
        "APPEND_003",
        EXTRA,
        {
            "extra_columns": ["budget_id", "budget_type", "cost_center_code", "department_code"],
            "working_columns": ["account_code", "amount", "status"],
        },
        "narrow",
    ),
    "an output column that the working dataset lacks": ErrorCase(
        append(**grouped(["account_code"], ("median", "MEDIAN(x)"))),
        400,
        "APPEND_003",
        EXTRA,
        {"extra_columns": ["median"], "working_columns": COLUMNS},
    ),
    "a selector that is none": ErrorCase(
        append(source_selector="invalid syntax here"),
        400,
        "APPEND_004",
        SELECTOR,
        {"expression": "invalid syntax here", "parse_error": "Expected comparison operator at position 8"},
    ),
    "no aggregate": ErrorCase(
        append(**grouped(["account_code"], ("total_budget", "MEDIAN(amount)"))),
        400,
        "APPEND_005",
        "Invalid aggregation function",
        {"expression": "MEDIAN(amount)", "supported_functions": AGGREGATES},
    ),
    "a group by nothing known": ErrorCase(
        append(**grouped(["nonexistent_column"], ("total_budget", "SUM(amount)"))),
        400,
        "APPEND_006",
        IN_AGGREGATION,
        not_found("nonexistent_column", "group_by"),
    ),
    "an aggregate of nothing known": ErrorCase(
        append(**grouped(["account_code"], ("total_budget", "SUM(nonexistent_column)"))),
        400,
        "APPEND_006",
        IN_AGGREGATION,
        not_found("nonexistent_column", "aggregation"),
    ),
    "a selector of nothing known": ErrorCase(
        append(source_selector="nonexistent_column = 1"),
        400,
        "APPEND_006",
        IN_EXPRESSION,
        not_found("nonexistent_column", "source_selector"),
    ),
    "types that do not widen": ErrorCase(
        append(**grouped(["account_code"], ("status", "COUNT(*)"))),
        400,
        "APPEND_007",
        TYPES,
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
        SHAPE,
        {"pointer": "/parameters/source", "problem": "is required", "operation_order": 7},
    ),
    "no operation": ErrorCase(
        {"type": "explode"},
        400,
        "UNKNOWN_OPERATION",
        "Unknown operation 'explode'. Valid types: append, merge",
        {"pointer": "/type", "types": ["append", "merge"]},
    ),
    "a merge from nothing": ErrorCase(
        merge(source={"dataset_id": ABSENT}), 404, "MERGE_001", "Dataset not found", {"dataset_id": ABSENT}
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_operation_error_matches_contract(there: Books, name: str) -> None:
    it = REFUSALS[name]
    here = replace(there, working=getattr(there, it.working))
    answer = here.do(it.operation, it.status)
    details = {**here.meant(it.details), "operation_order": it.operation.get("order", 0)}
    assert answer.json() == {"error": {"code": it.code, "message": it.message, "details": details}}
    assert here.version(here.working) == (2 if it.working == "working" else 1)


def test_unknown_working_dataset_returns_operation_error(there: Books) -> None:
    for working in (ABSENT, "finance.nowhere", "nowhere"):
        for operation, code in ((append(), "APPEND_001"), (merge(), "MERGE_001")):
            body = replace(there, working=working).do({**operation, "order": 5}, 404).json()
            details = {"dataset_id": working, "operation_order": 5}
            assert body == {"error": {"code": code, "message": "Dataset not found", "details": details}}
    assert there.client("GET", "/runs").json()["value"] == []


def test_merge_with_duplicate_keys_writes_nothing(spark: Any, there: Books) -> None:
    for selector, code in (("budget_id IS NULL", "MERGE_005"), ("budget_id = 1", "MERGE_006")):
        error = there.do(merge(source={"dataset_id": "@ledger"}, source_selector=selector), 400).json()["error"]
        assert error["code"] == code
        assert error["details"]["operation_order"] == 0
    assert there.version(there.working) == 2


def test_operation_on_read_only_dataset_is_rejected(there: Books) -> None:
    dataset = {"name": "finance.closed", "schema": WORKING, "read_only": True}
    closed = there.client("POST", "/datasets", code=201, json=dataset).json()["id"]
    body = replace(there, working=closed).do(append(), 409).json()
    message, details = "Dataset finance.closed is read-only", {"dataset": "finance.closed", "operation_order": 0}
    assert body == {"error": {"code": "READ_ONLY", "message": message, "details": details}}


BODIES: list[tuple[dict[str, Any], int, str]] = [
    ({"content": b"{", "headers": JSON}, 400, "BAD_JSON"),
    ({"content": b'{"type": "append", "type": "merge"}', "headers": JSON}, 400, "BAD_JSON"),
    ({"content": b"[]", "headers": JSON}, 400, "UNKNOWN_OPERATION"),
    ({"content": b"", "headers": JSON}, 400, "BAD_JSON"),
    ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 415, "UNSUPPORTED_MEDIA_TYPE"),
    ({"content": b"{}", "headers": {"content-type": "application/patch+json"}}, 415, "UNSUPPORTED_MEDIA_TYPE"),
    ({"content": b"{}", "headers": {**JSON, "content-encoding": "gzip"}}, 415, "UNSUPPORTED_MEDIA_TYPE"),
    ({"json": append(ABSENT), "headers": {"accept": "text/csv"}}, 406, "NOT_ACCEPTABLE"),
    ({"content": b" " * (4 << 20) + b"{}", "headers": JSON}, 413, "BODY_TOO_LARGE"),
    ({"json": {"type": "append"}, "params": {"version": "1"}}, 400, "UNKNOWN_PARAMETER"),
    ({"json": append(ABSENT), "headers": {"idempotency-key": "x" * 300}}, 400, "BAD_IDEMPOTENCY_KEY"),
]


@pytest.mark.parametrize(("sent", "status", "code"), BODIES, ids=lambda value: str(value)[:50])
def test_bad_bodies_return_operation_errors(there: Books, sent: Any, status: int, code: str) -> None:
    body = there.client("POST", f"/datasets/{there.working}/operations", code=status, **sent).json()
    assert body["error"]["code"] == code


def test_viewer_gets_operation_error_and_missing_token_problem_document(there: Books) -> None:
    path = f"/datasets/{there.working}/operations"
    error = there.client.as_(Role.VIEWER)("POST", path, code=403, json=append(there.budgets)).json()["error"]
    assert (error["code"], error["details"]) == ("ROLE_TOO_LOW", {"required_role": "analytics.developer"})
    there.client.as_(Role.DEVELOPER)("POST", path, code=404, json=append(ABSENT))
    response = there.client.without_token()("POST", path, code=401, json=append(there.budgets))
    assert response.headers["content-type"] == "application/problem+json"
    forger = there.client.without_token()(
        "POST", path, code=401, json=append(there.budgets), headers=bearer("e30.e30.e30")
    )
    assert forger.headers["content-type"] == "application/problem+json"


def test_dataset_of_other_tenant_returns_same_error_as_unknown_one(there: Books) -> None:
    mallory = there.client.as_(tenant=OTHER)
    own = mallory("POST", "/datasets", code=201, json={"name": "m.own", "schema": WORKING}).json()["id"]
    nowhere = str(uuid4())
    for working, source in ((own, "{}"), ("{}", own), ("{}", "{}")):
        theirs, none = (
            mallory("POST", f"/datasets/{working.format(id)}/operations", code=404, json=append(source.format(id))).text
            for id in (there.budgets, nowhere)
        )
        assert theirs.replace(there.budgets, nowhere) == none
    assert there.client("GET", "/runs").json()["value"] == []


ERRORS: list[tuple[PenstockError, int, bool]] = [
    (Conflict("dataset_locked", "another merge holds the dataset; try again later"), 409, True),
    (CommitStateUnknown("commit_unanswered", "the database at db.internal:5432 did not answer"), 500, False),
]


@pytest.mark.parametrize(("raised", "status", "retry"), ERRORS, ids=lambda value: str(value)[:30])
def test_commit_error_is_returned_as_operation_error(
    there: Books, spark: Any, raised: PenstockError, status: int, retry: bool
) -> None:
    def fail() -> None:
        raise raised

    with failpoints.armed("stage.synced", fail):
        answer = there.do(append(), status)
    error = answer.json()["error"]
    assert error["code"] == raised.reason.upper()
    assert "db.internal" not in answer.text
    assert ("retry-after" in answer.headers) == retry
    assert there.version(there.working) == 2


# --- again, late, and too many


def test_same_idempotency_key_returns_same_response(spark: Any, there: Books) -> None:
    key = {"idempotency-key": "january"}
    first, second = (there.do(append(order=1), headers=key).text for _ in range(2))
    assert first == second
    assert there.version(there.working) == 3
    assert len(there.client("GET", "/runs").json()["value"]) == 1
    error = there.do(append(source_selector="amount > 1"), 409, headers=key).json()["error"]
    assert error["code"] == "KEY_REUSED"


def test_idempotency_key_of_failed_operation_can_be_reused(spark: Any, there: Books) -> None:
    key = {"idempotency-key": "january"}
    there.do(append(ABSENT), 404, headers=key)
    assert there.do(append(), headers=key).json()["result"]["rows_appended"] == 5


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """Stop every run before its first operation until the event is set."""
    go = threading.Event()
    with failpoints.armed("stage.begun", lambda: go.wait(60) and None):
        try:
            yield go
        finally:
            go.set()


def test_slow_operation_continues_as_run(
    spark: Any, there: Books, edge: RestContext, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "_WAIT_SHARE", 0.0)  # respond as soon as the run is queued
    client = in_process_client(create_app(edge), token())
    answer = replace(there, client=client).do(append(source_selector="amount < 0"), 202)
    run = answer.json()
    assert answer.headers["location"] == f"/runs/{run['id']}"
    assert answer.headers["retry-after"] == "1"
    assert run["state"] in ("queued", "running")
    held.set()
    over = wait_for_run(client, run)
    assert over["state"] == "succeeded"
    assert over["results"][0]["result"]["rows_appended"] == 0


def test_full_queue_returns_retry_after(
    there: Books, edge: RestContext, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "_WAIT_SHARE", 0.0)  # respond as soon as the run is queued
    runner = RunWorker(edge.workspace, RunLimits(max_concurrent=1, max_queued=1, max_queued_per_tenant=1))
    here = replace(there, client=in_process_client(create_app(replace(edge, run_worker=runner)), token()))
    try:
        first = here.do(append(order=1), 202).json()["id"]
        while runner.queued_count():
            pass
        here.do(append(order=2), 202)
        refused = here.do(append(order=3), 503)
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "TOO_MANY_RUNS"
        assert refused.json()["error"]["details"] == {"operation_order": 3}
        assert here.client("GET", f"/runs/{first}").json()["state"] == "running"
    finally:
        for run in here.client("GET", "/runs").json()["value"]:
            here.client("POST", f"/runs/{run['id']}/cancel", code=202)
        held.set()
        runner.close()
