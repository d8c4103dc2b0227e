"""Check whether Spark works for the runs of this process, and recover a session that was lost or did not start."""

import logging
import sys
import threading

from penstock.engines.spark.requirements import check_requirements
from penstock.errors import PenstockError, Unavailable
from penstock.service.workspace import SparkConfig

# Spark could not be started. The run is not the cause, so it returns to the queue.
START_FAILURES = frozenset({"missing_extra", "spark_connect", "missing_java", "java_too_old", "spark_start_failed"})
SPARK_FAILURES = START_FAILURES | {"spark_lost"}

_RECOVERY_SECONDS = 5.0  # between two attempts to start Spark
_log = logging.getLogger(__name__)


class SparkReadiness:
    """The state of Spark in this process: it works, or the error that prevents runs.

    A process starts Spark with its first run, so until then only its requirements are checked. After a failure a thread starts Spark
    until that succeeds.
    """

    def __init__(self, cluster: SparkConfig) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._error: PenstockError | None = None
        self._is_checked = False
        self._closed = threading.Event()

    def check(self) -> PenstockError | None:
        """Return the error that prevents runs, or None. The first call checks the requirements, later ones the session."""
        with self._lock:
            if self._error is None and not self._is_checked:
                self._is_checked = True
                try:
                    check_requirements(self._cluster.master, self._cluster.conf)
                except PenstockError as error:
                    self._fail(error)
            elif self._error is None and _is_session_lost():
                self._fail(Unavailable("spark_lost"))
            return self._error

    def report(self, error: PenstockError) -> None:
        """Record that Spark failed in a run, and start the recovery."""
        with self._lock:
            if self._error is None:
                self._fail(error)

    def close(self) -> None:
        """End the recovery."""
        self._closed.set()

    def _fail(self, error: PenstockError) -> None:
        self._error = error
        _log.warning("not ready: spark: %s", error)
        threading.Thread(target=self._recover, name="penstock spark recovery", daemon=True).start()

    def _recover(self) -> None:
        while not self._closed.is_set():
            try:
                _start_session(self._cluster)
            except PenstockError as error:
                if self._error is None or error.message != self._error.message:
                    _log.warning("not ready: spark: %s", error)
                self._error = error
            except Exception:
                _log.exception("cannot start Spark")
            else:
                with self._lock:
                    self._error = None
                _log.info("ready: spark")
                return
            self._closed.wait(_RECOVERY_SECONDS)


def _is_session_lost() -> bool:
    if "penstock.engines.spark.session" not in sys.modules:
        return False
    from penstock.engines.spark.session import is_session_lost

    return is_session_lost()


def _start_session(cluster: SparkConfig) -> None:
    check_requirements(cluster.master, cluster.conf)
    from penstock.engines.spark.session import get_or_start_session

    get_or_start_session(cluster.master, cluster.conf)
