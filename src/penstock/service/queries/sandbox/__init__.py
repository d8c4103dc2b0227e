"""Run what a user wrote as SQL where it can harm nobody: a throw-away process, with limits, for one query.

    with Sandbox("/srv/lake/data").cell() as cell:
        parsed = cell.parse("SELECT region, sum(amount) AS total FROM finance.tx WHERE day > $day GROUP BY 1")
        cell.bind({ref: … for ref in parsed.tables})
        rows = cell.run(after=" AS q ORDER BY total LIMIT 100", parameters={"day": date(2026, 1, 1)})
        rows.schema, rows.table()

Children wait, ready, in a nursery: a process of its own that is started when it is first needed, and again if it dies.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict

from penstock.errors import Unavailable
from penstock.service.queries.sandbox.client import Cell, File, Relation, Rows
from penstock.service.queries.sandbox.limits import Limits
from penstock.service.queries.sandbox.admission import Places
from penstock.service.queries.sandbox.sql_analysis import Parsed, Ref
from penstock.service.queries.sandbox.protocol import MAX_TOLD, Line

__all__ = ["Cell", "File", "Limits", "Parsed", "Ref", "Relation", "Rows", "Sandbox"]

_NURSERY = "from penstock.service.queries.sandbox import fork_server; fork_server.main()"
_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # others reserve more than they use, and the limit counts what is reserved
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # a child's memory is new: it comes faster in large pages,
    "MALLOC_TOP_PAD_": str(64 << 20),  # and in large pieces
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # a process with threads cannot fork safely
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # large pieces of memory are used again: to get them anew takes as long
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),  # as to fill them
    "OPENBLAS_NUM_THREADS": "1",
}
_GRACE = 5.0  # seconds


class Sandbox:
    """For datasets in the folder `data`: children can read nothing else. Threads may share it."""

    def __init__(
        self, data: str, limits: Limits | None = None, ready: int = 2, at_once: int = 8, waiting: int = 16
    ) -> None:
        self._data, self.limits = data, limits or Limits()
        self._ready = ready
        self._places = Places(at_once, waiting)
        self._lock = threading.Lock()
        self._nursery: _Nursery | None = None
        self._closed = False

    @contextmanager
    def cell(self, tenant: Hashable = None) -> Iterator[Cell]:
        """A child for one query of a tenant's. It is dead afterwards, whatever it was doing."""
        with self._places.one(tenant, self.limits.seconds):
            nursery, pid, sock, ended = self._take()
            with sock, os.fdopen(ended, "rb", buffering=0):
                sock.settimeout(self.limits.seconds + _GRACE)
                try:
                    yield Cell(self.limits, Line(sock, MAX_TOLD), ended, lambda: nursery.kill(pid))
                finally:
                    nursery.kill(pid)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._nursery:
                self._nursery.end()
                self._nursery = None

    def _take(self) -> tuple["_Nursery", int, socket.socket, int]:
        with self._lock:
            for _ in range(2):  # the first may have been killed since it was used
                if self._closed:
                    break
                self._nursery = nursery = self._nursery or _Nursery(self.limits, self._data, self._ready)
                with suppress(OSError, EOFError):
                    return nursery, *nursery.take()
                nursery.end()
                self._nursery = None
        raise Unavailable("sandbox_down", "queries cannot be run now: the process that they run in does not start")


class _Nursery:
    def __init__(self, limits: Limits, data: str, ready: int) -> None:
        with suppress(OSError):  # then there is no data that could be read
            os.makedirs(data, exist_ok=True)  # a right to read needs a place
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(30)  # it has a few libraries to load
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _NURSERY, json.dumps([asdict(limits), data, ready])],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=_ENVIRONMENT,
                start_new_session=True,  # Ctrl-C is for the service
            )

    def take(self) -> tuple[int, socket.socket, int]:
        self._socket.send(b"take")
        word, fds, _, _ = socket.recv_fds(self._socket, 64, 2, socket.MSG_CMSG_CLOEXEC)
        if len(fds) != 2:
            raise EOFError
        return int(word), socket.socket(fileno=fds[0]), fds[1]

    def kill(self, pid: int) -> None:
        with suppress(OSError):  # its children die with it
            self._socket.send(b"kill %d" % pid)

    def end(self) -> None:
        self._socket.close()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
