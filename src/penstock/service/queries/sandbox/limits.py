"""How much a query may take: time, memory, and what it answers with."""

import ctypes
import math
import os
import resource
import signal
import sys
from dataclasses import dataclass

from penstock.core.registry.query import MAX_SQL
from penstock.service.queries.sandbox.landlock import renounce

_NO_NEW_PRIVILEGES, _DIES_WITH_PARENT = 38, 1  # of prctl(2)
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/share/zoneinfo")
_MACHINE = ("/proc/self", "/sys/devices/system/cpu", "/sys/fs/cgroup")  # how much of it there is: DuckDB wants to know


@dataclass(frozen=True, slots=True)
class Limits:
    seconds: float = 30.0  # by the clock, from when the child is taken
    cpu_seconds: int = 60  # of all threads together
    memory: int = 1 << 30  # bytes, beyond what an idle child has
    threads: int = 2
    rows: int = 10_000_000  # of one answer
    bytes: int = 1 << 30  # of one answer
    sql: int = MAX_SQL  # characters of a statement
    files: int = 256  # open at once

    @property
    def duckdb_memory(self) -> int:
        """What DuckDB may count as its own; the rest is for what it does not count, and for Arrow."""
        return self.memory * 3 // 5


def confine(limits: Limits, data: str, parent: int) -> None:
    """What a child can do without from its first moment: to change files, to gain rights, to outlive its parent.

    It can read what is in the folder `data`, the programs that it consists of, and how large the machine is.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for option, value in ((_DIES_WITH_PARENT, signal.SIGKILL), (_NO_NEW_PRIVILEGES, 1)):
        if prctl(option, ctypes.c_ulong(value), 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:  # it died before it could take us along
        os._exit(1)
    renounce([data, *sys.path, *_LIBRARIES, *_MACHINE])
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_NOFILE, limits.files)


def ration(limits: Limits) -> None:
    """Memory and CPU, counted from what a child has used when it is ready."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + limits.memory)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = math.ceil(used.ru_utime + used.ru_stime) + limits.cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))  # told by SIGXCPU a second before it is killed


def _limit(what: int, value: int) -> None:
    resource.setrlimit(what, (value, value))
