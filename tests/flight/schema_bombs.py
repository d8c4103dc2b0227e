"""Schema messages whose fields share their children, names or metadata: few bytes describe very many fields."""

import struct

_VERSION_5, _SCHEMA, _INT, _STRUCT = 4, 1, 2, 13


class _Flatbuffer:
    """Write tables front to back; offsets are set when their targets are written."""

    def __init__(self) -> None:
        self.data = bytearray(4)  # the offset of the root
        self._vtables: dict[tuple[int, ...], int] = {}

    def table(self, vtable: tuple[int, ...], content: bytes) -> int:
        """Append a table; a vtable has the size of the table and the offsets of its fields."""
        if vtable not in self._vtables:
            self._align()
            self._vtables[vtable] = len(self.data)
            self.data += struct.pack(f"<{len(vtable) + 1}H", 2 * len(vtable) + 2, *vtable)
        self._align()
        start = len(self.data)
        self.data += struct.pack("<i", start - self._vtables[vtable]) + content
        return start

    def vector(self, count: int, item: bytes = b"\0\0\0\0") -> int:
        self._align()
        self.data += struct.pack("<I", count) + item * count
        return len(self.data) - 4 - len(item) * count

    def point(self, position: int, target: int) -> None:
        struct.pack_into("<I", self.data, position, target - position)

    def point_all(self, vector: int, count: int, target: int) -> None:
        for position in range(vector + 4, vector + 4 + 4 * count, 4):
            self.point(position, target)

    def _align(self) -> None:
        self.data += bytes(-len(self.data) % 8)


def shared_fields(depth: int, width: int, *, name: bytes = b"f", pairs: int = 0) -> bytes:
    """Return the header of a schema message with `width` structs in each of `depth` levels: width ** depth columns.

    Args:
        depth: levels
        width: fields of each struct, all of them the same table
        name: the name that all fields share
        pairs: key-value pairs of metadata of each field, all of them the same
    """
    out = _Flatbuffer()
    message = out.table((20, 16, 18, 4, 8), struct.pack("<Iqhbx", 0, 0, _VERSION_5, _SCHEMA))
    out.point(0, message)
    schema = out.table((8, 0, 4), struct.pack("<I", 0))
    out.point(message + 4, schema)
    parent, fields = schema + 4, []
    for level in range(depth):
        children = out.vector(width)
        out.point(parent, children)
        is_leaf = level == depth - 1
        content = struct.pack("<IIIIBBxx", 0, 0, 0, 0, _INT if is_leaf else _STRUCT, 1)
        field = out.table((24, 4, 21, 20, 8, 0, 12, 16), content)
        out.point_all(children, width, field)
        data_type = out.table((12, 4, 8), struct.pack("<ibxxx", 64, 1)) if is_leaf else out.table((4,), b"")
        out.point(field + 8, data_type)
        parent = field + 12
        fields.append(field)
    out.point(parent, out.vector(0))
    metadata = out.vector(pairs)
    pair = out.table((12, 4, 8), struct.pack("<II", 0, 0))
    out.point_all(metadata, pairs, pair)
    text = out.vector(len(name), b"\0")
    out.data[text + 4 :] = name + b"\0"
    for position in (pair + 4, pair + 8, *(field + 4 for field in fields)):
        out.point(position, text)
    for field in fields:
        out.point(field + 16, metadata)
    return bytes(out.data)


def encapsulated(header: bytes) -> bytes:
    """Return a message with its length prefix."""
    padded = header + bytes(-len(header) % 8)
    return b"\xff\xff\xff\xff" + struct.pack("<I", len(padded)) + padded
