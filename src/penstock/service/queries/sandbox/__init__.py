"""Run user SQL in confined, short-lived processes, one for each query.

    with Sandbox("/srv/lake/data").process(caller) as process:
        parsed = process.parse("SELECT region, sum(amount) AS total FROM finance.tx WHERE day > $day GROUP BY 1")
        process.bind({ref: … for ref in parsed.tables})
        rows = process.run(after=" AS q ORDER BY total LIMIT 100", parameters={"day": date(2026, 1, 1)})
        rows.schema, rows.table()

A fork server keeps processes ready. It is started on first use, and again if it has ended.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import partial

from penstock import cancellation
from penstock.core.caller import LOCAL_CALLER
from penstock.errors import PenstockError, Unavailable
from penstock.service.admission import AdmissionControl
from penstock.service.fair_shares import Shareholder
from penstock.service.queries.sandbox.client import FetchedFile, QueryProcess, Relation, RelationFile, ResultStream
from penstock.service.queries.sandbox.limits import QueryLimits
from penstock.service.queries.sandbox.protocol import MAX_RESPONSE_BYTES, Channel
from penstock.service.queries.sandbox.sql_analysis import ParsedStatement, TableRef

__all__ = [
    "FetchedFile",
    "ParsedStatement",
    "QueryLimits",
    "QueryProcess",
    "Relation",
    "RelationFile",
    "ResultStream",
    "Sandbox",
    "TableRef",
]

FileOpener = Callable[[Sequence[FetchedFile]], AbstractContextManager[None]]

_FORK_SERVER_CODE = "from penstock.service.queries.sandbox import fork_server; fork_server.main()"
_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # other allocators reserve more than they use, and the memory limit counts reserved memory
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # fresh memory is faster in huge pages
    "MALLOC_TOP_PAD_": str(64 << 20),  # and in large blocks
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # a process with threads cannot fork safely
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # reuse large blocks: allocating them again
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),  # takes as long as filling them
    "OPENBLAS_NUM_THREADS": "1",
}
_GRACE_SECONDS = 5.0
_START_SECONDS = 30  # for the fork server to import its libraries


class Sandbox:
    """Run queries on datasets in one folder; the processes can read no other data. It is thread-safe."""

    def __init__(
        self,
        data_folder: str,
        limits: QueryLimits | None = None,
        ready_processes: int = 2,
        max_running: int = 8,
        max_waiting: int = 16,
        open_files: FileOpener = lambda _: nullcontext(),
    ) -> None:
        """Create a sandbox; no process is started yet.

        Args:
            data_folder: the only data that queries can read
            limits: limits of one query
            ready_processes: number of processes that wait for queries
            max_running: concurrent queries
            max_waiting: queries that wait for a running one to end
            open_files: provides files in the folder for the duration of a block; queries request them
        """
        self._data_folder, self.limits = data_folder, limits or QueryLimits()
        self._ready_processes, self._open_files = ready_processes, open_files
        self._admission = AdmissionControl(max_running, max_waiting)
        self._lock = threading.Lock()
        self._fork_server: _ForkServerClient | None = None
        self._closed = False

    @contextmanager
    def process(self, caller: Shareholder = LOCAL_CALLER) -> Iterator[QueryProcess]:
        """Provide a process for one query of a caller, and kill it at the end of the block.

        Raises:
            Unavailable: too many queries are running (server_busy, tenant_busy), or no process can be started
                (sandbox_down)
            Unsupported: the request was cancelled (request_cancelled, query_cancelled)
        """
        with self._admission.admit(caller, self.limits.seconds):
            fork_server, pid, sock, exit_status = self._take_process()
            with ExitStack() as opened, sock, os.fdopen(exit_status, "rb", buffering=0):

                def provide_files(files: Sequence[FetchedFile]) -> None:
                    with fork_server.paused(pid):  # the query has its seconds for itself
                        opened.enter_context(self._open_files(files))

                sock.settimeout(self.limits.seconds + _GRACE_SECONDS)
                try:
                    channel = Channel(sock, MAX_RESPONSE_BYTES)
                    with cancellation.on_cancel(lambda: fork_server.kill(pid)):
                        kill = partial(fork_server.kill, pid)
                        yield QueryProcess(self.limits, channel, exit_status, kill, provide_files)
                except PenstockError:
                    cancellation.raise_if_cancelled()  # the process was killed for it
                    raise
                finally:
                    fork_server.kill(pid)

    def close(self) -> None:
        """End the fork server and all its processes."""
        with self._lock:
            self._closed = True
            if self._fork_server:
                self._fork_server.end()
                self._fork_server = None

    def _take_process(self) -> tuple["_ForkServerClient", int, socket.socket, int]:
        with self._lock:
            for _ in range(2):  # the fork server may have ended since its last use
                if self._closed:
                    break
                self._fork_server = fork_server = self._fork_server or _ForkServerClient(
                    self.limits, self._data_folder, self._ready_processes
                )
                with suppress(OSError, EOFError):
                    return fork_server, *fork_server.take()
                fork_server.end()
                self._fork_server = None
        raise Unavailable("sandbox_down")


class _ForkServerClient:
    """Start a fork server and send it commands."""

    def __init__(self, limits: QueryLimits, data_folder: str, ready_processes: int) -> None:
        with suppress(OSError):  # without the folder there is no data to read
            os.makedirs(data_folder, exist_ok=True)  # a Landlock rule needs an existing folder
        self._socket, server_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_START_SECONDS)
        with server_socket:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-c",
                    _FORK_SERVER_CODE,
                    json.dumps([asdict(limits), data_folder, ready_processes]),
                ],
                stdin=server_socket.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=_ENVIRONMENT,
                start_new_session=True,  # Ctrl-C in a terminal ends the service, which then ends the fork server
            )

    def take(self) -> tuple[int, socket.socket, int]:
        self._socket.send(b"take")
        pid, fds, _, _ = socket.recv_fds(self._socket, 64, 2, socket.MSG_CMSG_CLOEXEC)
        if len(fds) != 2:
            raise EOFError
        return int(pid), socket.socket(fileno=fds[0]), fds[1]

    def kill(self, pid: int) -> None:
        with suppress(OSError):  # the fork server is dead, and its processes with it
            self._socket.send(b"kill %d" % pid)

    @contextmanager
    def paused(self, pid: int) -> Iterator[None]:
        """Stop the clock of a process for the duration of the block."""
        with suppress(OSError):
            self._socket.send(b"pause %d" % pid)
        try:
            yield
        finally:
            with suppress(OSError):
                self._socket.send(b"resume %d" % pid)

    def end(self) -> None:
        self._socket.close()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
