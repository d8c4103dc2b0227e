"""Write rows to files in the formats Parquet, CSV, JSON lines and Arrow."""

import base64
import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.core.formatting import format_value
from penstock.errors import AlreadyExists, Invalid, Unavailable
from penstock.storage.file_formats import format_of


def write_file(reader: pa.RecordBatchReader, path: Path, *, format: str | None = None, replace: bool = False) -> int:
    """Write rows to a file, which appears under its name only when it is complete. Returns the number of rows.

    Args:
        format: the format; taken from the file name unless given
        replace: replace an existing file

    Raises:
        AlreadyExists: the file exists and `replace` is not set
        Invalid: the path is not a regular file, or the format cannot store a column
        Unavailable: the file cannot be written
    """
    write = WRITERS[format or format_of(path)]
    if os.path.exists(path) and not path.is_file():
        raise Invalid("not_a_file.output", {"file": path}, path=str(path))
    if os.path.exists(path) and not replace:
        raise AlreadyExists("file_exists", {"file": path}, path=str(path))
    path = Path(os.path.realpath(path))  # a symbolic link stays and points to the new content
    temporary = path.parent / f".{uuid4().hex}.part"
    try:
        with temporary.open("xb") as sink:
            rows = write(reader, sink)
            sink.flush()
            os.fsync(sink.fileno())
        os.replace(temporary, path)
    except OSError as cause:
        raise Unavailable("cannot_write_file", {"path": path, "error": cause.strerror or cause}) from None
    finally:
        with suppress(OSError):
            temporary.unlink()
    return rows


def _write_batches(reader: pa.RecordBatchReader, write: Callable[[pa.RecordBatch], Any]) -> int:
    rows = 0
    for batch in reader:
        write(batch)
        rows += batch.num_rows
    return rows


def _write_parquet(reader: pa.RecordBatchReader, sink: IO[bytes]) -> int:
    with pq.ParquetWriter(sink, reader.schema, compression="zstd") as writer:
        return _write_batches(reader, writer.write_batch)


def _write_csv(reader: pa.RecordBatchReader, sink: IO[bytes]) -> int:
    if unsupported := [f for f in reader.schema if pt.is_nested(f.type) or pt.is_binary(f.type)]:
        raise Invalid(
            "not_in_csv",
            {"name": unsupported[0].name, "type": format_value(unsupported[0].type)},
        )
    with pacsv.CSVWriter(sink, reader.schema) as writer:
        return _write_batches(reader, writer.write_batch)


def _write_jsonl(reader: pa.RecordBatchReader, sink: IO[bytes]) -> int:
    def write(batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            sink.write(json.dumps(plain_json(row), ensure_ascii=False, allow_nan=False).encode() + b"\n")

    return _write_batches(reader, write)


def _write_arrow(reader: pa.RecordBatchReader, sink: IO[bytes]) -> int:
    with pa.ipc.new_stream(sink, reader.schema) as writer:
        return _write_batches(reader, writer.write_batch)


WRITERS: dict[str, Callable[[pa.RecordBatchReader, IO[bytes]], int]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
    "jsonl": _write_jsonl,
    "arrow": _write_arrow,
}


def plain_json(value: Any) -> Any:
    """Convert a value to JSON: times to ISO text, decimals to text, bytes to base64, NaN to null."""
    match value:
        case dict():
            return {key: plain_json(inner) for key, inner in value.items()}
        case list():
            return [plain_json(inner) for inner in value]
        case float() if not math.isfinite(value):
            return None
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
    return value
