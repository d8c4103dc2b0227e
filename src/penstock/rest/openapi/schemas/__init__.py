"""JSON Schemas of request and response bodies: the `components` of the OpenAPI document.

A response has exactly the members of its schema. A request may omit members that the response schema has.
"""

from penstock.rest.openapi.schemas import datasets, pipelines, queries, result_schemas
from penstock.rest.openapi.schemas.base import PROBLEM, JsonSchema

SCHEMAS: dict[str, JsonSchema] = {
    "Problem": PROBLEM,
    **result_schemas.SCHEMAS,
    **queries.SCHEMAS,
    **datasets.SCHEMAS,
    **pipelines.SCHEMAS,
}
