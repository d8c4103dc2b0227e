"""Runs over REST: queue, progress, cancellation, records."""

import re
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from penstock import failpoints
from penstock.core.caller import Role
from penstock.rest.app import create_app
from penstock.rest.context import RestContext
from penstock.service.pipelines.run_worker import RunLimits, RunWorker
from rest.rest_client import OTHER_TENANT, RestClient, in_process_client, token, wait_for_run
from rest.test_serve import served

UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"
CSV = {"content-type": "text/csv"}
FAILED_STATES = ("failed", "cancelled")
NUMBERS = [{"name": "id", "type": "int64"}]


def create_dataset(client: RestClient, name: str, rows: str) -> str:
    dataset_id: str = client("POST", f"/datasets?name={name}", code=201, content=rows, headers=CSV).json()["id"]
    return dataset_id


def append(source: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "append", "parameters": {"source": {"dataset_id": source}, **parameters}}


def merge(source: str) -> dict[str, Any]:
    parameters = {"source": {"dataset_id": source}, "key_columns": "id", "strategy": "upsert"}
    return {"type": "merge", "parameters": parameters}


def create_pipeline(client: RestClient, working: str, *operations: dict[str, Any], **members: Any) -> str:
    body = {"name": f"Pipeline {uuid4()}", "working": {"dataset_id": working}, "operations": operations, **members}
    pipeline_id: str = client("POST", "/pipelines", code=201, json=body).json()["id"]
    return pipeline_id


def start_run(client: RestClient, pipeline_id: str, code: int = 202, **options: Any) -> dict[str, Any]:
    response = client("POST", f"/pipelines/{pipeline_id}/runs", code=code, **options)
    run: dict[str, Any] = response.json()
    assert response.headers["location"] == f"/runs/{run['id']}"
    return run


@pytest.fixture
def working(client: RestClient) -> str:
    return create_dataset(client, "a.working", "id,word\n1,one\n")


@pytest.fixture
def source(client: RestClient) -> str:
    return create_dataset(client, "a.source", "id,word\n2,two\n3,three\n")


@pytest.fixture
def idle_pipeline(client: RestClient, working: str) -> str:
    """Create a pipeline that appends an empty dataset, which does not start Spark."""
    empty = client("POST", "/datasets", code=201, json={"name": "a.empty", "schema": NUMBERS})
    return create_pipeline(client, working, append(empty.json()["id"]))


@pytest.fixture
def blocked_runs() -> Iterator[threading.Event]:
    """Stop every run before its first operation until the event is set."""
    released = threading.Event()
    with failpoints.armed("stage.begun", lambda: released.wait(60) and None):
        try:
            yield released
        finally:
            released.set()


# --- results


def test_run_reports_inputs_and_commits(spark: Any, client: RestClient, working: str, source: str) -> None:
    pipeline_id = create_pipeline(client, working, append(source), append(source, source_selector="id = 3"))
    run = start_run(client, pipeline_id)
    assert (run["pipeline_id"], run["author"], run["error"]) == (pipeline_id, "ada", None)
    ended = wait_for_run(client, run)
    assert (ended["state"], ended["progress"], ended["error"]) == ("succeeded", None, None)
    assert [result["result"]["rows_appended"] for result in ended["results"]] == [2, 1]
    assert ended["written"] == [
        {
            "dataset": working, "name": "a.working", "version": 2, "operation": "append", "rows": 4,
            "inserted": 3, "updated": 0, "deleted": 0, "first_row_id": 2,
        }
    ]  # fmt: skip
    assert {(read["name"], read["version"], read["newest"]) for read in ended["reads"]} == {
        ("a.working", 1, 1),
        ("a.source", 1, 1),
    }
    assert ended["created_at"] <= ended["started_at"] <= ended["ended_at"]
    ids = [row["id"] for row in client("GET", f"/datasets/{working}/rows").json()["value"]]
    assert sorted(ids) == [1, 2, 3, 3]


def test_run_record_keeps_pipeline_definition(client: RestClient, working: str, idle_pipeline: str) -> None:
    before = client("GET", f"/pipelines/{idle_pipeline}").json()
    run = wait_for_run(client, start_run(client, idle_pipeline))
    client("PUT", f"/pipelines/{idle_pipeline}", json={**before, "name": "Another"})
    client("DELETE", f"/pipelines/{idle_pipeline}", code=204)
    snapshot = client("GET", f"/runs/{run['id']}").json()["pipeline"]
    assert snapshot == {name: before[name] for name in ("name", "working", "operations")}


