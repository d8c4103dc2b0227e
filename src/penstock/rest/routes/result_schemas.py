"""The registry over REST: schemas of what queries return, found, made, changed, moved through their states."""

from email.utils import format_datetime
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response

from penstock.core import result_schema as contract
from penstock.core.registry import gts
from penstock.core.registry.lifecycle import State
from penstock.core.registry.schema_entry import Entry
from penstock.errors import Invalid
from penstock.rest.requests import bodies
from penstock.rest import problems as errors
from penstock.rest.requests import media_types as media
from penstock.rest.responses import odata_page as pages
from penstock.rest.openapi import examples as samples
from penstock.rest.openapi import schemas as shapes
from penstock.rest.responses import revisions as versioned
from penstock.rest.requests.query_params import flag, parameters
from penstock.rest.requests.bodies import Body, Who, parsed, parsed_object
from penstock.rest.requests.preconditions import expected
from penstock.rest.openapi.document import answers, query, required, unchanged
from penstock.rest.openapi.document import sent as sent_as
from penstock.rest.context import edge_of
from penstock.rest.routes.queries import values
from penstock.service.registry import inference as infers
from penstock.service.registry import schemas
from penstock.storage.import_files import incoming

SELECTABLE = ("gts_id", "tenant_id", "metadata")  # members that are shown, and not searched

router = APIRouter(prefix="/gts", tags=["schemas"])

Id = Annotated[
    str,
    Path(
        description="The schema's id: its UUID, or its GTS id, which ends with the UUID.",
        examples=["7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d"],
    ),
]

_PATCHES = {
    media.JSON: False,
    "application/merge-patch+json": False,
    "application/json-patch+json": True,
}  # the types of a patch: is it a list of operations?

_FIELD = {"name": "order_id", "type": "string", "optional": False, "description": "Order identifier"}
_SENT = {"name": "Orders by day", "type_id": gts.QUERY_RETURNS, "description": "One row an order", "fields": [_FIELD]}
_PROPOSAL = {"name": "Orders by day", "type_id": gts.QUERY_RETURNS, "fields": [_FIELD]}
_ID = "7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d"
_ENTRY = {
    "id": _ID, "gts_id": f"{gts.QUERY_RETURNS}{_ID}", "tenant_id": "0b0f1c8e-5a0e-4c53-9d4f-3f6f0a3f1b2c",
    **_SENT, "metadata": {"owner": "sales"}, "state": "ACTIVE", "version": 1, "state_changed_at": samples.MOMENT,
    **samples.STAMPS,
}  # fmt: skip
_REVISION = {
    "version": 1, "change": "create", "reason": "asked for by sales", "changed_at": samples.MOMENT,
    "changed_by": samples.PERSON, "author": "ada",
    "name": _SENT["name"], "description": _SENT["description"], "fields": [_FIELD], "metadata": {"owner": "sales"}, "state": "ACTIVE",
}  # fmt: skip
_CHANGED = {"change": "changed", "field": "order_id", "member": "type", "from": "string", "to": "number"}
_DIFF = {"members": ["fields"], "fields": [_CHANGED], "compatible": False, "breaking": [_CHANGED]}
_FORCE = query(
    "force", "An admin may break the readers of a referenced schema. (false)", kind=shapes.FLAG, example=False
)


def _shows(description: str, example: Any, errors: list[int]) -> dict[int | str, dict[str, Any]]:
    return answers(200, description, example, shapes.of("Schema"), headers=["etag"], errors=errors)


@router.get(
    "",
    summary="Search schemas",
    responses=answers(
        200,
        "A page of schemas.",
        {"@odata.context": "$metadata#gts", "@odata.count": 1, "value": [_ENTRY]},
        shapes.of("SchemaPage"),
        errors=[400, 403],
    ),
    openapi_extra={
        "parameters": pages.searching(
            "schemas",
            "state eq 'ACTIVE' and fields/any(f: f/name eq 'order_id')",
            "the name or the description holds",
            "orders",
        )
    },
)
def search(request: Request, who: Who) -> Response:
    here = (edge_of(request).workspace, who)
    return pages.found(request, schemas.FIELDS, SELECTABLE, lambda asked: schemas.search(*here, asked), Entry.as_json)


