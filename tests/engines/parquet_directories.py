"""Write, read and compare plain Parquet directories in tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from engines.merge_oracle import Row


def write_directory(directory: Path, files: Mapping[str, pa.Table] | None, **options: Any) -> None:
    """Write a directory from tables by file name. None: create no directory."""
    for name, table in (files or {}).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, directory / name, **options)
    if files is not None:
        directory.mkdir(parents=True, exist_ok=True)


def read_tables(directory: Path) -> dict[str, pa.Table]:
    """Return the stored table of each file by name."""
    paths = sorted(path for path in directory.rglob("*.parquet") if path.is_file())
    return {str(path.relative_to(directory)): pq.ParquetFile(path).read() for path in paths}


def partition_values(name: str) -> Row:
    """Return the partition values in the folder names of a file."""
    words = dict(folder.split("=", 1) for folder in name.split("/")[:-1] if "=" in folder)
    return {column: _value(word) for column, word in words.items()}


def rows_of(name: str, table: pa.Table) -> list[Row]:
    """Return the rows of a file with their partition values."""
    return [row | partition_values(name) for row in table.to_pylist()]


def read_bytes(directory: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a directory by name."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def assert_same_rows(left: list[Row], right: list[Row]) -> bool:
    """Assert equal rows in any order; NaN equals NaN, 0.0 differs from -0.0. Returns True."""
    assert _sorted_rows(left) == _sorted_rows(right)
    return True


def _sorted_rows(rows: list[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


def _value(word: str) -> Any:
    if word == "__HIVE_DEFAULT_PARTITION__":
        return None
    return int(word) if word.isdecimal() else unquote(word)
