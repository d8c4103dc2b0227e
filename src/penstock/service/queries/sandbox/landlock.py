"""Restrict this process with Landlock: read-only access to given folders, no writes, no exec, no TCP.

Landlock is a kernel feature; its rules hold for the process and everything that it forks. An older kernel enforces fewer
rules, and the other limits of the sandbox do not depend on it.
"""

import ctypes
import os
from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system call numbers, the same on every architecture
_GET_VERSION, _PATH_BENEATH = 1, 1
_READ = 0b1100  # read files, list folders
_FILE_RIGHTS = {  # by the Landlock version that introduced them
    1: _READ | 0b1_1111_1111_0011,  # execute, write, remove and make
    2: 1 << 13,  # link and rename between folders
    3: 1 << 14,  # truncate
}
_NETWORK_RIGHTS = {4: 0b11}  # TCP bind and connect
_SCOPES = {6: 0b11}  # abstract sockets and signals of processes outside


_syscall = ctypes.CDLL(None, use_errno=True).syscall


class _RulesetAttributes(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """Return the Landlock version of the kernel; below 1 if it has none."""
    return int(_syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _GET_VERSION))


def restrict(readable: Iterable[str]) -> None:
    """Allow only reads below the given folders. Requires a single-threaded process with no_new_privs set."""
    supported = version()
    if supported < 1:
        return
    attributes = _RulesetAttributes(
        _rights_since(_FILE_RIGHTS, supported),
        _rights_since(_NETWORK_RIGHTS, supported),
        _rights_since(_SCOPES, supported),
    )
    size = 24 if supported >= 6 else 16 if supported >= 4 else 8
    ruleset = _check(_syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0))
    for path in readable:
        try:
            folder = os.open(path, os.O_PATH | os.O_DIRECTORY)
        except OSError:  # it does not exist or is not accessible, so nothing in it can be read
            continue
        _check(_syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(_PathRule(_READ, folder)), 0))
        os.close(folder)
    _check(_syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "Landlock")
    return result


def _rights_since(rights: dict[int, int], supported: int) -> int:
    return sum(right for since, right in rights.items() if since <= supported)
