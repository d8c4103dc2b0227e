"""A plain directory of Parquet files: what is in it, how it is laid out, and what its folders say."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.core.merge import Layout, unify_schemas
from penstock.core.dataset.column_stats import Bounds, plain
from penstock.errors import Invalid, Unavailable
from penstock.storage.file_formats import ENDINGS, ending

_NULL_PART = "__HIVE_DEFAULT_PARTITION__"
_CODECS = {"uncompressed": "none", "lz4_raw": "lz4"}  # Parquet's words, where pyarrow has others


@dataclass(frozen=True, slots=True)
class PlainFile:
    name: str  # below the directory
    rows: int
    state: tuple[int, int]  # size and time of the last change: has somebody touched it since?
    parts: Mapping[str, str | None]  # the folders' words
    schema: pa.Schema  # as it is stored
    bounds: Bounds  # of the key columns
    nulls: int | None  # in the key columns; None: not known


@dataclass(frozen=True, slots=True)
class Directory:
    path: Path
    files: tuple[PlainFile, ...]
    schema: pa.Schema | None  # of all files together, without the folders' columns; None: there are no files
    partitions: tuple[str, ...]  # the columns that folders tell, from the outside in

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def located(self, file: PlainFile) -> str:
        return f"{self.path}/{file.name}"

    def layout(self, file: PlainFile) -> Layout:
        """How the file was written, as far as it tells."""
        with _opened(self.located(file)) as parquet:
            return _layout(parquet.metadata, file.schema)

    def unchanged(self, file: PlainFile) -> bool:
        try:
            return _state(self.located(file)) == file.state
        except OSError:
            return False


def read(path: Path, keys: Sequence[str]) -> Directory:
    """Look at every footer. A directory that is not there is one without files."""
    names = file_names(path) if path.is_dir() else []
    partitions = _partitions(names)
    files = tuple(_file(path, name, keys, partitions) for name in names)
    return Directory(path, files, _schema(files), partitions)


_OWNERS = {"_delta_log": "a Delta table", ".hoodie": "a Hudi table", "metadata/version-hint.text": "an Iceberg table"}


def check(path: Path) -> None:
    """Refuse what is no directory, and one whose files are only a part of something else, which a merge would break."""
    if path.exists() and not path.is_dir():
        raise Invalid("not_a_directory", f"{path} is a file; name the directory that holds the Parquet files")
    whose = next((what for mark, what in _OWNERS.items() if (path / mark).exists()), None)
    if any((home / "penstock.json").exists() and path.is_relative_to(home / "data") for home in path.parents):
        whose = "a Penstock workspace"
    if whose:
        raise Invalid(
            "not_a_plain_directory", f"{path} belongs to {whose}; merge through that, and not behind its back"
        )


def part_types(directory: Directory, source: pa.Schema) -> pa.Schema:
    """The types of the folders' columns: as in the source where it has them, else whole numbers or text."""
    fields = []
    for name in directory.partitions:
        words = {file.parts[name] for file in directory.files}
        kind = source.field(name).type if name in source.names else pa.null()
        kind = _guessed(words) if pt.is_null(kind) else kind
        kind = kind.value_type if pt.is_dictionary(kind) else kind
        try:
            pa.array(sorted(word for word in words if word is not None), pa.string()).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise Invalid(
                "type_mismatch",
                f"column {name!r} is {kind} in the source, and the directory has folders such as "
                f"{name}={next(word for word in words if word is not None)}: cast the source's column to string",
                column=name,
            ) from None
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


def part_values(parts: Mapping[str, str | None], types: pa.Schema) -> dict[str, Any]:
    """What a file's folders say, as values."""
    return {name: pa.scalar(word).cast(types.field(name).type).as_py() if word is not None else None
            for name, word in parts.items()}  # fmt: skip


def folder(values: Mapping[str, Any], types: pa.Schema) -> str:
    """The folder for rows with these values of the partition columns, below the directory."""
    words = []
    for name, value in values.items():
        text = _NULL_PART if value is None else _word(value, types.field(name).type)
        words.append(f"{quote(name, safe=_SAFE)}={text}/")
    return "".join(words)


_LONGEST = 200  # of a value in the name of a folder
_SAFE = " !&()+,-.@_~"


def _word(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, bytes):
        raise Invalid("bad_partition", "bytes cannot be the name of a folder; cast the partition column to string")
    text = quote(pa.scalar(value, kind).cast(pa.string()).as_py(), safe=_SAFE)
    if text in ("", _NULL_PART) or len(text) > _LONGEST:
        raise Invalid(
            "bad_partition",
            f"{text[:60]!r} cannot be the name of a partition's folder; give the rows 1 to {_LONGEST} characters, or NULL",
        )
    return text


def file_names(path: Path) -> list[str]:
    """Parquet files, in order of their names. What begins with a dot or an underscore is not ours."""
    found: list[str] = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name[0] != "." and (name[0] != "_" or "=" in name)]
        if linked := [name for name in folders if os.path.islink(f"{folder}/{name}")]:
            raise Invalid("linked_folder", f"{folder}/{linked[0]} is a link; name the directory that it leads to")
        below = os.path.relpath(folder, path)
        for name in names:
            if name[0] not in "._" and ENDINGS.get(ending(Path(name))) == "parquet":
                found.append(name if below == "." else f"{below}/{name}")
    return sorted(found)


