"""Pipeline definitions as JSON text: parse them, locate errors by line, compare them, and create examples."""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.payload.documents import Document, Format, parse_document
from penstock.core.pipeline.definition import parse_stored_form
from penstock.errors import Invalid
from penstock.ui import formatting

Dataset = Mapping[str, Any]  # as the API returns it
Details = tuple[tuple[str, str], ...]  # names and values of an error's details
EDITABLE_MEMBERS = ("name", "working", "operations", "output")  # members that users write; the service sets the others
_ID = re.compile(r'"([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})"')
_HIDDEN_DETAILS = ("operation_order", "pointer")  # already shown as the location


@dataclass(frozen=True)
class LocatedError:
    """An error of a pipeline definition with its location in the text."""

    message: str
    line: int | None = None  # from 1; None: unknown
    pointer: str = ""
    details: Details = ()

    @property
    def location(self) -> str:
        """The line and the JSON pointer, as far as they are known."""
        return " · ".join(part for part in (f"Line {self.line}" if self.line else "", self.pointer) if part)


def format_pipeline(pipeline: Mapping[str, Any]) -> str:
    """Format the editable members of a stored pipeline as JSON text."""
    return to_json_text({name: pipeline[name] for name in EDITABLE_MEMBERS if name in pipeline})


def format_as_stored(value: Any) -> str:
    """Format a valid pipeline of a user as the service would store it."""
    return format_pipeline(parse_stored_form(value).as_json())


def to_json_text(value: Any) -> str:
    """Format a value as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def parse_text(text: str) -> Document | LocatedError:
    """Parse a JSON text with line numbers.

    Returns:
        The document, or the syntax error.
    """
    try:
        return parse_document(text.encode("utf-8", "surrogatepass"), Format.JSON, "the pipeline")
    except Invalid as error:
        position = error.context.get("position")
        return LocatedError(error.message, None if position is None else text.count("\n", 0, position) + 1)


def locate_errors(document: Document, errors: Sequence[Mapping[str, Any]]) -> list[LocatedError]:
    """Add line numbers to the errors that the service returned."""
    return [
        LocatedError(
            str(error.get("message", "")),
            document.line(pointer := str(error.get("pointer", ""))),
            pointer,
            format_details(error.get("details") or {}),
        )
        for error in errors
    ]


def format_details(details: Mapping[str, Any]) -> Details:
    """Format the details of an error for users: `extra columns`, `a, b`."""
    return tuple(
        (name.replace("_", " "), _format_detail(name, value))
        for name, value in details.items()
        if name not in _HIDDEN_DETAILS and value is not None
    )


def _format_detail(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    is_count = isinstance(value, int | float) and not isinstance(value, bool) and "version" not in name
    return formatting.format_count(value) if is_count else str(value)


def find_ids(text: str) -> list[tuple[str, int]]:
    """Find the ids in a text, each with the position of its end."""
    return [(match[1].lower(), match.end()) for match in _ID.finditer(text)]


def example_pipeline(datasets: Sequence[Dataset]) -> dict[str, Any]:
    """Create an example: append one dataset to another with matching columns, or else deduplicate one."""
    for working in datasets:
        for source in datasets:
            if not working["read_only"] and working["id"] != source["id"] and _can_append(working, source):
                return {
                    "name": f"{source['name']} into {working['name']}",
                    "working": {"dataset_id": working["id"]},
                    "operations": [new_operation("append", source)],
                }
    single = next((dataset for dataset in datasets if not dataset["read_only"]), datasets[0])
    schema, _, table = single["name"].partition(".")
    merge = new_operation("merge", single)
    merge["parameters"]["strategy"] = "deduplicate"
    return {
        "name": f"{single['name']} deduplicated",
        "working": {"dataset_id": single["id"]},
        "operations": [merge],
        **({"output": {"schema_name": schema, "table_name": f"{table}_unique"}} if single["read_only"] else {}),
    }


def new_operation(operation_type: str, source: Dataset) -> dict[str, Any]:
    """Create an operation with default parameters."""
    parameters: dict[str, Any] = {"source": {"dataset_id": source["id"]}}
    if operation_type == "merge":
        names = [column["name"] for column in source["schema"]]
        parameters |= {"key_columns": ["id" if "id" in names else names[0]], "strategy": "upsert"}
    return {"type": operation_type, "parameters": parameters}


def add_operation(pipeline: Any, new: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the pipeline with one more operation at the end, or None if it has no list of operations."""
    if not (isinstance(pipeline, dict) and isinstance(operations := pipeline.get("operations"), list)):
        return None
    orders = [
        operation["order"]
        for operation in operations
        if isinstance(operation, dict) and isinstance(operation.get("order"), int)
    ]
    last = {"type": new["type"], "order": max(orders) + 1, **new} if orders else new
    return {**pipeline, "operations": [*operations, last]}


def diff_lines(stored_text: str, edited_text: str) -> list[tuple[str, str]]:
    """Compare two texts line by line, with two lines of context.

    Returns:
        Signs and lines: `-` only stored, `+` only edited, ` ` both, `…` for omitted lines.
    """
    return list(_iterate_diff(stored_text, edited_text))


def _iterate_diff(stored_text: str, edited_text: str) -> Iterator[tuple[str, str]]:
    lines = list(difflib.unified_diff(stored_text.splitlines(), edited_text.splitlines(), lineterm="", n=2))[2:]
    for number, line in enumerate(lines):
        if not line.startswith("@@"):
            yield line[0], line[1:]
        elif number:
            yield "…", ""


def _can_append(working: Dataset, source: Dataset) -> bool:
    """Return whether names and types match exactly. The service may accept more."""
    source_types = {column["name"]: column["type"] for column in source["schema"]}
    working_types = {column["name"]: column["type"] for column in working["schema"]}
    required = {column["name"] for column in working["schema"] if not column["nullable"]}
    return required <= source_types.keys() and all(
        working_types.get(name) == type_ for name, type_ in source_types.items()
    )
