"""Form data of a schema: convert it from and to JSON, validate it, and assign errors to inputs."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core import result_schema
from penstock.core.payload.documents import parse_json as parse_json_bytes
from penstock.core.registry import gts, schema_entry
from penstock.core.result_schema import FieldType
from penstock.errors import Invalid

TYPES = [str(type_) for type_ in FieldType]

# Messages of the contract for the validation in the browser, by the code of the core's error.
NO_FIELD_NAME, BAD_FIELD_NAME = "Field name required", "Invalid field name format"
MESSAGES = {
    "missing_member": "Schema name is required",
    "missing_fields": "At least one field required",
    "non_scalar_field": "Field type must be scalar",
    "bad_field_type": "Field type must be scalar",
}
_NAME_CODE = "bad_field_name"
_CODES_WITH_INPUT = {*MESSAGES, _NAME_CODE, "duplicate_field_name", "text_too_long"}  # the form shows these at an input
_TYPE_MEMBERS = {"items": "type", "fields": "type", "properties": "type"}  # members whose errors are shown at the type
_ANY_NAME = "field"

FieldErrors = Mapping[str, str]  # messages by JSON pointer


@dataclass(frozen=True)
class FieldFormData:
    """Form data of a field."""

    name: str = ""
    type: str = str(FieldType.STRING)  # may be invalid after an edit as JSON
    array: bool = False
    optional: bool = False
    description: str = ""

    def as_json(self) -> dict[str, Any]:
        field: dict[str, Any] = {"name": self.name, "type": self.type, "optional": self.optional}
        if self.array:
            field["array"] = True
        return {**field, "description": self.description} if self.description else field


@dataclass(frozen=True)
class SchemaFormData:
    """Form data of a schema."""

    name: str = ""
    description: str = ""
    rows: tuple[FieldFormData, ...] = ()
    metadata: Mapping[str, Any] | None = None  # edited as JSON only

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description or None,
            "fields": [row.as_json() for row in self.rows],
            "metadata": self.metadata,
        }


def to_form_data(entity: Mapping[str, Any]) -> SchemaFormData:
    """Convert a stored, inferred or edited schema to form data."""
    return SchemaFormData(
        entity.get("name") or "",
        entity.get("description") or "",
        tuple(map(_to_row, entity.get("fields") or ())),
        entity.get("metadata"),
    )


def validate_form(form: SchemaFormData) -> FieldErrors:
    """Validate form data as the contract requires before it is sent. The service reports all other errors."""
    messages = {}
    for error in _errors(form.as_json()):
        pointer = _input_pointer(error["pointer"])
        message = MESSAGES.get(error["code"])
        if error["code"] == _NAME_CODE:
            row = row_index(pointer)
            message = BAD_FIELD_NAME if row is not None and form.rows[row].name else NO_FIELD_NAME
        if message:
            messages[pointer] = message
    return messages


def locate_errors(errors: Iterable[Mapping[str, Any]]) -> FieldErrors:
    """Assign the errors of the service to the inputs of the form."""
    messages: dict[str, str] = {}
    for error in errors:
        messages.setdefault(_input_pointer(str(error.get("pointer", ""))), str(error.get("message", "")))
    return messages


def drop_row(errors: FieldErrors, row: int) -> FieldErrors:
    """Remove the errors of a deleted row, and move the errors of the rows below it up."""
    remaining = {}
    for pointer, message in errors.items():
        index = row_index(pointer)
        if index is None or index < row:
            remaining[pointer] = message
        elif index > row:
            remaining[pointer.replace(f"/fields/{index}", f"/fields/{index - 1}", 1)] = message
    return remaining


def row_index(pointer: str) -> int | None:
    """Return the row that a pointer refers to: 2 for `/fields/2/name`."""
    match pointer.split("/"):
        case ["", "fields", number, *_] if number.isdecimal():
            return int(number)
    return None


def to_json_text(form: SchemaFormData) -> str:
    """Format form data as indented JSON."""
    return json.dumps(form.as_json(), indent=2, ensure_ascii=False)


def parse_form(text: str) -> SchemaFormData:
    """Parse a schema from JSON text.

    Raises:
        Invalid: The text is not a schema, or has members that the form cannot show and would therefore lose.
    """
    entity = schema_entry.unwrap_schema(parse_pasted_json(text, "the schema"))
    errors = [error for error in _errors(entity) if error["code"] not in _CODES_WITH_INPUT]
    if errors:
        message = "; ".join(f"{error['pointer']}: {error['message']}" for error in errors[:5])
        raise Invalid("bad_payload", message)
    return to_form_data(entity)


def parse_pasted_json(text: str, subject: str) -> Any:
    """Parse JSON that a user pasted. `subject` names the text in error messages."""
    return parse_json_bytes(text.encode("utf-8", "surrogatepass"), subject)


def _errors(entity: Mapping[str, Any]) -> list[dict[str, Any]]:
    members = {member: value for member, value in entity.items() if member != "state"}  # the form has no state
    try:
        schema_entry.parse_new_schema({**members, "type_id": gts.QUERY_RETURNS})
    except Invalid as error:
        return list(error.context["errors"])
    return []


def _to_row(field: Mapping[str, Any]) -> FieldFormData:
    """Convert a field in any of its notations. An invalid type is kept, so that the user sees it."""
    name, description = field.get("name"), field.get("description")
    texts = {
        "name": name if isinstance(name, str) else "",
        "description": description if isinstance(description, str) else "",
    }
    try:
        (parsed,) = result_schema.parse_fields([{**field, "name": _ANY_NAME}])
        return FieldFormData(**texts, type=str(parsed.type), array=parsed.array, optional=parsed.optional)
    except Invalid:
        declared = "object" if {"fields", "properties"} & field.keys() else field.get("type")
        type_ = declared if isinstance(declared, str) else result_schema.json_type(declared)
        return FieldFormData(
            **texts, type=type_, array=field.get("array", False), optional=field.get("optional", False)
        )


def _input_pointer(pointer: str) -> str:
    """Return the pointer of the input that shows an error."""
    match pointer.split("/"):
        case ["", "fields", number, member, *_]:
            return f"/fields/{number}/{_TYPE_MEMBERS.get(member, member)}"
    return pointer
