"""OpenAPI descriptions of the routes of pipelines."""

from penstock.rest.openapi import examples, parameters
from penstock.rest.openapi.builders import Operation, describe_responses, json_body, not_modified
from penstock.rest.openapi.schemas.base import ref

_PIPELINE = {"id": examples.PIPELINE_ID, **examples.PIPELINE_DEFINITION, "version": 1, **examples.AUDIT_FIELDS}
_VALIDATION_ERROR = {
    "pointer": "/operations/0",
    "code": "APPEND_001",
    "message": "Dataset not found",
    "details": {"dataset_id": examples.SOURCE_DATASET_ID, "operation_order": 0},
}

SEARCH_PIPELINES: Operation = {
    "summary": "Search pipelines",
    "responses": describe_responses(
        200,
        "A page of pipelines.",
        {"@odata.context": "/$metadata#pipelines", "@odata.count": 1, "value": [_PIPELINE]},
        ref("PipelinePage"),
        errors=[400, 403],
    ),
    "openapi_extra": {
        "parameters": parameters.search_parameters("pipelines", "startswith(name, 'Budgets') and version gt 1")
    },
}
CREATE_PIPELINE: Operation = {
    "summary": "Create a pipeline",
    "description": (
        "The structure is validated; `errors` lists all errors. Datasets are checked when the pipeline runs, or by "
        "POST /pipelines/validate."
    ),
    "responses": describe_responses(
        201,
        "The new pipeline.",
        _PIPELINE,
        ref("Pipeline"),
        headers=["etag", "location"],
        errors=[400, 403, 409, 413, 415],
    ),
    "openapi_extra": {"requestBody": json_body("PipelineSent", examples.PIPELINE_DEFINITION)},
}
VALIDATE_PIPELINE: Operation = {
    "summary": "Validate a pipeline",
    "description": (
        "Returns all errors with their positions: errors of structure, or else conflicts of the operations with the "
        "current datasets. Nothing is stored, and no rows are read."
    ),
    "responses": describe_responses(
        200,
        "The validation report.",
        {"valid": False, "errors": [_VALIDATION_ERROR]},
        ref("PipelineVerdict"),
        errors=[400, 403, 413, 415],
    ),
    "openapi_extra": {"requestBody": json_body("PipelineDraft", examples.PIPELINE_DEFINITION)},
}
SHOW_PIPELINE: Operation = {
    "summary": "Show a pipeline",
    "responses": describe_responses(
        200, "The pipeline.", _PIPELINE, ref("Pipeline"), headers=["etag"], errors=[400, 403, 404]
    )
    | not_modified(),
    "openapi_extra": {"parameters": [parameters.IF_NONE_MATCH]},
}
REPLACE_PIPELINE: Operation = {
    "summary": "Replace a pipeline",
    "description": (
        "The version that the change is based on is required, as `version` in the body or in If-Match. Active runs "
        "keep the definition that they started with."
    ),
    "responses": describe_responses(
        200,
        "The changed pipeline.",
        _PIPELINE | {"version": 2},
        ref("Pipeline"),
        headers=["etag"],
        errors=[400, 403, 404, 409, 412, 413, 415],
    ),
    "openapi_extra": {
        "parameters": [parameters.IF_MATCH],
        "requestBody": json_body("PipelineReplacement", {**examples.PIPELINE_DEFINITION, "version": 1}),
    },
}
DELETE_PIPELINE: Operation = {
    "summary": "Delete a pipeline",
    "description": "The records of its runs are kept. POST /pipelines/{id}/undelete undoes the deletion.",
    "responses": describe_responses(204, "The pipeline was deleted.", errors=[400, 403, 404, 409, 412]),
    "openapi_extra": {"parameters": [parameters.IF_MATCH]},
}
UNDELETE_PIPELINE: Operation = {
    "summary": "Undo the deletion of a pipeline",
    "description": (
        "The pipeline has the next version. 409 if it is not deleted, or if another pipeline has taken its name. Takes "
        "no parameters; the body is empty or {}."
    ),
    "responses": describe_responses(
        200,
        "The pipeline.",
        _PIPELINE | {"version": 2},
        ref("Pipeline"),
        headers=["etag"],
        errors=[400, 403, 404, 409, 412, 413, 415],
    ),
    "openapi_extra": {"parameters": [parameters.IF_MATCH]},
}
