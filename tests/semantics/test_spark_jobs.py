"""Jobs of Spark's are watched, stopped and share the cores; a session starts on a Java that can, and ends when told."""

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

from penstock.core import merge
from penstock.errors import Unavailable

BEATS = 120  # a minute: after so many, whoever waits for another gives up


class Enough(Exception):
    pass


def endless(spark: Any) -> Any:
    """A sum that takes hours, in tasks of moments."""
    return spark.range(0, 10**13, 1, 200_000).selectExpr("sum(id % 7)").collect()


def working(context: Any) -> list[int]:
    return list(context.statusTracker().getActiveJobsIds())


def test_a_watch_hears_how_far_spark_is(spark: Any) -> None:
    from penstock.engines.spark import jobs

    heard: list[jobs.Stages] = []

    def watch(stages: jobs.Stages) -> None:
        heard.append(stages)
        if stages.tasks_done or len(heard) > BEATS:
            raise Enough

    with pytest.raises(Enough):
        jobs.run(spark.sparkContext, "count for hours", lambda: endless(spark), watch)
    last = heard[-1]
    assert last.tasks in (200_000, 200_001)  # the last stage is seen when it is planned
    assert 0 < last.tasks_done < last.tasks
    assert (last.stages_done, last.share) == (0, last.tasks_done / last.tasks)


def test_who_stops_watching_stops_the_work_and_no_other(spark: Any) -> None:
    from penstock.engines.spark import jobs

    def give_up(_stages: jobs.Stages) -> None:
        raise Enough

    with pytest.raises(Enough):
        jobs.run(spark.sparkContext, "count for hours", lambda: endless(spark), give_up)
    assert working(spark.sparkContext) == []
    assert jobs.run(spark.sparkContext, "count", lambda: spark.range(10).count()) == 10


def test_a_merge_can_be_stopped_while_it_reads_its_source(spark: Any, tmp_path: Path) -> None:
    from penstock.engines.spark.merge import Spark

    def give_up(_stages: Any) -> None:
        raise Enough

    nothing_for_hours = spark.range(0, 10**13, 1, 200_000).filter("id % 7 = 8")
    plan = merge.plan(pa.schema([("id", pa.int64())]), None, "id")
    with pytest.raises(Enough):
        Spark(str(tmp_path), spark=spark, watch=give_up).open(plan, nothing_for_hours)
    assert working(spark.sparkContext) == []
    assert list(tmp_path.iterdir()) == []


def test_a_short_job_does_not_wait_for_a_long_one(spark: Any) -> None:
    from penstock.engines.spark import jobs

    done, beats = threading.Event(), list[bool]()
    counted: list[int] = []

    def short() -> None:
        counted.append(jobs.run(spark.sparkContext, "count", lambda: spark.range(0, 100, 1, 4).count()))
        done.set()

    other = threading.Thread(target=short)

    def watch(stages: jobs.Stages) -> None:
        beats.append(done.is_set())
        if stages.tasks_done and other.ident is None:
            other.start()
        if done.is_set() or len(beats) > BEATS:
            raise Enough

    with pytest.raises(Enough):
        jobs.run(spark.sparkContext, "count for hours", lambda: endless(spark), watch)
    other.join()
    assert beats[-1], "the short job came to its turn when the long one was stopped"
    assert counted == [100]


def test_a_job_is_known_by_what_it_is_for(spark: Any) -> None:
    from penstock.engines.spark import jobs

    context = spark.sparkContext
    said = jobs.run(context, "a purpose", lambda: context.getLocalProperty("spark.job.description"))
    assert said == "a purpose"
    pools = {jobs.run(context, "", lambda: context.getLocalProperty("spark.scheduler.pool")) for _ in range(3)}
    assert len(pools) == 1  # Spark keeps every pool that it ever saw


def test_what_fails_in_spark_is_told_and_not_logged(spark: Any, capfd: pytest.CaptureFixture[str]) -> None:
    from penstock.engines.spark import jobs

    with pytest.raises(Unavailable) as told:
        jobs.run(spark.sparkContext, "fail", lambda: spark.range(3).selectExpr("raise_error('no luck')").collect())
    assert told.value.reason == "spark_failed"
    assert "no luck" in told.value.message
    assert capfd.readouterr() == ("", "")


# -- sessions ---------------------------------------------------------------------------------------------------------

OLD_JAVA = """#!/bin/sh
echo 'Exception in thread "main" java.lang.UnsupportedClassVersionError: org/apache/spark/launcher/Main has been
compiled by a more recent version of the Java Runtime (class file version 61.0), this version of the Java Runtime only
recognizes class file versions up to {version}.0' >&2
exit 1
"""


@pytest.mark.parametrize(("version", "java"), [(52, 8), (55, 11)])
def test_a_java_that_is_too_old_is_told_with_what_is_needed(version: int, java: int, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text(OLD_JAVA.format(version=version))
    (tmp_path / "bin" / "java").chmod(0o755)
    told = elsewhere(REFUSED, {"JAVA_HOME": str(tmp_path)})
    assert (told["reason"], told["found"], told["needed"]) == ("java_too_old", java, 17)
    assert f"Java {java} was found, and Spark needs Java 17" in told["message"]


REFUSED = """
import json
from penstock.engines.spark.session import session
from penstock.errors import Unavailable
try:
    session("local[1]")
except Unavailable as told:
    print(json.dumps({"reason": told.reason, "message": told.message, **told.context}))
"""


def test_a_session_ends_when_told_and_another_may_follow(spark: Any) -> None:
    assert elsewhere(STOPPED, {}) == {"counted": [3, 3], "stopped": [True, True]}


STOPPED = """
import json
from pyspark import SparkContext
from penstock.engines.spark.session import session, stop
stop()
counted, stopped = [], []
for _ in range(2):
    counted.append(session("local[1]", {"spark.driver.memory": "512m"}).range(3).count())
    stop()
    stop()
    stopped.append(SparkContext._active_spark_context is None)
print(json.dumps({"counted": counted, "stopped": stopped}))
"""


def test_a_session_that_somebody_else_started_goes_on(spark: Any) -> None:
    assert elsewhere(SOMEBODY_ELSES, {}) == [2]


SOMEBODY_ELSES = """
import json
from pyspark.sql import SparkSession
from penstock.engines.spark.session import session, stop
theirs = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
assert session() is theirs
stop()
print(json.dumps([theirs.range(2).count()]))
"""


def elsewhere(program: str, surroundings: Mapping[str, str]) -> Any:
    """What a process of its own tells: this one has its session already."""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **surroundings}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
