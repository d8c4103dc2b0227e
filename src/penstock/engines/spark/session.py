"""Get the active Spark session, or start a local one with minimal output."""

import atexit
import logging
import os
import re
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from penstock.engines.spark import requirements
from penstock.errors import PenstockError, Unavailable, Unsupported

_GIB = 1 << 30
_STOP_WAIT_SECONDS = 5.0  # for a session that is being started; afterwards it ends with this process
_start_lock = threading.Lock()
_own_context: SparkContext | None = None  # started by this module

# Error of a Java that is too old. Class files of Java 1 have version 45; every later Java adds one.
_JAVA_CLASS_VERSION = re.compile(r"UnsupportedClassVersionError.*?class file versions up to (\d+)\.")

_UNCAUGHT_EXCEPTION = re.compile(r'Exception in thread "[^"]*" (.*?)(?: at [\w.$]+\(|$)')
_FAILED_TASK = re.compile(r"^Job aborted due to stage failure:.*?\(TID \d+\) \([^()]*\): ")

# Settings that Penstock relies on, set in an isolated session, independent of the caller's session.
_SESSION_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",  # prefer few files
    "spark.sql.autoBroadcastJoinThreshold": "64MB",
    "spark.sql.sources.fileCompressionFactor": "4",  # rows need more space in memory than in Parquet
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",  # all files are listed: nothing to discover
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.datetime.java8API.enabled": "true",  # else filters go through the old calendar and time zone of Java
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # Write no checksum files; with checksums, names with a colon cannot be opened.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


