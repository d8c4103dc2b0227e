"""Files that come in and go out: Parquet, CSV, JSON lines and Arrow, as streams."""

import base64
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.core.schema import check_fits
from penstock.errors import AlreadyExists, Invalid, NotFound, PenstockError, Unavailable

Types = Mapping[str, pa.DataType]

_ENDINGS = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv", ".txt": "csv", ".json": "jsonl",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".arrow": "arrow", ".ipc": "arrow", ".feather": "arrow", ".arrows": "arrow",
}  # fmt: skip
_PACKED = (".gz", ".zst", ".bz2")
_BLOCK = 4 << 20  # bytes of text that are read, and whose types are guessed, at once
_FIRST_ROWS = 1_024  # rows of a Parquet file that are unpacked before it is known how wide they are
_MOST_ROWS = 64 << 10
_BATCH_BYTES = 32 << 20


def format_of(path: Path) -> str:
    """What a file's name says of its format."""
    endings = [e for e in (s.lower() for s in path.suffixes) if e not in _PACKED]
    if path.is_dir():
        return "parquet"
    if endings and endings[-1] in _ENDINGS:
        return _ENDINGS[endings[-1]]
    raise Invalid(
        "unknown_format",
        f"{path.name}: the format cannot be told from the name; say it with --format ({', '.join(READERS)})",
    )


def incoming(paths: Sequence[Path], *, format: str | None = None, types: Types | None = None) -> "Incoming":
    """The rows of one or more files, one after the other, in bounded memory. The first file sets the schema."""
    files = [file for path in paths for file in _files(path)]

    def opened(file: Path) -> Opened:
        with _read(file):
            return READERS[format or format_of(file)](file, types or {})

    schema, first = opened(files[0])

    def rows() -> Iterator[pa.RecordBatch]:
        yield from _guarded(files[0], first)
        for file in files[1:]:
            own, batches = opened(file)
            check_fits(own, schema)
            yield from _guarded(file, batches)

    return Incoming(schema, rows())


class Incoming:
    """A stream of batches that fit a schema, but may lack columns of it or hold narrower types."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.schema, self._batches = schema, batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches


Opened = tuple[pa.Schema, Iterator[pa.RecordBatch]]


def _parquet(path: Path, _types: Types) -> Opened:
    parquet = pq.ParquetFile(path)
    return parquet.schema_arrow, _parquet_rows(parquet)


def _parquet_rows(parquet: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """A small file may unpack to a huge one, whatever its footer says: look at a few rows, then take as many as fit."""
    with parquet:
        rows = _FIRST_ROWS
        for group in range(parquet.num_row_groups):
            for batch in parquet.iter_batches(rows, row_groups=[group]):
                yield batch
                width = math.ceil(batch.nbytes / max(batch.num_rows, 1)) or 1
                fitting = max(1, min(_MOST_ROWS, _BATCH_BYTES // width))
            rows = fitting if parquet.metadata.row_group(group).num_rows else rows


def _csv(path: Path, types: Types) -> Opened:
    def opened(known: Types) -> pacsv.CSVStreamingReader:
        return pacsv.open_csv(
            _unpacked(path),
            read_options=pacsv.ReadOptions(block_size=_BLOCK),
            parse_options=pacsv.ParseOptions(
                delimiter="\t" if ".tsv" in path.suffixes else ",", newlines_in_values=True
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=dict(known), strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )

    reader = opened(types)
    blank = {f.name: pa.string() for f in reader.schema if pt.is_null(f.type)}
    reader = opened({**blank, **types}) if blank else reader
    return reader.schema, iter(reader)


def _jsonl(path: Path, types: Types) -> Opened:
    def opened(known: Types) -> pajson.JSONStreamingReader:
        return pajson.open_json(
            _unpacked(path),
            read_options=pajson.ReadOptions(block_size=_BLOCK),
            parse_options=pajson.ParseOptions(
                explicit_schema=pa.schema(list(known.items())) if known else None, newlines_in_values=False
            ),
        )

    reader = opened(types)
    blank = {f.name: pa.string() for f in reader.schema if pt.is_null(f.type)}
    reader = opened({**blank, **types}) if blank else reader
    return reader.schema, iter(reader)


def _arrow(path: Path, _types: Types) -> Opened:
    try:
        file = pa.ipc.open_file(pa.memory_map(str(path)))
        return file.schema, (file.get_batch(i) for i in range(file.num_record_batches))
    except pa.ArrowInvalid:
        stream = pa.ipc.open_stream(pa.memory_map(str(path)))
        return stream.schema, iter(stream)


READERS: dict[str, Callable[[Path, Types], Opened]] = {
    "parquet": _parquet,
    "csv": _csv,
    "jsonl": _jsonl,
    "arrow": _arrow,
}


def outgoing(reader: pa.RecordBatchReader, path: Path, *, format: str | None = None, replace: bool = False) -> int:
    """Write the rows to a file that appears under its name only when it is complete. The answer is the rows."""
    write = WRITERS[format or format_of(path)]
    if path.exists() and not replace:
        raise AlreadyExists("file_exists", f"{path} is there already; --force replaces it", path=str(path))
    draft = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        with draft.open("xb") as sink:
            rows = write(reader, sink)
            sink.flush()
            os.fsync(sink.fileno())
        os.replace(draft, path)
    except OSError as cause:
        raise Unavailable("cannot_write_file", f"{path} cannot be written: {cause.strerror or cause}") from None
    finally:
        draft.unlink(missing_ok=True)
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
    nested = [f.name for f in reader.schema if pt.is_nested(f.type)]
    if nested:
        raise Invalid(
            "not_in_csv", f"CSV cannot hold the nested column {nested[0]!r}; leave it out, or take parquet or jsonl"
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


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise NotFound("no_such_file", f"there is no file {path}", path=str(path))
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.rglob("*.parquet") if not any(s[0] in "._" for s in p.relative_to(path).parts))
    if not found:
        raise NotFound("no_such_file", f"there are no Parquet files in {path}", path=str(path))
    return found


def _unpacked(path: Path) -> Any:
    return pa.input_stream(str(path), compression="detect")


def _guarded(path: Path, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with _read(path):
        yield from batches


@contextmanager
def _read(path: Path) -> Iterator[None]:
    try:
        yield
    except PenstockError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError, MemoryError) as cause:
        said = str(cause).replace(str(path), path.name).partition("\n")[0][:300]
        hint = "; name the column's type with --type NAME=TYPE" if "conversion error" in said else ""
        raise Invalid("broken_file", f"{path.name} cannot be read: {said}{hint}", path=path.name) from None
