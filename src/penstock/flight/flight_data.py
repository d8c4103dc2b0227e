"""FlightData on the wire, coded by hand: protobuf's classes copy a body three times over, and rows are all body."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from penstock.errors import Invalid

_DESCRIPTOR, _HEADER, _METADATA, _BODY = 1, 2, 3, 1000  # the fields' numbers
_LAST_FIELD = (1 << 29) - 1
_EMPTY = memoryview(b"")


class _Coded(IntEnum):
    """How a field's value is coded. (Groups, 3 and 4, are no part of this protocol.)"""

    NUMBER = 0
    EIGHT = 1
    BYTES = 2
    FOUR = 5


@dataclass(frozen=True, slots=True)
class Data:
    """The parts of a message, where they lie in it."""

    descriptor: bytes | None = None  # a FlightDescriptor, as bytes
    header: memoryview = _EMPTY
    metadata: memoryview = _EMPTY
    body: memoryview = _EMPTY


def encode(header: Any, body: Any = b"", *, descriptor: bytes | None = None, metadata: bytes = b"") -> bytes:
    """A message of parts that are bytes or lie in a buffer."""
    parts: list[Any] = []
    if descriptor is not None:  # one that says nothing is there all the same
        parts += (_key(_DESCRIPTOR), _varint(len(descriptor)), descriptor)
    for field, value in ((_HEADER, header), (_METADATA, metadata), (_BODY, body)):
        if size := len(value):
            parts += (_key(field), _varint(size), value)
    return b"".join(parts)


def decode(message: bytes) -> Data:
    found: dict[int, memoryview] = {}
    for field, value in _fields(memoryview(message)):
        if field == _DESCRIPTOR and field in found:  # protobuf would merge the two, which nobody asks for
            raise _broken()
        found[field] = value
    descriptor = bytes(found[_DESCRIPTOR]) if _DESCRIPTOR in found else None
    return Data(descriptor, found.get(_HEADER, _EMPTY), found.get(_METADATA, _EMPTY), found.get(_BODY, _EMPTY))


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields that are bytes. Others are for newer readers, and passed over."""
    at = 0
    while at < len(data):
        key, at = _read(data, at)
        field, coded = key >> 3, key & 7
        if not 0 < field <= _LAST_FIELD:
            raise _broken()
        match coded:
            case _Coded.NUMBER:
                _, at = _read(data, at)
            case _Coded.EIGHT:
                at += 8
            case _Coded.FOUR:
                at += 4
            case _Coded.BYTES:
                size, at = _read(data, at)
                yield field, data[at : at + size]
                at += size
            case _:
                raise _broken()
        if at > len(data):
            raise _broken()


def _read(data: memoryview, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    number = shift = 0
    while shift < 70:
        if at >= len(data):
            raise _broken()
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise _broken()


def _key(field: int) -> bytes:
    return _varint(field << 3 | _Coded.BYTES)


def _varint(number: int) -> bytes:
    coded = bytearray()
    while number > 127:
        coded.append(number & 127 | 128)
        number >>= 7
    coded.append(number)
    return bytes(coded)


def _broken() -> Invalid:
    return Invalid("bad_message", "this is no FlightData message that can be read")
