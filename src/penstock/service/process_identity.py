"""Which process this is, in words by which another one can see whether it still lives."""

import os
import socket
from datetime import timedelta
from functools import cache
from pathlib import Path

SILENT = timedelta(seconds=30)  # one that cannot be seen, and showed no sign of life for so long, has ended

_PROC = Path("/proc")
_SOMEWHERE = "somewhere"  # a system that does not tell its processes apart in this way


def name() -> str:
    """Host, kernel and pid namespace, process id, and when it started: no other process ever has the same."""
    return _name(os.getpid())


def lives(process: str) -> bool | None:
    """Is it still there? None: it cannot be seen from here."""
    if process == name():
        return True
    _, place, pid, started = process.rsplit(" ", 3)
    if place == _SOMEWHERE or place != name().rsplit(" ", 3)[1]:
        return None
    return _started(int(pid)) == started


@cache
def _name(pid: int) -> str:
    return f"{socket.gethostname()[:64]} {_place()} {pid} {_started(pid)}"


def _place() -> str:
    """The same for processes that can see each other: hosts may share a name, and so may containers."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return _SOMEWHERE


def _started(pid: int) -> str:
    """In ticks since the kernel started; "over" for a process that has ended."""
    try:
        told = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return "over"
    state, *fields = told.rpartition(")")[2].split()  # a process may call itself anything, before that
    return "over" if state in ("Z", "X") else fields[18]
