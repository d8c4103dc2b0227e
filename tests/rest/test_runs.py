"""Runs over REST: queued, watched to their end, cancelled, and remembered however they ended."""

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
from rest.rest_client import OTHER, Client, in_process_client, token, wait_for_run
from rest.test_serve import served

ABSENT = "00000000-0000-4000-8000-000000000000"
CSV = {"content-type": "text/csv"}
TROUBLED = ("failed", "cancelled")
NUMBERS = [{"name": "id", "type": "int64"}]


def dataset(client: Client, name: str, rows: str) -> str:
    made: str = client("POST", f"/datasets?name={name}", code=201, content=rows, headers=CSV).json()["id"]
    return made


def append(source: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "append", "parameters": {"source": {"dataset_id": source}, **parameters}}


def merge(source: str) -> dict[str, Any]:
    parameters = {"source": {"dataset_id": source}, "key_columns": "id", "strategy": "upsert"}
    return {"type": "merge", "parameters": parameters}


def pipeline(client: Client, working: str, *operations: dict[str, Any], **more: Any) -> str:
    sent = {"name": f"Pipeline {uuid4()}", "working": {"dataset_id": working}, "operations": operations, **more}
    made: str = client("POST", "/pipelines", code=201, json=sent).json()["id"]
    return made


def started(client: Client, pipeline: str, code: int = 202, **options: Any) -> dict[str, Any]:
    answer = client("POST", f"/pipelines/{pipeline}/runs", code=code, **options)
    run: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/runs/{run['id']}"
    return run


@pytest.fixture
def working(client: Client) -> str:
    return dataset(client, "a.working", "id,word\n1,one\n")


@pytest.fixture
def source(client: Client) -> str:
    return dataset(client, "a.source", "id,word\n2,two\n3,three\n")


@pytest.fixture
def idle(client: Client, working: str) -> str:
    """Create a pipeline that appends nothing and does not start Spark."""
    empty = client("POST", "/datasets", code=201, json={"name": "a.empty", "schema": NUMBERS})
    return pipeline(client, working, append(empty.json()["id"]))


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """Stop every run before its first operation until the event is set."""
    go = threading.Event()
    with failpoints.armed("stage.begun", lambda: go.wait(60) and None):
        try:
            yield go
        finally:
            go.set()


# --- to the end


def test_run_reports_inputs_and_commits(spark: Any, client: Client, working: str, source: str) -> None:
    stored = pipeline(client, working, append(source), append(source, source_selector="id = 3"))
    run = started(client, stored)
    assert (run["pipeline_id"], run["author"], run["error"]) == (stored, "ada", None)
    over = wait_for_run(client, run)
    assert (over["state"], over["progress"], over["error"]) == ("succeeded", None, None)
    assert [each["result"]["rows_appended"] for each in over["results"]] == [2, 1]
    assert over["written"] == [
        {
            "dataset": working, "name": "a.working", "version": 2, "operation": "append", "rows": 4,
            "inserted": 3, "updated": 0, "deleted": 0, "first_row_id": 2,
        }
    ]  # fmt: skip
    assert {(each["name"], each["version"], each["newest"]) for each in over["reads"]} == {
        ("a.working", 1, 1),
        ("a.source", 1, 1),
    }
    assert over["created_at"] <= over["started_at"] <= over["ended_at"]
    ids = [row["id"] for row in client("GET", f"/datasets/{working}/rows").json()["value"]]
    assert sorted(ids) == [1, 2, 3, 3]


def test_run_record_keeps_pipeline_definition(client: Client, working: str, idle: str) -> None:
    before = client("GET", f"/pipelines/{idle}").json()
    run = wait_for_run(client, started(client, idle))
    client("PUT", f"/pipelines/{idle}", json={**before, "name": "Another"})
    client("DELETE", f"/pipelines/{idle}", code=204)
    snapshot = client("GET", f"/runs/{run['id']}").json()["pipeline"]
    assert snapshot == {name: before[name] for name in ("name", "working", "operations")}


