"""Measure untrusted Arrow IPC messages before Arrow decodes them.

A compressed buffer begins with its claimed uncompressed size, and Arrow trusts it. The fields of a schema may share their
children, so that a small message describes any number of fields. This module reads only the fields of Arrow's flatbuffers
messages that reveal those sizes; everything else is left to Arrow.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from penstock.errors import Invalid

_MAGIC = b"ARROW1"
_CONTINUATION = 0xFFFFFFFF
_MAX_HEADER_BYTES = 64 << 20
_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH = 1, 2, 3  # message types
_TIMESTAMP, _UNION = 10, 14  # data types with values of any length


@dataclass(frozen=True, slots=True)
class SchemaLimits:
    """Limits of a schema message. Children and texts that fields share count for each of them."""

    fields: int = 16_384  # nested ones included
    depth: int = 64
    bytes: int = 1 << 20  # of the header, and of all names, time zones and metadata together


_SCHEMA_LIMITS = SchemaLimits()


def is_file(path: Path) -> bool:
    """Return whether the content is an Arrow file, which has a footer, and not a stream."""
    with path.open("rb") as file:
        return file.read(6) == _MAGIC


def uncompressed_sizes(path: Path) -> Iterator[int]:
    """Yield the size in memory of each message.

    Raises:
        Invalid: the schema exceeds a limit (schema_too_large)
        ValueError: a message is invalid
    """
    end = path.stat().st_size
    with path.open("rb") as file:
        for header, body in _file_messages(file, end) if is_file(path) else _stream_messages(file):
            check_schema(header)
            message_type, record_batch, length = _parse_message(header)
            if not 0 <= length <= end - body:
                raise ValueError("unexpected end of a message")
            yield (
                _uncompressed_body_size(file, record_batch, body, length)
                if message_type in (_DICTIONARY_BATCH, _RECORD_BATCH)
                else 0
            )


def uncompressed_size(header: bytes, body: BinaryIO) -> int:
    """Return the size in memory of one message with its complete body.

    Raises:
        ValueError: the message is invalid
    """
    message_type, record_batch, _ = _parse_message(header)
    return (
        _uncompressed_body_size(body, record_batch, 0, body.seek(0, 2))
        if message_type in (_DICTIONARY_BATCH, _RECORD_BATCH)
        else 0
    )


def check_schema(header: bytes, limits: SchemaLimits = _SCHEMA_LIMITS) -> None:
    """Check the size of a schema message. Messages of other types pass.

    Args:
        header: the flatbuffer of the message, without the length prefix
        limits: the limits

    Raises:
        Invalid: the schema exceeds a limit (schema_too_large)
        ValueError: the message is invalid
    """
    message = _root_table(header)
    if message.value(1, "<B") != _SCHEMA:
        return
    if len(header) > limits.bytes:
        raise _too_large(limits.bytes, "bytes")
    if schema := message.table(2):
        _SchemaWalk(limits).check(schema)


def read_header(message: BinaryIO) -> bytes:
    """Return the header of an encapsulated message."""
    return _read_header(message, 0)


class _SchemaWalk:
    """Visit the fields of a schema, and stop at the first limit."""

    def __init__(self, limits: SchemaLimits) -> None:
        self._limits, self._fields, self._bytes = limits, 0, 0

    def check(self, schema: "_FlatTable") -> None:
        self._count_metadata(schema, 2)
        pending = list(self._children(schema, 1, 1))
        while pending:
            field, depth = pending.pop()
            self._count_bytes(field.vector_length(0))
            self._count_metadata(field, 6)
            if data_type := field.table(3):
                item_bytes = {_TIMESTAMP: 1, _UNION: 4}.get(field.value(2, "<B"), 0)
                self._count_bytes(item_bytes and item_bytes * data_type.vector_length(1))
            pending += self._children(field, 5, depth + 1)

    def _children(self, parent: "_FlatTable", field: int, depth: int) -> "Iterator[tuple[_FlatTable, int]]":
        for child in parent.tables(field):
            self._fields += 1
            if self._fields > self._limits.fields:
                raise _too_large(self._limits.fields, "fields, nested ones included")
            if depth > self._limits.depth:
                raise _too_large(self._limits.depth, "levels")
            yield child, depth

    def _count_metadata(self, parent: "_FlatTable", field: int) -> None:
        for pair in parent.tables(field):
            self._count_bytes(pair.vector_length(0) + pair.vector_length(1))

    def _count_bytes(self, count: int) -> None:
        self._bytes += count + 4  # a text has a length of 4 bytes, so that empty ones count, too
        if self._bytes > self._limits.bytes:
            raise _too_large(self._limits.bytes, "bytes")


def _too_large(limit: int, unit: str) -> Invalid:
    return Invalid("schema_too_large", {"unit": unit}, limit=limit)


def _stream_messages(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield the header of each message of a stream, and the offset of its body."""
    body = 0
    while header := _read_header(file, body):
        body = file.tell()
        yield header, body
        body += _parse_message(header)[2]


