"""Plain directories, as tests fill, read and compare them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from semantics.oracle import Row


def lay(place: Path, files: Mapping[str, pa.Table] | None, **options: Any) -> None:
    """Write a directory: the name of a file → its rows. None: there is no directory."""
    for name, table in (files or {}).items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, place / name, **options)
    if files is not None:
        place.mkdir(parents=True, exist_ok=True)


def read(place: Path) -> dict[str, pa.Table]:
    """What each file stores."""
    found = sorted(path for path in place.rglob("*.parquet") if path.is_file())
    return {str(path.relative_to(place)): pq.ParquetFile(path).read() for path in found}


def parts(name: str) -> Row:
    """What the folders of a file say."""
    words = dict(folder.split("=", 1) for folder in name.split("/")[:-1] if "=" in folder)
    return {column: _value(word) for column, word in words.items()}


def rows_of(name: str, table: pa.Table) -> list[Row]:
    """The rows of a file, with what its folders say."""
    return [row | parts(name) for row in table.to_pylist()]


def content(place: Path) -> dict[str, bytes]:
    """Everything that is there, to the byte."""
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def same(some: list[Row], others: list[Row]) -> bool:
    """The same rows in any order; NaN is NaN, and zeros have their sign."""
    assert _told(some) == _told(others)
    return True


def _told(some: list[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in some)


def _value(word: str) -> Any:
    if word == "__HIVE_DEFAULT_PARTITION__":
        return None
    return int(word) if word.isdecimal() else unquote(word)
