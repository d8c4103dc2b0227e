"""Message protocol between the service and a sandbox process: length-prefixed JSON and Arrow messages.

The process is not trusted. The reader bounds the size of every message, rejects compressed batches, and never
deserializes code.
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

_PREFIX = struct.Struct("<cQ")
_COMPRESSION_FIELD = 3  # of a RecordBatch table
_RECORD_BATCH = 3  # type of a Message table
SOCKET_BUFFER_BYTES = 4 << 20
MAX_REQUEST_BYTES = 256 << 20  # of a message to the process; a dataset may have many files
MAX_RESPONSE_BYTES = 16 << 20  # of a message from the process, except rows


class MessageType(Enum):
    JSON = b"s"
    ARROW = b"a"  # a schema or a batch as one Arrow IPC message
    FILES = b"f"  # JSON list of numbers of files, which the service provides before it answers with an empty message
    DONE = b"d"  # end of the batches
    ERROR = b"r"  # JSON with reason and message


class ChannelClosed(Exception):
    """The other process closed the channel."""


class MessageTooLarge(Exception):
    """The other process sent a message that exceeds the limit."""


class Channel:
    """One end of the connection between the service and a process."""

    def __init__(self, sock: socket.socket, max_json_bytes: int) -> None:
        self._sock, self._max_json_bytes = sock, max_json_bytes
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)

    def send_message(self, message_type: MessageType, content: Any = None) -> None:
        """Send a value as JSON, or an empty message."""
        self.send(message_type, b"" if content is None else json.dumps(content).encode())

    def send(self, message_type: MessageType, content: Any) -> None:
        """Send bytes or a buffer."""
        try:
            self._sock.sendall(_PREFIX.pack(message_type.value, len(content)))
            self._sock.sendall(content)
        except OSError:
            raise ChannelClosed from None

    def receive(self, max_arrow_bytes: int) -> tuple[MessageType, pa.Buffer]:
        """Return the next message.

        Raises:
            ChannelClosed: the other process has ended
            MessageTooLarge: the message exceeds the limit for its type
            ValueError: the type is unknown
        """
        prefix = bytearray(_PREFIX.size)
        self._fill(memoryview(prefix))
        code, length = _PREFIX.unpack(prefix)
        message_type = MessageType(code)
        if length > (max_arrow_bytes if message_type is MessageType.ARROW else self._max_json_bytes):
            raise MessageTooLarge
        content = pa.allocate_buffer(length)
        self._fill(memoryview(content))
        return message_type, content

    def close(self) -> None:
        self._sock.close()

    def _fill(self, target: memoryview) -> None:
        target = target.cast("B")
        try:
            while target:
                if not (count := self._sock.recv_into(target)):
                    raise ChannelClosed
                target = target[count:]
        except OSError:
            raise ChannelClosed from None


def decode_batch(content: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return a fully validated batch; raise ValueError or ArrowException if it is broken or compressed."""
    message = pa.ipc.read_message(content)
    if _is_compressed(message.metadata.to_pybytes()):
        raise ValueError("a compressed batch could have any size")
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate(full=True)
    return batch


def _is_compressed(header: bytes) -> bool:
    """Return False only for a record batch with uncompressed buffers. Arrow has verified the flatbuffers tables."""
    try:
        root = _read_number("<I", header, 0)
        if _read_number("<B", header, _field_offset(header, root, 1)) != _RECORD_BATCH:
            return True
        batch = _field_offset(header, root, 2)
        return _field_offset(header, batch + _read_number("<I", header, batch), _COMPRESSION_FIELD) != 0
    except struct.error:
        return True


def _field_offset(data: bytes, table: int, field: int) -> int:
    """Return the offset of a field of a flatbuffers table; 0 if the field is missing."""
    vtable = table - _read_number("<i", data, table)
    slot = 4 + 2 * field
    offset = _read_number("<H", data, vtable + slot) if slot < _read_number("<H", data, vtable) else 0
    return table + offset if offset else 0


def _read_number(number_format: str, data: bytes, offset: int) -> int:
    return int(struct.unpack_from(number_format, data, offset)[0])


_DECODERS: dict[str, Any] = {
    "none": lambda _: None,
    "bool": lambda text: text == "True",
    "int": int,
    "float": float,
    "Decimal": Decimal,
    "str": str,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
}
_TYPE_NAMES: tuple[tuple[type, str], ...] = (  # in this order: bool is a subclass of int, datetime of date
    (bool, "bool"), (int, "int"), (float, "float"), (Decimal, "Decimal"), (str, "str"), (datetime, "datetime"),
    (date, "date"), (type(None), "none"),
)  # fmt: skip


def encode_params(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Encode parameters with their types, for JSON."""
    return {name: _encode_value(value) for name, value in values.items()}


def _encode_value(value: Any) -> list[str]:
    type_name = next((name for python_type, name in _TYPE_NAMES if isinstance(value, python_type)), None)
    if type_name is None:
        raise TypeError(f"A parameter cannot be of type {type(value).__name__}")
    return [type_name, str(value)]


def decode_params(values: Mapping[str, list[str]]) -> dict[str, Any]:
    """Decode parameters that `encode_params` encoded."""
    return {name: _DECODERS[type_name](text) for name, (type_name, text) in values.items()}
