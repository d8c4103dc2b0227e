"""Write rows as CSV or JSON files, with all digits of their numbers."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any


def to_csv(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Write rows as CSV with a header line. A missing value is empty, and a list is JSON."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_csv_value(row.get(name)) for name in names] for row in rows)
    return file.getvalue().encode("utf-8", "replace")


def to_json(_names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Write rows as a JSON array with one row in each line."""
    lines = ",\n".join(map(_json_text, rows))
    return f"[\n{lines}\n]\n".encode("utf-8", "replace")


def _csv_value(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
    return _json_text(value)


def _json_text(value: Any) -> str:
    match value:
        case Mapping():
            return "{" + ", ".join(f"{_json_text(name)}: {_json_text(member)}" for name, member in value.items()) + "}"
        case list():
            return f"[{', '.join(map(_json_text, value))}]"
        case Decimal():
            return str(value)
    return json.dumps(value, ensure_ascii=False)