@router.post(
    "",
    status_code=201,
    summary="Make a schema",
    responses=answers(
        201,
        "It is there.",
        _ENTRY,
        shapes.of("Schema"),
        headers=["etag", "location"],
        errors=[400, 403, 409, 413, 415],
    ),
    openapi_extra={"requestBody": required("SchemaSent", _SENT)},
)
def create(request: Request, who: Who, body: Body) -> Response:
    entry = schemas.create(edge_of(request).workspace, who, parsed(body))
    return versioned.shown(entry, {"location": f"/gts/{entry.id}"}, 201)


@router.post(
    "/infer",
    summary="Propose a schema",
    description="From a dataset, from rows in JSON, from SQL, or from a sample in CSV, JSON lines, Parquet or Arrow. "
    "Nothing is stored: what comes back can be sent to POST /gts.",
    responses=answers(200, "A proposal.", _PROPOSAL, shapes.of("SchemaProposal"), errors=[400, 403, 404, 413, 415]),
    openapi_extra={
        "parameters": [query("name", "The name to propose.", example="Orders by day")],
        "requestBody": {
            "required": True,
            "content": {
                **sent_as("Sample", {"dataset": "shop.orders", "version": 3}),
                **samples.SENT_ROWS,
            },
        },
    },
)
def infer(
    request: Request, who: Who, sent: Annotated[bodies.Upload, Depends(bodies.upload(media.JSON, *media.FORMATS))]
) -> Response:
    asked = parameters(request)
    if sent.kind != media.JSON:
        fields = infers.of_sample(incoming([sent.path], format=media.FORMATS[sent.kind]))
        return media.json(_proposal(asked.get("name") or "Sample", fields))
    body = parsed_object(sent.path.read_bytes())
    match body:
        case {"dataset": str() as dataset, **more} if not set(more) - {"version", "name"}:
            version = more.get("version")
            if version is not None and type(version) is not int:
                raise Invalid("bad_version", "version must be a whole number")
            fields = infers.of_dataset(edge_of(request).workspace, who, dataset, version)
            name = dataset
        case {"rows": rows, **more} if not set(more) - {"name"}:
            fields, name = infers.of_rows(rows), "Sample"
        case {"sql": str() as sql, **more} if not set(more) - {"name", "parameters"}:
            fields, name = edge_of(request).results.inferred(who, sql, values(more)), "Query"
        case _:
            raise Invalid(
                "bad_payload",
                "send {dataset, version?}, {rows} or {sql, parameters?}, and name if you like; or a sample file",
            )
    return media.json(_proposal(_text(body, "name") or asked.get("name") or name, fields))


@router.get(
    "/{id}",
    summary="Show a schema",
    responses=_shows("The schema.", _ENTRY, [400, 403, 404]) | unchanged(),
    openapi_extra={"parameters": [versioned.IF_NONE_MATCH]},
)
def show(request: Request, who: Who, id: Id) -> Response:
    entry = schemas.show(edge_of(request).workspace, who, id)
    return versioned.shown_unless_known(request, entry, _fading(request, entry))


@router.put(
    "/{id}",
    summary="Replace a schema",
    description="Name, description, fields and metadata are replaced. Say which version the change is made for: as "
    "`version` in the body, or in If-Match.",
    responses=_shows("As it is now.", _ENTRY | {"version": 2}, [400, 403, 404, 409, 412, 413, 415]),
    openapi_extra={
        "parameters": [versioned.IF_MATCH, _FORCE],
        "requestBody": required("SchemaReplacement", {**_SENT, "version": 1}),
    },
)
def replace(request: Request, who: Who, id: Id, body: Body) -> Response:
    force = flag({"force": "false", **parameters(request)}, "force")
    here = (edge_of(request).workspace, who, id)
    return _shown(request, schemas.replace_with(*here, parsed(body), expected(request), force=force))


