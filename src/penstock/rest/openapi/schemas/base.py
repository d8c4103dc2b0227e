"""JSON Schema building blocks that several resources share."""

from typing import Any

JsonSchema = dict[str, Any]


def ref(name: str) -> JsonSchema:
    """Return a reference to a component schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def object_of(required: dict[str, JsonSchema], optional: dict[str, JsonSchema] | None = None) -> JsonSchema:
    """Return the schema of an object with these members and no others."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


def array_of(items: JsonSchema) -> JsonSchema:
    """Return the schema of an array."""
    return {"type": "array", "items": items}


def nullable(schema: JsonSchema) -> JsonSchema:
    """Return a schema that also accepts null."""
    return {"anyOf": [schema, {"type": "null"}]}


def page_of(items: JsonSchema) -> JsonSchema:
    """Return the schema of a page of search results. `$select` decides which members the items have."""
    return object_of(
        {"@odata.context": LINK, "value": array_of(items)}, {"@odata.count": COUNT, "@odata.nextLink": LINK}
    )


def flat_or_wrapped(schema: JsonSchema) -> JsonSchema:
    """Return a schema that accepts the object itself or `{"entity": object}`."""
    return {"anyOf": [schema, object_of({"entity": schema})]}


TEXT: JsonSchema = {"type": "string"}
FLAG: JsonSchema = {"type": "boolean"}
COUNT: JsonSchema = {"type": "integer", "minimum": 0}
POSITIVE_INTEGER: JsonSchema = {"type": "integer", "minimum": 1}
UUID: JsonSchema = {"type": "string", "format": "uuid"}
TIMESTAMP: JsonSchema = {"type": "string", "format": "date-time"}
LINK: JsonSchema = {"type": "string", "format": "uri-reference"}
BYTES: JsonSchema = {"type": "string", "format": "binary"}
ANY_OBJECT: JsonSchema = {"type": "object"}
NULLABLE_TEXT: JsonSchema = {"type": ["string", "null"]}
NULLABLE_COUNT: JsonSchema = {"type": ["integer", "null"], "minimum": 0}
NULLABLE_TIMESTAMP: JsonSchema = {"type": ["string", "null"], "format": "date-time"}
NULLABLE_UUID: JsonSchema = {"type": ["string", "null"], "format": "uuid"}
NULLABLE_OBJECT: JsonSchema = {"type": ["object", "null"]}
SERVER_MANAGED: JsonSchema = {"description": "Set by the server; ignored in requests."}
EXPECTED_VERSION: JsonSchema = {
    "type": ["integer", "null"],
    "minimum": 1,
    "description": "Version that the change is based on; required unless If-Match is sent.",
}
IMMUTABLE: JsonSchema = {"description": "Cannot change; if sent, it must be the current value."}

PROBLEM: JsonSchema = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance", "code", "error"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "Description of the error and how to fix it."},
        "instance": {"type": "string", "description": "Path of the request."},
        "code": {"type": "string", "description": "Stable error code."},
        "error": {"type": "string", "description": "Short description of the error code."},
        "errors": {"type": "array", "description": "All errors, if there are several."},
    },
    "additionalProperties": True,
}
