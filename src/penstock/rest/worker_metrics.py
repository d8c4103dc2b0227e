"""Prometheus metrics of a worker: runs and steps of compactions."""

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from penstock.core.dataset.compaction import CompactionResult
from penstock.core.pipeline.run import ACTIVE_STATES, RunState

_STEP_SECONDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_OUTCOMES = {True: "committed", False: "lost"}


class WorkerMetrics:
    """The metrics of one worker."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._runs = Counter("penstock_runs", "Runs of pipelines that have ended.", ["state"], registry=self.registry)
        for state in RunState:
            if state not in ACTIVE_STATES:
                self._runs.labels(state.value)  # reported as 0 before the first run ends
        self._steps = Counter(
            "penstock_compaction_steps", "Steps of compactions by policy.", ["outcome"], registry=self.registry
        )
        for outcome in _OUTCOMES.values():
            self._steps.labels(outcome)
        self._rows, self._deleted_rows, self._bytes, self._files = (
            Counter(f"penstock_compaction_{name}", description, registry=self.registry)
            for name, description in (
                ("rows", "Rows that compactions have written."),
                ("deleted_rows", "Deleted rows that compactions have left out."),
                ("bytes", "Bytes that compactions have written."),
                ("files", "Files that compactions have replaced."),
            )
        )
        self._seconds = Histogram(
            "penstock_compaction_step_seconds", "Time of a step.", registry=self.registry, buckets=_STEP_SECONDS
        )

    def record_run(self, state: RunState, _seconds: float) -> None:
        """Count a run that has ended."""
        self._runs.labels(state.value).inc()

    def record_step(self, result: CompactionResult, seconds: float) -> None:
        """Count a step of a compaction."""
        self._steps.labels(_OUTCOMES[result.steps > 0]).inc()
        self._rows.inc(result.rows)
        self._deleted_rows.inc(result.deleted_rows)
        self._bytes.inc(result.bytes_after)
        self._files.inc(result.files_before)
        self._seconds.observe(seconds)

    def serve(self, port: int) -> int:
        """Serve the metrics over HTTP in a thread, on this machine only. Return the port."""
        server, _ = start_http_server(port, "127.0.0.1", self.registry)
        return int(server.server_port)
