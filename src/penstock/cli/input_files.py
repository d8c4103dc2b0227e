"""Read an input file, or standard input, of a command."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import Invalid

if TYPE_CHECKING:
    from penstock.core.payload.documents import Document


def read_input(file: Path, max_bytes: int | None = None) -> bytes:
    """Read a file; the name - is standard input.

    Raises:
        Invalid: the file cannot be read, or has more than `max_bytes` bytes
    """
    try:
        with nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as source:
            data = source.read(-1 if max_bytes is None else max_bytes + 1)
    except OSError as cause:
        raise Invalid("unreadable_input", {"file": file, "strerror": cause.strerror}) from None
    if max_bytes is not None and len(data) > max_bytes:
        raise Invalid("input_too_large", {"file": file}, limit=max_bytes)
    return data


def parse_input(file: Path, data: bytes) -> "Document":
    """Parse JSON or YAML: by the file's suffix, otherwise by its first character."""
    from penstock.core.payload import documents

    return documents.parse_document(data, documents.format_of(file.name), str(file))