@router.patch(
    "/{id}",
    summary="Change a schema",
    description="With a JSON Merge Patch (also as application/json) or a JSON Patch.",
    responses=_shows("As it is now.", _ENTRY | {"version": 2}, [400, 403, 404, 409, 412, 413, 415]),
    openapi_extra={
        "parameters": [versioned.IF_MATCH, _FORCE],
        "requestBody": {
            "required": True,
            "content": {
                **sent_as(
                    "SchemaMergePatch",
                    {"description": "One row an order", "version": 1},
                    media.JSON,
                    "application/merge-patch+json",
                ),
                **sent_as(
                    "JsonPatch",
                    [
                        {"op": "test", "path": "/version", "value": 1},
                        {"op": "replace", "path": "/name", "value": "Orders"},
                    ],
                    "application/json-patch+json",
                ),
            },
        },
    },
)
def patch(request: Request, who: Who, id: Id, body: Annotated[bytes, Depends(bodies.content(*_PATCHES))]) -> Response:
    kind = media.sent(request.headers.get("content-type"))
    force = flag({"force": "false", **parameters(request)}, "force")
    here = (edge_of(request).workspace, who, id)
    changed = schemas.patch(*here, parsed(body), expected(request), by_operations=_PATCHES[kind], force=force)
    return _shown(request, changed)


@router.delete(
    "/{id}",
    status_code=204,
    summary="Delete a schema",
    responses=answers(204, "It is gone.", errors=[400, 403, 404, 409, 412]),
    openapi_extra={"parameters": [versioned.IF_MATCH]},
)
def delete(request: Request, who: Who, id: Id) -> Response:
    schemas.delete(edge_of(request).workspace, who, id, expected(request))
    return Response(status_code=204)


@router.post(
    "/{id}/transitions",
    summary="Take a schema to another state",
    responses=_shows(
        "As it is now.", _ENTRY | {"state": "DEPRECATED", "version": 2}, [400, 403, 404, 409, 412, 413, 415]
    ),
    openapi_extra={
        "parameters": [versioned.IF_MATCH],
        "requestBody": required("Transition", {"to": "DEPRECATED", "version": 1, "reason": "replaced by Orders v2"}),
    },
)
def move(request: Request, who: Who, id: Id, body: Body) -> Response:
    return _shown(request, schemas.move(edge_of(request).workspace, who, id, parsed(body), expected(request)))


@router.get("/{id}/versions", **versioned.listed("schema", "Revision", _REVISION))
def versions(request: Request, who: Who, id: Id) -> Response:
    return versioned.versions(request, partial(schemas.versions, edge_of(request).workspace, who, id))


@router.get(
    "/{id}/versions/{version}",
    summary="Show a version of a schema",
    responses=answers(200, "As it was.", _REVISION, shapes.of("Revision"), errors=[400, 403, 404]),
)
def version(request: Request, who: Who, id: Id, version: versioned.Number) -> Response:
    found = schemas.version(edge_of(request).workspace, who, id, versioned.numbered({"version": version}))
    return media.json(found.as_json())


@router.get(
    "/{id}/diff",
    summary="Compare two versions of a schema",
    responses=answers(
        200, "What changed.", {"from": 1, "to": 2, **_DIFF}, shapes.of("Differences"), errors=[400, 403, 404]
    ),
    openapi_extra={
        "parameters": [
            query("from", "A version.", kind=shapes.COUNT, example=1) | {"required": True},
            query("to", "Another version.", kind=shapes.COUNT, example=2) | {"required": True},
        ]
    },
)
def diff(request: Request, who: Who, id: Id) -> Response:
    asked = parameters(request)
    if len(asked) < 2:
        raise Invalid("bad_parameter", "say both versions: ?from=1&to=2")
    first, second = (versioned.numbered(asked, name) for name in ("from", "to"))
    return media.json(schemas.diff(edge_of(request).workspace, who, id, first, second))


