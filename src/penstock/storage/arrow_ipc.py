"""How large the parts of an Arrow file or stream become, told before any of them is unpacked.

A compressed buffer begins with the size that it claims to have unpacked, and Arrow believes it. The few fields of
Arrow's messages (flatbuffers) that say so are read here; everything else is left to Arrow.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_MAGIC = b"ARROW1"
_GOES_ON = 0xFFFFFFFF
_MAX_HEADER = 64 << 20
_DICTIONARY, _ROWS = 2, 3  # kinds of message


def is_file(path: Path) -> bool:
    """A file has a table of contents at its end; a stream has none."""
    with path.open("rb") as file:
        return file.read(6) == _MAGIC


def unpacked_sizes(path: Path) -> Iterator[int]:
    """The bytes in memory of each message. A message that cannot be is a ValueError."""
    end = path.stat().st_size
    with path.open("rb") as file:
        for header, body in _contents(file, end) if is_file(path) else _sequence(file):
            kind, rows, length = _message(header)
            if not 0 <= length <= end - body:
                raise ValueError("it ends in the middle of a message")
            yield _unpacked(file, rows, body, length) if kind in (_DICTIONARY, _ROWS) else 0


def unpacked_size(header: bytes, body: BinaryIO) -> int:
    """The same of one message that is at hand; `body` is all of its body. ValueError if it cannot be."""
    kind, rows, _ = _message(header)
    return _unpacked(body, rows, 0, body.seek(0, 2)) if kind in (_DICTIONARY, _ROWS) else 0


def _sequence(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Headers of a stream's messages, and where their bodies begin."""
    body = 0
    while header := _header(file, body):
        body = file.tell()
        yield header, body
        body += _message(header)[2]


def _contents(file: BinaryIO, end: int) -> Iterator[tuple[bytes, int]]:
    """The same of a file, in the order of its table of contents."""
    file.seek(max(end - 10, 0))
    size = int.from_bytes(file.read(4), "little")
    if file.read(6) != _MAGIC or not 0 < size <= min(end - 10, _MAX_HEADER):
        raise ValueError("it ends in the middle")
    file.seek(end - 10 - size)
    footer = _root(file.read(size))
    for field in (2, 3):  # dictionaries, rows
        for offset, length, _ in footer.structs(field, "<qi4xq"):
            if not 0 <= offset <= offset + length <= end:
                raise ValueError("its table of contents is broken")
            yield _header(file, offset), offset + length


def _header(file: BinaryIO, at: int) -> bytes:
    file.seek(at)
    size = int.from_bytes(file.read(4), "little")
    if size == _GOES_ON:
        size = int.from_bytes(file.read(4), "little")
    if size > _MAX_HEADER:
        raise ValueError("it is no Arrow file or stream")
    return file.read(size)


def _message(header: bytes) -> tuple[int, "_Table", int]:
    """A message's kind, its rows (of a dictionary: its values), and how long its body is."""
    message = _root(header)
    kind, rows = message.value(1, "<B"), message.table(2)
    if kind == _DICTIONARY and rows:
        rows = rows.table(1)
    return kind, rows or message, message.value(3, "<q")


def _unpacked(file: BinaryIO, rows: "_Table", body: int, length: int) -> int:
    if rows.table(3) is None:  # not compressed
        return length
    total = 0
    for offset, packed in rows.structs(2, "<qq"):
        if offset < 0 or packed < 0 or offset + packed > length:
            raise ValueError("a buffer lies outside of its message")
        if packed:
            file.seek(body + offset)
            claimed = int.from_bytes(file.read(8), "little", signed=True)
            total += packed if claimed < 0 else claimed
    return total


class _Table:
    """A flatbuffers table: a list of offsets to its fields, of which any may be missing."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - _number("<i", data, at)

    def value(self, field: int, form: str) -> int:
        found = self._find(field)
        return _number(form, self._data, found) if found else 0

    def table(self, field: int) -> "_Table | None":
        found = self._find(field)
        return _Table(self._data, found + _number("<I", self._data, found)) if found else None

    def structs(self, field: int, form: str) -> Iterator[tuple[int, ...]]:
        if found := self._find(field):
            vector = found + _number("<I", self._data, found)
            size = struct.calcsize(form)
            for place in range(vector + 4, vector + 4 + size * _number("<I", self._data, vector), size):
                yield _numbers(form, self._data, place)

    def _find(self, field: int) -> int:
        slot = 4 + 2 * field
        if slot >= _number("<H", self._data, self._fields):
            return 0
        offset = _number("<H", self._data, self._fields + slot)
        return self._at + offset if offset else 0


def _root(data: bytes) -> _Table:
    return _Table(data, _number("<I", data, 0))


def _number(form: str, data: bytes, at: int) -> int:
    return _numbers(form, data, at)[0]


def _numbers(form: str, data: bytes, at: int) -> tuple[int, ...]:
    if not 0 <= at <= len(data) - struct.calcsize(form):
        raise ValueError("a message is broken")
    return struct.unpack_from(form, data, at)