def test_run_with_failing_fifth_operation_writes_nothing(
    spark: Any, client: RestClient, working: str, source: str
) -> None:
    duplicate_keys = create_dataset(client, "a.twice", "id,word\n7,x\n7,y\n")
    pipeline_id = create_pipeline(client, working, *[append(source)] * 4, merge(duplicate_keys), append(source))
    before = client("GET", "/datasets").json()
    ended = wait_for_run(client, start_run(client, pipeline_id))
    assert ended["state"] == "failed"
    assert [result.get("success", False) for result in ended["results"]] == [True] * 4 + [False]
    assert ended["results"][-1] == ended["error"]
    assert ended["error"]["error"]["code"] == "MERGE_006"
    assert ended["error"]["error"]["details"]["operation_order"] == 4
    assert (ended["written"], ended["commit_no"]) == ([], None)
    assert client("GET", "/datasets").json() == before


def test_run_reports_pipeline_errors(client: RestClient, working: str) -> None:
    ended = wait_for_run(client, start_run(client, create_pipeline(client, working, append(UNKNOWN_ID))))
    assert ended["state"] == "failed"
    details = {"dataset_id": UNKNOWN_ID, "operation_order": 0}
    assert ended["error"] == {"error": {"code": "APPEND_001", "message": "Dataset not found", "details": details}}


# --- requests


def test_start_run_accepts_no_body_or_empty_object(client: RestClient, idle_pipeline: str) -> None:
    headers = {"content-type": "application/json"}
    for options in (
        {},
        {"json": {}},
        {"content": b"", "headers": headers},
        {"content": b"", "headers": {"content-type": "a/b"}},
    ):
        start_run(client, idle_pipeline, **options)
    for options in ({"json": {"version": 1}}, {"json": []}, {"content": b"{", "headers": headers}):
        client("POST", f"/pipelines/{idle_pipeline}/runs", code=400, **options)
    client("POST", f"/pipelines/{idle_pipeline}/runs", code=415, content=b"{}", headers={"content-type": "text/plain"})
    client("POST", f"/pipelines/{idle_pipeline}/runs?dry=true", code=400)


def test_start_run_with_same_key_returns_same_run(
    client: RestClient, idle_pipeline: str, blocked_runs: threading.Event
) -> None:
    key = {"headers": {"idempotency-key": "january"}}
    first, repeated = (start_run(client, idle_pipeline, **key) for _ in range(2))
    assert first["id"] == repeated["id"]
    blocked_runs.set()
    ended = wait_for_run(client, first)
    assert (ended["state"], ended["idempotency_key"]) == ("succeeded", "january")
    assert start_run(client, idle_pipeline, code=200, **key) == ended
    other = create_pipeline(client, UNKNOWN_ID, append(UNKNOWN_ID))
    assert client("POST", f"/pipelines/{other}/runs", code=409, **key).json()["code"] == "KEY_REUSED"


def test_idempotency_key_of_failed_run_can_be_reused(client: RestClient) -> None:
    failing_pipeline, key = (
        create_pipeline(client, UNKNOWN_ID, append(UNKNOWN_ID)),
        {"headers": {"idempotency-key": "january"}},
    )
    first = wait_for_run(client, start_run(client, failing_pipeline, **key))
    assert first["state"] == "failed"
    assert start_run(client, failing_pipeline, **key)["id"] != first["id"]


def test_search_runs_supports_odata_options(client: RestClient, idle_pipeline: str) -> None:
    failing_pipeline = create_pipeline(client, UNKNOWN_ID, append(UNKNOWN_ID))
    runs = {
        wait_for_run(client, start_run(client, pipeline_id))["id"]: pipeline_id
        for pipeline_id in (idle_pipeline, failing_pipeline, failing_pipeline)
    }
    newest = client("GET", "/runs").json()
    assert newest["@odata.context"] == "/$metadata#runs"
    assert [run["id"] for run in newest["value"]] == list(reversed(runs))
    params = {
        "$filter": f"state eq 'failed' and pipeline_id eq {failing_pipeline}",
        "$count": "true",
        "$select": "state,error",
    }
    page = client("GET", "/runs", params=params, headers={"prefer": "odata.maxpagesize=1"}).json()
    assert page["@odata.count"] == 2
    assert [run["state"] for run in page["value"]] == ["failed"]
    assert len(client("GET", page["@odata.nextLink"]).json()["value"]) == 1
    assert client("GET", f"/runs?$filter=pipeline_id eq {idle_pipeline}").json()["value"][0]["state"] == "succeeded"
    assert client("GET", "/runs?$filter=results eq 1", code=400).json()["code"] == "UNKNOWN_FIELD"