@router.post(
    "/{id}/compatibility",
    summary="What would a change break?",
    responses=answers(
        200,
        "The verdict.",
        {**_DIFF, "query_count": 2, "accepted": False},
        shapes.of("Compatibility"),
        errors=[400, 403, 404, 413, 415],
    ),
    openapi_extra={"requestBody": required("SchemaChange", {"fields": [{**_FIELD, "type": "number"}]})},
)
def compatibility(request: Request, who: Who, id: Id, body: Body) -> Response:
    return media.json(schemas.compatibility(edge_of(request).workspace, who, id, parsed(body)))


@router.get(
    "/{id}/references",
    summary="Which queries refer to a schema?",
    responses=answers(
        200,
        "They do.",
        {"query_count": 1, "queries": [{"id": _ID, "name": "daily orders", "state": "ACTIVE", "version": 1}]},
        shapes.of("References"),
        errors=[400, 403, 404],
    ),
)
def references(request: Request, who: Who, id: Id) -> Response:
    return media.json(schemas.references(edge_of(request).workspace, who, id))


@router.get(
    "/{id}/json-schema",
    summary="Export a schema as JSON Schema",
    responses=answers(
        200,
        "A JSON Schema of one row.",
        contract.json_schema("Orders by day", None, contract.fields([_FIELD])),
        shapes.ANY_OBJECT,
        kind="application/schema+json",
        errors=[400, 403, 404],
    ),
)
def json_schema(request: Request, who: Who, id: Id) -> Response:
    found = schemas.json_schema(edge_of(request).workspace, who, id)
    return Response(errors.as_json(found), media_type="application/schema+json")


@router.post(
    "/{id}/validate",
    summary="Do rows fit a schema?",
    responses=answers(
        200,
        "The verdict. Of many errors the first 100 are described.",
        {
            "valid": False,
            "error_count": 1,
            "errors": [
                {"row": 0, "field": "order_id", "expected": "string", "actual": "number",
                 "message": "Type mismatch for field order_id"}
            ],
        },
        shapes.of("Verdict"),
        errors=[400, 403, 404, 413, 415],
    ),
    openapi_extra={"requestBody": required("Rows", {"rows": [{"order_id": "A-1"}], "strict": False})},
)  # fmt: skip
def validate(request: Request, who: Who, id: Id, body: Body) -> Response:
    asked = parsed_object(body)
    if "rows" not in asked or set(asked) - {"rows", "strict"} or not isinstance(asked.get("strict", False), bool):
        raise Invalid("bad_payload", "send {rows: […]}, and strict: true to refuse fields that nobody promised")
    verdict = schemas.validate(edge_of(request).workspace, who, id, asked["rows"], strict=asked.get("strict", False))
    return media.json({"valid": verdict.valid, "error_count": verdict.count, "errors": list(verdict.errors)})


def _text(body: dict[str, Any], member: str) -> str | None:
    found = body.get(member)
    if not isinstance(found, str | None):
        raise Invalid("not_text", f"{member} must be text")
    return found


def _proposal(name: str, fields: tuple[contract.Field, ...]) -> dict[str, Any]:
    return {"name": name, "type_id": gts.QUERY_RETURNS, "fields": [field.as_json() for field in fields]}


def _shown(request: Request, entry: Entry) -> Response:
    return versioned.shown(entry, _fading(request, entry))


def _fading(request: Request, entry: Entry) -> dict[str, str]:
    """What the headers of every answer about a schema say of its state."""
    if entry.draft.state is not State.DEPRECATED:
        return {}
    until = schemas.sunset(entry, edge_of(request).archive_after_days)
    since = f"@{int(entry.state_changed_at.timestamp())}"
    return {"deprecation": since, "sunset": format_datetime(until, usegmt=True)}
