"""The command `worker`."""

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.context import CliContext, Command, standard_options

if TYPE_CHECKING:
    from penstock.config import Settings
    from penstock.service.datasets.maintenance import MaintenancePolicy

_CHECK_SECONDS = 0.2  # between two checks for the end
_REQUEUE_SECONDS = 5.0  # after the drain, for runs to be requeued


@click.command(cls=Command)
@click.option(
    "--at-once",
    type=click.IntRange(1),
    help="Maximum number of concurrent runs.  [default: PENSTOCK_RUNS_AT_ONCE, else: 2]",
)
@click.option("--once", is_flag=True, help="Execute the queued runs, then exit.")
@click.option("--maintain", is_flag=True, help="Compact datasets by policy while no run waits.")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics on this port of 127.0.0.1; 0: any."
)
@standard_options(
    """
    penstock worker --workspace lake
    penstock worker --at-once 4
    penstock worker --maintain --metrics-port 9100
    penstock worker --once --maintain --json
    """
)
def worker(context: CliContext, at_once: int | None, once: bool, maintain: bool, metrics_port: int | None) -> None:
    """Execute queued pipeline runs of all tenants, round-robin by tenant, until SIGTERM or Ctrl-C.

    Workers share the run queue with one another and with `penstock serve` (unless it has --no-runs), on every machine
    that has access to the workspace and its catalog. When a worker stops, its runs have PENSTOCK_HTTP_DRAIN_SECONDS to
    finish; another worker executes those that do not, and those of a killed worker. Prints the number of ended runs.

    With --maintain the worker also compacts datasets of all tenants that have many small files (PENSTOCK_MAINTAIN_SMALL_FILES)
    or deleted rows (PENSTOCK_MAINTAIN_DELETED_PERCENT), and those without a change for PENSTOCK_MAINTAIN_IDLE_HOURS. With
    --once it does so once.
    """
    import logging

    from penstock import bootstrap, json_logs
    from penstock.core.dataset.compaction import CompactionResult
    from penstock.core.pipeline.run import ACTIVE_STATES, RunState
    from penstock.service.datasets.maintenance import MaintenanceWorker
    from penstock.service.engine_choice import stop_spark
    from penstock.service.pipelines.run_worker import RunLimits, RunWorker
    from penstock.service.pipelines.spark_readiness import START_FAILURES

    settings = context.settings()
    ended = {state: 0 for state in RunState if state not in ACTIVE_STATES}

    def count(state: RunState, _seconds: float) -> None:
        ended[state] += 1

    compactions = {"steps": 0, "lost_steps": 0}

    def count_step(result: CompactionResult, _seconds: float) -> None:
        compactions["steps"] += result.steps
        compactions["lost_steps"] += result.lost_steps

    with bootstrap.open_session(settings) as session:
        limits = RunLimits(at_once or settings.runs_at_once)
        run_worker = RunWorker(session.workspace, limits)
        run_worker.on_run_end(count)
        maintenance = MaintenanceWorker(
            session.workspace, _maintenance_policy(settings), is_busy=lambda: run_worker.queued_count() > 0
        )
        maintenance.on_step(count_step)
        json_logs.log_to()
        log = logging.getLogger("penstock.worker")
        stop = _StopSignal(settings.http_drain_seconds + _REQUEUE_SECONDS)
        facts: dict[str, Any] = {"at_once": limits.max_concurrent, "once": once, "maintain": maintain}
        if metrics_port is not None:
            from penstock.rest.worker_metrics import WorkerMetrics

            metrics = WorkerMetrics()
            run_worker.on_run_end(metrics.record_run)
            maintenance.on_step(metrics.record_step)
            facts["metrics_port"] = metrics.serve(metrics_port)
        log.info("waiting for runs", extra={"facts": facts})
        try:
            run_worker.start()
            if maintain:
                maintenance.start()
            while not stop.wait(_CHECK_SECONDS) and not (
                once and run_worker.is_idle() and (maintenance.passes or not maintain)
            ):
                if once and (error := run_worker.spark_error()) and error.reason in START_FAILURES:
                    raise error
        finally:
            log.info("stopping", extra={"facts": {"drain_seconds": settings.http_drain_seconds}})
            maintenance.close()
            run_worker.close(settings.http_drain_seconds)
            stop_spark()
        log.info("stopped")
    counts = {state.value: number for state, number in ended.items()}
    message = "ended runs: " + ", ".join(f"{number} {state}" for state, number in counts.items())
    if maintain:
        message += f"; compaction: {compactions['steps']} steps, {compactions['lost_steps']} lost"
    context.report({**counts, "compaction": compactions} if maintain else counts, message)


def _maintenance_policy(settings: "Settings") -> "MaintenancePolicy":
    from datetime import timedelta

    from penstock.service.datasets.maintenance import MaintenancePolicy

    return MaintenancePolicy(
        settings.maintain_small_files,
        settings.maintain_deleted_percent,
        timedelta(hours=settings.maintain_idle_hours),
        settings.maintain_seconds,
    )


class _StopSignal:
    """SIGTERM or Ctrl-C: the first one begins the drain, a second Ctrl-C or the end of the drain ends the process."""

    def __init__(self, drain_seconds: float) -> None:
        import signal
        import threading

        self._drain_seconds, self._stop = drain_seconds, threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def wait(self, seconds: float) -> bool:
        return self._stop.wait(seconds)

    def _handle(self, number: int, _frame: object) -> None:
        import signal
        import threading

        if self._stop.is_set() and number == signal.SIGINT:
            _exit_now()
        self._stop.set()
        timer = threading.Timer(self._drain_seconds, _exit_now)
        timer.daemon = True
        timer.start()


def _exit_now() -> None:
    # A thread cannot be stopped. Its run has not committed, and another worker will execute it again.
    import logging
    import os

    logging.getLogger("penstock.worker").warning("active runs are aborted")
    os._exit(1)
