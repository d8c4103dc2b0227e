"""Test progress, cancellation and scheduling of Spark jobs, and the start and stop of sessions."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.core import merge
from penstock.core.progress import WAITING_FOR_WORKERS, Progress
from penstock.errors import Unavailable

MAX_REPORTS = 120  # about a minute of reports; then the test fails


class StopJob(Exception):
    pass


def run_for_hours(spark: Any) -> Any:
    """Run a job that takes hours, in many short tasks."""
    return spark.range(0, 10**13, 1, 200_000).selectExpr("sum(id % 7)").collect()


def active_jobs(context: Any) -> list[int]:
    return list(context.statusTracker().getActiveJobsIds())


def test_run_job_reports_progress(spark: Any) -> None:
    from penstock.engines.spark import jobs

    reports: list[Progress] = []

    def watch(job: Progress) -> None:
        reports.append(job)
        if job.tasks_done or len(reports) > MAX_REPORTS:
            raise StopJob

    with pytest.raises(StopJob):
        jobs.run_job(spark.sparkContext, "count for hours", lambda: run_for_hours(spark), watch)
    last = reports[-1]
    assert last.tasks in (200_000, 200_001)  # the last stage is reported when it is planned
    assert 0 < last.tasks_done < last.tasks
    assert last.stages_done == 0


def test_run_job_callback_error_cancels_only_its_jobs(spark: Any) -> None:
    from penstock.engines.spark import jobs

    def give_up(_job: Progress) -> None:
        raise StopJob

    with pytest.raises(StopJob):
        jobs.run_job(spark.sparkContext, "count for hours", lambda: run_for_hours(spark), give_up)
    assert active_jobs(spark.sparkContext) == []
    assert jobs.run_job(spark.sparkContext, "count", lambda: spark.range(10).count()) == 10


def test_spark_engine_open_callback_error_cancels_reading(spark: Any, tmp_path: Path) -> None:
    from penstock.engines.spark.merge import SparkEngine

    def give_up(_job: Progress) -> None:
        raise StopJob

    nothing_for_hours = spark.range(0, 10**13, 1, 200_000).filter("id % 7 = 8")
    plan = merge.plan_merge(pa.schema([("id", pa.int64())]), None, "id")
    with pytest.raises(StopJob):
        SparkEngine(str(tmp_path), spark=spark, on_job=give_up).open(plan, nothing_for_hours)
    assert active_jobs(spark.sparkContext) == []
    assert list(tmp_path.iterdir()) == []


def test_merge_callback_error_cancels_the_spark_job(spark: Any, tmp_path: Path) -> None:
    reports: list[tuple[str, int, int]] = []

    def give_up(phase: str, done: int, total: int) -> None:
        reports.append((phase, done, total))
        if len(reports) > 1:  # the first report precedes the job
            raise StopJob

    nothing_for_hours = spark.range(0, 10**13, 1, 200_000).filter("id % 7 = 8")
    with pytest.raises(StopJob):
        penstock.merge_parquet_dataset_spark(nothing_for_hours, tmp_path / "data", "id", progress_callback=give_up)
    assert reports == [("read", 0, 1)] * 2
    assert active_jobs(spark.sparkContext) == []
    assert list(tmp_path.iterdir()) == []


def test_run_job_short_job_runs_beside_a_long_one(spark: Any) -> None:
    from penstock.engines.spark import jobs

    done, is_running = threading.Event(), list[bool]()
    counted: list[int] = []

    def short() -> None:
        counted.append(jobs.run_job(spark.sparkContext, "count", lambda: spark.range(0, 100, 1, 4).count()))
        done.set()

    other = threading.Thread(target=short)

    def watch(job: Progress) -> None:
        is_running.append(done.is_set())
        if job.tasks_done and other.ident is None:
            other.start()
        if done.is_set() or len(is_running) > MAX_REPORTS:
            raise StopJob

    with pytest.raises(StopJob):
        jobs.run_job(spark.sparkContext, "count for hours", lambda: run_for_hours(spark), watch)
    other.join()
    assert is_running[-1], "the short job started when the long one was stopped"
    assert counted == [100]


def test_run_job_sets_description_and_reuses_pools(spark: Any) -> None:
    from penstock.engines.spark import jobs

    context = spark.sparkContext
    description = jobs.run_job(context, "a purpose", lambda: context.getLocalProperty("spark.job.description"))
    assert description == "a purpose"
    pools = {jobs.run_job(context, "", lambda: context.getLocalProperty("spark.scheduler.pool")) for _ in range(3)}
    assert len(pools) == 1  # Spark keeps every pool that it ever saw


def test_run_job_spark_error_is_raised_and_not_logged(spark: Any, capfd: pytest.CaptureFixture[str]) -> None:
    from penstock.engines.spark import jobs

    with pytest.raises(Unavailable) as error:
        jobs.run_job(spark.sparkContext, "fail", lambda: spark.range(3).selectExpr("raise_error('no luck')").collect())
    assert error.value.reason == "spark_failed"
    assert "no luck" in error.value.message
    assert capfd.readouterr() == ("", "")


@pytest.mark.cluster
def test_run_job_on_a_master_without_workers_reports_that_it_waits() -> None:
    from support import spark_sessions

    with spark_sessions.cluster(workers=0) as cluster:
        environment = {"TEST_MASTER": cluster.master, "TEST_CONF": json.dumps(cluster.conf())}
        reports = run_in_subprocess(WAIT_SCRIPT, environment)
    assert reports[-1]["phase"] == WAITING_FOR_WORKERS, reports[-1]


WAIT_SCRIPT = """
import dataclasses, json, os
from penstock.core.progress import WAITING_FOR_WORKERS
from penstock.engines.spark import jobs
from penstock.engines.spark.session import get_or_start_session
conf = json.loads(os.environ["TEST_CONF"]) | {"spark.scheduler.minRegisteredResourcesRatio": "0.0"}
spark = get_or_start_session(os.environ["TEST_MASTER"], conf)
reports = []
class Enough(Exception):
    pass
