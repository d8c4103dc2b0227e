"""Kill the Java process of Spark before, during and between runs: in Python, in `penstock worker` and in `penstock serve`.

Every test starts Spark in a separate process, so no other test loses its session.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

import penstock
from cli.test_worker import messages, run_worker
from conftest import skip_untested
from penstock.lake import Lake
from penstock.service.pipelines.run_worker import RunWorker
from rest.test_serve import served
from service.test_run_workers import record, tries
from support import spark_sessions
from support.cli_runner import CliRunner
from support.spark_sessions import java_children

TIMEOUT_SECONDS = 240.0  # seconds, on a busy machine
SPARK = {"PENSTOCK_SPARK_MASTER": "local[1]", "PENSTOCK_SPARK_CONF": "spark.driver.memory=512m"}
# The first Spark job of a run prints that it began, and continues when the file `go` exists.
HOLD_FIRST_JOB = (
    "import os, time; from penstock.engines.spark import append; write = append._write_files; "
    "append._write_files = lambda *args: (print('begun', flush=True), "
    "[time.sleep(0.01) for _ in iter(lambda: os.path.exists('go'), True)], write(*args))[-1]"
)

T = TypeVar("T")


@pytest.fixture
def lake(cli: CliRunner) -> Iterator[Lake]:
    if spark_sessions.java() is None:
        skip_untested("losses of Spark", "Java is not installed (apt-get install openjdk-17-jre-headless)")
    cli.env |= SPARK
    with penstock.open(cli.folder / "lake") as lake:
        lake.create("demo.rows", {"id": [1, 2, 3]})
        lake.create("demo.all", {"id": [0]})
        yield lake


def append_definition(lake: Lake) -> dict[str, Any]:
    """Return a pipeline that needs a Spark job: it appends three rows."""
    append = {"type": "append", "parameters": {"source": {"dataset_id": str(lake.dataset("demo.rows").id)}}}
    return {"name": "grow", "working": {"dataset_id": str(lake.dataset("demo.all").id)}, "operations": [append]}


def wait_until(condition: Callable[[], T], seconds: float = TIMEOUT_SECONDS) -> T:
    """Wait until a condition holds, and return its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.05)
    return value


def kill_java(parent: int) -> None:
    """Kill the Java process of a process, and wait until it is gone."""
    (java,) = java_children(parent)
    os.kill(java, signal.SIGKILL)
    wait_until(lambda: java not in java_children(parent))


# -- Python -----------------------------------------------------------------------------------------------------------


