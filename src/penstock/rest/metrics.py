"""What is counted and measured of every request, call, run and query, in the words of Prometheus."""

import math
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0, generate_latest

from penstock.core.pipeline.run import UNDER_WAY, State
from penstock.errors import PenstockError
from penstock.service.queries.execution import Results
from penstock.service.pipelines.run_worker import Runner

MEDIA_TYPE = CONTENT_TYPE_PLAIN_1_0_0
UNKNOWN = "(unknown)"  # the route of a path that no route serves

_OUTCOMES = {True: "valid", False: "invalid"}
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_CHECK_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_RUN_SECONDS = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200)


class Metrics:
    """One set for each application: two of them in a process do not count for each other."""

    def __init__(self, runner: Runner, results: Results) -> None:
        self.registry = CollectorRegistry()
        self.in_flight = Gauge("penstock_http_in_flight", "Requests under way.", registry=self.registry)
        self._requests = Counter(
            "penstock_http_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "penstock_http_request_seconds",
            "Time from a request to the end of its answer.",
            ["route"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self._exceptions = Counter(
            "penstock_http_exceptions", "Errors that are bugs.", ["exception"], registry=self.registry
        )

        self._calls = Counter(
            "penstock_flight_calls", "Calls over Flight answered.", ["method", "code"], registry=self.registry
        )
        self._call_seconds = Histogram(
            "penstock_flight_call_seconds",
            "Time from a call over Flight to the end of its answer.",
            ["method"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self._rows_in, self._rows_out = (
            Counter(f"penstock_flight_rows_{way}", f"Rows that {went} over Flight.", registry=self.registry)
            for way, went in (("in", "came in"), ("out", "went out"))
        )

        self._runs = Counter("penstock_runs", "Runs of pipelines that ended.", ["state"], registry=self.registry)
        for state in State:
            if state not in UNDER_WAY:
                self._runs.labels(state.value)  # told as 0 before the first one ends
        self._run_seconds = Histogram(
            "penstock_run_seconds",
            "Time from a run's start to its end.",
            registry=self.registry,
            buckets=_RUN_SECONDS,
        )
        for name, meaning, count in (
            ("penstock_runs_queued", "Runs that wait for any process.", runner.queued),
            ("penstock_runs_running", "Runs under way in this one.", runner.running),
        ):
            Gauge(name, meaning, registry=self.registry).set_function(_known(count))
        runner.hear_ends(self.ran)

        self._checks = Counter(
            "penstock_query_checks", "Results checked against their schemas.", ["outcome"], registry=self.registry
        )
        for outcome in _OUTCOMES.values():
            self._checks.labels(outcome)
        self._check_seconds = Histogram(
            "penstock_query_check_seconds",
            "Time to check a result.",
            registry=self.registry,
            buckets=_CHECK_SECONDS,
        )
        query_seconds = Histogram(
            "penstock_query_seconds",
            "Time to run a query, its check included.",
            registry=self.registry,
            buckets=_SECONDS,
        )
        results.hear_checks(self.checked)
        results.hear_runs(query_seconds.observe)

    def ran(self, state: State, seconds: float) -> None:
        self._runs.labels(state.value).inc()
        self._run_seconds.observe(seconds)

    def checked(self, valid: bool, seconds: float) -> None:
        self._checks.labels(_OUTCOMES[valid]).inc()
        self._check_seconds.observe(seconds)

    def answered(self, method: str, route: str | None, status: int | None, seconds: float) -> None:
        """What a client chose freely is no label: there would be no end to them."""
        known = method if method in _METHODS else "other"
        self._requests.labels(known, route or UNKNOWN, "none" if status is None else str(status)).inc()
        self._seconds.labels(route or UNKNOWN).observe(seconds)

    def called(self, method: str, code: str, seconds: float, rows_in: int, rows_out: int) -> None:
        """A call over Flight, which is served beside."""
        self._calls.labels(method, code).inc()
        self._call_seconds.labels(method).observe(seconds)
        self._rows_in.inc(rows_in)
        self._rows_out.inc(rows_out)

    def failed(self, bug: BaseException) -> None:
        self._exceptions.labels(type(bug).__name__).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


def _known(count: Callable[[], int]) -> Callable[[], float]:
    """What the catalog knows, while it can be reached: the other numbers are told in any case."""

    def known() -> float:
        try:
            return count()
        except PenstockError:
            return math.nan

    return known
