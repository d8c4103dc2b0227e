"""Rows from files of others: Parquet, CSV, JSON lines and Arrow, as streams in bounded memory."""

import base64
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.core.schema.canonical import canonical, check_fits
from penstock.errors import Invalid, NotFound, PenstockError
from penstock.storage import arrow_ipc as ipc
from penstock.storage.file_formats import ENDINGS, ending, format_of

Types = Mapping[str, pa.DataType]

_TYPED = ("csv", "jsonl")  # formats that leave the types to the reader
_BLOCK = 4 << 20  # bytes of text that are read, and whose types are guessed, at once; no row may be longer
_MOST_ROWS = 4_096  # of a Parquet file at once
_BATCH_BYTES = 32 << 20
_MESSAGE_BYTES = 1 << 30  # that one part of a compressed Arrow file may unpack to


def incoming(
    paths: Sequence[Path],
    *,
    format: str | None = None,
    types: Types | None = None,
    nulls: Sequence[str] = (),
    like: pa.Schema | None = None,
) -> "Incoming":
    """The rows of one or more files, one after the other, in bounded memory. The first file sets the schema.

    A text file leaves the types open: they are as in `types`, or else as in `like`, or else guessed.
    `nulls`: what means NULL in CSV, besides an empty field.
    """
    files = [file for path in paths for file in _files(path, format)]

    def opened(file: Path) -> Opened:
        kind = format or format_of(file)
        if types and kind not in _TYPED:
            raise Invalid("types_not_wanted", f"{file.name}: a {kind} file tells the types of its columns itself")
        with _read(file):
            return READERS[kind](file, Hints(types or {}, nulls, like))

    schema, first = opened(files[0])

    def rows() -> Iterator[pa.RecordBatch]:
        yield from _guarded(files[0], first)
        for file in files[1:]:
            own, batches = opened(file)
            check_fits(own, canonical(schema) if like is None else like)
            yield from _guarded(file, batches)

    return Incoming(schema, rows())