def test_run_with_failing_fifth_operation_writes_nothing(spark: Any, client: Client, working: str, source: str) -> None:
    twice = dataset(client, "a.twice", "id,word\n7,x\n7,y\n")
    stored = pipeline(client, working, *[append(source)] * 4, merge(twice), append(source))
    before = client("GET", "/datasets").json()
    over = wait_for_run(client, started(client, stored))
    assert over["state"] == "failed"
    assert [each.get("success", False) for each in over["results"]] == [True] * 4 + [False]
    assert over["results"][-1] == over["error"]
    assert over["error"]["error"]["code"] == "MERGE_006"
    assert over["error"]["error"]["details"]["operation_order"] == 4
    assert (over["written"], over["commit_no"]) == ([], None)
    assert client("GET", "/datasets").json() == before


def test_run_reports_pipeline_errors(client: Client, working: str) -> None:
    over = wait_for_run(client, started(client, pipeline(client, working, append(ABSENT))))
    assert over["state"] == "failed"
    details = {"dataset_id": ABSENT, "operation_order": 0}
    assert over["error"] == {"error": {"code": "APPEND_001", "message": "Dataset not found", "details": details}}


# --- asked for


def test_start_run_accepts_no_body_or_empty_object(client: Client, idle: str) -> None:
    json = {"content-type": "application/json"}
    for sent in (
        {},
        {"json": {}},
        {"content": b"", "headers": json},
        {"content": b"", "headers": {"content-type": "a/b"}},
    ):
        started(client, idle, **sent)
    for wrong in ({"json": {"version": 1}}, {"json": []}, {"content": b"{", "headers": json}):
        client("POST", f"/pipelines/{idle}/runs", code=400, **wrong)
    client("POST", f"/pipelines/{idle}/runs", code=415, content=b"{}", headers={"content-type": "text/plain"})
    client("POST", f"/pipelines/{idle}/runs?dry=true", code=400)


def test_start_run_with_same_key_returns_same_run(client: Client, idle: str, held: threading.Event) -> None:
    key = {"headers": {"idempotency-key": "january"}}
    first, again = (started(client, idle, **key) for _ in range(2))
    assert first["id"] == again["id"]
    held.set()
    over = wait_for_run(client, first)
    assert (over["state"], over["idempotency_key"]) == ("succeeded", "january")
    assert started(client, idle, code=200, **key) == over
    other = pipeline(client, ABSENT, append(ABSENT))
    assert client("POST", f"/pipelines/{other}/runs", code=409, **key).json()["code"] == "KEY_REUSED"


def test_idempotency_key_of_failed_run_can_be_reused(client: Client) -> None:
    broken, key = pipeline(client, ABSENT, append(ABSENT)), {"headers": {"idempotency-key": "january"}}
    first = wait_for_run(client, started(client, broken, **key))
    assert first["state"] == "failed"
    assert started(client, broken, **key)["id"] != first["id"]


def test_search_runs_supports_odata_options(client: Client, idle: str) -> None:
    broken = pipeline(client, ABSENT, append(ABSENT))
    runs = {wait_for_run(client, started(client, each))["id"]: each for each in (idle, broken, broken)}
    newest = client("GET", "/runs").json()
    assert newest["@odata.context"] == "/$metadata#runs"
    assert [each["id"] for each in newest["value"]] == list(reversed(runs))
    params = {"$filter": f"state eq 'failed' and pipeline_id eq {broken}", "$count": "true", "$select": "state,error"}
    page = client("GET", "/runs", params=params, headers={"prefer": "odata.maxpagesize=1"}).json()
    assert page["@odata.count"] == 2
    assert [each["state"] for each in page["value"]] == ["failed"]
    assert len(client("GET", page["@odata.nextLink"]).json()["value"]) == 1
    assert client("GET", f"/runs?$filter=pipeline_id eq {idle}").json()["value"][0]["state"] == "succeeded"
    assert client("GET", "/runs?$filter=results eq 1", code=400).json()["code"] == "UNKNOWN_FIELD"