def get_or_start_session(master: str = "local[*]", conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the active session of this process, or start one. `conf` overrides the default settings.

    A session whose Java process has ended is discarded, and a new one is started.

    Raises:
        Unsupported: Spark Connect is requested
        Unavailable: Spark or Java cannot be started
    """
    requirements.check_master(master, conf or {})
    with _start_lock, warnings.catch_warnings():
        # PySpark imports pandas with the first value for Java, and warns about its version.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        import pyspark.testing.utils  # noqa: F401

        if is_session_lost() or not _is_java_running():
            _discard_session()
        if SparkContext._active_spark_context is None:
            _start(master, conf or {})
        return SparkSession.builder.getOrCreate()


def is_session_lost() -> bool:
    """Return True if the process has an active session that cannot be used any more."""
    context = SparkContext._active_spark_context
    is_started = hasattr(context, "_jsc")  # not while another thread starts the context
    return context is not None and is_started and not is_alive(context)


def is_alive(context: SparkContext) -> bool:
    """Return True if the Java process of a context responds and has not stopped the context."""
    if not _is_java_running():
        return False
    try:
        return not context._jsc.sc().isStopped()
    except (Py4JError, OSError, AttributeError):  # a stopped or discarded context has no Java object
        return False


@contextmanager
def detect_loss(context: SparkContext) -> Iterator[None]:
    """Raise `spark_lost` in place of an error of the block if the Java process of the context has ended."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as cause:  # the end of Java shows as many errors: of sockets, of Py4J, of missing objects
        if is_alive(context):
            raise
        raise Unavailable("spark_lost") from cause


def stop_session() -> None:
    """Stop the session that this module started, if any. The next `get_or_start_session` starts another."""
    global _own_context
    if not _start_lock.acquire(timeout=_STOP_WAIT_SECONDS):
        return
    try:
        context, _own_context = _own_context, None
        if context is None or context is not SparkContext._active_spark_context:
            return
        if is_alive(context):
            with suppress(Py4JError, OSError):  # its Java process may end at any time
                SparkSession.builder.getOrCreate().stop()
        else:
            _discard_session()
    finally:
        _start_lock.release()


def isolated_session(spark: SparkSession) -> SparkSession:
    """Return a new session of the same cluster with the settings that Penstock relies on."""
    if not isinstance(getattr(spark, "_sc", None), SparkContext):
        raise Unsupported(
            "spark_connect",
            {"module": type(spark).__module__},
        )
    with detect_loss(spark.sparkContext):
        isolated = spark.newSession()
        for name, value in _SESSION_SETTINGS.items():
            isolated.conf.set(name, value)
        return isolated


def _is_java_running() -> bool:
    """Return False if the Java process of the gateway has ended. A gateway outlives the sessions that use it."""
    process = getattr(SparkContext._gateway, "proc", None)
    return process is None or process.poll() is None


def _discard_session() -> None:
    """Remove every reference of PySpark to a session whose Java process has ended or has stopped the context."""
    global _own_context
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    _own_context = None
    if context is not None:
        context._jsc = None  # PySpark would call the Java process to stop the context
        context.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is None:
        return
    with suppress(Exception):  # connections to a process that has ended
        gateway.close()
    if (process := getattr(gateway, "proc", None)) is not None:
        process.kill()
        process.wait()


def _start(master: str, conf: Mapping[str, str]) -> None:
    global _own_context
    folder = tempfile.mkdtemp(prefix="penstock-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    settings = SparkConf().setAll(list({**_settings(master, folder), **conf}.items()))
    log = Path(folder) / "java.log"
    # Reuse the Java process of an earlier session.
    gateway = None if SparkContext._gateway else _launch_java(settings, log, master)
    try:
        _own_context = SparkContext(conf=settings, gateway=gateway)
        SparkSession.builder.getOrCreate()
    except (Py4JError, PySparkException) as cause:
        if SparkContext._active_spark_context is not None:
            SparkContext._active_spark_context.stop()  # it could not reach the master; the next call may retry
        raise _start_failed(master, error_message(cause)) from None


def _settings(master: str, folder: str) -> dict[str, str]:
    settings = {
        "spark.master": master,
        "spark.app.name": "penstock",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.scheduler.mode": "FAIR",  # between the pools of engines/spark/jobs
        "spark.python.sql.dataFrameDebugging.enabled": "false",  # it inspects the call stack for every column
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        **{name: value for name, value in _SESSION_SETTINGS.items() if name.startswith("spark.sql.")},
    }
    if not master.startswith("local"):
        return settings
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return settings | {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": f"{min(max(memory_bytes // 4, _GIB), 8 * _GIB) >> 20}m",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    }


def _launch_java(settings: SparkConf, log: Path, master: str) -> Any:
    """Start a Java process with its output in a log file; its errors are raised as exceptions."""
    with log.open("wb") as output:
        try:
            return launch_gateway(settings, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
        except (Py4JError, PySparkException, OSError) as cause:
            message = " ".join(log.read_text("utf-8", "replace").split())
            if match := _JAVA_CLASS_VERSION.search(message):
                raise requirements.java_too_old(int(match[1]) - 44) from None
            java = requirements.find_java()
            if java is None or java.description is None:
                raise requirements.missing_java(message[:300] or str(cause)) from None
            raise _start_failed(master, _java_error_message(message) or error_message(cause)) from None


def _start_failed(master: str, cause: str) -> Unavailable:
    return Unavailable("spark_start_failed", {"cause": cause}, master=master)


def _java_error_message(log: str) -> str | None:
    """Return the message of the exception that ended a Java process, from its log in one line."""
    match = _UNCAUGHT_EXCEPTION.search(log)
    return _shorten(match[1]) if match else _shorten(log)


def error_message(cause: BaseException) -> str:
    """Return the first meaningful line of an error of Spark, without paths."""
    java_error = getattr(cause, "java_exception", None)
    message = (
        cause.getMessage()
        if isinstance(cause, PySparkException)
        else java_error.getMessage()
        if java_error
        else str(cause)
    )
    lines = (message or type(cause).__name__).strip().splitlines()
    line = (
        lines[-1] if "Traceback" in lines[0] else lines[0]
    )  # the message is last in a Python traceback, first in Java
    return _shorten(line)


def _shorten(message: str) -> str:
    """Remove what only a developer of Spark can use (the task, Java classes, codes), and paths, which are internal."""
    message = _FAILED_TASK.sub("", message)
    message = re.sub(r"^(?:[\w$]+\.)+[\w$]+(?:Exception|Error):\s*", "", message)
    message = re.sub(r"^\[[A-Z0-9_.]+\]\s*", "", message).partition(" If necessary")[0]
    message = re.sub(r"\s*SQLSTATE: \w+.*", "", message).partition(" at org.apache.spark")[0]
    return re.sub(r"(file:)?/[^\s'\"]*/[^\s'\"]*", "…", message).rstrip(" .")[:300]


def _is_foreign_record(record: logging.LogRecord) -> bool:
    """Suppress Py4J's log of broken connections, which it also raises. It logs to the root logger."""
    return not (record.exc_info and Path(record.pathname).parent.name == "py4j")


logging.getLogger().addFilter(_is_foreign_record)
logging.getLogger("py4j").setLevel(logging.WARNING)  # it reports every connection that it closes
