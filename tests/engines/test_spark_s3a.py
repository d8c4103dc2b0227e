"""Spark reads and writes a bucket on a cluster whose workers get the jars and the credentials from the driver."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support import spark_sessions
from support.fault_proxy import Fault, FaultProxy
from support.s3_requests import Kind
from support.s3_server import S3Server

FILES, ROWS = 4, 40_000


@pytest.fixture
def on_cluster(
    spark_cluster: spark_sessions.Cluster,
    s3_server: S3Server,
    fault_proxy: FaultProxy,
    bucket: str,
    s3a_jars: list[Path],
) -> "ClusterDriver":
    settings = s3_server.s3a_settings(bucket, fault_proxy.endpoint)
    return ClusterDriver(spark_cluster, s3a_jars, settings, f"s3a://{bucket}/rows", s3_server.secret_key)


class ClusterDriver:
    """Runs a function of this module in a subprocess, because this process may have a local Spark context."""

    def __init__(
        self, cluster: spark_sessions.Cluster, jars: list[Path], settings: dict[str, str], path: str, secret: str
    ) -> None:
        self._conf = {**cluster.conf(), "spark.jars": ",".join(map(str, jars))}
        self._request = {
            "master": cluster.master,
            "conf": self._conf,
            "settings": settings,
            "path": path,
            "secret": secret,
        }

    def __call__(self, function: str) -> Any:
        process = subprocess.run(
            [sys.executable, __file__, function],
            input=json.dumps(self._request),  # not as arguments: they contain the secret
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(Path(__file__).parents[1]), *sys.path))},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert process.returncode == 0, process.stderr[-5000:]
        return json.loads(process.stdout.splitlines()[-1])


def test_spark_writes_and_reads_a_bucket_without_publishing_the_secret(
    on_cluster: ClusterDriver, s3_server: S3Server, bucket: str
) -> None:
    result = on_cluster("write_and_read")
    assert result["count"] == ROWS
    assert result["executors"] == spark_sessions.WORKERS
    assert result["published"] == []
    assert sum(key.endswith(".parquet") for key in s3_server.objects(bucket, "rows/")) == FILES
    assert s3_server.client.uploads(bucket) == []


def test_spark_read_with_failing_requests_returns_all_rows(on_cluster: ClusterDriver, fault_proxy: FaultProxy) -> None:
    with ExitStack() as stack:
        faults = ((Fault.SLOW_DOWN, 2), (Fault.RESET, 5), (Fault.CUT_BODY, 8))
        injections = [stack.enter_context(fault_proxy.inject(fault, Kind.GET, first=nth)) for fault, nth in faults]
        assert on_cluster("write_and_read")["count"] == ROWS
    assert [injection.fired for injection in injections] == [1, 1, 1]


def write_and_read(spark: Any, path: str, secret: str) -> dict[str, Any]:
    spark.range(ROWS).repartition(FILES).write.parquet(path)
    files = [row.file for row in spark.read.parquet(path).selectExpr("input_file_name() AS file").distinct().collect()]
    rows = spark.read.schema("id long").parquet(*files)
    return {
        "count": rows.selectExpr("count(DISTINCT id)").first()[0],
        "executors": spark._jsc.sc().getExecutorMemoryStatus().size() - 1,
        "published": _published(spark, secret),
    }


def _published(spark: Any, secret: str) -> list[str]:
    """Return where the secret can be read: command lines of all processes, and settings of the application."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if secret.encode() in file.read_bytes():
                found.append(str(file))
        except OSError:  # the process has ended
            continue
    return found + [name for name, value in spark.sparkContext.getConf().getAll() if secret in value]


def main() -> None:
    from penstock.engines.spark.session import get_or_start_session, isolated_session

    request = json.load(sys.stdin)
    spark = isolated_session(get_or_start_session(request["master"], request["conf"]))
    for name, value in request["settings"].items():
        spark.conf.set(name, value)
    result = globals()[sys.argv[1]](spark, request["path"], request["secret"])
    spark.stop()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