def _partitions(names: Sequence[str]) -> tuple[str, ...]:
    seen = Counter(tuple(_parts(name)) for name in names)
    if len(seen) > 1:
        told = " and ".join("/".join(each) or "none" for each in list(seen)[:2])
        raise Invalid("mixed_partitions", f"the folders of the directory disagree about partition columns: {told}")
    return next(iter(seen), ())


def _parts(name: str) -> dict[str, str | None]:
    parts: dict[str, str | None] = {}
    for folder in name.split("/")[:-1]:
        column, equals, word = folder.partition("=")
        if equals:
            parts[unquote(column)] = None if word == _NULL_PART else unquote(word)
    return parts


def _file(path: Path, name: str, keys: Sequence[str], partitions: Sequence[str]) -> PlainFile:
    place = f"{path}/{name}"
    with _opened(place) as parquet:
        state, footer, schema = _state(place), parquet.metadata, parquet.schema_arrow
    stored = [key for key in keys if key not in partitions]
    bounds, nulls = _key_stats(footer, schema, [key for key in stored if key in schema.names])
    if any(key not in schema.names for key in stored):
        nulls = None
    return PlainFile(name, footer.num_rows, state, _parts(name), schema, bounds, nulls)


@contextmanager
def _opened(place: str) -> Iterator[pq.ParquetFile]:
    try:
        with pa.OSFile(place) as file:  # a path would be looked up in all kinds of file systems first
            yield pq.ParquetFile(file)
    except FileNotFoundError:
        raise Unavailable("file_missing", f"{place} vanished while the directory was read; try again") from None
    except (pa.ArrowException, OSError) as cause:
        said = str(cause).partition("\n")[0][:200]
        raise Invalid("broken_file", f"{place} is no Parquet file that can be read: {said}", path=place) from None


def _state(place: str) -> tuple[int, int]:
    found = os.stat(place)
    return found.st_size, found.st_mtime_ns


def _key_stats(footer: pq.FileMetaData, schema: pa.Schema, keys: Sequence[str]) -> tuple[Bounds, int | None]:
    bounds: dict[str, Any] = {}
    nulls: int | None = 0
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    names = schema.names if footer.num_columns == len(schema) else [column.path for column in footer.schema]
    for key in keys:
        low: Any = None
        high: Any = None
        known = key in names and not pt.is_nested(schema.field(key).type)
        for group in groups if known else ():
            said = group.column(names.index(key)).statistics
            if said is None or not said.has_null_count:
                nulls = None
            elif nulls is not None:
                nulls += said.null_count
            if said is not None and said.has_null_count and said.null_count == group.num_rows:
                continue
            ends = _ends(said, schema.field(key).type)
            if ends is None:
                known = False
                break
            low = ends[0] if low is None else min(low, ends[0])
            high = ends[1] if high is None else max(high, ends[1])
        if not known:
            nulls = None
        elif low is not None:
            bounds[key] = (low, high)
    return bounds, nulls


def _ends(said: Any, kind: pa.DataType) -> tuple[Any, Any] | None:
    if said is None or not said.has_min_max or pt.is_float16(kind) or (pt.is_timestamp(kind) and kind.unit == "ns"):
        return None
    try:
        low, high = plain(said.min), plain(said.max)
    except (TypeError, ValueError, OverflowError, pa.ArrowException):
        return None
    if low != low or high != high:  # NaN bounds nothing; not every writer leaves it out
        return None
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_dictionary(kind):
        return (low, high) if isinstance(low, str) and isinstance(high, str) else None
    return low, high


def _layout(footer: pq.FileMetaData, schema: pa.Schema) -> Layout:
    if not footer.num_row_groups:
        return Layout(schema)
    group = footer.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    codecs = {column.path_in_schema: _codec(column.compression) for column in columns}
    most, _ = Counter(codecs.values()).most_common(1)[0]
    options: dict[str, Any] = {}
    if len(set(codecs.values())) > 1:
        options["compression"] = codecs
    encoded = [column.path_in_schema for column in columns if column.has_dictionary_page]
    if len(encoded) < len(columns):
        options["use_dictionary"] = encoded or False
    if any(column.physical_type == "INT96" for column in columns):
        options["use_deprecated_int96_timestamps"] = True
    if any(column.has_column_index for column in columns):
        options["write_page_index"] = True
    rows = max(footer.row_group(i).num_rows for i in range(min(footer.num_row_groups, 2)))
    return Layout(schema, most, max(rows, 1), options)


def _codec(word: str) -> str:
    return _CODECS.get(word.lower(), word.lower())


def _schema(files: Sequence[PlainFile]) -> pa.Schema | None:
    """What all files together hold: the first file's columns in its order, then what others add."""
    if not files:
        return None
    whole = files[0].schema
    for file in files[1:]:
        if file.schema != whole:
            try:
                whole = unify_schemas(file.schema, whole)
            except Invalid as refusal:
                raise Invalid(
                    "mixed_directory",
                    f"{file.name} does not fit the files before it: {refusal.message.partition(':')[0]}",
                    **refusal.context,
                ) from None
    required = set.intersection(*({f.name for f in file.schema if not f.nullable} for file in files))
    return pa.schema([f.with_nullable(f.name not in required) for f in whole], metadata=whole.metadata)


def _guessed(words: set[str | None]) -> pa.DataType:
    whole = all(word is None or (word.removeprefix("-").isdecimal() and len(word) < 19) for word in words)
    return pa.int64() if whole else pa.string()
