"""What a command is given to read: a file, or what comes in on standard input."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import Invalid

if TYPE_CHECKING:
    from penstock.core.payload.documents import Document


def content(file: Path, most: int | None = None) -> bytes:
    """All of it, unless there are more bytes than may be. The name - is standard input."""
    try:
        with nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as source:
            data = source.read(-1 if most is None else most + 1)
    except OSError as cause:
        raise Invalid("cannot_read", f"{file} cannot be read: {cause.strerror}") from None
    if most is not None and len(data) > most:
        raise Invalid("file_too_large", f"{file} has more than {most:,} bytes, and may not", limit=most)
    return data


def document(file: Path, data: bytes) -> "Document":
    """JSON or YAML, as the file's name says, or else as it begins."""
    from penstock.core.payload import documents as text

    formats = {".json": text.Format.JSON, ".yaml": text.Format.YAML, ".yml": text.Format.YAML}
    return text.document(data, formats.get(file.suffix.lower()), str(file))
