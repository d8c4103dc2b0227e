"""The process that children are forked from: it has loaded what they need, and never connected or started a thread.

It stands on its own because a service with many threads cannot fork safely. Its standard input is a socket to the service:
`take` is answered with a child (its number, a socket to it, and a pipe that tells how it ended), `kill 123` ends one. It
ends with the service, and its children end with it.
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

from penstock.service.queries.sandbox.worker import live
from penstock.service.queries.sandbox.client import LATE
from penstock.service.queries.sandbox.limits import Limits
from penstock.service.queries.sandbox.protocol import Hung


@dataclass(slots=True, eq=False)
class _Child:
    pid: int
    socket: socket.socket
    ended: int  # the end of a pipe that is read
    tell: int  # the end that is written
    deadline: float | None = None  # None: nobody has taken it yet
    late: bool = False

    def let_go(self) -> None:
        """The service has its own copies now."""
        self.socket.close()
        os.close(self.ended)


_LULL = 0.03  # seconds in which nobody asks: the time to make children, which takes as much as several small queries


@dataclass(slots=True)
class _Nursery:
    service: socket.socket
    limits: Limits
    data: str  # the folder that its children may read
    ready: int
    idle: deque[_Child] = field(default_factory=deque)
    alive: dict[int, _Child] = field(default_factory=dict)
    lull: float | None = None  # when it will have been quiet for long enough

    def run(self) -> None:
        woken, waker = socket.socketpair()
        for end in (woken, waker):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self._fill(self.ready)
        while True:
            heard, _, _ = select.select([self.service, woken], [], [], self._patience())
            if woken in heard:
                woken.recv(4096)
                self._reap()
            if self.service in heard and not self._obey(self.service.recv(64).split()):
                return
            self._hurry()
            if self.lull is not None and self.lull <= time.monotonic():
                self.lull = None
                self._fill(self.ready)

    def _obey(self, order: list[bytes]) -> bool:
        match order:
            case []:
                return False
            case [b"take"]:
                self._hand_over(self.idle.popleft() if self.idle else self._fork())
                self._fill(1)  # the others can wait
            case [b"kill", pid]:
                self._kill(int(pid))
        self.lull = time.monotonic() + _LULL
        return True

    def _hand_over(self, child: _Child) -> None:
        child.deadline = time.monotonic() + self.limits.seconds
        socket.send_fds(self.service, [str(child.pid).encode()], [child.socket.fileno(), child.ended])
        child.let_go()

    def _fill(self, ready: int) -> None:
        while len(self.idle) < ready:
            self.idle.append(self._fork())

    def _fork(self) -> _Child:
        ours, theirs = socket.socketpair()
        ended, tell = os.pipe()
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            _be_child(theirs, self.limits, self.data, parent)
        theirs.close()
        child = self.alive[pid] = _Child(pid, ours, ended, tell)
        return child

    def _kill(self, pid: int) -> None:
        if pid in self.alive:  # not yet reaped, so the number is still this child's
            os.kill(pid, signal.SIGKILL)

    def _patience(self) -> float | None:
        moments = [child.deadline for child in self.alive.values() if child.deadline is not None and not child.late]
        moments += [] if self.lull is None else [self.lull]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _hurry(self) -> None:
        now = time.monotonic()
        for child in self.alive.values():
            if child.deadline is not None and child.deadline <= now and not child.late:
                child.late = True
                self._kill(child.pid)

    def _reap(self) -> None:
        while self.alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            child = self.alive.pop(pid)
            with suppress(BrokenPipeError):  # nobody wants to know any more
                os.write(child.tell, LATE if child.late else str(status).encode())
            os.close(child.tell)
            if child in self.idle:  # it could not even begin; the next one is made when somebody asks
                self.idle.remove(child)
                child.let_go()


def _be_child(sock: socket.socket, limits: Limits, data: str, parent: int) -> None:
    """Keep nothing of the nursery but the socket, and never come back."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(sock.fileno(), 0)
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
        live(socket.socket(fileno=0), limits, data, parent)
    except Hung:
        os._exit(0)
    finally:
        os._exit(1)


def main() -> None:
    limits, data, ready = json.loads(sys.argv[1])
    nowhere = tempfile.mkdtemp()
    os.chdir(nowhere)
    os.rmdir(nowhere)  # nothing can be found in a directory that is gone, and nothing be put there
    gc.collect()
    gc.freeze()  # what is never looked at again is never copied
    _Nursery(socket.socket(fileno=0), Limits(**limits), data, ready).run()
