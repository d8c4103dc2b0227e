"""Apply JSON Merge Patch (RFC 7396) and JSON Patch (RFC 6902) to a document.

Arguments are never changed. The result shares unchanged parts with the document.
"""

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

from penstock.errors import Conflict, Invalid

MAX_OPERATIONS = 1_000
MAX_COPIED_CHARACTERS = 1_000_000  # characters that all copies of a patch may add, because a short patch can copy a lot
MAX_DEPTH = 100

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_ESCAPE = re.compile(r"~[01]")
_BAD_ESCAPE = re.compile(r"~(?![01])")

PointerPath = tuple[str, ...]


class Operator(StrEnum):
    ADD = "add"
    REMOVE = "remove"
    REPLACE = "replace"
    MOVE = "move"
    COPY = "copy"
    TEST = "test"


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON Merge Patch: members of the patch replace the target's, and null removes a member."""
    _check_depth(patch)
    return _merge(target, patch)


def apply_json_patch(target: Any, operations: Any) -> Any:
    """Apply a JSON Patch: all operations in order, or an error."""
    if not isinstance(operations, list):
        raise Invalid("bad_patch.not_an_array", pointer="")
    if len(operations) > MAX_OPERATIONS:
        raise Invalid(
            "bad_patch.too_many_operations", {"count": len(operations), "max_operations": MAX_OPERATIONS}, pointer=""
        )
    document, copies_left = target, MAX_COPIED_CHARACTERS
    for number, operation in enumerate(operations):
        try:
            document, copies_left = _apply(document, operation, copies_left)
        except _OperationError as error:
            raise Invalid(
                "bad_patch.operation",
                {"number": number, "problem": error.problem},
                pointer=_escape_text(error.pointer),
                operation=number,
            ) from None
        except _TestFailed as error:
            pointer = _escape_text(error.pointer)
            raise Conflict(
                "patch_test_failed",
                {"number": number},
                pointer=pointer,
                operation=number,
            ) from None
    _check_depth(document)
    return document


class _OperationError(Exception):
    """An operation cannot be applied; the caller adds its number."""

    def __init__(self, problem: str, pointer: str) -> None:
        self.problem, self.pointer = problem, pointer


class _TestFailed(Exception):
    def __init__(self, pointer: str) -> None:
        self.pointer = pointer


def _merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge(result.get(name), value)
    return result


def _apply(document: Any, operation: Any, copies_left: int) -> tuple[Any, int]:
    """Apply one operation, and return the document and the number of characters that may still be copied."""
    if not isinstance(operation, dict):
        raise _OperationError("must be an object", "")
    pointer: Any = operation.get("path")
    path = _parse_pointer(pointer, "path")
    try:
        operator = Operator(operation["op"])
    except (KeyError, ValueError):
        raise _OperationError(f"op must be one of {', '.join(Operator)}", pointer) from None
    match operator:
        case Operator.REMOVE:
            return _remove(document, path, pointer), copies_left
        case Operator.MOVE | Operator.COPY:
            source_pointer: Any = operation.get("from")
            source = _parse_pointer(source_pointer, "from")
            value = _value_at(document, source, source_pointer)
            if operator is Operator.COPY:
                return _add(document, path, value, pointer), _remaining_copies(value, copies_left, source_pointer)
            if source == path:
                return document, copies_left
            if path[: len(source)] == source:
                raise _OperationError("a value cannot be moved into itself", pointer)
            return _add(_remove(document, source, source_pointer), path, value, pointer), copies_left
    if "value" not in operation:
        raise _OperationError(f"{operator} requires a value", pointer)
    value = operation["value"]
    match operator:
        case Operator.ADD:
            return _add(document, path, value, pointer), copies_left
        case Operator.REPLACE:
            return _replace(document, path, value, pointer), copies_left
    if not _json_equal(_value_at(document, path, pointer), value):
        raise _TestFailed(pointer)
    return document, copies_left


def _parse_pointer(pointer: Any, member: str) -> PointerPath:
    if not isinstance(pointer, str):
        raise _OperationError(f"{member} must be a JSON Pointer such as /fields/0", "")
    if not pointer:
        return ()
    if not pointer.startswith("/"):
        raise _OperationError(f"{member} must be empty or begin with '/'", pointer)
    if _BAD_ESCAPE.search(pointer):
        raise _OperationError(f"{member} must escape '~' as '~0', and '/' in a name as '~1'", pointer)
    path = tuple(_ESCAPE.sub(lambda match: "/" if match[0] == "~1" else "~", token) for token in pointer[1:].split("/"))
    if len(path) > MAX_DEPTH:
        raise _OperationError(f"{member} has more than {MAX_DEPTH} levels", pointer)
    return path


