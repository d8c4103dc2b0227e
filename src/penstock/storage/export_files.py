"""Rows into files for others: Parquet, CSV, JSON lines and Arrow."""

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

from penstock.errors import AlreadyExists, Invalid, Unavailable
from penstock.storage.file_formats import format_of


def outgoing(reader: pa.RecordBatchReader, path: Path, *, format: str | None = None, replace: bool = False) -> int:
    """Write the rows to a file that appears under its name only when it is complete. The answer is the rows."""
    write = WRITERS[format or format_of(path)]
    if os.path.exists(path) and not path.is_file():
        raise Invalid("not_a_file", f"{path} is no file that could be replaced; name a new one", path=str(path))
    if os.path.exists(path) and not replace:
        raise AlreadyExists("file_exists", f"{path} is there already; --force replaces it", path=str(path))
    path = Path(os.path.realpath(path))  # a link stays, and leads to the new content
    draft = path.parent / f".{uuid4().hex}.part"
    try:
        with draft.open("xb") as sink:
            rows = write(reader, sink)
            sink.flush()
            os.fsync(sink.fileno())
        os.replace(draft, path)
    except OSError as cause:
        raise Unavailable("cannot_write_file", f"{path} cannot be written: {cause.strerror or cause}") from None
    finally:
        with suppress(OSError):
            draft.unlink()
    return rows


def _counted(reader: pa.RecordBatchReader, write: Callable[[pa.RecordBatch], Any]) -> int:
    rows = 0
    for batch in reader:
        write(batch)
        rows += batch.num_rows
    return rows


def _to_parquet(reader: pa.RecordBatchReader, sink: IO[bytes]) -> int:
    with pq.ParquetWriter(sink, reader.schema, compression="zstd") as writer:
        return _counted(reader, writer.write_batch)


def _to_csv(reader: pa.RecordBatchReader, sink: IO[bytes]) -> int:
    if no_text := [f for f in reader.schema if pt.is_nested(f.type) or pt.is_binary(f.type)]:
        raise Invalid(
            "not_in_csv",
            f"CSV cannot hold column {no_text[0].name!r} ({no_text[0].type}); leave it out, or take parquet or jsonl",
        )
    with pacsv.CSVWriter(sink, reader.schema) as writer:
        return _counted(reader, writer.write_batch)


def _to_jsonl(reader: pa.RecordBatchReader, sink: IO[bytes]) -> int:
    def write(batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            sink.write(json.dumps(plain_json(row), ensure_ascii=False, allow_nan=False).encode() + b"\n")

    return _counted(reader, write)


def _to_arrow(reader: pa.RecordBatchReader, sink: IO[bytes]) -> int:
    with pa.ipc.new_stream(sink, reader.schema) as writer:
        return _counted(reader, writer.write_batch)


WRITERS: dict[str, Callable[[pa.RecordBatchReader, IO[bytes]], int]] = {
    "parquet": _to_parquet,
    "csv": _to_csv,
    "jsonl": _to_jsonl,
    "arrow": _to_arrow,
}


def plain_json(value: Any) -> Any:
    """A value as JSON can say it: times as ISO text, decimals as text, bytes as base64, NaN as null."""
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
