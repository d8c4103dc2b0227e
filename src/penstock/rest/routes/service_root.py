"""Routes of the OData service root: the service document and the metadata document."""

from fastapi import APIRouter, Request, Response

from penstock.core.odata import csdl
from penstock.core.odata.entity_set import METADATA_PATH
from penstock.rest.odata_route import ODataRoute
from penstock.rest.openapi import service_root as docs
from penstock.rest.requests import media_types
from penstock.rest.requests.bodies import CallerDep
from penstock.rest.requests.content_negotiation import negotiate_type
from penstock.rest.routes import datasets, pipelines, queries, result_schemas, runs

ENTITY_SETS = (
    result_schemas.ENTITY_SET,
    queries.ENTITY_SET,
    datasets.ENTITY_SET,
    pipelines.ENTITY_SET,
    runs.ENTITY_SET,
)
_METADATA_XML, _METADATA_JSON = csdl.csdl_xml(ENTITY_SETS), csdl.csdl_json(ENTITY_SETS)

router = APIRouter(tags=["service"], route_class=ODataRoute)


@router.get("/", **docs.SHOW_SERVICE_DOCUMENT)
async def service_document(_caller: CallerDep) -> Response:
    sets = [{"name": entity_set.name, "kind": "EntitySet", "url": entity_set.name} for entity_set in ENTITY_SETS]
    return media_types.json_response({"@odata.context": METADATA_PATH, "value": sets})


@router.get(METADATA_PATH, **docs.SHOW_METADATA)
async def metadata(request: Request, _caller: CallerDep) -> Response:
    offers = [media_types.XML, media_types.JSON]
    if negotiate_type(request, offers) == media_types.JSON:
        return media_types.json_response(_METADATA_JSON)
    return Response(_METADATA_XML, media_type=media_types.XML)