def test_unknown_run_returns_404(client: Client, idle: str) -> None:
    run, other_tenant = started(client, idle)["id"], client.as_(tenant=OTHER)
    for method, tail in (("GET", ""), ("POST", "/cancel")):
        theirs, none = (other_tenant(method, f"/runs/{id}{tail}", code=404).text for id in (run, ABSENT))
        assert theirs.replace(run, ABSENT) == none
        assert other_tenant(method, f"/runs/none{tail}", code=404).json()["code"] == "RUN_NOT_FOUND"
    assert other_tenant("GET", "/runs").json()["value"] == []


# --- cancelled, and too many


@pytest.fixture
def narrow(edge: RestContext) -> Iterator[Callable[[RunLimits], Client]]:
    """Clients of a service that has little room for runs."""
    made = list[RunWorker]()

    def client(bounds: RunLimits) -> Client:
        made.append(RunWorker(edge.workspace, bounds))
        return in_process_client(create_app(replace(edge, run_worker=made[-1])), token())

    yield client
    for runner in made:
        runner.close()


def under_way(client: Client, run: dict[str, Any]) -> None:
    while client("GET", f"/runs/{run['id']}").json()["state"] != "running":
        pass


def test_cancel_run_when_queued_or_running(
    narrow: Callable[[RunLimits], Client], idle: str, working: str, held: threading.Event
) -> None:
    client = narrow(RunLimits(max_concurrent=1))
    running = started(client, idle)
    under_way(client, running)
    queued = started(client, idle)
    assert client.as_(Role.VIEWER)("POST", f"/runs/{queued['id']}/cancel", code=403).json()["required_role"]
    canceled = client("POST", f"/runs/{queued['id']}/cancel", code=202).json()
    assert (canceled["state"], canceled["started_at"]) == ("cancelled", None)
    response = client("POST", f"/runs/{running['id']}/cancel", code=202, json={})
    assert (response.json()["state"], response.json()["cancelling"], response.headers["retry-after"]) == (
        "running",
        True,
        "1",
    )
    held.set()
    over = wait_for_run(client, running)
    assert (over["state"], over["error"]["error"]["code"]) == ("cancelled", "RUN_CANCELLED")
    assert client("POST", f"/runs/{running['id']}/cancel").json() == over
    assert client("GET", f"/datasets/{working}").json()["version"] == 1


def test_full_run_queue_rejects_runs_until_one_ends(
    narrow: Callable[[RunLimits], Client], idle: str, held: threading.Event
) -> None:
    client = narrow(RunLimits(max_concurrent=1, max_queued=2, max_queued_per_tenant=1))
    first = started(client, idle)
    under_way(client, first)
    waiting = started(client, idle)
    full = client("POST", f"/pipelines/{idle}/runs", code=503)
    assert (full.json()["code"], full.headers["retry-after"]) == ("TOO_MANY_RUNS", "1")
    client("POST", f"/runs/{waiting['id']}/cancel", code=202)
    last = started(client, idle)
    held.set()
    assert [wait_for_run(client, run)["state"] for run in (first, waiting, last)] == [
        "succeeded",
        "cancelled",
        "succeeded",
    ]


def test_metrics_count_runs(narrow: Callable[[RunLimits], Client], idle: str, held: threading.Event) -> None:
    client = narrow(RunLimits(max_concurrent=1))
    assert 'penstock_runs_total{state="failed"} 0.0' in client("GET", "/metrics").text
    runs = [started(client, idle)]
    under_way(client, runs[0])
    runs += [started(client, idle), started(client, pipeline(client, ABSENT, append(ABSENT)))]
    assert measured(client) == {"queued": 2, "running": 1, "seconds_count": 0}
    client("POST", f"/runs/{runs[1]['id']}/cancel", code=202)
    assert measured(client) == {"queued": 1, "running": 1, "seconds_count": 1, "cancelled": 1}
    held.set()
    for run in runs:
        wait_for_run(client, run)
    while measured(client)["running"]:
        pass
    assert measured(client) == {
        "queued": 0, "running": 0, "seconds_count": 3, "succeeded": 1, "failed": 1, "cancelled": 1,
    }  # fmt: skip


