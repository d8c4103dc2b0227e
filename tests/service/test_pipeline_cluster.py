"""Pipelines on a real Spark cluster: results equal those of local mode, also when workers die."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import penstock
from penstock.config import Settings
from penstock.core.progress import Progress
from penstock.lake import Dataset, Lake
from support import spark_sessions

pytestmark = pytest.mark.usefixtures("spark")

FILE_BYTES, GROUP_ROWS = 8 << 10, 500  # many small files, so that there are many tasks
ACCOUNTS = 7
SOURCE = pa.schema([("id", pa.int64()), ("account", pa.string()), ("amount", pa.decimal128(14, 2))])
WORKING = SOURCE.append(pa.field("lines", pa.int64()))
TOTALS = {
    "group_by": ["account"],
    "aggregations": [
        {"column": "id", "expression": "MIN_AGG(id)"},
        {"column": "amount", "expression": "SUM(amount)"},
        {"column": "lines", "expression": "COUNT(*)"},
    ],
}
WORKER, EXECUTOR = b"org.apache.spark.deploy.worker.Worker", b"CoarseGrainedExecutorBackend"
TIMEOUT_SECONDS = 300.0  # seconds until a driver is killed


def test_pipeline_on_cluster_matches_local_mode(spark_cluster: spark_sessions.Cluster, tmp_path: Path) -> None:
    lines, corrections = sample_rows(5_000), sample_rows(600, start=4_700, prime=6007)
    with opened(tmp_path) as lake:
        budget, new_lines = lake.create("demo.budget", lines), lake.create("demo.news", corrections)
        operations = [
            append(budget),
            append(new_lines, source_selector="account IN ('a1', 'a2') AND amount > 500 AND id >= 5000"),
            merge(new_lines),
            append(budget, aggregation=TOTALS),
        ]
        local, remote = lake.create("demo.local", schema=WORKING), lake.create("demo.remote", schema=WORKING)
        expected = lake.pipeline(pipeline(local, operations)).run().as_json()
        file, name = tmp_path / "pipeline.json", f"penstock {uuid4()}"
        file.write_text(json.dumps(pipeline(remote, operations)))
        completed = subprocess.run(
            [sys.executable, "-c", "from penstock.cli import main; main()", "run", file, "--json"],
            env=environment(spark_cluster, tmp_path, {"spark.app.name": name}),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        assert (completed.returncode, completed.stderr) == (0, "")
        response = json.loads(completed.stdout)
        assert name in applications(spark_cluster)

        filtered = [
            row
            for row in corrections.to_pylist()
            if row["account"] in ("a1", "a2") and row["amount"] > 500 and row["id"] >= 5_000
        ]
        counts = [
            (result["result"].get("rows_appended"), result["result"].get("inserted")) for result in response["results"]
        ]
        assert counts == [(5_000, None), (len(filtered), None), (None, 300 - len(filtered)), (ACCOUNTS, None)]
        assert response["results"][2]["result"]["updated"] == 300 + len(filtered)
        assert without_times(response["results"]) == without_times(expected["results"])
        assert (response["state"], remote.version) == (expected["state"], local.version) == ("succeeded", 2)
        assert remote.num_rows == 5_000 + 300 + ACCOUNTS
        assert rows(remote) == rows(local)


def test_pipeline_survives_loss_of_worker_and_executors(tmp_path: Path) -> None:
    with opened(tmp_path) as lake:
        budget = lake.create("demo.budget", sample_rows(120_000))
        operations = [append(budget), append(budget, aggregation=TOTALS)]
        local, remote = lake.create("demo.local", schema=WORKING), lake.create("demo.remote", schema=WORKING)
        expected = lake.pipeline(pipeline(local, operations)).run()
        with spark_sessions.cluster() as cluster, driver(cluster, tmp_path, pipeline(remote, operations)) as running:
            # Kill a worker with its executors while files are written, and the last executor while rows are grouped.
            kills = {0: lambda: kill_worker(cluster), 1: lambda: kill_executors(cluster)}
            events: list[dict[str, Any]] = []
            kills_by_operation: dict[int, int] = {}  # operation → number of events before the kill
            assert running.stdout is not None
            for line in running.stdout:
                events.append(json.loads(line))
                number = events[-1].get("operation")
                if number in kills and number not in kills_by_operation and during_operation(events[-1]):
                    kills[number]()
                    kills_by_operation[number] = len(events)
            _, stderr = running.communicate()
            assert (running.returncode, stderr) == (0, "")
            assert cluster.alive() == spark_sessions.WORKERS - 1

        assert list(kills_by_operation) == [0, 1]
        for number, index in kills_by_operation.items():
            before = set(events[index - 1]["executors"])
            assert len(before) == spark_sessions.WORKERS - number + 1  # the driver is an executor in this list
            assert any(
                event["operation"] == number and before - set(event["executors"]) and remaining_tasks(event)
                for event in events[index:-1]
            ), f"operation {number} ended before it lost an executor"
        assert without_times(events[-1]["results"]) == without_times(expected.results)
        assert (remote.version, remote.num_rows) == (local.version, local.num_rows) == (2, 120_000 + ACCOUNTS)
        assert rows(remote) == rows(local)


def sample_rows(count: int, start: int = 0, prime: int = 7919) -> pa.Table:
    """Return rows with pseudo-random, reproducible values."""
    ids = range(start, start + count)
    amounts = [Decimal(i * prime % 100_003) / 100 for i in ids]
    accounts = [f"a{i * 31 % 97 % ACCOUNTS}" for i in ids]
    return pa.table([pa.array(ids, pa.int64()), accounts, pa.array(amounts, SOURCE.field("amount").type)], SOURCE)


def append(source: Dataset, **parameters: Any) -> dict[str, Any]:
    return {"type": "append", "parameters": {"source": {"dataset_id": str(source.id)}, **parameters}}


def merge(source: Dataset) -> dict[str, Any]:
    parameters = {"source": {"dataset_id": str(source.id)}, "key_columns": ["id"], "strategy": "upsert"}
    return {"type": "merge", "parameters": parameters}


def pipeline(working: Dataset, operations: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": "cluster", "working": {"dataset_id": str(working.id)}, "operations": operations}


def without_times(results: Any) -> list[dict[str, Any]]:
    """Return the responses of operations without their times."""
    return [{**result, "result": {**result["result"], "execution_time_ms": 0}} for result in results]


def rows(dataset: Dataset) -> pa.Table:
    return dataset.to_arrow().sort_by([(name, "ascending") for name in WORKING.names]).combine_chunks()


def opened(folder: Path) -> Lake:
    settings = Settings(workspace=folder / "lake", durable=False, file_bytes=FILE_BYTES, group_rows=GROUP_ROWS)
    return penstock.open(settings=settings, create=True)


def environment(cluster: spark_sessions.Cluster, folder: Path, extra: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a pipeline run on a cluster."""
    conf = cluster.conf() | (extra or {})
    return {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "PENSTOCK_WORKSPACE": str(folder / "lake"),
        "PENSTOCK_DURABLE": "no",
        "PENSTOCK_FILE_BYTES": str(FILE_BYTES),
        "PENSTOCK_GROUP_ROWS": str(GROUP_ROWS),
        "PENSTOCK_SPARK_MASTER": cluster.master,
        "PENSTOCK_SPARK_CONF": "; ".join(f"{name}={value}" for name, value in conf.items()),
    }


