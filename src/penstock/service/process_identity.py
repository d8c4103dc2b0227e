"""Process identity (host, boot id, PID namespace, PID, start time), and a check whether a process is alive."""

import os
import socket
from datetime import timedelta
from functools import cache
from pathlib import Path

STALE_AFTER = timedelta(seconds=30)  # an invisible process without a heartbeat for this long counts as dead

_PROC = Path("/proc")
_NO_NAMESPACE = "somewhere"  # of a system without boot ids and PID namespaces


def current_process() -> str:
    """Return the identity of this process. No two processes ever have the same."""
    return _process_name(os.getpid())


def is_alive(process: str) -> bool | None:
    """Return whether a process is alive, or None if it is not visible from this PID namespace."""
    if process == current_process():
        return True
    _, namespace, pid, started = process.rsplit(" ", 3)
    if namespace == _NO_NAMESPACE or namespace != current_process().rsplit(" ", 3)[1]:
        return None
    return _start_time(int(pid)) == started


@cache
def _process_name(pid: int) -> str:
    return f"{socket.gethostname()[:64]} {_pid_namespace()} {pid} {_start_time(pid)}"


def _pid_namespace() -> str:
    """Return the boot id and the PID namespace: equal for processes that can see each other."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return _NO_NAMESPACE


def _start_time(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot, or "over" if the process has ended."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return "over"
    state, *fields = stat.rpartition(")")[2].split()  # the process name before it may contain any character
    return "over" if state in ("Z", "X") else fields[18]
