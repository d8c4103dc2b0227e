"""Readiness checks of a server: the catalog, the file store, and Spark if the server executes runs."""

import logging

from penstock.catalog import migrate
from penstock.errors import PenstockError
from penstock.service.pipelines.run_worker import RunWorker
from penstock.service.workspace import Workspace

_log = logging.getLogger(__name__)


def check_readiness(ws: Workspace, worker: RunWorker) -> dict[str, str]:
    """Check that the catalog is reachable and current, that the file store is writable, and that Spark works.

    Returns:
        "ok", or the reason of the failure, for the parts "catalog", "store" and, if the process executes queued runs,
        "spark". The reason is one word, because the result is public; the log has the message, which may name hosts and
        paths.
    """
    parts = {"catalog": _check_catalog(ws), "store": _check_store(ws)}
    return parts | {"spark": _check_spark(worker)} if worker.claims_runs else parts


def _check_catalog(ws: Workspace) -> str:
    try:
        migrate.assert_current(ws.db)
    except PenstockError as error:
        return _log_failure("catalog", error)
    return "ok"


def _check_store(ws: Workspace) -> str:
    try:
        ws.store_probe.check(ws.store)
    except (PenstockError, OSError) as error:
        return _log_failure("store", error)
    return "ok"


def _check_spark(worker: RunWorker) -> str:
    error = worker.spark_error()  # it is logged once, when Spark fails
    return error.reason if error else "ok"


def _log_failure(part: str, error: Exception) -> str:
    _log.warning("not ready: %s: %s", part, error)
    return getattr(error, "reason", "failed")
