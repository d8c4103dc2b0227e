"""OpenAPI descriptions of the OData service root."""

from penstock.rest.openapi.builders import Operation, Responses, describe_responses
from penstock.rest.openapi.schemas.base import ANY_OBJECT, LINK, TEXT, array_of, object_of
from penstock.rest.requests import media_types

_ENTITY_SET = object_of({"name": TEXT, "kind": {"const": "EntitySet"}, "url": LINK})
_SERVICE_DOCUMENT = {
    "@odata.context": "/$metadata",
    "value": [{"name": "gts", "kind": "EntitySet", "url": "gts"}],
}
_METADATA_XML = (
    '<edmx:Edmx xmlns:edmx="http://docs.oasis-open.org/odata/ns/edmx" Version="4.0"><edmx:DataServices>…'
    "</edmx:DataServices></edmx:Edmx>"
)
_METADATA_JSON = {"$Version": "4.0", "$EntityContainer": "Penstock.Container", "Penstock": {}}


def _metadata_responses() -> Responses:
    responses = describe_responses(
        200, "The CSDL document.", _METADATA_XML, TEXT, media_type=media_types.XML, errors=[400, 403, 406]
    )
    responses[200]["content"][media_types.JSON] = {"schema": ANY_OBJECT, "example": _METADATA_JSON}
    return responses


SHOW_SERVICE_DOCUMENT: Operation = {
    "summary": "Show the OData service document",
    "description": "The entity sets of the service.",
    "responses": describe_responses(
        200,
        "The service document.",
        _SERVICE_DOCUMENT,
        object_of({"@odata.context": LINK, "value": array_of(_ENTITY_SET)}),
        errors=[400, 403, 406],
    ),
}
SHOW_METADATA: Operation = {
    "summary": "Show the OData metadata document",
    "description": "The entity sets and the types of their members (CSDL), in XML or, by Accept, in JSON.",
    "responses": _metadata_responses(),
}
