"""Find the session of Spark that is there, or start one that keeps quiet and to itself."""

import atexit
import os
import re
import shutil
import tempfile
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from penstock.engines.spark.java_versions import VERSIONS
from penstock.errors import Unavailable, Unsupported

_GIB = 1 << 30
_starting = threading.Lock()
_ours: SparkContext | None = None  # the one that this module has started

# How Java says that it is too old. The class files of Java 1 were version 45, and every Java since added one.
_JAVA_READS = re.compile(r"UnsupportedClassVersionError.*?class file versions up to (\d+)\.")

# What a merge relies on. It holds in a session of the merge's own, whatever the caller's is set to.
_MERGING = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",  # few files rather than many
    "spark.sql.autoBroadcastJoinThreshold": "64MB",
    "spark.sql.sources.fileCompressionFactor": "4",  # rows take more room in memory than in Parquet
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",  # files are named: there is nothing to discover
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # No checksum files beside the data; and with them, a name with a colon cannot be opened.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


def session(master: str = "local[*]", conf: Mapping[str, str] | None = None) -> SparkSession:
    """The session that this process has; if it has none, a new one. `conf` goes before our own settings."""
    with _starting, warnings.catch_warnings():
        # PySpark looks for pandas when a value first goes to Java, and has an opinion on its version.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        import pyspark.testing.utils  # noqa: F401

        if SparkContext._active_spark_context is None:
            _start(master, conf or {})
        return SparkSession.builder.getOrCreate()


def stop() -> None:
    """End the session that was started here, if there is one. The next call of `session` starts another."""
    global _ours
    with _starting:
        ours, _ours = _ours, None
        if ours is not None and ours is SparkContext._active_spark_context:
            with suppress(Py4JError, OSError):  # its Java process may have ended before
                SparkSession.builder.getOrCreate().stop()


def for_merging(spark: SparkSession) -> SparkSession:
    """A session beside the given one: the same cluster, and settings of its own."""
    if not isinstance(getattr(spark, "_sc", None), SparkContext):
        raise Unsupported(
            "spark_connect",
            f"{type(spark).__module__} is a session of Spark Connect, which a merge cannot use; give a classic "
            "session, or source rows as an Arrow table",
        )
    own = spark.newSession()
    for name, value in _MERGING.items():
        own.conf.set(name, value)
    return own


def _start(master: str, conf: Mapping[str, str]) -> None:
    global _ours
    home = tempfile.mkdtemp(prefix="penstock-spark-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    settings = SparkConf().setAll(list({**_settings(master, home), **conf}.items()))
    log = Path(home) / "java.log"
    # A Java process that an earlier session has left is used again.
    gateway = None if SparkContext._gateway else _launched(settings, log)
    try:
        _ours = SparkContext(conf=settings, gateway=gateway)
        SparkSession.builder.getOrCreate()
    except (Py4JError, PySparkException) as cause:
        if SparkContext._active_spark_context is not None:
            SparkContext._active_spark_context.stop()  # it gave up on the master; the next call may try again
        raise Unavailable(
            "no_spark",
            f"Spark could not be started with master {master!r}: {told(cause)}; is the master running, and can it be "
            "reached from here?",
            master=master,
        ) from None


def _settings(master: str, home: str) -> dict[str, str]:
    shared = {
        "spark.master": master,
        "spark.app.name": "penstock",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.scheduler.mode": "FAIR",  # among the pools of engines/spark/jobs
        "spark.python.sql.dataFrameDebugging.enabled": "false",  # it walks the stack for every column
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": f"{home}/warehouse",
        **{name: value for name, value in _MERGING.items() if name.startswith("spark.sql.")},
    }
    if not master.startswith("local"):
        return shared
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return shared | {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": f"{min(max(memory // 4, _GIB), 8 * _GIB) >> 20}m",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    }


def _launched(settings: SparkConf, log: Path) -> Any:
    """A Java process. What it says goes to the log: its greetings are many, and its errors reach us as exceptions."""
    with log.open("wb") as heard:
        try:
            return launch_gateway(settings, {"stdout": heard, "stderr": heard})  # type: ignore[no-untyped-call]
        except (PySparkException, OSError) as cause:
            said = " ".join(log.read_text("utf-8", "replace").split())
            oldest, newest = VERSIONS
            if found := _JAVA_READS.search(said):
                java = int(found[1]) - 44
                raise Unavailable(
                    "java_too_old",
                    f"Java {java} was found, and Spark needs Java {oldest} or {newest}: install it "
                    f"(apt-get install openjdk-{oldest}-jre-headless), and name its folder in JAVA_HOME",
                    found=java,
                    needed=oldest,
                ) from None
            raise Unavailable(
                "no_java",
                f"Spark's Java process did not start ({said[:300] or cause}); Spark needs a full Java {oldest} or {newest} "
                f"(apt-get install openjdk-{oldest}-jre-headless), on the PATH or named by JAVA_HOME",
            ) from None


def told(cause: BaseException) -> str:
    """The sentence in an error of Spark's."""
    raised = getattr(cause, "java_exception", None)
    message = (
        cause.getMessage() if isinstance(cause, PySparkException) else raised.getMessage() if raised else str(cause)
    )
    lines = (message or type(cause).__name__).strip().splitlines()
    line = lines[-1] if "Traceback" in lines[0] else lines[0]  # Python says last what went wrong, Java first
    line = re.sub(r"^\[[A-Z0-9_.]+\]\s*", "", line).partition(" If necessary")[0]
    return re.sub(r"(file:)?/[^\s'\"]*/[^\s'\"]*", "…", line)[:300]  # where files are is nobody's business
