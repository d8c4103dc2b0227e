"""Spark sessions and a local cluster for the tests."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from penstock.engines.spark.session import get_or_start_session as penstock_session

LOOPBACK = "127.0.0.1"
WORKERS = 2


def java() -> str | None:
    """Return the path of Java, or None if it is not installed."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(f"{home}/bin/java") if home else shutil.which("java")


def java_children(parent: int) -> list[int]:
    """List the Java processes that a process has started and that still run."""
    children = [int(id) for file in Path(f"/proc/{parent}/task").glob("*/children") for id in file.read_text().split()]
    return [id for id in children if _program(id) == "java"]


def _program(process: int) -> str | None:
    """Return the name of a process's program; None for one that has ended."""
    try:
        return Path(os.readlink(f"/proc/{process}/exe")).name
    except OSError:
        return None


@contextmanager
def session() -> Iterator[Any]:
    """Start a session with two cores, and with settings that a merge must not depend on."""
    spark = penstock_session(
        "local[2]",
        {
            "spark.driver.memory": "1g",
            "spark.sql.session.timeZone": "Pacific/Chatham",
            "spark.sql.parquet.outputTimestampType": "INT96",
            "spark.sql.caseSensitive": "false",
            "spark.sql.shuffle.partitions": "7",
        },
    )
    yield spark
    spark.stop()


@dataclass(frozen=True)
class Cluster:
    master: str  # spark://127.0.0.1:…
    url: str  # of the web page of the master

    def conf(self) -> dict[str, str]:
        """Return the settings of a driver on loopback."""
        return {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.executor.memory": "512m",
            "spark.cores.max": str(WORKERS),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # wait for both workers
        }

    def alive(self) -> int:
        """Return the number of workers of the master."""
        try:
            with urllib.request.urlopen(f"{self.url}/json/", timeout=10) as response:
                text = response.read().decode()
        except (urllib.error.URLError, OSError):
            return 0
        match = re.search(r'"aliveworkers"\s*:\s*(\d+)', text)
        return int(match[1]) if match else 0


@contextmanager
def cluster(workers: int = WORKERS) -> Iterator[Cluster]:
    """Start a master and workers with one core each, in separate processes on free ports."""
    with tempfile.TemporaryDirectory(prefix="penstock-cluster-", ignore_cleanup_errors=True) as folder:
        root, processes = Path(folder), []
        try:
            log = root / "master.log"
            processes.append(_start(log, "master.Master", "--host", LOOPBACK, "--port", "0", "--webui-port", "0"))
            port = _find_in_log(log, r"Starting Spark master at spark://[^:]+:(\d+)", processes[0])
            web_port = _find_in_log(log, r"MasterWebUI to [^ ]+, and started at http://[^:]+:(\d+)", processes[0])
            result = Cluster(f"spark://{LOOPBACK}:{port}", f"http://{LOOPBACK}:{web_port}")
            for n in range(workers):
                processes.append(
                    _start(
                        root / f"worker-{n}.log", "worker.Worker", "--host", LOOPBACK, "--port", "0",
                        "--webui-port", "0", "--cores", "1", "--memory", "600m", "--work-dir", str(root / f"work-{n}"),
                        result.master,
                    )
                )  # fmt: skip
            _wait(lambda: result.alive() == workers, "the workers did not register")
            yield result
        finally:
            for process in reversed(processes):
                process.terminate()
            for process in reversed(processes):
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _start(log: Path, role: str, *args: str) -> subprocess.Popen[bytes]:
    home = Path(pyspark.__file__).parent
    with log.open("wb") as out:
        return subprocess.Popen(
            [home / "bin" / "spark-class", f"org.apache.spark.deploy.{role}", *args],
            env={**os.environ, **_environment(home)},
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def _environment(home: Path) -> Mapping[str, str]:
    return {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }


def _find_in_log(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    """Wait for the pattern in the log of the process and return its match."""

    def find() -> re.Match[str] | None:
        if process.poll() is not None:
            raise RuntimeError(f"Spark's master ended: {log.read_text('utf-8', 'replace')[-2000:]}")
        return re.search(pattern, log.read_text("utf-8", "replace"))

    _wait(find, f"the log of the master does not contain {pattern!r}")
    match = find()
    assert match is not None
    return match[1]


def _wait(condition: Any, message: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(message)
        time.sleep(0.1)
