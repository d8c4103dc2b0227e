"""What the service and a child say to one another: messages with a length, JSON or Arrow.

The child is not trusted. Nothing that it sends is taken for longer than its reader allows, nothing is unpacked that could
grow, and nothing is read as code.
"""

import json
import socket
import struct
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import pyarrow as pa

_HEAD = struct.Struct("<cQ")
_COMPRESSION, _BATCH = 3, 3  # the field of a batch that says how it is packed; the kind of message that is a batch
BUFFER = 4 << 20
MAX_SAID = 256 << 20  # of a message to a child: a dataset may have many files
MAX_TOLD = 16 << 20  # of a message of a child, apart from rows


class Kind(Enum):
    SAID = b"s"  # JSON
    ARROW = b"a"  # a schema or a batch, as one message of Arrow's
    DONE = b"d"  # no more batches
    REFUSED = b"r"  # JSON: what went wrong


class Hung(Exception):
    """The other side is gone."""


class TooLong(Exception):
    """The other side has more to say than it may."""


class Line:
    """One end of a conversation."""

    def __init__(self, sock: socket.socket, longest: int) -> None:
        self._sock, self._longest = sock, longest
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER)

    def say(self, kind: Kind, content: Any = None) -> None:
        self.send(kind, b"" if content is None else json.dumps(content).encode())

    def send(self, kind: Kind, content: Any) -> None:
        try:
            self._sock.sendall(_HEAD.pack(kind.value, len(content)))
            self._sock.sendall(content)
        except OSError:
            raise Hung from None

    def receive(self, most: int) -> tuple[Kind, pa.Buffer]:
        """What is said next; `most` is for Arrow."""
        head = bytearray(_HEAD.size)
        self._fill(memoryview(head))
        word, length = _HEAD.unpack(head)
        kind = Kind(word)
        if length > (most if kind is Kind.ARROW else self._longest):
            raise TooLong
        content = pa.allocate_buffer(length)
        self._fill(memoryview(content))
        return kind, content

    def close(self) -> None:
        self._sock.close()

    def _fill(self, room: memoryview) -> None:
        room = room.cast("B")
        try:
            while room:
                if not (count := self._sock.recv_into(room)):
                    raise Hung
                room = room[count:]
        except OSError:
            raise Hung from None


def batch_of(content: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """A batch, checked in full: ValueError or an ArrowException if something about it is not as it says."""
    message = pa.ipc.read_message(content)
    if _packed(message.metadata.to_pybytes()):
        raise ValueError("a packed batch could become any size")
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate(full=True)
    return batch


def _packed(header: bytes) -> bool:
    """Is it anything but a batch whose buffers lie there as they are? Arrow has checked that the tables are tables."""
    try:
        root = _number("<I", header, 0)
        if _number("<B", header, _place(header, root, 1)) != _BATCH:
            return True
        held = _place(header, root, 2)
        return _place(header, held + _number("<I", header, held), _COMPRESSION) != 0
    except struct.error:
        return True


def _place(data: bytes, table: int, field: int) -> int:
    """Where a field of a flatbuffers table is; 0 if it is left out."""
    fields = table - _number("<i", data, table)
    slot = 4 + 2 * field
    offset = _number("<H", data, fields + slot) if slot < _number("<H", data, fields) else 0
    return table + offset if offset else 0


def _number(form: str, data: bytes, at: int) -> int:
    return int(struct.unpack_from(form, data, at)[0])


_READ: dict[str, Any] = {
    "none": lambda _: None,
    "bool": lambda text: text == "True",
    "int": int,
    "float": float,
    "Decimal": Decimal,
    "str": str,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
}
_KINDS: tuple[tuple[type, str], ...] = (  # a bool is an int to Python, and a datetime a date
    (bool, "bool"), (int, "int"), (float, "float"), (Decimal, "Decimal"), (str, "str"), (datetime, "datetime"),
    (date, "date"), (type(None), "none"),
)  # fmt: skip


def spelled(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Parameters with their types, for JSON."""
    return {name: _spelled(value) for name, value in values.items()}


def _spelled(value: Any) -> list[str]:
    word = next((word for kind, word in _KINDS if isinstance(value, kind)), None)
    if word is None:
        raise TypeError(f"a parameter cannot be a {type(value).__name__}")
    return [word, str(value)]


def read(values: Mapping[str, list[str]]) -> dict[str, Any]:
    """The parameters that were spelled."""
    return {name: _READ[word](text) for name, (word, text) in values.items()}
