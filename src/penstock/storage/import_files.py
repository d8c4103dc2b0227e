"""Read rows from Parquet, CSV, JSON lines and Arrow files as streams in bounded memory."""

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

from penstock.core.schema.canonical import canonical_schema
from penstock.core.schema.compatibility import check_fits
from penstock.errors import Invalid, NotFound, PenstockError
from penstock.storage import arrow_ipc
from penstock.storage.file_formats import check_file_name, format_of, format_suffix, is_parquet

Types = Mapping[str, pa.DataType]

_UNTYPED_FORMATS = ("csv", "jsonl")  # formats without column types
BLOCK_BYTES = 4 << 20  # text is read and its types are guessed per block; no row may be longer
_MAX_BATCH_ROWS = 4_096  # of a Parquet file
_MAX_BATCH_BYTES = 32 << 20
_MAX_MESSAGE_BYTES = 1 << 30  # of one message after decompression


def read_files(
    paths: Sequence[Path],
    *,
    format: str | None = None,
    types: Types | None = None,
    nulls: Sequence[str] = (),
    like: pa.Schema | None = None,
    max_message_bytes: int = _MAX_MESSAGE_BYTES,
) -> "FileRows":
    """Read the rows of one or more files in bounded memory. The first file determines the schema.

    Args:
        paths: files, or folders of Parquet files
        format: the format; taken from the file names unless given
        types: column types for CSV and JSON lines
        nulls: texts that mean NULL in CSV, in addition to an empty field
        like: a schema whose types are used for columns that are not in `types`; other types are guessed
        max_message_bytes: limit of one message of an Arrow file after decompression

    Raises:
        NotFound: a file does not exist
        Invalid: a file cannot be read, or does not match the schema
    """
    files = [file for path in paths for file in _find_files(path, format)]

    def open_file(file: Path) -> OpenedFile:
        file_format = format or _format_of(file)
        if types and file_format not in _UNTYPED_FORMATS:
            raise Invalid("types_not_allowed", {"name": file.name, "format": file_format})
        with _translate_errors(file):
            return READERS[file_format](file, ReadHints(types or {}, nulls, like, max_message_bytes))

    schema, first = open_file(files[0])

    def rows() -> Iterator[pa.RecordBatch]:
        yield from _read_batches(files[0], first)
        for file in files[1:]:
            own, batches = open_file(file)
            check_fits(own, canonical_schema(schema) if like is None else like)
            yield from _read_batches(file, batches)

    return FileRows(schema, rows())


