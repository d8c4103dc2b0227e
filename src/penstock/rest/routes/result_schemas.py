"""Routes of result schemas (/gts): search, create, infer, show, change, delete, compare and validate."""

from email.utils import format_datetime
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response

from penstock.core import result_schema
from penstock.core.caller import Role
from penstock.core.odata.entity_set import JSON_OBJECT, EntitySet
from penstock.core.registry import gts
from penstock.core.registry.schema_entry import SchemaEntry
from penstock.errors import Invalid
from penstock.rest.context import context_of
from penstock.rest.odata_route import ODataRoute
from penstock.rest.openapi import examples
from penstock.rest.openapi import result_schemas as docs
from penstock.rest.problems import as_json
from penstock.rest.requests import bodies, media_types
from penstock.rest.requests.bodies import (
    Body,
    CallerDep,
    DeveloperBody,
    EmptyBody,
    UploadedFile,
    parse_json,
    parse_json_object,
)
from penstock.rest.requests.preconditions import if_match
from penstock.rest.requests.query_params import bool_param, query_params
from penstock.rest.responses import odata_page, revisions
from penstock.rest.responses.entity_json import entity_json
from penstock.rest.route_execution import Lane, in_lane
from penstock.rest.routes.datasets import open_upload
from penstock.rest.routes.queries import parameter_values
from penstock.service.registry import inference, schemas

ENTITY_SET = EntitySet(
    "gts",
    "ResultSchema",
    schemas.SEARCH_FIELDS,
    {"gts_id": "Edm.String", "tenant_id": "Edm.Guid", "metadata": JSON_OBJECT},
)

router = APIRouter(prefix="/gts", tags=["schemas"], route_class=in_lane(Lane.CATALOG, ODataRoute))

SchemaKey = Annotated[
    str,
    Path(
        description="The schema's id: its UUID, or its GTS id, which ends with the UUID.",
        examples=[examples.SCHEMA_ID],
    ),
]

# Media types of a patch, and whether it is a JSON Patch (RFC 6902) rather than a JSON Merge Patch (RFC 7396).
_PATCH_TYPES = {
    media_types.JSON: False,
    "application/merge-patch+json": False,
    "application/json-patch+json": True,
}


@router.get("", **docs.SEARCH_SCHEMAS)
def search(request: Request, caller: CallerDep) -> Response:
    ws = context_of(request).workspace
    return odata_page.search_response(
        request, ENTITY_SET, lambda options: schemas.search(ws, caller, options), SchemaEntry.as_json, entity_json
    )


@router.get("/$count", **docs.COUNT_SCHEMAS)
def count(request: Request, caller: CallerDep) -> Response:
    ws = context_of(request).workspace
    return odata_page.count_response(request, ENTITY_SET, lambda options: schemas.search(ws, caller, options))


@router.post("", status_code=201, **docs.CREATE_SCHEMA)
def create(request: Request, caller: CallerDep, body: DeveloperBody) -> Response:
    entry = schemas.create(context_of(request).workspace, caller, parse_json(body))
    return revisions.entity_response(entry, {"location": f"/gts/{entry.id}"}, 201, entity_set=ENTITY_SET)


@router.post("/infer", **docs.INFER_SCHEMA)
def infer(
    request: Request,
    caller: CallerDep,
    upload: Annotated[UploadedFile, Depends(bodies.receive_upload(media_types.JSON, *media_types.FILE_FORMATS))],
) -> Response:
    params = query_params(request)
    if upload.media_type != media_types.JSON:
        rows = open_upload(request, upload)
        return media_types.json_response(_proposal(params.get("name") or "Sample", inference.infer_from_file(rows)))
    payload = parse_json_object(upload.json)
    context = context_of(request)
    match payload:
        case {"dataset": str() as dataset, **more} if not set(more) - {"version", "name"}:
            version = more.get("version")
            if version is not None and type(version) is not int:
                raise Invalid("bad_version.not_an_integer")
            fields = inference.infer_from_dataset(context.workspace, caller, dataset, version)
            default_name = dataset
        case {"rows": sample, **more} if not set(more) - {"name"}:
            fields, default_name = inference.infer_from_rows(sample), "Sample"
        case {"sql": str() as sql, **more} if not set(more) - {"name", "parameters"}:
            fields = context.query_executor.infer_fields(caller, sql, parameter_values(more))
            default_name = "Query"
        case _:
            raise Invalid("bad_payload.inference")
    name = _optional_text(payload, "name") or params.get("name") or default_name
    return media_types.json_response(_proposal(name, fields))


@router.get("/{id}", **docs.SHOW_SCHEMA)
def show(request: Request, caller: CallerDep, id: SchemaKey) -> Response:
    entry = schemas.show(context_of(request).workspace, caller, id)
    headers = _deprecation_headers(request, entry)
    return revisions.conditional_response(request, entry, headers, entity_set=ENTITY_SET, as_text=entity_json)


@router.put("/{id}", **docs.REPLACE_SCHEMA)
def replace(request: Request, caller: CallerDep, id: SchemaKey, body: DeveloperBody) -> Response:
    ws, force = context_of(request).workspace, _force(request)
    entry = schemas.replace_with(ws, caller, id, parse_json(body), if_match(request), force=force)
    return _schema_response(request, entry)