def watch(progress):
    reports.append(dataclasses.asdict(progress))
    if progress.phase == WAITING_FOR_WORKERS or len(reports) > 120:
        raise Enough
try:
    jobs.run_job(spark.sparkContext, "count", lambda: spark.range(10).count(), watch)
except Enough:
    print(json.dumps(reports))
"""


# -- sessions ---------------------------------------------------------------------------------------------------------

OLD_JAVA = """#!/bin/sh
echo 'Exception in thread "main" java.lang.UnsupportedClassVersionError: org/apache/spark/launcher/Main has been
compiled by a more recent version of the Java Runtime (class file version 61.0), this version of the Java Runtime only
recognizes class file versions up to {version}.0' >&2
exit 1
"""


@pytest.mark.parametrize(("version", "java"), [(52, 8), (55, 11)])
def test_start_session_old_java_reports_required_version(version: int, java: int, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text(OLD_JAVA.format(version=version))
    (tmp_path / "bin" / "java").chmod(0o755)
    error = run_in_subprocess(START_ERROR_SCRIPT, {"JAVA_HOME": str(tmp_path)})
    assert (error["reason"], error["found"], error["needed"]) == ("java_too_old", java, 17)
    assert f"Found Java {java}, but Spark needs Java 17" in error["message"]


@pytest.mark.spark
def test_start_session_unknown_master_reports_the_error_of_spark() -> None:
    error = run_in_subprocess(START_ERROR_SCRIPT, {"TEST_MASTER": "nonsense"})
    assert (error["reason"], error["master"]) == ("spark_start_failed", "nonsense")
    assert "Master must" in error["message"] or "Could not parse Master URL" in error["message"]
    assert "PENSTOCK_SPARK_MASTER" in error["message"]
    assert "/" not in error["message"]
    assert "org.apache" not in error["message"]


@pytest.mark.parametrize(
    ("environment", "setting"),
    [({"TEST_MASTER": "sc://127.0.0.1:15002"}, "the master"), ({"SPARK_REMOTE": "sc://127.0.0.1"}, "SPARK_REMOTE")],
)
def test_start_session_rejects_spark_connect(environment: Mapping[str, str], setting: str) -> None:
    error = run_in_subprocess(START_ERROR_SCRIPT, environment)
    assert error["reason"] == "spark_connect"
    assert f"Spark Connect is not supported, but {setting} is 'sc://127.0.0.1" in error["message"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times, most recent failure: Lost task 0.0 in "
            "stage 4.0 (TID 4) (192.0.2.2 executor driver): java.io.IOException: Mkdirs failed to create file:/a/b/c",
            "Mkdirs failed to create …",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///a/b.parquet.  SQLSTATE: KD001",
            "Encountered error while reading file …",
        ),
        ("java.lang.OutOfMemoryError: Java heap space\n\tat org.apache.spark.x(y.java:1)", "Java heap space"),
    ],
)
def test_error_message_contains_no_classes_tasks_and_paths(message: str, expected: str) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    from penstock.engines.spark.session import error_message

    assert error_message(Py4JError(message)) == expected


START_ERROR_SCRIPT = """
import json, os
from penstock.engines.spark.session import get_or_start_session
from penstock.errors import PenstockError
try:
    get_or_start_session(os.environ.get("TEST_MASTER", "local[1]"))
except PenstockError as error:
    print(json.dumps({"reason": error.reason, "message": error.message, **error.context}))
"""


def test_stop_session_allows_a_new_session(spark: Any) -> None:
    assert run_in_subprocess(STOP_SCRIPT, {}) == {"counted": [3, 3], "stopped": [True, True]}


STOP_SCRIPT = """
import json
from pyspark import SparkContext
from penstock.engines.spark.session import get_or_start_session, stop_session
stop_session()
counted, stopped = [], []
for _ in range(2):
    counted.append(get_or_start_session("local[1]", {"spark.driver.memory": "512m"}).range(3).count())
    stop_session()
    stop_session()
    stopped.append(SparkContext._active_spark_context is None)
print(json.dumps({"counted": counted, "stopped": stopped}))
"""


def test_stop_session_keeps_a_foreign_session(spark: Any) -> None:
    assert run_in_subprocess(FOREIGN_SESSION_SCRIPT, {}) == [2]


FOREIGN_SESSION_SCRIPT = """
import json
from pyspark.sql import SparkSession
from penstock.engines.spark.session import get_or_start_session, stop_session
theirs = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
assert get_or_start_session() is theirs
stop_session()
print(json.dumps([theirs.range(2).count()]))
"""


def run_in_subprocess(program: str, environment: Mapping[str, str]) -> Any:
    """Run a script in a subprocess and return its JSON output; this process already has a session."""
    process = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)
