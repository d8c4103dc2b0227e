"""The file formats that come in and go out, and how their names end."""

from pathlib import Path

from penstock.errors import Invalid

FORMATS = ("parquet", "csv", "jsonl", "arrow")

ENDINGS = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv", ".txt": "csv", ".json": "jsonl",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".arrow": "arrow", ".ipc": "arrow", ".feather": "arrow", ".arrows": "arrow",
}  # fmt: skip
_PACKED = (".gz", ".zst", ".bz2")


def format_of(path: Path) -> str:
    """What a file's name says of its format."""
    if (known := ENDINGS.get(ending(path))) is not None:
        return known
    raise Invalid(
        "unknown_format",
        f"{path.name}: the format cannot be told from the name; say it with --format ({', '.join(FORMATS)})",
    )


def ending(path: Path) -> str:
    """The last part of the name that tells a format, in lower case; packing aside."""
    return next((e for e in (s.lower() for s in reversed(path.suffixes)) if e not in _PACKED), "")
