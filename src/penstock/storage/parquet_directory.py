"""Read plain directories of Parquet files: files, schema, partitions and layout."""

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

from penstock.core.dataset.column_stats import Bounds, count_leaves, first_leaves, stat_value
from penstock.core.merge import FileLayout, unify_schemas
from penstock.core.schema.type_widening import common_type
from penstock.core.workspace_layout import DATA_FOLDER, WORKSPACE_FILE
from penstock.errors import Invalid, Unavailable
from penstock.storage.file_formats import is_parquet

_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_CODECS = {"uncompressed": "none", "lz4_raw": "lz4"}  # Parquet names that differ from pyarrow's


@dataclass(frozen=True, slots=True)
class ParquetDirectoryFile:
    """A Parquet file of a directory, with the statistics of its key columns."""

    name: str  # relative to the directory
    rows: int
    state: tuple[int, int]  # size and time of the last change, to detect concurrent changes
    parts: Mapping[str, str | None]  # partition values as text
    schema: pa.Schema  # as stored
    bounds: Bounds  # of the key columns
    nulls: int | None  # in the key columns; None: unknown


@dataclass(frozen=True, slots=True)
class ParquetDirectory:
    """A directory of Parquet files."""

    path: Path
    files: tuple[ParquetDirectoryFile, ...]
    schema: pa.Schema | None  # stored columns of all files, also stored partition columns; None: no files
    partitions: tuple[str, ...]  # partition columns, outermost first

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def located(self, file: ParquetDirectoryFile) -> str:
        return f"{self.path}/{file.name}"

    def layout(self, file: ParquetDirectoryFile) -> FileLayout:
        """Return how the file was written: compression, encodings and row group size."""
        with _open_parquet(self.located(file)) as parquet:
            return _read_layout(parquet.metadata, file.schema)

    def unchanged(self, file: ParquetDirectoryFile) -> bool:
        try:
            return _file_state(self.located(file)) == file.state
        except OSError:
            return False


def read_directory(path: Path, keys: Sequence[str]) -> ParquetDirectory:
    """Read the footers of all Parquet files. A missing directory has no files."""
    listed = list_files(path)
    partitions = _partition_columns(listed)
    files = tuple(_read_file(path, name, keys, partitions) for name in listed)
    return ParquetDirectory(path, files, _combine_schemas(files), partitions)


_TABLE_FORMAT_MARKERS = {
    "_delta_log": "a Delta table",
    ".hoodie": "a Hudi table",
    "metadata/version-hint.text": "an Iceberg table",
}


def check_plain_directory(path: Path) -> None:
    """Raise Invalid for a path that is not a directory, or whose files belong to a table format or a workspace."""
    if path.exists() and not path.is_dir():
        raise Invalid("not_a_directory", {"path": path})
    owner = next((description for mark, description in _TABLE_FORMAT_MARKERS.items() if (path / mark).exists()), None)
    if any(
        (workspace / WORKSPACE_FILE).exists() and path.is_relative_to(workspace / DATA_FOLDER)
        for workspace in path.parents
    ):
        owner = "a Penstock workspace"
    if owner:
        raise Invalid("not_a_plain_directory", {"path": path, "owner": owner})


