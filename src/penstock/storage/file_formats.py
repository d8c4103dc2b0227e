"""The supported file formats and their file name suffixes."""

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import Invalid

FORMATS = ("parquet", "csv", "jsonl", "arrow")

SUFFIX_FORMATS = {
    ".parquet": "parquet", ".pq": "parquet", ".parq": "parquet", ".csv": "csv", ".tsv": "csv", ".txt": "csv",
    ".json": "jsonl", ".jsonl": "jsonl", ".ndjson": "jsonl", ".arrow": "arrow", ".ipc": "arrow", ".feather": "arrow",
    ".arrows": "arrow",
}  # fmt: skip
_COMPRESSION_SUFFIXES = (".gz", ".zst", ".bz2")
_PARQUET_MAGIC = (b"PAR1", b"PARE")  # plain, and with an encrypted footer


def format_of(path: Path) -> str:
    """Return the format of a file by its name.

    Raises:
        Invalid: the suffix is unknown
    """
    if (format := SUFFIX_FORMATS.get(format_suffix(path))) is not None:
        return format
    raise Invalid(
        "unknown_format",
        {"name": path.name, "formats": ", ".join(FORMATS)},
    )


def format_suffix(path: Path) -> str:
    """Return the suffix that indicates the format, in lower case, without a compression suffix."""
    return next((e for e in (s.lower() for s in reversed(path.suffixes)) if e not in _COMPRESSION_SUFFIXES), "")


def is_parquet(path: Path) -> bool:
    """Recognise a Parquet file by its suffix, or by its first bytes if the name has none, such as `000000_0` of Hive.

    Raises:
        OSError: a file without suffix cannot be read
    """
    suffix = format_suffix(path)
    if suffix.strip(".0123456789"):
        return SUFFIX_FORMATS.get(suffix) == "parquet"
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would block
        return False
    with path.open("rb") as file:
        return file.read(4) in _PARQUET_MAGIC


def check_file_name(path: Path) -> None:
    """Raise Invalid if a path is not UTF-8, which Arrow, DuckDB and Spark require."""
    with translate_file_names():
        str(path).encode()


@contextmanager
def translate_file_names() -> Iterator[None]:
    """Raise Invalid for a path that is not UTF-8 where a library encodes it."""
    try:
        yield
    except UnicodeEncodeError as cause:
        name = cause.object.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        raise Invalid("bad_file_name", {"name": name}) from None
