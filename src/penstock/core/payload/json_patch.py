"""Change a JSON document as a patch says: by example (RFC 7396), or step by step (RFC 6902).

Nothing that is given is ever changed. The answer shares with it what the patch leaves alone.
"""

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

from penstock.errors import Conflict, Invalid

MAX_OPERATIONS = 1_000
MAX_COPIED = 1_000_000  # characters that all copies of a patch may add: few lines of patch can say very much
MAX_DEPTH = 100

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_ESCAPE = re.compile(r"~[01]")
_STRAY = re.compile(r"~(?![01])")

Path = tuple[str, ...]


class Operator(StrEnum):
    ADD = "add"
    REMOVE = "remove"
    REPLACE = "replace"
    MOVE = "move"
    COPY = "copy"
    TEST = "test"


def merged(target: Any, patch: Any) -> Any:
    """The target with the patch's members in place of its own; those that are null in the patch are gone."""
    _check_depth(patch)
    return _merged(target, patch)


def patched(target: Any, operations: Any) -> Any:
    """The target after all operations, each upon the result of the one before; all of them or an error."""
    if not isinstance(operations, list):
        raise Invalid("bad_patch", "a JSON Patch is an array of operations", pointer="")
    if len(operations) > MAX_OPERATIONS:
        raise Invalid(
            "bad_patch", f"{len(operations):,} operations; a patch has at most {MAX_OPERATIONS:,}", pointer=""
        )
    document, room = target, MAX_COPIED
    for number, operation in enumerate(operations):
        try:
            document, room = _applied(document, operation, room)
        except _Stuck as stuck:
            raise Invalid(
                "bad_patch", f"operation {number}: {stuck.problem}", pointer=_shown(stuck.pointer), operation=number
            ) from None
        except _Differs as differs:
            pointer = _shown(differs.pointer)
            raise Conflict(
                "patch_test_failed",
                f"operation {number}: the value at '{pointer}' is not the one that the patch expects",
                pointer=pointer,
                operation=number,
            ) from None
    _check_depth(document)
    return document


class _Stuck(Exception):
    """Why an operation cannot be done; its number is added by the caller."""

    def __init__(self, problem: str, pointer: str) -> None:
        self.problem, self.pointer = problem, pointer


class _Differs(Exception):
    def __init__(self, pointer: str) -> None:
        self.pointer = pointer


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result


def _applied(document: Any, operation: Any, room: int) -> tuple[Any, int]:
    """The document after one operation, and how many characters may still be copied."""
    if not isinstance(operation, dict):
        raise _Stuck("it must be an object", "")
    pointer: Any = operation.get("path")
    path = _path(pointer, "path")
    try:
        operator = Operator(operation["op"])
    except (KeyError, ValueError):
        raise _Stuck(f"op must be one of {', '.join(Operator)}", pointer) from None
    match operator:
        case Operator.REMOVE:
            return _without(document, path, pointer), room
        case Operator.MOVE | Operator.COPY:
            origin: Any = operation.get("from")
            start = _path(origin, "from")
            value = _at(document, start, origin)
            if operator is Operator.COPY:
                return _with(document, path, value, pointer), _room_after(value, room, origin)
            if start == path:
                return document, room
            if path[: len(start)] == start:
                raise _Stuck("a value cannot be moved into itself", pointer)
            return _with(_without(document, start, origin), path, value, pointer), room
    if "value" not in operation:
        raise _Stuck(f"{operator} needs a value", pointer)
    value = operation["value"]
    match operator:
        case Operator.ADD:
            return _with(document, path, value, pointer), room
        case Operator.REPLACE:
            return _replaced(document, path, value, pointer), room
    if not _same(_at(document, path, pointer), value):
        raise _Differs(pointer)
    return document, room


def _path(pointer: Any, member: str) -> Path:
    if not isinstance(pointer, str):
        raise _Stuck(f"it needs a {member}, a JSON Pointer such as /fields/0", "")
    if not pointer:
        return ()
    if not pointer.startswith("/"):
        raise _Stuck(f"{member} must be empty or begin with '/'", pointer)
    if _STRAY.search(pointer):
        raise _Stuck(f"in {member} a '~' is written '~0', and a '/' in a name '~1'", pointer)
    path = tuple(_ESCAPE.sub(lambda found: "/" if found[0] == "~1" else "~", token) for token in pointer[1:].split("/"))
    if len(path) > MAX_DEPTH:
        raise _Stuck(f"{member} goes more than {MAX_DEPTH} levels deep", pointer)
    return path


