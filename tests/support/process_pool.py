"""Start test processes quickly from a fork server."""

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

PRELOADED_MODULES = ["support.process_scripts", "faults.directory_merges"]
# Threads of these libraries would make fork unsafe.
SINGLE_THREAD_ENV = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


class ChildProcess:
    """Run `main` of a module with one argument, with the interface of `Popen`."""

    def __init__(self, module: str, argument: str) -> None:
        context = _context()
        (output_pipe, out), (error_pipe, err) = (context.Pipe(duplex=False) for _ in range(2))
        self._process = context.Process(target=_run, args=(out, err, module, argument))
        with output_pipe, out, error_pipe, err:
            self._process.start()
            self.stdout, self.stderr = (os.fdopen(os.dup(end.fileno())) for end in (output_pipe, error_pipe))

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
    context.set_forkserver_preload(PRELOADED_MODULES)
    with patch.dict(os.environ, {"PYTHONPATH": str(Path(__file__).parents[1]), **SINGLE_THREAD_ENV}):
        forkserver.ensure_running()
    return context


def _run(out: Connection, err: Connection, module: str, argument: str) -> None:
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    out.close()
    err.close()
    sys.argv = ["", argument]
    importlib.import_module(module).main()
