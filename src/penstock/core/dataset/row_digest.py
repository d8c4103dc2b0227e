"""Digest of rows that does not depend on how the rows are split into batches."""

import hashlib

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.schema.canonical import canonical_schema
from penstock.core.schema.compatibility import cast_batch
from penstock.core.schema.type_names import to_fields


class RowDigest:
    """Compute an incremental digest over record batches of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        typed = [field for field in schema if not pt.is_null(field.type)]
        self._schema = canonical_schema(pa.schema(typed)) if typed else pa.schema([])
        self._rows = 0
        self._hashes: dict[str, hashlib._Hash] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:  # empty batches do not count
            return
        self._rows += batch.num_rows
        rows = cast_batch(batch, pa.schema([field.with_nullable(True) for field in self._schema]))
        for index, column in enumerate(rows.columns):
            self._add_column(str(index), column)

    def hexdigest(self) -> str:
        content = [
            to_fields(self._schema),
            self._rows,
            [(name, h.hexdigest()) for name, h in sorted(self._hashes.items())],
        ]
        return hashlib.sha256(repr(content).encode()).hexdigest()

    def _add_column(self, name: str, column: pa.Array) -> None:
        """Add a column. Each buffer has its own hash; bytes behind a NULL are ignored."""
        self._add_fixed_width(f"{name} valid", pc.cast(column.is_valid(), pa.uint8()))
        values, data_type = column.drop_null(), column.type
        if pt.is_struct(data_type):
            for field, inner in zip(data_type, values.flatten(), strict=True):
                self._add_column(f"{name}.{field.name}", inner)
        elif pt.is_list(data_type):
            self._add_fixed_width(f"{name} lengths", pc.list_value_length(values))
            self._add_column(f"{name}[]", values.flatten())
        elif pt.is_string(data_type) or pt.is_binary(data_type):
            self._add_fixed_width(f"{name} lengths", pc.binary_length(values))
            self._hash_of(name).update(b"".join(piece for piece in values.cast(pa.binary()).to_pylist()))
        else:
            self._add_fixed_width(name, pc.cast(values, pa.uint8()) if pt.is_boolean(data_type) else values)

    def _add_fixed_width(self, name: str, column: pa.Array) -> None:
        width = column.type.bit_width // 8
        values = column.buffers()[1]
        start = column.offset * width
        self._hash_of(name).update(values[start : start + len(column) * width] if values and len(column) else b"")

    def _hash_of(self, name: str) -> "hashlib._Hash":
        return self._hashes.setdefault(name, hashlib.sha256())
