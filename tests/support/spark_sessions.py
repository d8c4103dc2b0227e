"""A real Spark of the tests' own: one session for the whole run, and a cluster of two workers on loopback."""

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
    """Two cores, and settings that a merge must not depend on."""
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
    page: str  # where the master tells of itself

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
            with urllib.request.urlopen(f"{self.page}/json/", timeout=10) as answer:
                text = answer.read().decode()
        except (urllib.error.URLError, OSError):
            return 0
        found = re.search(r'"aliveworkers"\s*:\s*(\d+)', text)
        return int(found[1]) if found else 0


@contextmanager
def cluster(workers: int = WORKERS) -> Iterator[Cluster]:
    """A master and workers with one core each, in processes of their own; ports are those that are free."""
    with tempfile.TemporaryDirectory(prefix="penstock-cluster-", ignore_cleanup_errors=True) as folder:
        home, running = Path(folder), []
        try:
            log = home / "master.log"
            running.append(_started(log, "master.Master", "--host", LOOPBACK, "--port", "0", "--webui-port", "0"))
            port = _find_in_log(log, r"Starting Spark master at spark://[^:]+:(\d+)", running[0])
            page = _find_in_log(log, r"MasterWebUI to [^ ]+, and started at http://[^:]+:(\d+)", running[0])
            it = Cluster(f"spark://{LOOPBACK}:{port}", f"http://{LOOPBACK}:{page}")
            for n in range(workers):
                running.append(
                    _started(
                        home / f"worker-{n}.log", "worker.Worker", "--host", LOOPBACK, "--port", "0",
                        "--webui-port", "0", "--cores", "1", "--memory", "600m", "--work-dir", str(home / f"work-{n}"),
                        it.master,
                    )
                )  # fmt: skip
            _wait(lambda: it.alive() == workers, "the workers did not register")
            yield it
        finally:
            for process in reversed(running):
                process.terminate()
            for process in reversed(running):
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _started(log: Path, role: str, *args: str) -> subprocess.Popen[bytes]:
    home = Path(pyspark.__file__).parent
    with log.open("wb") as out:
        return subprocess.Popen(
            [home / "bin" / "spark-class", f"org.apache.spark.deploy.{role}", *args],
            env={**os.environ, **_surroundings(home)},
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def _surroundings(home: Path) -> Mapping[str, str]:
    return {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }


def _find_in_log(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    """Wait for the pattern in the log of the process and return its match."""

    def found() -> re.Match[str] | None:
        if process.poll() is not None:
            raise RuntimeError(f"Spark's master ended: {log.read_text('utf-8', 'replace')[-2000:]}")
        return re.search(pattern, log.read_text("utf-8", "replace"))

    _wait(found, f"the master did not say {pattern!r}")
    match = found()
    assert match is not None
    return match[1]


def _wait(done: Any, otherwise: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError(otherwise)
        time.sleep(0.1)