def test_unknown_run_returns_404(client: RestClient, idle_pipeline: str) -> None:
    run, other_tenant = start_run(client, idle_pipeline)["id"], client.as_caller(tenant=OTHER_TENANT)
    for method, suffix in (("GET", ""), ("POST", "/cancel")):
        existing_text, unknown_text = (
            other_tenant(method, f"/runs/{id}{suffix}", code=404).text for id in (run, UNKNOWN_ID)
        )
        assert existing_text.replace(run, UNKNOWN_ID) == unknown_text
        assert other_tenant(method, f"/runs/none{suffix}", code=404).json()["code"] == "RUN_NOT_FOUND"
    assert other_tenant("GET", "/runs").json()["value"] == []


# --- cancellation and limits


@pytest.fixture
def limited_clients(rest_context: RestContext) -> Iterator[Callable[[RunLimits], RestClient]]:
    """Yield a function that returns a client of a service with these run limits."""
    run_workers = list[RunWorker]()

    def client(limits: RunLimits) -> RestClient:
        run_workers.append(RunWorker(rest_context.workspace, limits))
        return in_process_client(create_app(replace(rest_context, run_worker=run_workers[-1])), token())

    yield client
    for run_worker in run_workers:
        run_worker.close()


def wait_until_running(client: RestClient, run: dict[str, Any]) -> None:
    while client("GET", f"/runs/{run['id']}").json()["state"] != "running":
        pass


def test_cancel_run_when_queued_or_running(
    limited_clients: Callable[[RunLimits], RestClient], idle_pipeline: str, working: str, blocked_runs: threading.Event
) -> None:
    client = limited_clients(RunLimits(max_concurrent=1))
    running = start_run(client, idle_pipeline)
    wait_until_running(client, running)
    queued = start_run(client, idle_pipeline)
    assert client.as_caller(Role.VIEWER)("POST", f"/runs/{queued['id']}/cancel", code=403).json()["required_role"]
    cancelled = client("POST", f"/runs/{queued['id']}/cancel", code=202).json()
    assert (cancelled["state"], cancelled["started_at"]) == ("cancelled", None)
    response = client("POST", f"/runs/{running['id']}/cancel", code=202, json={})
    assert (response.json()["state"], response.json()["cancelling"], response.headers["retry-after"]) == (
        "running",
        True,
        "1",
    )
    blocked_runs.set()
    ended = wait_for_run(client, running)
    assert (ended["state"], ended["error"]["error"]["code"]) == ("cancelled", "RUN_CANCELLED")
    assert client("POST", f"/runs/{running['id']}/cancel").json() == ended
    assert client("GET", f"/datasets/{working}").json()["version"] == 1


def test_full_run_queue_rejects_runs_until_one_ends(
    limited_clients: Callable[[RunLimits], RestClient], idle_pipeline: str, blocked_runs: threading.Event
) -> None:
    client = limited_clients(RunLimits(max_concurrent=1, max_queued=2, max_queued_per_tenant=1))
    first = start_run(client, idle_pipeline)
    wait_until_running(client, first)
    waiting = start_run(client, idle_pipeline)
    full = client("POST", f"/pipelines/{idle_pipeline}/runs", code=503)
    assert (full.json()["code"], full.headers["retry-after"]) == ("TOO_MANY_RUNS", "1")
    client("POST", f"/runs/{waiting['id']}/cancel", code=202)
    last = start_run(client, idle_pipeline)
    blocked_runs.set()
    assert [wait_for_run(client, run)["state"] for run in (first, waiting, last)] == [
        "succeeded",
        "cancelled",
        "succeeded",
    ]


def test_metrics_count_runs(
    limited_clients: Callable[[RunLimits], RestClient], idle_pipeline: str, blocked_runs: threading.Event
) -> None:
    client = limited_clients(RunLimits(max_concurrent=1))
    assert 'penstock_runs_total{state="failed"} 0.0' in client("GET", "/metrics").text
    runs = [start_run(client, idle_pipeline)]
    wait_until_running(client, runs[0])
    runs += [
        start_run(client, idle_pipeline),
        start_run(client, create_pipeline(client, UNKNOWN_ID, append(UNKNOWN_ID))),
    ]
    assert run_metrics(client) == {"queued": 2, "running": 1, "seconds_count": 0}
    client("POST", f"/runs/{runs[1]['id']}/cancel", code=202)
    assert run_metrics(client) == {"queued": 1, "running": 1, "seconds_count": 1, "cancelled": 1}
    blocked_runs.set()
    for run in runs:
        wait_for_run(client, run)
    while run_metrics(client)["running"]:
        pass
    assert run_metrics(client) == {
        "queued": 0, "running": 0, "seconds_count": 3, "succeeded": 1, "failed": 1, "cancelled": 1,
    }  # fmt: skip


