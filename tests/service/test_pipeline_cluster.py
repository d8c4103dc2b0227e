"""Pipelines on a real cluster: the rows and answers are those of Spark in this process, whoever dies on the way."""

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
import spark_sessions as spark
from penstock.config import Settings
from penstock.core.pipeline.run import Progress
from penstock.lake import Dataset, Lake

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
PATIENCE = 300.0  # seconds, for a driver that never ends


def test_two_workers_answer_as_one_process_does(spark_cluster: spark.Cluster, tmp_path: Path) -> None:
    lines, fixes = drawn(5_000), drawn(600, start=4_700, prime=6007)
    with opened(tmp_path) as lake:
        budget, news = lake.create("demo.budget", lines), lake.create("demo.news", fixes)
        operations = [
            append(budget),
            append(news, source_selector="account IN ('a1', 'a2') AND amount > 500 AND id >= 5000"),
            merge(news),
            append(budget, aggregation=TOTALS),
        ]
        here, there = lake.create("demo.here", schema=WORKING), lake.create("demo.there", schema=WORKING)
        expected = lake.pipeline(pipeline(here, operations)).run().as_json()
        file, name = tmp_path / "pipeline.json", f"penstock {uuid4()}"
        file.write_text(json.dumps(pipeline(there, operations)))
        done = subprocess.run(
            [sys.executable, "-c", "from penstock.cli import main; main()", "run", file, "--json"],
            env=environment(spark_cluster, tmp_path, {"spark.app.name": name}),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert (done.returncode, done.stderr) == (0, "")
        told = json.loads(done.stdout)
        assert name in applications(spark_cluster)

        filtered = [
            row
            for row in fixes.to_pylist()
            if row["account"] in ("a1", "a2") and row["amount"] > 500 and row["id"] >= 5_000
        ]
        counts = [(each["result"].get("rows_appended"), each["result"].get("inserted")) for each in told["results"]]
        assert counts == [(5_000, None), (len(filtered), None), (None, 300 - len(filtered)), (ACCOUNTS, None)]
        assert told["results"][2]["result"]["updated"] == 300 + len(filtered)
        assert answers(told["results"]) == answers(expected["results"])
        assert (told["state"], there.version) == (expected["state"], here.version) == ("succeeded", 2)
        assert there.num_rows == 5_000 + 300 + ACCOUNTS
        assert rows(there) == rows(here)


def test_who_dies_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as lake:
        budget = lake.create("demo.budget", drawn(120_000))
        operations = [append(budget), append(budget, aggregation=TOTALS)]
        here, there = lake.create("demo.here", schema=WORKING), lake.create("demo.there", schema=WORKING)
        expected = lake.pipeline(pipeline(here, operations)).run()
        with spark.cluster() as cluster, driver(cluster, tmp_path, pipeline(there, operations)) as running:
            # While files are written, a worker with all that it runs; while rows are grouped, the only executor left.
            blows = {0: lambda: kill_worker(cluster), 1: lambda: kill_executors(cluster)}
            heard: list[dict[str, Any]] = []
            struck: dict[int, int] = {}  # operation → how much was heard before
            assert running.stdout is not None
            for line in running.stdout:
                heard.append(json.loads(line))
                number = heard[-1].get("operation")
                if number in blows and number not in struck and in_the_middle(heard[-1]):
                    blows[number]()
                    struck[number] = len(heard)
            _, said = running.communicate()
            assert (running.returncode, said) == (0, "")
            assert cluster.alive() == spark.WORKERS - 1

        assert list(struck) == [0, 1]
        for number, place in struck.items():
            before = set(heard[place - 1]["executors"])
            assert len(before) == spark.WORKERS - number + 1  # the driver is one of them
            assert any(
                each["operation"] == number and before - set(each["executors"]) and left(each)
                for each in heard[place:-1]
            ), f"operation {number} was over before it had lost anybody"
        assert answers(heard[-1]["results"]) == answers(expected.results)
        assert (there.version, there.num_rows) == (here.version, here.num_rows) == (2, 120_000 + ACCOUNTS)
        assert rows(there) == rows(here)


def drawn(count: int, start: int = 0, prime: int = 7919) -> pa.Table:
    """Rows that look drawn by lot, and are the same again."""
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


def answers(results: Any) -> list[dict[str, Any]]:
    """What operations answered, times aside."""
    return [{**each, "result": {**each["result"], "execution_time_ms": 0}} for each in results]


def rows(dataset: Dataset) -> pa.Table:
    return dataset.to_arrow().sort_by([(name, "ascending") for name in WORKING.names]).combine_chunks()


def opened(folder: Path) -> Lake:
    settings = Settings(workspace=folder / "lake", durable=False, file_bytes=FILE_BYTES, group_rows=GROUP_ROWS)
    return penstock.open(settings=settings, create=True)


def environment(cluster: spark.Cluster, folder: Path, more: dict[str, str] | None = None) -> dict[str, str]:
    """All that makes a pipeline run on a cluster."""
    conf = cluster.conf() | (more or {})
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


def applications(cluster: spark.Cluster) -> set[str]:
    """The names of all that the master has ever served."""
    with urllib.request.urlopen(f"{cluster.page}/json/", timeout=10) as answer:
        told = json.load(answer)
    return {each["name"] for each in told["activeapps"] + told["completedapps"]}


def in_the_middle(told: dict[str, Any]) -> bool:
    return bool(told["tasks_done"] and left(told) > told["tasks"] / 3)


def left(told: dict[str, Any]) -> int:
    return int(told["tasks"] - told["tasks_done"])


def kill_worker(cluster: spark.Cluster) -> None:
    """One worker, and its executor, which would see that it is gone and end in order."""
    worker, *_ = workers(cluster)
    for pid in (worker, *(child for child, parent, line in processes() if parent == worker and EXECUTOR in line)):
        os.kill(pid, signal.SIGKILL)


def kill_executors(cluster: spark.Cluster) -> None:
    living = workers(cluster)
    for pid in [child for child, parent, line in processes() if parent in living and EXECUTOR in line]:
        os.kill(pid, signal.SIGKILL)


def workers(cluster: spark.Cluster) -> list[int]:
    return [pid for pid, _, line in processes() if WORKER in line and cluster.master.encode() in line]


def processes() -> Iterator[tuple[int, int, bytes]]:
    """Number, parent's number and command line."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            status, line = (place / "stat").read_bytes(), (place / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        yield int(place.name), int(status.rpartition(b")")[2].split()[1]), line


@contextmanager
def driver(cluster: spark.Cluster, folder: Path, definition: dict[str, Any]) -> Iterator["subprocess.Popen[str]"]:
    """A process that runs a pipeline and prints how far it is, line by line, and in the last line its answers."""
    command = [sys.executable, __file__, json.dumps(definition)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(cluster, folder), stdout=pipe, stderr=pipe, text=True) as process:
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def main(definition: str) -> None:
    from pyspark import SparkContext

    def tell(progress: Progress) -> None:
        context = SparkContext._active_spark_context
        known = context.statusTracker().getExecutorInfos() if context else []
        told = {"operation": progress.operation, "tasks": progress.tasks, "tasks_done": progress.tasks_done}
        print(json.dumps({**told, "executors": [f"{each.host}:{each.port}" for each in known]}), flush=True)

    with penstock.open() as lake:
        run = lake.pipeline(json.loads(definition)).run(progress=tell)
    print(json.dumps({"results": list(run.results)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