@router.patch("/{id}", **docs.PATCH_SCHEMA)
def patch(
    request: Request,
    caller: CallerDep,
    id: SchemaKey,
    body: Annotated[bytes, Depends(bodies.receive_json(*_PATCH_TYPES, role=Role.DEVELOPER))],
) -> Response:
    is_json_patch = _PATCH_TYPES[media_types.content_type(request.headers.get("content-type"))]
    ws, force = context_of(request).workspace, _force(request)
    entry = schemas.patch(ws, caller, id, parse_json(body), if_match(request), is_json_patch=is_json_patch, force=force)
    return _schema_response(request, entry)


@router.delete("/{id}", status_code=204, **docs.DELETE_SCHEMA)
def delete(request: Request, caller: CallerDep, id: SchemaKey) -> Response:
    schemas.delete(context_of(request).workspace, caller, id, if_match(request))
    return Response(status_code=204)


@router.post("/{id}/undelete", **docs.UNDELETE_SCHEMA)
def undelete(request: Request, caller: CallerDep, id: SchemaKey, _body: EmptyBody) -> Response:
    return _schema_response(request, schemas.undelete(context_of(request).workspace, caller, id, if_match(request)))


@router.post("/{id}/transitions", **docs.TRANSITION_SCHEMA)
def move(request: Request, caller: CallerDep, id: SchemaKey, body: Body) -> Response:
    ws = context_of(request).workspace
    return _schema_response(request, schemas.change_state(ws, caller, id, parse_json(body), if_match(request)))


@router.get("/{id}/versions", **docs.LIST_REVISIONS)
def versions(request: Request, caller: CallerDep, id: SchemaKey) -> Response:
    list_versions = partial(schemas.list_versions, context_of(request).workspace, caller, id)
    return revisions.revisions_response(request, list_versions)


@router.get("/{id}/versions/{version}", **docs.SHOW_REVISION)
def version(request: Request, caller: CallerDep, id: SchemaKey, version: revisions.VersionPath) -> Response:
    number = revisions.parse_version({"version": version})
    revision = schemas.get_version(context_of(request).workspace, caller, id, number)
    return media_types.json_response(revision.as_json())


@router.get("/{id}/diff", **docs.DIFF_REVISIONS)
def diff(request: Request, caller: CallerDep, id: SchemaKey) -> Response:
    params = query_params(request)
    if len(params) < 2:
        raise Invalid("bad_parameter.diff")
    first, second = (revisions.parse_version(params, name) for name in ("from", "to"))
    return media_types.json_response(schemas.diff(context_of(request).workspace, caller, id, first, second))


@router.post("/{id}/compatibility", **docs.CHECK_COMPATIBILITY)
def compatibility(request: Request, caller: CallerDep, id: SchemaKey, body: Body) -> Response:
    ws = context_of(request).workspace
    return media_types.json_response(schemas.check_compatibility(ws, caller, id, parse_json(body)))


@router.get("/{id}/references", **docs.LIST_REFERENCES)
def references(request: Request, caller: CallerDep, id: SchemaKey) -> Response:
    return media_types.json_response(schemas.list_references(context_of(request).workspace, caller, id))


@router.get("/{id}/json-schema", **docs.EXPORT_JSON_SCHEMA)
def json_schema(request: Request, caller: CallerDep, id: SchemaKey) -> Response:
    exported = schemas.export_json_schema(context_of(request).workspace, caller, id)
    return Response(as_json(exported), media_type="application/schema+json")


@router.post("/{id}/validate", **docs.VALIDATE_ROWS)
def validate(request: Request, caller: CallerDep, id: SchemaKey, body: Body) -> Response:
    payload = parse_json_object(body)
    strict = payload.get("strict", False)
    if "rows" not in payload or set(payload) - {"rows", "strict"} or not isinstance(strict, bool):
        raise Invalid("bad_payload.rows")
    report = schemas.validate(context_of(request).workspace, caller, id, payload["rows"], strict=strict)
    return media_types.json_response(
        {"valid": report.valid, "error_count": report.count, "errors": list(report.errors)}
    )


def _force(request: Request) -> bool:
    return bool_param({"force": "false", **query_params(request)}, "force")


def _optional_text(payload: dict[str, Any], member: str) -> str | None:
    value = payload.get(member)
    if not isinstance(value, str | None):
        raise Invalid("not_text.member", {"member": member})
    return value


def _proposal(name: str, fields: tuple[result_schema.ResultField, ...]) -> dict[str, Any]:
    return {"name": name, "type_id": gts.QUERY_RETURNS, "fields": [field.as_json() for field in fields]}


def _schema_response(request: Request, entry: SchemaEntry) -> Response:
    return revisions.entity_response(entry, _deprecation_headers(request, entry), entity_set=ENTITY_SET)


def _deprecation_headers(request: Request, entry: SchemaEntry) -> dict[str, str]:
    """Return the headers that every response about a deprecated schema has."""
    headers = revisions.deprecation_headers(entry)
    if headers:
        sunset = schemas.sunset_at(entry, context_of(request).archive_after_days)
        headers["sunset"] = format_datetime(sunset, usegmt=True)
    return headers