class Incoming:
    """A stream of batches that fit a schema, but may lack columns of it or hold narrower types."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.schema, self._batches = schema, batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches


@dataclass(frozen=True, slots=True)
class Hints:
    """What the one who sends a text file knows about it."""

    types: Types
    nulls: Sequence[str]
    like: pa.Schema | None

    def known(self, guessed: pa.Schema) -> dict[str, pa.DataType]:
        """The types to read columns as, where they need not be guessed. What shows no type that could be kept is text."""
        vague = {f.name: pa.string() for f in guessed if pt.is_null(f.type) or pt.is_time(f.type)}
        alike = {f.name: f.type for f in self.like or [] if not pt.is_nested(f.type)}
        return {**vague, **alike, **self.types}


Opened = tuple[pa.Schema, Iterator[pa.RecordBatch]]


def _parquet(path: Path, _hints: Hints) -> Opened:
    parquet = pq.ParquetFile(path)
    return parquet.schema_arrow, _parquet_rows(path, parquet)


def _parquet_rows(path: Path, parquet: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """A small file may unpack to a huge one: a few rows at once, and fewer where they are wide."""
    leaves = [parquet.schema.column(i) for i in range(len(parquet.schema))]
    texts = {i: leaf.path for i, leaf in enumerate(leaves) if leaf.physical_type == "BYTE_ARRAY"}
    with parquet, pq.ParquetFile(path, read_dictionary=list(texts.values())) as dictionaries:
        for group in range(parquet.num_row_groups):
            said = parquet.metadata.row_group(group)
            total = said.total_byte_size
            for i, text in texts.items():  # any row may mean the longest text of the dictionary
                first = next(dictionaries.iter_batches(1, row_groups=[group], columns=[text]), None)
                total += said.column(i).num_values * (sum(map(_longest, first.columns)) if first else 0)
            rows = _BATCH_BYTES * said.num_rows // max(total, 1)
            yield from parquet.iter_batches(max(1, min(_MOST_ROWS, rows)), row_groups=[group])


def _longest(column: pa.Array) -> int:
    if pt.is_dictionary(column.type):
        return pc.max(pc.binary_length(column.dictionary)).as_py() or 0
    if pt.is_struct(column.type):
        return sum(map(_longest, column.flatten()))
    return _longest(column.values) if pt.is_nested(column.type) else 0


def _csv(path: Path, hints: Hints) -> Opened:
    def opened(known: Types, *, blank_is_row: bool = False) -> pacsv.CSVStreamingReader:
        return pacsv.open_csv(
            _unpacked(path),
            read_options=pacsv.ReadOptions(block_size=_BLOCK),
            parse_options=pacsv.ParseOptions(
                delimiter="\t" if ending(path) == ".tsv" else ",",
                newlines_in_values=True,
                ignore_empty_lines=not blank_is_row,
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=dict(known),
                null_values=["", *hints.nulls],  # no more: NA is a country, and Null a name
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    guessed = opened({}).schema
    if unknown := sorted(set(hints.types) - set(guessed.names)):
        raise Invalid("no_such_column", f"{path.name} has no column {unknown[0]!r}, which --type names")
    known = hints.known(guessed)
    for field in guessed:
        if pt.is_binary(field.type) and field.name not in known:
            raise Invalid("broken_file", f"{path.name} cannot be read: column {field.name!r} is not UTF-8 text")
    with _named(guessed.names):
        reader = opened(known, blank_is_row=len(guessed) == 1)  # a row of one column may be a blank line: NULL

    def rows() -> Iterator[pa.RecordBatch]:
        with _named(guessed.names):
            yield from reader

    return reader.schema, rows()


@contextmanager
def _named(columns: Sequence[str]) -> Iterator[None]:
    """Arrow counts the columns in its complaints; people name them."""
    try:
        yield
    except pa.ArrowInvalid as cause:
        said = re.sub(r"In CSV column #(\d+)", lambda found: f"in column {columns[int(found[1])]!r}", str(cause))
        raise ValueError(said) from None


def _jsonl(path: Path, hints: Hints) -> Opened:
    def opened(known: Types) -> Any:
        return pajson.open_json(
            _unpacked(path),
            read_options=pajson.ReadOptions(block_size=_BLOCK),
            parse_options=pajson.ParseOptions(
                explicit_schema=pa.schema(list(known.items())) if known else None, newlines_in_values=False
            ),
        )

    guessed = opened({}).schema
    known = hints.known(guessed)
    reader = opened({name: _as_json(kind, guessed, name) for name, kind in known.items()})
    schema = pa.schema([field.with_type(known.get(field.name, field.type)) for field in reader.schema])
    return schema, (_from_json(batch, schema) for batch in reader)


def _as_json(kind: pa.DataType, guessed: pa.Schema, name: str) -> pa.DataType:
    """The type as which a JSON value is read before it becomes one of the kind that JSON cannot say."""
    if pt.is_date(kind) or pt.is_binary(kind):
        return pa.string()
    written = guessed.field(name).type if name in guessed.names else kind
    return pa.float64() if pt.is_decimal(kind) and (pt.is_integer(written) or pt.is_floating(written)) else kind


def _from_json(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        if pt.is_binary(field.type):
            said = [None if text is None else base64.b64decode(text, validate=True) for text in column.to_pylist()]
            columns.append(pa.array(said, field.type))
            continue
        cast = column.cast(field.type)
        if pt.is_decimal(field.type) and pt.is_floating(column.type) and not cast.cast(column.type).equals(column):
            raise ValueError(f"conversion error: a number in column {field.name!r} has more digits than {field.type}")
        columns.append(cast)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _arrow(path: Path, _hints: Hints) -> Opened:
    if max(ipc.unpacked_sizes(path), default=0) > _MESSAGE_BYTES:
        raise Invalid("batch_too_large", f"{path.name}: a batch unpacks to more than {_MESSAGE_BYTES:,} bytes")
    if not ipc.is_file(path):
        stream = pa.ipc.open_stream(pa.memory_map(str(path)))
        return stream.schema, cut(stream)
    file = pa.ipc.open_file(pa.memory_map(str(path)))
    return file.schema, cut(map(file.get_batch, range(file.num_record_batches)))


READERS: dict[str, Callable[[Path, Hints], Opened]] = {
    "parquet": _parquet,
    "csv": _csv,
    "jsonl": _jsonl,
    "arrow": _arrow,
}


def _files(path: Path, format: str | None) -> list[Path]:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise NotFound("no_such_file", f"there is no file {path}", path=str(path)) from None
    except (OSError, ValueError) as cause:
        said = getattr(cause, "strerror", None) or cause
        raise Invalid("broken_file", f"{path} cannot be opened: {said}", path=str(path)) from None
    if stat.S_ISREG(mode):
        return [path]
    if not stat.S_ISDIR(mode):  # a pipe or a device could keep us waiting for ever
        raise Invalid(
            "not_a_file", f"{path} is neither a file nor a folder; save what it gives to a file", path=str(path)
        )
    if format not in (None, "parquet"):
        raise Invalid(
            "not_a_file", f"{path} is a folder; only Parquet is read from folders: name the files", path=str(path)
        )
    within = [(p, p.relative_to(path).parts) for p in sorted(path.rglob("*"))]
    found = [
        (p, parts)
        for p, parts in within
        if ENDINGS.get(ending(p)) == "parquet" and p.is_file() and not any(part[0] in "._" for part in parts)
    ]
    if not found:
        raise NotFound("no_such_file", f"there are no Parquet files in {path}", path=str(path))
    if partition := next((part for _, parts in found for part in parts[:-1] if "=" in part), None):
        raise Invalid(
            "partitioned_folder",
            f"{path} keeps a column in the names of its folders ({partition}), which is not read; "
            "write it without partitions first",
            path=str(path),
        )
    return [p for p, _ in found]


def _unpacked(path: Path) -> Any:
    return pa.input_stream(str(path), compression="detect")


def cut(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches that are there already, in pieces of a size that can be worked on."""
    for batch in batches:
        batch.validate()  # before anything, even its size, is asked of it
        rows = max(1, _BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1))
        yield from (batch.slice(at, rows) for at in range(0, max(batch.num_rows, 1), rows))


def _guarded(path: Path, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with _read(path):
        yield from batches


_ADVICE = {
    "invalid UTF8": "; the file must be UTF-8",
    "conversion error": "; name the column's type with --type NAME=TYPE",
    "unexpected field": "; a field that the first rows lack: name its type with --type NAME=TYPE",
    "Column() changed": "; every line must be an object",
    "Column(/": "; name the column's type with --type NAME=TYPE",
    "straddling object": f"; a row is longer than {_BLOCK:,} bytes, or a quote is not closed",
}


@contextmanager
def _read(path: Path) -> Iterator[None]:
    try:
        yield
    except PenstockError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError, MemoryError) as cause:
        said = str(cause).replace(str(path), path.name).partition("\n")[0][:300]
        hint = next((advice for word, advice in _ADVICE.items() if word in said), "")
        raise Invalid("broken_file", f"{path.name} cannot be read: {said}{hint}", path=path.name) from None