def _at(document: Any, path: Path, pointer: str) -> Any:
    for token in path:
        document = document[_key(document, token, pointer)]
    return document


def _key(holder: Any, token: str, pointer: str) -> Any:
    """The member or index of `holder` that the token names, and that is there."""
    match holder:
        case dict():
            if token in holder:
                return token
            raise _Stuck(f"there is no member '{_shown(token)}'", pointer)
        case list():
            return _index(token, len(holder) - 1, pointer)
    raise _Stuck(f"there is nothing below a plain value, and no '{_shown(token)}'", pointer)


def _index(token: str, last: int, pointer: str) -> int:
    if not _INDEX.fullmatch(token):
        raise _Stuck(f"'{_shown(token)}' is no index of an array", pointer)
    if int(token) > last:
        raise _Stuck(f"index {token} is beyond the end of the array", pointer)
    return int(token)


def _with(document: Any, path: Path, value: Any, pointer: str) -> Any:
    """The document with a value added: set in an object, inserted in an array."""

    def add(holder: Any, token: str) -> Any:
        match holder:
            case dict():
                return {**holder, token: value}
            case list():
                at = len(holder) if token == "-" else _index(token, len(holder), pointer)
                return [*holder[:at], value, *holder[at:]]
        raise _Stuck("a value can be added to an object or an array only", pointer)

    return _rebuilt(document, path, add, pointer) if path else value


def _without(document: Any, path: Path, pointer: str) -> Any:
    def remove(holder: Any, token: str) -> Any:
        gone = _key(holder, token, pointer)
        if isinstance(holder, dict):
            return {name: value for name, value in holder.items() if name != gone}
        return [*holder[:gone], *holder[gone + 1 :]]

    if not path:
        raise _Stuck("the whole document cannot be removed", pointer)
    return _rebuilt(document, path, remove, pointer)


def _replaced(document: Any, path: Path, value: Any, pointer: str) -> Any:
    def put(holder: Any, token: str) -> Any:
        return _put(holder, _key(holder, token, pointer), value)

    return _rebuilt(document, path, put, pointer) if path else value


def _rebuilt(document: Any, path: Path, change: Callable[[Any, str], Any], pointer: str) -> Any:
    """The document with the last holder on the path changed, and those above it made anew around it."""
    above = []
    for token in path[:-1]:
        key = _key(document, token, pointer)
        above.append((document, key))
        document = document[key]
    result = change(document, path[-1])
    for holder, key in reversed(above):
        result = _put(holder, key, result)
    return result


def _put(holder: Any, key: Any, value: Any) -> Any:
    return {**holder, key: value} if isinstance(holder, dict) else [*holder[:key], value, *holder[key + 1 :]]


def _room_after(value: Any, room: int, pointer: str) -> int:
    for part, _ in _parts(value):
        match part:
            case str():
                room -= len(part) + 2
            case dict():
                room -= sum(map(len, part)) + 2
            case list():
                room -= 2
            case _:
                room -= len(repr(part))
        if room < 0:
            raise _Stuck(f"the patch copies more than {MAX_COPIED:,} characters", pointer)
    return room


def _same(left: Any, right: Any) -> bool:
    """Equal as JSON: 1 is 1.0 and is not true."""
    pairs = [(left, right)]
    while pairs:
        match pairs.pop():
            case (dict() as one, dict() as other):
                if one.keys() != other.keys():
                    return False
                pairs.extend((one[name], other[name]) for name in one)
            case (list() as one, list() as other):
                if len(one) != len(other):
                    return False
                pairs.extend(zip(one, other, strict=True))
            case one, other:
                if isinstance(one, bool) is not isinstance(other, bool) or one != other:
                    return False
    return True


def _check_depth(document: Any) -> None:
    if any(depth > MAX_DEPTH for _, depth in _parts(document)):
        raise Invalid("bad_patch", f"the document would be more than {MAX_DEPTH} levels deep", pointer="")


def _parts(document: Any) -> Iterator[tuple[Any, int]]:
    """Every value in the document with its depth, without recursion: others wrote it."""
    waiting = [(document, 0)]
    while waiting:
        part, depth = waiting.pop()
        yield part, depth
        match part:
            case dict():
                waiting.extend((value, depth + 1) for value in part.values())
            case list():
                waiting.extend((value, depth + 1) for value in part)


def _shown(text: str) -> str:
    """Text from outside, safe to print: escaped and cut."""
    return ascii(text[:100])[1:-1]
