"""Encode and decode FlightData messages without protobuf classes, which would copy every message body three times."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from penstock.errors import Invalid

_DESCRIPTOR, _HEADER, _METADATA, _BODY = 1, 2, 3, 1000  # protobuf field numbers
_MAX_FIELD_NUMBER = (1 << 29) - 1
_MAX_FIELDS = 64  # of a message; none of Flight has more than a few
_EMPTY = memoryview(b"")


class _WireType(IntEnum):
    """Protobuf wire types. FlightData does not use groups (3 and 4)."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


@dataclass(frozen=True, slots=True)
class FlightData:
    """The fields of a message, as views into its bytes."""

    descriptor: bytes | None = None  # a serialized FlightDescriptor
    header: memoryview = _EMPTY
    metadata: memoryview = _EMPTY
    body: memoryview = _EMPTY


def encode(header: Any, body: Any = b"", *, descriptor: bytes | None = None, metadata: bytes = b"") -> bytes:
    """Serialize a FlightData message. Each argument is bytes or supports the buffer protocol."""
    parts: list[Any] = []
    if descriptor is not None:  # an empty descriptor differs from a missing one
        parts += (_key(_DESCRIPTOR), _varint(len(descriptor)), descriptor)
    for field, value in ((_HEADER, header), (_METADATA, metadata), (_BODY, body)):
        if size := len(value):
            parts += (_key(field), _varint(size), value)
    return b"".join(parts)


def decode(message: bytes) -> FlightData:
    """Parse a FlightData message without copying its header or body.

    Raises:
        Invalid: the bytes are not a FlightData message (bad_message)
    """
    fields: dict[int, memoryview] = {}
    for field, value in _fields(memoryview(message)):
        if field == _DESCRIPTOR and field in fields:  # protobuf would merge the two, which no client needs
            raise _bad_message()
        fields[field] = value
    descriptor = bytes(fields[_DESCRIPTOR]) if _DESCRIPTOR in fields else None
    return FlightData(descriptor, fields.get(_HEADER, _EMPTY), fields.get(_METADATA, _EMPTY), fields.get(_BODY, _EMPTY))


def check_field_count(message: bytes) -> None:
    """Check that any protobuf message has few fields: a message of empty fields would take seconds to parse.

    Raises:
        Invalid: the message has too many fields (bad_message)
    """
    try:
        for _ in _fields(memoryview(message)):
            pass
    except Invalid as error:
        if "limit" in error.context:  # the parser of the message reports all other errors
            raise


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the fields of wire type BYTES; skip other fields, which belong to newer protocol versions."""
    offset = count = 0
    while offset < len(data):
        count += 1
        if count > _MAX_FIELDS:
            raise Invalid("bad_message.too_many_fields", limit=_MAX_FIELDS)
        key, offset = _read_varint(data, offset)
        field, wire_type = key >> 3, key & 7
        if not 0 < field <= _MAX_FIELD_NUMBER:
            raise _bad_message()
        match wire_type:
            case _WireType.VARINT:
                _, offset = _read_varint(data, offset)
            case _WireType.FIXED64:
                offset += 8
            case _WireType.FIXED32:
                offset += 4
            case _WireType.BYTES:
                size, offset = _read_varint(data, offset)
                yield field, data[offset : offset + size]
                offset += size
            case _:
                raise _bad_message()
        if offset > len(data):
            raise _bad_message()


def _read_varint(data: memoryview, offset: int) -> tuple[int, int]:
    """Return the number at an offset and the offset behind it."""
    number = shift = 0
    while shift < 70:
        if offset >= len(data):
            raise _bad_message()
        byte = data[offset]
        offset += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & 0xFFFFFFFFFFFFFFFF, offset
        shift += 7
    raise _bad_message()


def _key(field: int) -> bytes:
    return _varint(field << 3 | _WireType.BYTES)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _bad_message() -> Invalid:
    return Invalid("bad_message.flight_data")
