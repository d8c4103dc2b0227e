"""Prometheus metrics of requests, Flight calls, runs and queries."""

import math
from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0, generate_latest

from penstock.core.pipeline.run import ACTIVE_STATES, RunState
from penstock.errors import PenstockError
from penstock.rest.route_execution import RouteExecutor
from penstock.service.memory_budget import MemoryBudget
from penstock.service.pipelines.run_worker import RunWorker
from penstock.service.queries.execution import QueryExecutor

MEDIA_TYPE = CONTENT_TYPE_PLAIN_1_0_0
UNKNOWN_ROUTE = "(unknown)"  # label of requests that match no route

_OUTCOMES = {True: "valid", False: "invalid"}
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_CHECK_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_RUN_SECONDS = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200)


class Metrics:
    """The metrics of one application, in a registry of their own: a process may have several applications."""

    def __init__(
        self, run_worker: RunWorker, query_executor: QueryExecutor, executor: RouteExecutor, memory: MemoryBudget
    ) -> None:
        self.registry = CollectorRegistry()
        self.in_flight = Gauge("penstock_http_in_flight", "Requests in progress.", registry=self.registry)
        self._requests = Counter(
            "penstock_http_requests", "Requests completed.", ["method", "route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "penstock_http_request_seconds",
            "Time from a request to the end of its response.",
            ["route"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self._exceptions = Counter(
            "penstock_http_exceptions", "Unexpected exceptions.", ["exception"], registry=self.registry
        )

        Gauge(
            "penstock_request_memory_bytes", "Memory that requests have reserved.", registry=self.registry
        ).set_function(lambda: memory.used_bytes)
        self._measure_lanes(executor)

        self._calls = Counter(
            "penstock_flight_calls", "Flight calls completed.", ["method", "code"], registry=self.registry
        )
        self._call_seconds = Histogram(
            "penstock_flight_call_seconds",
            "Time from a Flight call to the end of its response.",
            ["method"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self._rows_in, self._rows_out = (
            Counter(f"penstock_flight_rows_{direction}", f"Rows {verb} over Flight.", registry=self.registry)
            for direction, verb in (("in", "received"), ("out", "sent"))
        )

        self._runs = Counter("penstock_runs", "Runs of pipelines that have ended.", ["state"], registry=self.registry)
        for state in RunState:
            if state not in ACTIVE_STATES:
                self._runs.labels(state.value)  # reported as 0 before the first run ends
        self._run_seconds = Histogram(
            "penstock_run_seconds",
            "Time from a run's start to its end.",
            registry=self.registry,
            buckets=_RUN_SECONDS,
        )
        for name, description, count in (
            ("penstock_runs_queued", "Runs in the run queue.", run_worker.queued_count),
            ("penstock_runs_running", "Runs in progress in this process.", run_worker.running_count),
        ):
            Gauge(name, description, registry=self.registry).set_function(_nan_if_unavailable(count))
        run_worker.on_run_end(self.record_run)

        self._checks = Counter(
            "penstock_query_checks", "Results validated against their schemas.", ["outcome"], registry=self.registry
        )
        for outcome in _OUTCOMES.values():
            self._checks.labels(outcome)
        self._check_seconds = Histogram(
            "penstock_query_check_seconds",
            "Time to validate a result.",
            registry=self.registry,
            buckets=_CHECK_SECONDS,
        )
        query_seconds = Histogram(
            "penstock_query_seconds",
            "Time to run a query and validate its result.",
            registry=self.registry,
            buckets=_SECONDS,
        )
        query_executor.on_validation(self.record_validation)
        query_executor.on_query(query_seconds.observe)

    def _measure_lanes(self, executor: RouteExecutor) -> None:
        running, waiting = (
            Gauge(f"penstock_requests_{state}", description, ["lane"], registry=self.registry)
            for state, description in (
                ("running", "Admitted requests; a large one counts as several."),
                ("waiting", "Requests that wait for admission."),
            )
        )
        for lane in executor.counts():
            running.labels(lane).set_function(partial(_count_in_lane, executor, lane, 0))
            waiting.labels(lane).set_function(partial(_count_in_lane, executor, lane, 1))

    def record_run(self, state: RunState, seconds: float) -> None:
        """Count a run that has ended."""
        self._runs.labels(state.value).inc()
        self._run_seconds.observe(seconds)

    def record_validation(self, valid: bool, seconds: float) -> None:
        """Count a validation of a query result."""
        self._checks.labels(_OUTCOMES[valid]).inc()
        self._check_seconds.observe(seconds)

    def record_request(self, method: str, route: str | None, status: int | None, seconds: float) -> None:
        """Count a request. Unknown methods and paths share one label, so that clients cannot create label values."""
        label = method if method in _METHODS else "other"
        self._requests.labels(label, route or UNKNOWN_ROUTE, "none" if status is None else str(status)).inc()
        self._seconds.labels(route or UNKNOWN_ROUTE).observe(seconds)

    def record_flight_call(self, method: str, code: str, seconds: float, rows_in: int, rows_out: int) -> None:
        """Count a call of the Flight server in this process."""
        self._calls.labels(method, code).inc()
        self._call_seconds.labels(method).observe(seconds)
        self._rows_in.inc(rows_in)
        self._rows_out.inc(rows_out)

    def record_exception(self, exception: BaseException) -> None:
        """Count an unexpected exception by its type."""
        self._exceptions.labels(type(exception).__name__).inc()

    def render(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        return generate_latest(self.registry)


def _count_in_lane(executor: RouteExecutor, lane: str, index: int) -> float:
    return executor.counts()[lane][index]


def _nan_if_unavailable(count: Callable[[], int]) -> Callable[[], float]:
    """Return a gauge function that reports NaN while the catalog is unavailable, so that the other metrics work."""

    def count_or_nan() -> float:
        try:
            return count()
        except PenstockError:
            return math.nan

    return count_or_nan
