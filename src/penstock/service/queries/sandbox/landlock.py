"""Take from this process, for good, the right to read other files than some, to change any, to start programs and to connect.

A rule of the kernel's (Landlock), for all that the process does and all that it forks. Where the kernel is older and
knows less, less is taken; the other walls stand by themselves.
"""

import ctypes
import os
from collections.abc import Iterable

_CREATE, _ALLOW, _RESTRICT = 444, 445, 446  # system calls; the numbers are the same on every machine
_TELL_VERSION, _BENEATH = 1, 1
_READ = 0b1100  # files, and what is in a folder
_FILES = {  # by the version that knew them first
    1: _READ | 0b1_1111_1111_0011,  # execute, write, remove and make
    2: 1 << 13,  # link and rename from one folder to another
    3: 1 << 14,  # truncate
}
_NETWORK = {4: 0b11}  # bind and connect
_OTHERS = {6: 0b11}  # sockets and signals of processes outside


_call = ctypes.CDLL(None, use_errno=True).syscall


class _Rules(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("others", ctypes.c_uint64))


class _Exception(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """Which rules the kernel knows; below 1 if none."""
    return int(_call(_CREATE, None, ctypes.c_size_t(0), _TELL_VERSION))


def renounce(readable: Iterable[str]) -> None:
    """Keep only the right to read what is in these folders. Needs a process of one thread that has given up new privileges."""
    known = version()
    if known < 1:
        return
    rules = _Rules(_since(_FILES, known), _since(_NETWORK, known), _since(_OTHERS, known))
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    ruleset = _done(_call(_CREATE, ctypes.byref(rules), ctypes.c_size_t(size), 0))
    for folder in readable:
        try:
            there = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        except OSError:  # not there, or out of reach: nothing in it can be read anyway
            continue
        _done(_call(_ALLOW, ruleset, _BENEATH, ctypes.byref(_Exception(_READ, there)), 0))
        os.close(there)
    _done(_call(_RESTRICT, ruleset, 0))
    os.close(ruleset)


def _done(answer: int) -> int:
    if answer < 0:
        raise OSError(ctypes.get_errno(), "Landlock")
    return answer


def _since(rights: dict[int, int], known: int) -> int:
    return sum(right for since, right in rights.items() if since <= known)
