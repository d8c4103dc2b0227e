"""`penstock worker` and `serve --no-runs` in separate processes."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import penstock
from penstock.lake import Lake
from penstock.service.pipelines.run_worker import RunWorker
from rest.test_serve import served
from service.test_run_workers import copy_definition, copy_pipeline, record, tries
from support.cli_runner import CliRunner

DRAIN_SETTING = "PENSTOCK_HTTP_DRAIN_SECONDS"
# A run prints that it began, and continues when the file `go` exists.
HOLD_AT_STAGE = (
    "import os, time; from penstock import failpoints as faults; "
    "faults._armed['stage.begun'] = lambda: (print('begun', flush=True), "
    "[time.sleep(0.01) for _ in iter(lambda: os.path.exists('go'), True)]) and None"
)


@pytest.fixture
def lake(cli: CliRunner) -> Iterator[Lake]:
    with penstock.open(cli.folder / "lake") as lake:
        lake.create("demo.rows", {"id": [1, 2, 3]})
        lake.create("demo.none", schema=lake.dataset("demo.rows").schema)
        yield lake


def submit_runs(lake: Lake, *names: str) -> list[Any]:
    submitter = RunWorker(lake._workspace, takes_queued_runs=False)
    return [submitter.submit(lake.caller, copy_pipeline(lake, name)).run.id for name in names]


@contextmanager
def run_worker(cli: CliRunner, *options: str, before: str = "") -> Iterator[subprocess.Popen[bytes]]:
    process = cli.process("worker", *options, before=before)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def messages(err: bytes) -> list[str]:
    return [json.loads(line)["message"] for line in err.splitlines() if line.startswith(b"{")]


def test_worker_once_executes_queued_runs_and_exits(cli: CliRunner, lake: Lake) -> None:
    runs = submit_runs(lake, "demo.one", "demo.two", "demo.three")
    lake.create("demo.fixed", {"id": [1]}, read_only=True)
    runs += submit_runs(lake, "demo.fixed")
    result = cli.run_subprocess("worker", "--once", "--json")
    assert result.code == 0, result
    assert result.json == {"succeeded": 3, "failed": 1, "cancelled": 0}
    assert [record(lake, run).state for run in runs] == ["succeeded"] * 3 + ["failed"]
    message = messages(result.err.encode())
    assert (message[0], message[-1], message.count("run started")) == ("waiting for runs", "stopped", 4)
    assert cli.run_subprocess("worker", "--once", "--json").json == {"succeeded": 0, "failed": 0, "cancelled": 0}


def test_worker_once_maintain_compacts_and_exits(cli: CliRunner, lake: Lake) -> None:
    cli.env["PENSTOCK_MAINTAIN_SMALL_FILES"] = "3"
    ds = lake.dataset("demo.rows")
    for number in (4, 5):
        ds.append({"id": [number]})
    result = cli.run_subprocess("worker", "--once", "--maintain", "--json")
    assert result.code == 0, result
    assert result.json["compaction"] == {"steps": 1, "lost_steps": 0}
    assert [(version.operation, version.author) for version in ds.history(1)] == [("compact", "maintenance")]
    assert "step of a compaction committed" in messages(result.err.encode())


def test_worker_maintain_serves_metrics_until_a_signal(cli: CliRunner, lake: Lake) -> None:
    cli.env["PENSTOCK_MAINTAIN_SMALL_FILES"] = "2"
    lake.dataset("demo.rows").append({"id": [4]})
    with run_worker(cli, "--maintain", "--metrics-port", "0") as process:
        assert process.stderr is not None
        port = json.loads(process.stderr.readline())["metrics_port"]
        while b"step of a compaction committed" not in process.stderr.readline():
            pass
        body = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert 'penstock_compaction_steps_total{outcome="committed"} 1.0' in body
    assert "penstock_compaction_rows_total 4.0" in body
    assert 'penstock_runs_total{state="failed"} 0.0' in body


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_worker_stopped_by_a_signal_requeues_unfinished_runs(cli: CliRunner, lake: Lake, number: int) -> None:
    cli.env[DRAIN_SETTING] = "1"
    first, second = submit_runs(lake, "demo.one", "demo.two")
    with run_worker(cli, "--at-once", "1", before=HOLD_AT_STAGE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(number)
        while b"stopping active runs" not in process.stderr.readline():
            pass
        Path("go").touch()
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0
    assert messages(err)[-2:] == ["run left to another worker", "stopped"]
    assert [record(lake, run).state for run in (first, second)] == ["queued", "queued"]
    assert cli.run_subprocess("worker", "--once", "--json").json["succeeded"] == 2
    assert (tries(lake, first), tries(lake, second)) == (2, 1)
    assert {lake.dataset(name).version for name in ("demo.one", "demo.two")} == {1}


def test_worker_that_cannot_stop_is_aborted(cli: CliRunner, lake: Lake) -> None:
    cli.env[DRAIN_SETTING] = "1"
    (run,) = submit_runs(lake, "demo.one")
    short_timeout = "import sys; sys.modules['penstock.cli.worker']._REQUEUE_SECONDS = 0.1; "
    with run_worker(cli, before=short_timeout + HOLD_AT_STAGE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
    assert messages(err)[-1] == "active runs are aborted"
    assert record(lake, run).state == "running"
    assert "demo.one" not in [dataset.name for dataset in lake.datasets()]


def test_serve_no_runs_leaves_runs_to_workers(cli: CliRunner, lake: Lake) -> None:
    with served(cli.folder, "--dev", "--http-port", "0", "--no-runs", "--workspace", "lake") as server:
        address = server.address()
        definition = copy_definition(lake)
        stored = httpx.post(f"{address}/pipelines", json=definition).json()["id"]
        run = httpx.post(f"{address}/pipelines/{stored}/runs").json()["id"]
        operation = definition["operations"][0]
        with run_worker(cli) as process:
            response = httpx.post(f"{address}/datasets/demo.rows/operations", json=operation, timeout=60)
            assert (response.status_code, response.json()["result"]["rows_appended"]) == (200, 0)
            unknown = {"source": {"dataset_id": "00000000-0000-4000-8000-000000000000"}}
            wrong = {"type": "append", "parameters": unknown}
            error_response = httpx.post(f"{address}/datasets/demo.rows/operations", json=wrong, timeout=60)
            assert (error_response.status_code, error_response.json()["error"]["code"]) == (404, "APPEND_001")
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
        assert messages(err).count("run ended") == 3
        assert httpx.get(f"{address}/runs/{run}").json()["state"] == "succeeded"
        log = server.stop()
    assert not [line for line in log if line["message"] == "run started"]