def partition_types(directory: ParquetDirectory, source: pa.Schema) -> pa.Schema:
    """Return the types of the partition columns: as stored and widened by the source, else integers or text."""
    fields = []
    for name in directory.partitions:
        values = {file.parts[name] for file in directory.files}
        data_type = source.field(name).type if name in source.names else pa.null()
        if directory.schema is not None and name in directory.schema.names:
            stored_type = directory.schema.field(name).type
            data_type = common_type(stored_type, data_type) or stored_type
        data_type = _guess_type(values) if pt.is_null(data_type) else data_type
        data_type = data_type.value_type if pt.is_dictionary(data_type) else data_type
        try:
            pa.array(sorted(value for value in values if value is not None), pa.string()).cast(data_type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise Invalid(
                "type_mismatch.partition",
                {"name": name, "data_type": data_type, "value": next(value for value in values if value is not None)},
                column=name,
            ) from None
        fields.append(pa.field(name, data_type))
    return pa.schema(fields)


def partition_values(parts: Mapping[str, str | None], types: pa.Schema) -> dict[str, Any]:
    """Convert the partition values in a file's path."""
    return {name: pa.scalar(value).cast(types.field(name).type).as_py() if value is not None else None
            for name, value in parts.items()}  # fmt: skip


def partition_folder(values: Mapping[str, Any], types: pa.Schema) -> str:
    """Return the folder for rows with these partition values, relative to the directory."""
    folders = []
    for name, value in values.items():
        text = _NULL_PARTITION if value is None else _format_value(value, types.field(name).type)
        folders.append(f"{quote(name, safe=_SAFE_CHARACTERS)}={text}/")
    return "".join(folders)


_MAX_VALUE_LENGTH = 200  # of a partition value in a folder name
_SAFE_CHARACTERS = " !&()+,-.@_~"


def _format_value(value: Any, data_type: pa.DataType) -> str:
    if isinstance(value, bytes):
        raise Invalid("bad_partition.bytes")
    text = quote(pa.scalar(value, data_type).cast(pa.string()).as_py(), safe=_SAFE_CHARACTERS)
    if text in ("", _NULL_PARTITION) or len(text) > _MAX_VALUE_LENGTH:
        raise Invalid(
            "bad_partition.length",
            {"text": text[:60], "max_length": _MAX_VALUE_LENGTH},
        )
    return text


def list_files(path: Path) -> list[str]:
    """List the Parquet files below a directory. Names that begin with a dot or an underscore are ignored.

    Raises:
        Invalid: a link leads to a folder or nowhere
        Unavailable: a folder, or a file without suffix, cannot be read
    """
    if not path.is_dir():
        return []
    files: list[str] = []
    for folder, folders, entries in os.walk(path, onerror=_raise_unreadable):
        folders[:] = [name for name in folders if name[0] != "." and (name[0] != "_" or "=" in name)]
        if links := [name for name in folders if os.path.islink(f"{folder}/{name}")]:
            raise Invalid("linked_folder", {"folder": folder, "link": links[0]})
        relative = os.path.relpath(folder, path)
        for name in entries:
            if name[0] not in "._" and _is_parquet(f"{folder}/{name}"):
                files.append(name if relative == "." else f"{relative}/{name}")
    return sorted(files)


def _is_parquet(path: str) -> bool:
    try:
        return is_parquet(Path(path))
    except OSError as cause:
        if os.path.islink(path) and not os.path.exists(path):
            raise Invalid("broken_file.dangling_link", path=path) from None
        raise _unreadable(cause) from None


def _raise_unreadable(cause: OSError) -> None:
    raise _unreadable(cause) from None


def _unreadable(cause: OSError) -> Unavailable:
    return Unavailable("directory_unreadable", {"path": cause.filename, "error": cause.strerror or cause})


def _partition_columns(names: Sequence[str]) -> tuple[str, ...]:
    layouts = Counter(tuple(_parse_partitions(name)) for name in names)
    if len(layouts) > 1:
        described = " and ".join("/".join(columns) or "none" for columns in list(layouts)[:2])
        raise Invalid("mixed_partitions", {"layouts": described})
    return next(iter(layouts), ())


def _parse_partitions(name: str) -> dict[str, str | None]:
    parts: dict[str, str | None] = {}
    for folder in name.split("/")[:-1]:
        column, equals, value = folder.partition("=")
        if equals:
            parts[unquote(column)] = None if value == _NULL_PARTITION else unquote(value)
    return parts


def _read_file(path: Path, name: str, keys: Sequence[str], partitions: Sequence[str]) -> ParquetDirectoryFile:
    location = f"{path}/{name}"
    with _open_parquet(location) as parquet:
        state, footer, schema = _file_state(location), parquet.metadata, parquet.schema_arrow
    if not len(schema):
        raise Invalid("broken_file.no_columns", path=location)
    stored = [key for key in keys if key not in partitions]
    bounds, nulls = _key_stats(footer, schema, [key for key in stored if key in schema.names])
    if any(key not in schema.names for key in stored):
        nulls = None
    return ParquetDirectoryFile(name, footer.num_rows, state, _parse_partitions(name), schema, bounds, nulls)


@contextmanager
def _open_parquet(path: str) -> Iterator[pq.ParquetFile]:
    try:
        with pa.OSFile(path) as file:  # ParquetFile(path) would try other file systems first
            yield pq.ParquetFile(file)
    except FileNotFoundError:
        if os.path.islink(path):
            raise Invalid("broken_file.dangling_link", path=path) from None
        raise Unavailable("file_missing.directory", {"path": path}) from None
    except PermissionError as cause:
        raise Unavailable("directory_unreadable", {"path": path, "error": os.strerror(cause.errno or 0)}) from None
    except (pa.ArrowException, OSError) as cause:
        message = str(cause).partition("\n")[0][:200]
        raise Invalid("broken_file.parquet", {"error": message}, path=path) from None


def _file_state(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _key_stats(footer: pq.FileMetaData, schema: pa.Schema, keys: Sequence[str]) -> tuple[Bounds, int | None]:
    bounds: dict[str, Any] = {}
    nulls: int | None = 0
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    # By number, not by path: "a.b" may be a column or the field b of a struct a.
    leaves = dict(zip(schema.names, first_leaves(schema), strict=True))
    numbered = count_leaves(schema) == footer.num_columns
    for key in keys:
        low: Any = None
        high: Any = None
        has_bounds = numbered and not pt.is_nested(schema.field(key).type)
        for group in groups if has_bounds else ():
            statistics = group.column(leaves[key]).statistics
            if statistics is None or not statistics.has_null_count:
                nulls = None
            elif nulls is not None:
                nulls += statistics.null_count
            if statistics is not None and statistics.has_null_count and statistics.null_count == group.num_rows:
                continue
            ends = _min_max(statistics, schema.field(key).type)
            if ends is None:
                has_bounds = False
                break
            low = ends[0] if low is None else min(low, ends[0])
            high = ends[1] if high is None else max(high, ends[1])
        if not has_bounds:
            nulls = None
        elif low is not None:
            bounds[key] = (low, high)
    return bounds, nulls


def _min_max(statistics: Any, data_type: pa.DataType) -> tuple[Any, Any] | None:
    if (
        statistics is None
        or not statistics.has_min_max
        or pt.is_float16(data_type)
        or (pt.is_timestamp(data_type) and data_type.unit == "ns")
    ):
        return None
    try:
        low, high = stat_value(statistics.min), stat_value(statistics.max)
    except (TypeError, ValueError, OverflowError, pa.ArrowException):
        return None
    if low != low or high != high:  # some writers store NaN, which does not limit a range
        return None
    if pt.is_string(data_type) or pt.is_large_string(data_type) or pt.is_dictionary(data_type):
        return (low, high) if isinstance(low, str) and isinstance(high, str) else None
    return low, high


def _read_layout(footer: pq.FileMetaData, schema: pa.Schema) -> FileLayout:
    if not footer.num_row_groups:
        return FileLayout(schema, stores_required=True)
    group = footer.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    codecs = {column.path_in_schema: _codec_name(column.compression) for column in columns}
    compression, _ = Counter(codecs.values()).most_common(1)[0]
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
    return FileLayout(schema, compression, max(rows, 1), options, stores_required=True)


def _codec_name(name: str) -> str:
    return _CODECS.get(name.lower(), name.lower())


def _combine_schemas(files: Sequence[ParquetDirectoryFile]) -> pa.Schema | None:
    """Return the schema of all files: the columns of the first file in its order, then those that others add."""
    if not files:
        return None
    whole = files[0].schema
    for file in files[1:]:
        if file.schema != whole:
            try:
                whole = unify_schemas(file.schema, whole)
            except Invalid as error:
                raise Invalid(
                    "mixed_directory",
                    {"name": file.name, "error": error.message.partition(":")[0]},
                    **error.context,
                ) from None
    required = set.intersection(*({f.name for f in file.schema if not f.nullable} for file in files))
    return pa.schema([f.with_nullable(f.name not in required) for f in whole], metadata=whole.metadata)


def _guess_type(values: set[str | None]) -> pa.DataType:
    whole = all(value is None or (value.removeprefix("-").isdecimal() and len(value) < 19) for value in values)
    return pa.int64() if whole else pa.string()
