"""OpenAPI description of the routes that list the revisions of an entity."""

from typing import Any

from penstock.rest.openapi import parameters
from penstock.rest.openapi.builders import Operation, describe_responses, query_parameter
from penstock.rest.openapi.schemas.base import COUNT, LINK, array_of, object_of, ref
from penstock.rest.requests.page_limits import DEFAULT_REVISIONS, MAX_REVISIONS


def list_revisions(entity: str, schema: str, example: Any) -> Operation:
    """Return the description of a route that lists the revisions of an entity.

    Args:
        entity: schema or query
        schema: name of the component schema of a revision
        example: an example of a revision
    """
    return {
        "summary": f"List a {entity}'s versions",
        "description": (
            f"Newest first. A page has {DEFAULT_REVISIONS} versions without `$top`, and at most {MAX_REVISIONS}."
        ),
        "responses": describe_responses(
            200,
            "A page of revisions.",
            {"value": [example]},
            object_of({"value": array_of(ref(schema))}, {"@odata.nextLink": LINK}),
            errors=[400, 403, 404],
        ),
        "openapi_extra": {
            "parameters": [
                parameters.TOP,
                parameters.SKIPTOKEN,
                parameters.PREFER,
                query_parameter("before", "Return only versions below this one.", schema=COUNT, example=10),
            ]
        },
    }