def _value_at(document: Any, path: PointerPath, pointer: str) -> Any:
    for token in path:
        document = document[_existing_key(document, token, pointer)]
    return document


def _existing_key(holder: Any, token: str, pointer: str) -> Any:
    """Return the existing member or index of `holder` that the token names."""
    match holder:
        case dict():
            if token in holder:
                return token
            raise _OperationError(f"member '{_escape_text(token)}' not found", pointer)
        case list():
            return _parse_index(token, len(holder) - 1, pointer)
    raise _OperationError(f"a scalar value has no member '{_escape_text(token)}'", pointer)


def _parse_index(token: str, last: int, pointer: str) -> int:
    if not _INDEX.fullmatch(token):
        raise _OperationError(f"'{_escape_text(token)}' is not an array index", pointer)
    if int(token) > last:
        raise _OperationError(f"index {token} is beyond the end of the array", pointer)
    return int(token)


def _add(document: Any, path: PointerPath, value: Any, pointer: str) -> Any:
    """Return the document with a value added: set in an object, inserted into an array."""

    def add(holder: Any, token: str) -> Any:
        match holder:
            case dict():
                return {**holder, token: value}
            case list():
                index = len(holder) if token == "-" else _parse_index(token, len(holder), pointer)
                return [*holder[:index], value, *holder[index:]]
        raise _OperationError("a value can be added only to an object or an array", pointer)

    return _rebuild(document, path, add, pointer) if path else value


def _remove(document: Any, path: PointerPath, pointer: str) -> Any:
    def remove(holder: Any, token: str) -> Any:
        key = _existing_key(holder, token, pointer)
        if isinstance(holder, dict):
            return {name: value for name, value in holder.items() if name != key}
        return [*holder[:key], *holder[key + 1 :]]

    if not path:
        raise _OperationError("the whole document cannot be removed", pointer)
    return _rebuild(document, path, remove, pointer)


def _replace(document: Any, path: PointerPath, value: Any, pointer: str) -> Any:
    def put(holder: Any, token: str) -> Any:
        return _set(holder, _existing_key(holder, token, pointer), value)

    return _rebuild(document, path, put, pointer) if path else value


def _rebuild(document: Any, path: PointerPath, change: Callable[[Any, str], Any], pointer: str) -> Any:
    """Return the document with the last container on the path changed, and copies of those above."""
    parents = []
    for token in path[:-1]:
        key = _existing_key(document, token, pointer)
        parents.append((document, key))
        document = document[key]
    result = change(document, path[-1])
    for holder, key in reversed(parents):
        result = _set(holder, key, result)
    return result


def _set(holder: Any, key: Any, value: Any) -> Any:
    return {**holder, key: value} if isinstance(holder, dict) else [*holder[:key], value, *holder[key + 1 :]]


def _remaining_copies(value: Any, copies_left: int, pointer: str) -> int:
    for part, _ in _walk(value):
        match part:
            case str():
                copies_left -= len(part) + 2
            case dict():
                copies_left -= sum(map(len, part)) + 2
            case list():
                copies_left -= 2
            case _:
                copies_left -= len(repr(part))
        if copies_left < 0:
            raise _OperationError(f"the patch copies more than {MAX_COPIED_CHARACTERS:,} characters", pointer)
    return copies_left


def _json_equal(left: Any, right: Any) -> bool:
    """Compare as JSON: 1 equals 1.0 and differs from true."""
    pairs = [(left, right)]
    while pairs:
        match pairs.pop():
            case (dict() as first, dict() as second):
                if first.keys() != second.keys():
                    return False
                pairs.extend((first[name], second[name]) for name in first)
            case (list() as first, list() as second):
                if len(first) != len(second):
                    return False
                pairs.extend(zip(first, second, strict=True))
            case first, second:
                if isinstance(first, bool) is not isinstance(second, bool) or first != second:
                    return False
    return True


def _check_depth(document: Any) -> None:
    if any(depth > MAX_DEPTH for _, depth in _walk(document)):
        raise Invalid("bad_patch.too_deep", {"max_depth": MAX_DEPTH}, pointer="")


def _walk(document: Any) -> Iterator[tuple[Any, int]]:
    """Yield every value with its depth. Not recursive, because the document is untrusted."""
    stack = [(document, 0)]
    while stack:
        part, depth = stack.pop()
        yield part, depth
        match part:
            case dict():
                stack.extend((value, depth + 1) for value in part.values())
            case list():
                stack.extend((value, depth + 1) for value in part)


def _escape_text(text: str) -> str:
    """Escape and truncate text for an error message."""
    return ascii(text[:100])[1:-1]