def applications(cluster: spark_sessions.Cluster) -> set[str]:
    """Return the names of all applications of the master."""
    with urllib.request.urlopen(f"{cluster.url}/json/", timeout=10) as http_response:
        response = json.load(http_response)
    return {application["name"] for application in response["activeapps"] + response["completedapps"]}


def during_operation(response: dict[str, Any]) -> bool:
    return bool(response["tasks_done"] and remaining_tasks(response) > response["tasks"] / 3)


def remaining_tasks(response: dict[str, Any]) -> int:
    return int(response["tasks"] - response["tasks_done"])


def kill_worker(cluster: spark_sessions.Cluster) -> None:
    """Kill one worker and its executor, which would otherwise exit in order."""
    worker, *_ = workers(cluster)
    for pid in (worker, *(child for child, parent, line in processes() if parent == worker and EXECUTOR in line)):
        os.kill(pid, signal.SIGKILL)


def kill_executors(cluster: spark_sessions.Cluster) -> None:
    running = workers(cluster)
    for pid in [child for child, parent, line in processes() if parent in running and EXECUTOR in line]:
        os.kill(pid, signal.SIGKILL)


def workers(cluster: spark_sessions.Cluster) -> list[int]:
    return [pid for pid, _, line in processes() if WORKER in line and cluster.master.encode() in line]


def processes() -> Iterator[tuple[int, int, bytes]]:
    """Yield pid, parent pid and command line of each process."""
    for index in Path("/proc").glob("[0-9]*"):
        try:
            status, line = (index / "stat").read_bytes(), (index / "cmdline").read_bytes()
        except OSError:  # the process has just ended
            continue
        yield int(index.name), int(status.rpartition(b")")[2].split()[1]), line


@contextmanager
def driver(
    cluster: spark_sessions.Cluster, folder: Path, definition: dict[str, Any]
) -> Iterator["subprocess.Popen[str]"]:
    """Start a process that runs a pipeline and prints its progress by line, and its responses in the last line."""
    command = [sys.executable, __file__, json.dumps(definition)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(cluster, folder), stdout=pipe, stderr=pipe, text=True) as process:
        watchdog = threading.Timer(TIMEOUT_SECONDS, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def main(definition: str) -> None:
    from pyspark import SparkContext

    def print_event(progress: Progress) -> None:
        context = SparkContext._active_spark_context
        executors = context.statusTracker().getExecutorInfos() if context else []
        event = {"operation": progress.operation, "tasks": progress.tasks, "tasks_done": progress.tasks_done}
        print(
            json.dumps({**event, "executors": [f"{executor.host}:{executor.port}" for executor in executors]}),
            flush=True,
        )

    with penstock.open() as lake:
        run = lake.pipeline(json.loads(definition)).run(progress=print_event)
    print(json.dumps({"results": list(run.results)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