class FileRows:
    """A stream of batches that match a schema, but may lack columns or have narrower types."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.schema, self._batches = schema, batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches


@dataclass(frozen=True, slots=True)
class ReadHints:
    """Hints for reading text files, which have no types, and the limit of Arrow files."""

    types: Types
    nulls: Sequence[str]
    like: pa.Schema | None
    max_message_bytes: int = _MAX_MESSAGE_BYTES

    def column_types(self, guessed: pa.Schema) -> dict[str, pa.DataType]:
        """Return the types of the columns that need not be guessed. Columns without a supported type become text."""
        untyped = {f.name: pa.string() for f in guessed if pt.is_null(f.type) or pt.is_time(f.type)}
        expected = {f.name: f.type for f in self.like or [] if not pt.is_nested(f.type)}
        return {**untyped, **expected, **self.types}


OpenedFile = tuple[pa.Schema, Iterator[pa.RecordBatch]]


def _open_parquet(path: Path, _hints: ReadHints) -> OpenedFile:
    parquet = pq.ParquetFile(path)
    return parquet.schema_arrow, _read_parquet(path, parquet)


def _read_parquet(path: Path, parquet: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """Read a few rows at once, and fewer if they are wide: a small file may decompress to a huge one."""
    leaves = [parquet.schema.column(i) for i in range(len(parquet.schema))]
    texts = {i: leaf.path for i, leaf in enumerate(leaves) if leaf.physical_type == "BYTE_ARRAY"}
    with parquet, pq.ParquetFile(path, read_dictionary=list(texts.values())) as dictionaries:
        for group in range(parquet.num_row_groups):
            row_group = parquet.metadata.row_group(group)
            bytes_estimate = row_group.total_byte_size
            for i, text in texts.items():  # each row may contain the longest text of the dictionary
                first = next(dictionaries.iter_batches(1, row_groups=[group], columns=[text]), None)
                bytes_estimate += row_group.column(i).num_values * (
                    sum(map(_longest_value, first.columns)) if first else 0
                )
            rows = _MAX_BATCH_BYTES * row_group.num_rows // max(bytes_estimate, 1)
            yield from parquet.iter_batches(max(1, min(_MAX_BATCH_ROWS, rows)), row_groups=[group])


def _longest_value(column: pa.Array) -> int:
    if pt.is_dictionary(column.type):
        return pc.max(pc.binary_length(column.dictionary)).as_py() or 0
    if pt.is_struct(column.type):
        return sum(map(_longest_value, column.flatten()))
    return _longest_value(column.values) if pt.is_nested(column.type) else 0


def _open_csv(path: Path, hints: ReadHints) -> OpenedFile:
    def open_reader(column_types: Types, *, blank_is_row: bool = False) -> pacsv.CSVStreamingReader:
        return pacsv.open_csv(
            _open_decompressed(path),
            read_options=pacsv.ReadOptions(block_size=BLOCK_BYTES),
            parse_options=pacsv.ParseOptions(
                delimiter="\t" if format_suffix(path) == ".tsv" else ",",
                newlines_in_values=True,
                ignore_empty_lines=not blank_is_row,
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=dict(column_types),
                null_values=["", *hints.nulls],  # not NA or Null: these are values
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    guessed = open_reader({}).schema
    if unknown := sorted(set(hints.types) - set(guessed.names)):
        raise Invalid("column_not_found.csv", {"name": path.name, "column": unknown[0]})
    column_types = hints.column_types(guessed)
    for field in guessed:
        if pt.is_binary(field.type) and field.name not in column_types:
            raise Invalid("broken_file.not_utf8", {"name": path.name, "column": field.name})
    with _name_columns_in_errors(guessed.names):
        reader = open_reader(
            column_types, blank_is_row=len(guessed) == 1
        )  # with one column, a blank line is a row with NULL

    def rows() -> Iterator[pa.RecordBatch]:
        with _name_columns_in_errors(guessed.names):
            yield from reader

    return reader.schema, rows()


@contextmanager
def _name_columns_in_errors(columns: Sequence[str]) -> Iterator[None]:
    """Replace the column numbers in Arrow's messages by names."""
    try:
        yield
    except pa.ArrowInvalid as cause:
        message = re.sub(r"In CSV column #(\d+)", lambda match: f"in column {columns[int(match[1])]!r}", str(cause))
        raise ValueError(message) from None


def _open_jsonl(path: Path, hints: ReadHints) -> OpenedFile:
    def open_reader(column_types: Types) -> Any:
        return pajson.open_json(
            _open_decompressed(path),
            read_options=pajson.ReadOptions(block_size=BLOCK_BYTES),
            parse_options=pajson.ParseOptions(
                explicit_schema=pa.schema(list(column_types.items())) if column_types else None,
                newlines_in_values=False,
            ),
        )

    guessed = open_reader({}).schema
    column_types = hints.column_types(guessed)
    reader = open_reader({name: _json_type(data_type, guessed, name) for name, data_type in column_types.items()})
    schema = pa.schema([field.with_type(column_types.get(field.name, field.type)) for field in reader.schema])
    return schema, (_convert_json(batch, schema) for batch in reader)


def _json_type(data_type: pa.DataType, guessed: pa.Schema, name: str) -> pa.DataType:
    """Return the type in which a JSON value is read before it is converted to a type that JSON lacks."""
    if pt.is_date(data_type) or pt.is_binary(data_type):
        return pa.string()
    guessed_type = guessed.field(name).type if name in guessed.names else data_type
    return (
        pa.float64()
        if pt.is_decimal(data_type) and (pt.is_integer(guessed_type) or pt.is_floating(guessed_type))
        else data_type
    )


