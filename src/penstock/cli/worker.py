"""The command `worker`."""

import click

from penstock.cli.context import Command, Frame, shared

_LOOK = 0.2  # seconds between two looks whether all is done
_LAST_WORDS = 5.0  # seconds after the drain, for runs to be given back


@click.command(cls=Command)
@click.option("--at-once", type=click.IntRange(1), help="Runs at once.  [PENSTOCK_RUNS_AT_ONCE; else: 2]")
@click.option("--once", is_flag=True, help="Carry out what waits, and end.")
@shared(
    """
    penstock worker --workspace lake
    penstock worker --at-once 4
    penstock worker --once --json
    """
)
def worker(frame: Frame, at_once: int | None, once: bool) -> None:
    """Carry out runs of pipelines, for all tenants, as their turn comes, until SIGTERM or Ctrl-C.

    Workers share the queue with one another and with `penstock serve` (unless it has --no-runs), on every machine that
    sees the workspace and its catalog. When one stops, its runs have PENSTOCK_HTTP_DRAIN_SECONDS to end; what does not
    is taken by another, as is a run whose worker was killed. In the end it tells how many runs ended, and how.
    """
    import logging

    from penstock import lake
    from penstock.core.pipeline.run import UNDER_WAY, State
    from penstock import json_logs as logs
    from penstock.service.engine_choice import stop_spark
    from penstock.service.pipelines.run_worker import Bounds, Runner

    settings = frame.settings()
    ended = {state: 0 for state in State if state not in UNDER_WAY}

    def count(state: State, _seconds: float) -> None:
        ended[state] += 1

    with lake.open(settings=settings) as opened:
        bounds = Bounds(at_once or settings.runs_at_once)
        runner = Runner(opened.workspace, bounds)
        runner.hear_ends(count)
        logs.to()
        log = logging.getLogger("penstock.worker")
        stop = _Signal(settings.http_drain_seconds + _LAST_WORDS)
        log.info("waiting for runs", extra={"facts": {"at_once": bounds.at_once, "once": once}})
        try:
            runner.start()
            while not stop.heard(_LOOK) and not (once and runner.idle()):
                pass
        finally:
            log.info("stopping", extra={"facts": {"drain_seconds": settings.http_drain_seconds}})
            runner.close(settings.http_drain_seconds)
            stop_spark()
        log.info("stopped")
    facts = {state.value: number for state, number in ended.items()}
    frame.tell(facts, "runs that ended here: " + ", ".join(f"{number} {state}" for state, number in facts.items()))


class _Signal:
    """SIGTERM or Ctrl-C: the first one asks to stop. A run that does not is left behind, and so is all by a second Ctrl-C."""

    def __init__(self, patience: float) -> None:
        import signal
        import threading

        self._patience, self._stop = patience, threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._hear)

    def heard(self, seconds: float) -> bool:
        return self._stop.wait(seconds)

    def _hear(self, number: int, _frame: object) -> None:
        import signal
        import threading

        if self._stop.is_set() and number == signal.SIGINT:
            _cut()
        self._stop.set()
        cut = threading.Timer(self._patience, _cut)
        cut.daemon = True
        cut.start()


def _cut() -> None:
    # A thread cannot be stopped, only left behind. What it had not committed was not written, and will be done again.
    import logging
    import os

    logging.getLogger("penstock.worker").warning("runs that were still under way are cut")
    os._exit(1)
