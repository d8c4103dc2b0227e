"""Supervise the processes of `penstock serve --processes N`: start them, restart a process that ends unexpectedly, stop them together."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import IO, Any

from penstock.errors import Unavailable
from penstock.rest.process_group import ProcessGroup, to_argument
from penstock.rest.server import listening_socket

_CHILD_CODE = "from penstock.cli import main; main()"
_CHECK_SECONDS = 0.2
_RESTART_SECONDS = (
    1.0,
    30.0,
)  # the first and the longest pause before a process that ended unexpectedly is started again
_STABLE_SECONDS = 60.0  # after so long the pause begins again at the first
_GRACE_SECONDS = 15.0  # for the processes to stop, beside the drain time
_log = logging.getLogger(__name__)


class Supervisor:
    """Run a server in several processes that share one HTTP port and one Flight port."""

    def __init__(
        self,
        arguments: Sequence[str],
        processes: int,
        host: str,
        http_port: int,
        page_port: int | None,
        drain_seconds: float,
    ) -> None:
        """Create a supervisor.

        Args:
            arguments: the command line of a process, after `penstock`
            processes: number of processes
            host: address to listen on
            http_port: port for HTTP; 0 takes a free one
            page_port: port of the web page, which one process serves; 0 takes a free one, None serves no page
            drain_seconds: time for active requests to finish
        """
        self._arguments, self._count, self._drain_seconds = arguments, processes, drain_seconds
        self._host, self._http_port, self._page_port = host, http_port, page_port
        self._stopping = threading.Event()
        self._children: list[ServerProcess] = []

    def run(self, on_listening: Callable[[dict[str, Any]], None]) -> int:
        """Serve until SIGTERM or SIGINT.

        Args:
            on_listening: called with the addresses when every process accepts requests

        Returns:
            the exit code: 0 if every process stopped as asked
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopping.set())
        with ExitStack() as cleanup:
            folder = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="penstock-serve-"))
            http = cleanup.enter_context(listening_socket(self._host, self._http_port))
            page = None
            if self._page_port is not None:
                page = cleanup.enter_context(listening_socket(self._host, self._page_port))
            self._children = [
                ServerProcess(self._arguments, ProcessGroup(folder, index, self._count), http, page)
                for index in range(self._count)
            ]
            try:
                for child in self._children:
                    child.start()
                addresses = [child.wait_until_listening() for child in self._children]
                on_listening(addresses[0])
                while not self._stopping.wait(_CHECK_SECONDS):
                    for child in self._children:
                        child.restart_if_dead()
            finally:
                code = self._stop()
        return code

    def _stop(self) -> int:
        for child in self._children:
            child.terminate()
        deadline = time.monotonic() + self._drain_seconds + _GRACE_SECONDS
        codes = [child.wait(max(deadline - time.monotonic(), 0)) for child in self._children]
        return int(any(codes))


class ServerProcess:
    """One process of the server."""

    def __init__(
        self, arguments: Sequence[str], group: ProcessGroup, http: socket.socket, page: socket.socket | None
    ) -> None:
        own_page = page if group.index == 0 else None  # the sessions of the page live in one process
        page_port = page.getsockname()[1] if page else None
        child = to_argument(group, http.fileno(), own_page.fileno() if own_page else None, page_port)
        self._command = [sys.executable, "-c", _CHILD_CODE, *arguments, "--json", "--child", child]
        self._fds = [http.fileno(), *([own_page.fileno()] if own_page else [])]
        self._index = group.index
        self._process: subprocess.Popen[str] | None = None
        self._started_at = self._restart_at = 0.0
        self._pause = _RESTART_SECONDS[0]

    def start(self) -> None:
        self._started_at = time.monotonic()
        # The process stops when its standard input ends, so that it does not outlive a supervisor that was killed.
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=self._fds,
            start_new_session=True,  # Ctrl-C in a terminal reaches the supervisor alone
        )  # fmt: skip

    def wait_until_listening(self) -> dict[str, Any]:
        """Return the addresses that the process prints.

        Raises:
            Unavailable: the process ended before it listened; its error is on standard error
        """
        assert self._process
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable("process_not_started", {"index": self._index})
        threading.Thread(target=_discard, args=(self._process.stdout,), daemon=True).start()
        addresses: dict[str, Any] = json.loads(line)
        return addresses

    def restart_if_dead(self) -> None:
        assert self._process
        code, now = self._process.poll(), time.monotonic()
        if code is None:
            return
        if not self._restart_at:
            if now - self._started_at > _STABLE_SECONDS:
                self._pause = _RESTART_SECONDS[0]
            _log.error("process %d ended with code %d; it is started again in %g s", self._index, code, self._pause)
            self._restart_at = now + self._pause
            self._pause = min(self._pause * 2, _RESTART_SECONDS[1])
        elif now >= self._restart_at:
            self._restart_at = 0.0
            self.start()
            assert self._process.stdout
            threading.Thread(target=_discard, args=(self._process.stdout,), daemon=True).start()

    def terminate(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.terminate()

    def wait(self, seconds: float) -> int:
        """Wait for the end of the process, and kill it after that. Return its exit code."""
        if not self._process:
            return 1
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return 1


def stop_with_supervisor() -> None:
    """Stop this process as on SIGTERM when its supervisor ends."""

    def wait() -> None:
        while os.read(0, 1 << 10):  # not sys.stdin: its lock would be held when the interpreter ends
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="penstock supervisor", daemon=True).start()


def _discard(stream: IO[str]) -> None:
    while stream.read(1 << 10):
        pass
