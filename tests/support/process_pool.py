"""Processes that start at once: forked from one that has loaded what they need, and has done nothing with it."""

import importlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from unittest.mock import patch

LOADED = ["support.process_scripts", "faults.directory_merges"]
# A process with threads cannot fork safely; these are of libraries that start theirs when they are loaded.
ALONE = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


class ChildProcess:
    """Runs `main` of a module with one argument. It is what a `subprocess.Popen` with pipes is, as far as tests go."""

    def __init__(self, module: str, argument: str) -> None:
        context = _context()
        (message, out), (cried, err) = (context.Pipe(duplex=False) for _ in range(2))
        self._process = context.Process(target=_run, args=(out, err, module, argument))
        with message, out, cried, err:
            self._process.start()
            self.stdout, self.stderr = (os.fdopen(os.dup(end.fileno())) for end in (message, cried))

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Read the output of the process until it ends."""
        with self.stdout, self.stderr, ThreadPoolExecutor() as pool:
            out, err = (pool.submit(end.read) for end in (self.stdout, self.stderr))
            self._process.join(timeout)
            if self.returncode is None:
                self.kill()
                raise subprocess.TimeoutExpired(str(self._process), timeout)
            return out.result(), err.result()


@cache
def _context() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    with patch.dict(os.environ, {"PYTHONPATH": str(Path(__file__).parents[1]), **ALONE}):
        forkserver.ensure_running()
    return context


def _run(out: Connection, err: Connection, module: str, argument: str) -> None:
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    out.close()
    err.close()
    sys.argv = ["", argument]
    importlib.import_module(module).main()