def measured(client: Client) -> dict[str, float]:
    """Return the metrics of runs that are not 0, and all gauges."""
    found = re.findall(
        r'^penstock_runs?_(?:total\{state=")?([a-z_]+)(?:"\})? ([0-9.]+)$', client("GET", "/metrics").text, re.M
    )
    samples = {name: float(value) for name, value in found if not name.endswith(("created", "sum"))}
    return {name: value for name, value in samples.items() if value or name not in ("succeeded", *TROUBLED)}


def test_closed_run_worker_leaves_queued_runs(edge: RestContext, idle: str, held: threading.Event) -> None:
    runner = RunWorker(edge.workspace, RunLimits(max_concurrent=1))
    client = in_process_client(create_app(replace(edge, run_worker=runner)), token())
    runs = [started(client, idle) for _ in range(2)]
    under_way(client, runs[0])
    closing = threading.Thread(target=runner.close)
    closing.start()
    while not all(attempt.stop for attempt in list(runner._attempts)):
        pass
    assert client("POST", f"/pipelines/{idle}/runs", code=503).json()["code"] == "SERVICE_STOPPED"
    held.set()
    closing.join()
    for run in runs:
        assert client("GET", f"/runs/{run['id']}").json()["state"] == "queued"
    edge.run_worker.start()
    for run in runs:
        assert wait_for_run(client, run)["state"] == "succeeded"


# --- through the end of the process

QUICK = (  # a run whose process shows no sign of life is given up soon
    "from datetime import timedelta; from penstock.service.pipelines import run_worker, runs; "
    "runs.STALE_AFTER, run_worker._HEARTBEAT_SECONDS = timedelta(seconds=6), 0.2; "
)
STUCK = (  # a run that says that it began, and does not end
    "import time; from penstock import failpoints as faults; "
    "faults._armed['stage.begun'] = lambda: (print('begun', flush=True), time.sleep(600)) and None; "
)


@pytest.fixture
def serving(tmp_path: Path) -> Callable[..., Any]:
    return lambda before="": served(
        tmp_path, "--dev", "--http-port", "0", before=QUICK + before, PENSTOCK_SPARK_MASTER="local[1]"
    )


def test_run_of_dead_process_is_executed_by_next_worker(spark: Any, serving: Callable[..., Any]) -> None:
    with serving() as server:
        client = over_the_wire(server.address())
        source = dataset(client, "a.source", "id\n1\n2\n")
        working = client("POST", "/datasets", code=201, json={"name": "a.b", "schema": NUMBERS})
        stored = pipeline(client, working.json()["id"], append(source))
        server.stop()
    key = {"headers": {"idempotency-key": "january"}}
    with serving(STUCK) as server:
        client = over_the_wire(server.address())
        run = started(client, stored, **key)
        assert server.process.stdout.readline() == "begun\n"
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    with serving() as server:
        client = over_the_wire(server.address())
        over = wait_for_run(client, run)
        assert over["state"] == "succeeded", over
        assert started(client, stored, code=200, **key)["id"] == run["id"]
        assert client("GET", "/datasets/a.b").json()["rows"] == 2
        server.stop()


def test_server_stop_finishes_active_runs_and_keeps_queued_ones(
    serving: Callable[..., Any],
) -> None:
    slow = (
        "import time; from penstock import failpoints as faults; "
        "faults._armed['stage.begun'] = lambda: (print('begun', flush=True), time.sleep(0.3)) and None; "
    )
    with serving() as server:
        client = over_the_wire(server.address())
        empty = client("POST", "/datasets", code=201, json={"name": "a.b", "schema": NUMBERS}).json()["id"]
        stored = pipeline(client, empty, append(empty))
        server.stop()
    with serving(slow) as server:
        client = over_the_wire(server.address())
        runs = [started(client, stored) for _ in range(4)]
        assert server.process.stdout.readline() == "begun\n"
        server.stop()
    with serving() as server:
        client = over_the_wire(server.address())
        for run in runs:
            assert wait_for_run(client, run)["state"] == "succeeded"
        server.stop()


def over_the_wire(address: str) -> Client:
    def send(method: str, path: str, **options: Any) -> httpx.Response:
        return httpx.request(method, f"{address}{path}", timeout=60, **options)

    return Client(send, None)