def _convert_json(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        if pt.is_binary(field.type):
            values = [None if text is None else base64.b64decode(text, validate=True) for text in column.to_pylist()]
            columns.append(pa.array(values, field.type))
            continue
        cast = column.cast(field.type)
        if pt.is_decimal(field.type) and pt.is_floating(column.type) and not cast.cast(column.type).equals(column):
            raise ValueError(f"conversion error: a number in column {field.name!r} has more digits than {field.type}")
        columns.append(cast)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _open_arrow(path: Path, hints: ReadHints) -> OpenedFile:
    if max(arrow_ipc.uncompressed_sizes(path), default=0) > hints.max_message_bytes:
        raise Invalid("batch_too_large.arrow", {"name": path.name, "max_bytes": hints.max_message_bytes})
    if not arrow_ipc.is_file(path):
        stream = pa.ipc.open_stream(pa.memory_map(str(path)))
        return stream.schema, split_batches(stream)
    file = pa.ipc.open_file(pa.memory_map(str(path)))
    return file.schema, split_batches(map(file.get_batch, range(file.num_record_batches)))


READERS: dict[str, Callable[[Path, ReadHints], OpenedFile]] = {
    "parquet": _open_parquet,
    "csv": _open_csv,
    "jsonl": _open_jsonl,
    "arrow": _open_arrow,
}


def _find_files(path: Path, format: str | None) -> list[Path]:
    check_file_name(path)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise NotFound("file_not_found.input", {"file": path}, path=str(path)) from None
    except (OSError, ValueError) as cause:
        message = getattr(cause, "strerror", None) or cause
        raise Invalid("broken_file.open", {"file": path, "error": message}, path=str(path)) from None
    if stat.S_ISREG(mode):
        return [path]
    if not stat.S_ISDIR(mode):  # a pipe or a device may block forever
        raise Invalid("not_a_file.special", {"file": path}, path=str(path))
    if format not in (None, "parquet"):
        raise Invalid("not_a_file.folder", {"file": path}, path=str(path))
    entries = [(p, p.relative_to(path).parts) for p in sorted(path.rglob("*"))]
    parquet_files = [
        (p, parts)
        for p, parts in entries
        if p.is_file() and not any(part[0] in "._" for part in parts) and _is_parquet(p)
    ]
    if not parquet_files:
        raise NotFound("file_not_found.folder", {"file": path}, path=str(path))
    if partition := next((part for _, parts in parquet_files for part in parts[:-1] if "=" in part), None):
        raise Invalid(
            "partitioned_folder",
            {"file": path, "partition": partition},
            path=str(path),
        )
    return [p for p, _ in parquet_files]


def _is_parquet(path: Path) -> bool:
    with _translate_errors(path):
        return is_parquet(path)


def _format_of(path: Path) -> str:
    return "parquet" if _is_parquet(path) else format_of(path)


def _open_decompressed(path: Path) -> Any:
    return pa.input_stream(str(path), compression="detect")


def split_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Split batches into pieces of bounded size."""
    for batch in batches:
        batch.validate()  # before any other use: its size may be wrong
        rows = max(1, _MAX_BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1))
        yield from (batch.slice(start, rows) for start in range(0, max(batch.num_rows, 1), rows))


def _read_batches(path: Path, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with _translate_errors(path):
        yield from batches


_ADVICE = {
    "invalid UTF8": "; the file must be UTF-8",
    "conversion error": "; set the column's type with --type NAME=TYPE",
    "unexpected field": "; the first rows lack this field: set its type with --type NAME=TYPE",
    "Column() changed": "; every line must be an object",
    "Column(/": "; set the column's type with --type NAME=TYPE",
    "straddling object": f"; a row is longer than {BLOCK_BYTES:,} bytes, or a quote is not closed",
}


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except PenstockError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError, MemoryError) as cause:
        message = str(cause).replace(str(path), path.name).partition("\n")[0][:300]
        hint = next((advice for phrase, advice in _ADVICE.items() if phrase in message), "")
        raise Invalid("broken_file.read", {"name": path.name, "error": message, "hint": hint}, path=path.name) from None