def test_pipeline_run_with_killed_java_is_executed_again(cli: CliRunner, lake: Lake) -> None:
    definition = json.dumps(append_definition(lake))
    process = subprocess.run(
        [sys.executable, "-c", LOSS_SCRIPT, definition],
        env={**cli.env, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_SECONDS,
    )
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr
    result = json.loads(process.stdout.splitlines()[-1])
    assert result["rows_after"] == [4, 7]  # killed before the run, and during it
    lost_error = result["lost"]
    assert (lost_error["kind"], lost_error["reason"], lost_error["operation_order"]) == ("Unavailable", "spark_lost", 0)
    assert "spark.driver.memory" in lost_error["message"]
    assert result["merged"] == {"inserted": 1, "updated": 0, "deleted": 0}  # with the next session
    assert result["record"]["state"] == "failed"
    assert result["record"]["error"]["error"]["code"] == "SPARK_LOST"
    assert [entry for entry in result["record"]["results"] if entry.get("success")] == []
    assert lake.dataset("demo.all").version == 4  # created, appended twice, merged
    assert list(lake._workspace.store.files("scratch")) == []


LOSS_SCRIPT = """
import json, os, signal, sys
import penstock
from penstock.engines.spark.session import get_or_start_session
from penstock.errors import Unavailable
from penstock.service.pipelines import execution, runs
from support.spark_sessions import java_children

execution.MAX_SPARK_LOSSES = 2
killed = []

def kill():
    for java in java_children(os.getpid()):
        killed.append(java)
        os.kill(java, signal.SIGKILL)


with penstock.open() as lake:
    pipeline = lake.pipeline(json.loads(sys.argv[1]))
    get_or_start_session("local[1]", {"spark.driver.memory": "512m"})
    kill()
    rows_after = [pipeline.run().results[0]["result"]["working_dataset_rows_after"]]
    from penstock.engines.spark import append
    write = append._write_files
    def killed_while_writing(*args):
        if len(killed) < goal:
            kill()
        return write(*args)
    append._write_files = killed_while_writing
    goal = 2
    rows_after.append(pipeline.run().results[0]["result"]["working_dataset_rows_after"])
    goal = 4
    try:
        pipeline.run(idempotency_key="lost")
    except Unavailable as error:
        lost = error.as_dict()
    from penstock.core import odata
    options = odata.options([("$filter", "state eq 'failed'")], runs.SEARCH_FIELDS, default_top=5, max_top=5)
    record = runs.search(lake._workspace, lake.caller, options).items[0].as_json()
    merged = lake.dataset("demo.all").merge({"id": [99]}, "id", engine="spark").stats
    print(json.dumps({"rows_after": rows_after, "lost": lost, "record": record,
        "merged": {name: merged[name] for name in ("inserted", "updated", "deleted")}}))
"""


# -- penstock worker --------------------------------------------------------------------------------------------------


def test_worker_with_killed_java_recovers_and_executes_runs(cli: CliRunner, lake: Lake) -> None:
    submitter = RunWorker(lake._workspace, takes_queued_runs=False)
    definition = lake.pipeline(append_definition(lake)).definition
    first = submitter.submit(lake.caller, definition).run.id
    with run_worker(cli, "--at-once", "1", before=HOLD_FIRST_JOB) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"begun\n"
        kill_java(process.pid)  # during the run
        Path("go").touch()
        wait_until(lambda: record(lake, first).ended_at)
        assert (record(lake, first).state, tries(lake, first)) == ("succeeded", 1)
        kill_java(process.pid)  # between runs
        for message in ("not ready: spark: ", "ready: spark"):
            while not any(line.startswith(message) for line in messages(process.stderr.readline())):
                assert process.poll() is None
        second = submitter.submit(lake.caller, definition).run.id
        wait_until(lambda: record(lake, second).ended_at)
        assert (record(lake, second).state, tries(lake, second)) == ("succeeded", 1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0
    assert lake.dataset("demo.all").version == 3


# -- penstock serve ---------------------------------------------------------------------------------------------------


def test_serve_without_working_spark_is_not_ready_and_takes_no_runs(cli: CliRunner, lake: Lake, tmp_path: Path) -> None:
    program = spark_sessions.java()
    assert program is not None
    real, home = Path(program).resolve().parents[1], tmp_path / "java-home"
    with served(cli.folder, "--dev", "--http-port", "0", "--workspace", "lake", JAVA_HOME=str(home), **SPARK) as server:
        http = httpx.Client(base_url=server.address(), timeout=60)
        lines = list[str]()
        assert server.process.stderr is not None
        reader = threading.Thread(target=lines.extend, args=[server.process.stderr])  # so that the pipe is never full
        reader.start()

        def spark_state() -> str:
            response = http.get("/readyz").json()
            assert (response.get("status") == "ready") == (response["parts"]["spark"] == "ok")
            return str(response["parts"]["spark"])

        def run_is(state: str) -> bool:
            return bool(http.get(f"/runs/{run}").json()["state"] == state)

        pipeline = http.post("/pipelines", json=append_definition(lake)).json()["id"]
        assert spark_state() == "missing_java"
        run = http.post(f"/pipelines/{pipeline}/runs").json()["id"]
        assert run_is("queued")
        home.symlink_to(real)
        wait_until(lambda: spark_state() == "ok")
        wait_until(lambda: run_is("succeeded"))

        home.unlink()
        kill_java(server.process.pid)
        assert spark_state() in ("spark_lost", "missing_java")
        wait_until(lambda: spark_state() == "missing_java")
        run = http.post(f"/pipelines/{pipeline}/runs").json()["id"]
        assert run_is("queued")
        home.symlink_to(real)
        wait_until(lambda: spark_state() == "ok")
        wait_until(lambda: run_is("succeeded"))
        http.close()
        server.process.send_signal(signal.SIGTERM)
        reader.join(TIMEOUT_SECONDS)
        assert server.process.wait(TIMEOUT_SECONDS) == 0
    log = [json.loads(line) for line in lines]
    assert [line["message"] for line in log].count("run started") == 2
    assert [line for line in log if "Traceback" in json.dumps(line)] == []
    assert lake.dataset("demo.all").version == 3
