"""Limits of a query, and the functions with which a sandbox process applies them to itself."""

import ctypes
import math
import os
import resource
import signal
import sys
from dataclasses import dataclass

from penstock.core.registry.query import MAX_SQL_LENGTH
from penstock.service.queries.sandbox.landlock import restrict

_NO_NEW_PRIVILEGES, _PARENT_DEATH_SIGNAL = 38, 1  # options of prctl(2)
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/share/zoneinfo")
_MACHINE_INFO = ("/proc/self", "/sys/devices/system/cpu", "/sys/fs/cgroup")  # DuckDB reads the size of the machine


@dataclass(frozen=True, slots=True)
class QueryLimits:
    seconds: float = 30.0  # elapsed time, from the moment the process is taken
    cpu_seconds: int = 60  # of all threads together
    memory_bytes: int = 1 << 30  # beyond the memory of an idle process
    threads: int = 2
    rows: int = 10_000_000  # of one result
    bytes: int = 1 << 30  # of one result
    vector_bytes: int = 64 << 20  # of the deletion vectors of the datasets that a statement reads
    sql_characters: int = MAX_SQL_LENGTH  # of a statement
    open_files: int = 256

    @property
    def duckdb_memory_bytes(self) -> int:
        """The memory limit of DuckDB; the rest is for Arrow and for memory that DuckDB does not count."""
        return self.memory_bytes * 3 // 5


def confine(limits: QueryLimits, data: str, parent: int) -> None:
    """Apply the limits that hold from the start: no file changes, no new privileges, end with the parent process.

    The process can read the folder `data`, its own libraries, and the size of the machine.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for option, value in ((_PARENT_DEATH_SIGNAL, signal.SIGKILL), (_NO_NEW_PRIVILEGES, 1)):
        if prctl(option, ctypes.c_ulong(value), 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:  # the parent ended before the signal was set
        os._exit(1)
    restrict([data, *sys.path, *_LIBRARIES, *_MACHINE_INFO])
    _set_limit(resource.RLIMIT_CORE, 0)
    _set_limit(resource.RLIMIT_FSIZE, 0)
    _set_limit(resource.RLIMIT_NOFILE, limits.open_files)


def limit_resources(limits: QueryLimits) -> None:
    """Limit memory and CPU time, in addition to what the process has used so far."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    _set_limit(resource.RLIMIT_AS, pages * resource.getpagesize() + limits.memory_bytes)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = math.ceil(used.ru_utime + used.ru_stime) + limits.cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))  # SIGXCPU, and SIGKILL one second later


def _set_limit(which: int, value: int) -> None:
    resource.setrlimit(which, (value, value))
