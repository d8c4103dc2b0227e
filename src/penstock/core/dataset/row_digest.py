"""A digest of rows that depends on the rows alone, not on how they are cut into batches."""

import hashlib

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.schema.canonical import canonical, conform, to_fields


class Digest:
    """Hears batches of one schema, one after the other, and says what all of them were."""

    def __init__(self, schema: pa.Schema) -> None:
        typed = [field for field in schema if not pt.is_null(field.type)]
        self._schema = canonical(pa.schema(typed)) if typed else pa.schema([])
        self._rows = 0
        self._parts: dict[str, hashlib._Hash] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:  # how often nothing comes does not count
            return
        self._rows += batch.num_rows
        rows = conform(batch, pa.schema([field.with_nullable(True) for field in self._schema]))
        for place, column in enumerate(rows.columns):
            self._hear(str(place), column)

    def hexdigest(self) -> str:
        told = [to_fields(self._schema), self._rows, [(name, h.hexdigest()) for name, h in sorted(self._parts.items())]]
        return hashlib.sha256(repr(told).encode()).hexdigest()

    def _hear(self, name: str, column: pa.Array) -> None:
        """Each buffer that makes up the values is a stream of its own; what stands behind a NULL does not count."""
        self._bytes(f"{name} valid", pc.cast(column.is_valid(), pa.uint8()))
        kept, kind = column.drop_null(), column.type
        if pt.is_struct(kind):
            for field, inner in zip(kind, kept.flatten(), strict=True):
                self._hear(f"{name}.{field.name}", inner)
        elif pt.is_list(kind):
            self._bytes(f"{name} lengths", pc.list_value_length(kept))
            self._hear(f"{name}[]", kept.flatten())
        elif pt.is_string(kind) or pt.is_binary(kind):
            self._bytes(f"{name} lengths", pc.binary_length(kept))
            self._part(name).update(b"".join(piece for piece in kept.cast(pa.binary()).to_pylist()))
        else:
            self._bytes(name, pc.cast(kept, pa.uint8()) if pt.is_boolean(kind) else kept)

    def _bytes(self, name: str, fixed: pa.Array) -> None:
        width = fixed.type.bit_width // 8
        values = fixed.buffers()[1]
        start = fixed.offset * width
        self._part(name).update(values[start : start + len(fixed) * width] if values and len(fixed) else b"")

    def _part(self, name: str) -> "hashlib._Hash":
        return self._parts.setdefault(name, hashlib.sha256())