def run_metrics(client: RestClient) -> dict[str, float]:
    """Return the metrics of runs that are not 0, and all gauges."""
    matches = re.findall(
        r'^penstock_runs?_(?:total\{state=")?([a-z_]+)(?:"\})? ([0-9.]+)$', client("GET", "/metrics").text, re.M
    )
    samples = {name: float(value) for name, value in matches if not name.endswith(("created", "sum"))}
    return {name: value for name, value in samples.items() if value or name not in ("succeeded", *FAILED_STATES)}


def test_closed_run_worker_leaves_queued_runs(
    rest_context: RestContext, idle_pipeline: str, blocked_runs: threading.Event
) -> None:
    run_worker = RunWorker(rest_context.workspace, RunLimits(max_concurrent=1))
    client = in_process_client(create_app(replace(rest_context, run_worker=run_worker)), token())
    runs = [start_run(client, idle_pipeline) for _ in range(2)]
    wait_until_running(client, runs[0])
    thread = threading.Thread(target=run_worker.close)
    thread.start()
    while not all(attempt.stop for attempt in list(run_worker._attempts)):
        pass
    assert client("POST", f"/pipelines/{idle_pipeline}/runs", code=503).json()["code"] == "SERVICE_STOPPED"
    blocked_runs.set()
    thread.join()
    for run in runs:
        assert client("GET", f"/runs/{run['id']}").json()["state"] == "queued"
    rest_context.run_worker.start()
    for run in runs:
        assert wait_for_run(client, run)["state"] == "succeeded"


# --- process restarts

SHORT_HEARTBEAT_SCRIPT = (  # a run without a heartbeat becomes stale within seconds
    "from datetime import timedelta; from penstock.service.pipelines import run_worker, runs; "
    "runs.STALE_AFTER, run_worker._HEARTBEAT_SECONDS = timedelta(seconds=6), 0.2; "
)
ENDLESS_RUN_SCRIPT = (  # a run that prints when it begins, and does not end
    "import time; from penstock import failpoints as faults; "
    "faults._armed['stage.begun'] = lambda: (print('begun', flush=True), time.sleep(600)) and None; "
)


@pytest.fixture
def run_server(tmp_path: Path) -> Callable[..., Any]:
    return lambda before="": served(
        tmp_path, "--dev", "--http-port", "0", before=SHORT_HEARTBEAT_SCRIPT + before, PENSTOCK_SPARK_MASTER="local[1]"
    )


def test_run_of_dead_process_is_executed_by_next_worker(spark: Any, run_server: Callable[..., Any]) -> None:
    with run_server() as server:
        client = http_client(server.address())
        source = create_dataset(client, "a.source", "id\n1\n2\n")
        working = client("POST", "/datasets", code=201, json={"name": "a.b", "schema": NUMBERS})
        pipeline_id = create_pipeline(client, working.json()["id"], append(source))
        server.stop()
    key = {"headers": {"idempotency-key": "january"}}
    with run_server(ENDLESS_RUN_SCRIPT) as server:
        client = http_client(server.address())
        run = start_run(client, pipeline_id, **key)
        assert server.process.stdout.readline() == "begun\n"
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    with run_server() as server:
        client = http_client(server.address())
        ended = wait_for_run(client, run)
        assert ended["state"] == "succeeded", ended
        assert start_run(client, pipeline_id, code=200, **key)["id"] == run["id"]
        assert client("GET", "/datasets/a.b").json()["rows"] == 2
        server.stop()


def test_server_stop_finishes_active_runs_and_keeps_queued_ones(
    run_server: Callable[..., Any],
) -> None:
    slow_run_script = (
        "import time; from penstock import failpoints as faults; "
        "faults._armed['stage.begun'] = lambda: (print('begun', flush=True), time.sleep(0.3)) and None; "
    )
    with run_server() as server:
        client = http_client(server.address())
        empty = client("POST", "/datasets", code=201, json={"name": "a.b", "schema": NUMBERS}).json()["id"]
        pipeline_id = create_pipeline(client, empty, append(empty))
        server.stop()
    with run_server(slow_run_script) as server:
        client = http_client(server.address())
        runs = [start_run(client, pipeline_id) for _ in range(4)]
        assert server.process.stdout.readline() == "begun\n"
        server.stop()
    with run_server() as server:
        client = http_client(server.address())
        for run in runs:
            assert wait_for_run(client, run)["state"] == "succeeded"
        server.stop()


def http_client(address: str) -> RestClient:
    def send(method: str, path: str, **options: Any) -> httpx.Response:
        return httpx.request(method, f"{address}{path}", timeout=60, **options)

    return RestClient(send, None)
