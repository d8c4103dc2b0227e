"""Fork server: a process that has imported all libraries, has no threads, and forks the processes of the sandbox.

It is a process of its own because a service with many threads cannot fork safely. Its standard input is a socket to the
service. It answers `take` with a process (pid, socket, and a pipe for the exit status); `kill 123` ends one. It ends with
the service, and its processes end with it.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.service.queries.sandbox import worker
from penstock.service.queries.sandbox.client import DEADLINE_EXCEEDED
from penstock.service.queries.sandbox.limits import QueryLimits
from penstock.service.queries.sandbox.protocol import ChannelClosed


@dataclass(slots=True, eq=False)
class _Child:
    pid: int
    socket: socket.socket
    status_reader: int  # read end of the pipe for the exit status
    status_writer: int
    deadline: float | None = None  # None: it waits for a query
    paused_at: float | None = None  # while the service fetches files for it
    deadline_exceeded: bool = False

    def set_paused(self, paused: bool) -> None:
        """Stop the clock of the deadline, or move the deadline by the time that the clock was stopped."""
        now = time.monotonic()
        if paused:
            self.paused_at = now
        elif self.paused_at is not None and self.deadline is not None:
            self.deadline += now - self.paused_at
            self.paused_at = None

    @property
    def active_deadline(self) -> float | None:
        """Return the time at which the process is killed; None: not at present."""
        return None if self.paused_at is not None or self.deadline_exceeded else self.deadline

    def close_service_ends(self) -> None:
        """Close the socket and the read end, of which the service has its own copies."""
        self.socket.close()
        os.close(self.status_reader)


_REFILL_DELAY_SECONDS = 0.03  # wait for an idle moment: a fork takes as long as several small queries


@dataclass(slots=True)
class _ForkServer:
    service: socket.socket
    limits: QueryLimits
    data_folder: str  # the only data that the processes can read
    ready_processes: int
    idle: deque[_Child] = field(default_factory=deque)
    alive: dict[int, _Child] = field(default_factory=dict)
    refill_at: float | None = None  # time of the next refill

    def run(self) -> None:
        woken, waker = socket.socketpair()
        for end in (woken, waker):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self._fill(self.ready_processes)
        while True:
            readable, _, _ = select.select([self.service, woken], [], [], self._timeout())
            if woken in readable:
                woken.recv(4096)
                self._reap()
            if self.service in readable and not self._handle_command(self.service.recv(64).split()):
                return
            self._kill_overdue()
            if self.refill_at is not None and self.refill_at <= time.monotonic():
                self.refill_at = None
                self._fill(self.ready_processes)

    def _handle_command(self, command: list[bytes]) -> bool:
        match command:
            case []:
                return False
            case [b"take"]:
                self._hand_over(self.idle.popleft() if self.idle else self._fork())
                self._fill(1)  # the refill creates the others
            case [b"kill", pid]:
                self._kill(int(pid))
            case [b"pause" | b"resume" as verb, pid]:
                if child := self.alive.get(int(pid)):
                    child.set_paused(verb == b"pause")
                return True
        self.refill_at = time.monotonic() + _REFILL_DELAY_SECONDS
        return True

    def _hand_over(self, child: _Child) -> None:
        child.deadline = time.monotonic() + self.limits.seconds
        socket.send_fds(self.service, [str(child.pid).encode()], [child.socket.fileno(), child.status_reader])
        child.close_service_ends()

    def _fill(self, count: int) -> None:
        while len(self.idle) < count:
            self.idle.append(self._fork())

    def _fork(self) -> _Child:
        service_socket, child_socket = socket.socketpair()
        status_reader, status_writer = os.pipe()
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            _run_child(child_socket, self.limits, self.data_folder, parent)
        child_socket.close()
        child = self.alive[pid] = _Child(pid, service_socket, status_reader, status_writer)
        return child

    def _kill(self, pid: int) -> None:
        if pid in self.alive:  # not yet reaped, so the pid still belongs to this process
            os.kill(pid, signal.SIGKILL)

    def _timeout(self) -> float | None:
        deadlines = (child.active_deadline for child in self.alive.values())
        times = [deadline for deadline in deadlines if deadline is not None]
        times += [] if self.refill_at is None else [self.refill_at]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for child in self.alive.values():
            if (deadline := child.active_deadline) is not None and deadline <= now:
                child.deadline_exceeded = True
                self._kill(child.pid)

    def _reap(self) -> None:
        while self.alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            child = self.alive.pop(pid)
            with suppress(BrokenPipeError):  # the service has closed the pipe
                os.write(child.status_writer, DEADLINE_EXCEEDED if child.deadline_exceeded else str(status).encode())
            os.close(child.status_writer)
            if child in self.idle:  # it failed at start; the next `take` forks a new one
                self.idle.remove(child)
                child.close_service_ends()


def _run_child(sock: socket.socket, limits: QueryLimits, data: str, parent: int) -> None:
    """Run a sandbox process. It keeps only its socket, and this function never returns."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(sock.fileno(), 0)
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
        worker.main(socket.socket(fileno=0), limits, data, parent)
    except ChannelClosed:
        os._exit(0)
    finally:
        os._exit(1)


def main() -> None:
    """Run the fork server with the arguments of the command line."""
    limits, data_folder, ready_processes = json.loads(sys.argv[1])
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)  # a deleted working directory has no files and accepts none
    gc.collect()
    gc.freeze()  # frozen objects are not touched by the collector, so forks share their memory pages
    _ForkServer(socket.socket(fileno=0), QueryLimits(**limits), data_folder, ready_processes).run()
