"""A schema while somebody edits it: what it says, what is wrong with it, and at which place of the form that is told."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core import result_schema as contract
from penstock.core.registry import gts
from penstock.core.registry import schema_entry as registry
from penstock.core.result_schema import FieldType
from penstock.core.payload.documents import from_json
from penstock.errors import Invalid

TYPES = [str(kind) for kind in FieldType]

# What the contract has the page say before anything is sent, by what the core says against a schema.
NO_FIELD_NAME, BAD_FIELD_NAME = "Field name required", "Invalid field name format"
SENTENCES = {
    "missing_member": "Schema name is required",
    "no_fields": "At least one field required",
    "non_scalar_field": "Field type must be scalar",
    "bad_field_type": "Field type must be scalar",
}
_NAME_CODE = "bad_field_name"
_SHOWN = {*SENTENCES, _NAME_CODE, "doubled_field_name", "text_too_long"}  # the form has a place for these
_SAME_PLACE = {"items": "type", "fields": "type", "properties": "type"}  # members of a field that are about its type
_ANY_NAME = "field"

Told = Mapping[str, str]  # sentences, by JSON pointer


@dataclass(frozen=True)
class Row:
    """A field as the form has it."""

    name: str = ""
    type: str = str(FieldType.STRING)  # JSON can bring one that is no scalar
    array: bool = False
    optional: bool = False
    description: str = ""

    def as_json(self) -> dict[str, Any]:
        shape: dict[str, Any] = {"name": self.name, "type": self.type, "optional": self.optional}
        if self.array:
            shape["array"] = True
        return {**shape, "description": self.description} if self.description else shape


@dataclass(frozen=True)
class Form:
    name: str = ""
    description: str = ""
    rows: tuple[Row, ...] = ()
    metadata: Mapping[str, Any] | None = None  # seen and edited as JSON only

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description or None,
            "fields": [row.as_json() for row in self.rows],
            "metadata": self.metadata,
        }


def form(entity: Mapping[str, Any]) -> Form:
    """The form of a schema that is kept, proposed or written by hand."""
    return Form(
        entity.get("name") or "",
        entity.get("description") or "",
        tuple(map(_row, entity.get("fields") or ())),
        entity.get("metadata"),
    )


def complaints(given: Form) -> Told:
    """What the contract has the page say against a form; whatever else is wrong the service tells."""
    found = {}
    for error in _errors(given.as_json()):
        pointer = _place(error["pointer"])
        sentence = SENTENCES.get(error["code"])
        if error["code"] == _NAME_CODE:
            row = row_of(pointer)
            sentence = BAD_FIELD_NAME if row is not None and given.rows[row].name else NO_FIELD_NAME
        if sentence:
            found[pointer] = sentence
    return found


def placed(errors: Iterable[Mapping[str, Any]]) -> Told:
    """What the service says against a schema, by the places of the form."""
    found: dict[str, str] = {}
    for error in errors:
        found.setdefault(_place(str(error.get("pointer", ""))), str(error.get("message", "")))
    return found


def without(told: Told, row: int) -> Told:
    """What remains to be said once a row is gone: those below it have moved up."""
    kept = {}
    for pointer, sentence in told.items():
        place = row_of(pointer)
        if place is None or place < row:
            kept[pointer] = sentence
        elif place > row:
            kept[pointer.replace(f"/fields/{place}", f"/fields/{place - 1}", 1)] = sentence
    return kept


def row_of(pointer: str) -> int | None:
    """The row that a pointer leads to: 2 for `/fields/2/name`."""
    match pointer.split("/"):
        case ["", "fields", number, *_] if number.isdecimal():
            return int(number)
    return None


def written(given: Form) -> str:
    """The form as JSON for people."""
    return json.dumps(given.as_json(), indent=2, ensure_ascii=False)


def read(text: str) -> Form:
    """The form that JSON describes. What the form has no place for is refused, so that nothing is lost on the way."""
    entity = registry.entity(value(text, "the schema"))
    problems = [error for error in _errors(entity) if error["code"] not in _SHOWN]
    if problems:
        said = "; ".join(f"{error['pointer']}: {error['message']}" for error in problems[:5])
        raise Invalid("bad_payload", said)
    return form(entity)


def value(text: str, what: str) -> Any:
    """What JSON says that somebody pasted, or what is wrong with it."""
    return from_json(text.encode("utf-8", "surrogatepass"), what)


def _errors(entity: Mapping[str, Any]) -> list[dict[str, Any]]:
    said = {member: value for member, value in entity.items() if member != "state"}  # which no form changes
    try:
        registry.drafted({**said, "type_id": gts.QUERY_RETURNS})
    except Invalid as refusal:
        return list(refusal.context["errors"])
    return []


def _row(given: Mapping[str, Any]) -> Row:
    """A field in any of its spellings. A type that is none stays in sight."""
    name, about = given.get("name"), given.get("description")
    row = {"name": name if isinstance(name, str) else "", "description": about if isinstance(about, str) else ""}
    try:
        (field,) = contract.fields([{**given, "name": _ANY_NAME}])
        return Row(**row, type=str(field.type), array=field.array, optional=field.optional)
    except Invalid:
        kind = "object" if {"fields", "properties"} & given.keys() else given.get("type")
        seen = kind if isinstance(kind, str) else contract.json_type(kind)
        return Row(**row, type=seen, array=given.get("array", False), optional=given.get("optional", False))


def _place(pointer: str) -> str:
    match pointer.split("/"):
        case ["", "fields", number, member, *_]:
            return f"/fields/{number}/{_SAME_PLACE.get(member, member)}"
    return pointer