def _file_messages(file: BinaryIO, end: int) -> Iterator[tuple[bytes, int]]:
    """Yield the header of each message of a file, and the offset of its body, in the order of the footer."""
    file.seek(max(end - 10, 0))
    size = int.from_bytes(file.read(4), "little")
    if file.read(6) != _MAGIC or not 0 < size <= min(end - 10, _MAX_HEADER_BYTES):
        raise ValueError("unexpected end of the file")
    file.seek(end - 10 - size)
    footer = _root_table(file.read(size))
    if schema := footer.table(1):
        _SchemaWalk(_SCHEMA_LIMITS).check(schema)
    for field in (2, 3):  # dictionaries, rows
        for offset, length, _ in footer.structs(field, "<qi4xq"):
            if not 0 <= offset <= offset + length <= end:
                raise ValueError("the footer is invalid")
            yield _read_header(file, offset), offset + length


def _read_header(file: BinaryIO, offset: int) -> bytes:
    file.seek(offset)
    size = int.from_bytes(file.read(4), "little")
    if size == _CONTINUATION:
        size = int.from_bytes(file.read(4), "little")
    if size > _MAX_HEADER_BYTES:
        raise ValueError("this is not an Arrow file or stream")
    return file.read(size)


def _parse_message(header: bytes) -> tuple[int, "_FlatTable", int]:
    """Return the type of a message, its record batch (of a dictionary: its values), and the length of its body."""
    message = _root_table(header)
    message_type, record_batch = message.value(1, "<B"), message.table(2)
    if message_type == _DICTIONARY_BATCH and record_batch:
        record_batch = record_batch.table(1)
    return message_type, record_batch or message, message.value(3, "<q")


def _uncompressed_body_size(file: BinaryIO, record_batch: "_FlatTable", body: int, length: int) -> int:
    if record_batch.table(3) is None:  # not compressed
        return length
    total = 0
    for offset, compressed in record_batch.structs(2, "<qq"):
        if offset < 0 or compressed < 0 or offset + compressed > length:
            raise ValueError("a buffer is outside of its message")
        if compressed:
            file.seek(body + offset)
            claimed = int.from_bytes(file.read(8), "little", signed=True)
            total += compressed if claimed < 0 else claimed
    return total


class _FlatTable:
    """A flatbuffers table: offsets to its fields, any of which may be missing."""

    def __init__(self, data: bytes, offset: int) -> None:
        self._data, self._offset = data, offset
        self._vtable = offset - _unpack_number("<i", data, offset)

    def value(self, field: int, format: str) -> int:
        position = self._find(field)
        return _unpack_number(format, self._data, position) if position else 0

    def table(self, field: int) -> "_FlatTable | None":
        position = self._find(field)
        return _FlatTable(self._data, position + _unpack_number("<I", self._data, position)) if position else None

    def tables(self, field: int) -> "Iterator[_FlatTable]":
        """Yield the tables of a vector."""
        if position := self._find(field):
            vector = position + _unpack_number("<I", self._data, position)
            for item in range(vector + 4, vector + 4 + 4 * _unpack_number("<I", self._data, vector), 4):
                yield _FlatTable(self._data, item + _unpack_number("<I", self._data, item))

    def vector_length(self, field: int) -> int:
        """Return the number of items of a vector, or of the bytes of a text; 0 if it is missing."""
        position = self._find(field)
        return (
            _unpack_number("<I", self._data, position + _unpack_number("<I", self._data, position)) if position else 0
        )

    def structs(self, field: int, format: str) -> Iterator[tuple[int, ...]]:
        if position := self._find(field):
            vector = position + _unpack_number("<I", self._data, position)
            size = struct.calcsize(format)
            for item in range(vector + 4, vector + 4 + size * _unpack_number("<I", self._data, vector), size):
                yield _unpack_numbers(format, self._data, item)

    def _find(self, field: int) -> int:
        slot = 4 + 2 * field
        if slot >= _unpack_number("<H", self._data, self._vtable):
            return 0
        offset = _unpack_number("<H", self._data, self._vtable + slot)
        return self._offset + offset if offset else 0


def _root_table(data: bytes) -> _FlatTable:
    return _FlatTable(data, _unpack_number("<I", data, 0))


def _unpack_number(format: str, data: bytes, offset: int) -> int:
    return _unpack_numbers(format, data, offset)[0]


def _unpack_numbers(format: str, data: bytes, offset: int) -> tuple[int, ...]:
    if not 0 <= offset <= len(data) - struct.calcsize(format):
        raise ValueError("a message is invalid")
    return struct.unpack_from(format, data, offset)
