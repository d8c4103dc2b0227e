"""OData protocol over REST: versions, metadata, context URLs, counts and content negotiation."""

from typing import Any
from urllib.parse import urldefrag, urljoin
from uuid import uuid4
from xml.etree import ElementTree

import httpx
import pytest
from fastapi import FastAPI

from penstock.core.caller import Caller, Role
from penstock.core.odata.csdl import EDM_TYPES
from penstock.core.odata.nodes import FieldKind
from penstock.core.registry import gts
from penstock.lake import Lake
from penstock.rest.odata_route import ODataRoute
from rest.rest_client import TENANT, RestClient

EDM = "{http://docs.oasis-open.org/odata/ns/edm}"
EDMX = "{http://docs.oasis-open.org/odata/ns/edmx}"
FIELDS = [{"name": "a", "type": "string", "description": "A letter"}, {"name": "b", "type": "number", "array": True}]
UNKNOWN = "00000000-0000-4000-8000-000000000000"
ENTITY_SETS = ["gts", "queries", "datasets", "pipelines", "runs"]


def create(client: RestClient, name: str, **members: Any) -> dict[str, Any]:
    payload = {"name": name, "type_id": gts.QUERY_RETURNS, "fields": FIELDS, **members}
    entity: dict[str, Any] = client("POST", "/gts", json=payload, code=201).json()
    return entity


def metadata(client: RestClient) -> ElementTree.Element:
    return ElementTree.fromstring(client("GET", "/$metadata").content)


def properties(document: ElementTree.Element, entity_set: str) -> dict[str, str]:
    """Return the EDM types of the properties of an entity set."""
    (declared,) = document.findall(f".//{EDM}EntitySet[@Name='{entity_set}']")
    name = declared.attrib["EntityType"].removeprefix("Penstock.")
    (entity_type,) = document.findall(f".//{EDM}EntityType[@Name='{name}']")
    return {property.attrib["Name"]: property.attrib["Type"] for property in entity_type.findall(f"{EDM}Property")}


# Versions


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/", 200),
        ("/$metadata", 200),
        *((f"/{name}", 200) for name in ENTITY_SETS),
        ("/gts/$count", 200),
        ("/gts?$filter=nothing", 400),
        (f"/gts/{UNKNOWN}", 404),
        (f"/queries/{UNKNOWN}/results", 404),
    ],
)
def test_odata_route_returns_its_version_in_responses_and_errors(client: RestClient, path: str, code: int) -> None:
    assert client("GET", path, code=code).headers["odata-version"] == "4.0"
    headers = {"odata-maxversion": "x"}  # authentication comes first
    assert client.without_token()("GET", path, headers=headers, code=401).headers["odata-version"] == "4.0"


@pytest.mark.parametrize("path", ["/me", "/healthz", "/metrics"])
def test_other_routes_ignore_the_odata_version(client: RestClient, path: str) -> None:
    assert "odata-version" not in client("GET", path, headers={"odata-maxversion": "x"}).headers


@pytest.mark.parametrize("version", ["4.0", "4.01", " 4.0 ", "5.0", "10.0"])
def test_max_version_from_4_0_is_accepted(client: RestClient, version: str) -> None:
    assert client("GET", "/gts", headers={"odata-maxversion": version}).headers["odata-version"] == "4.0"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        *(("OData-MaxVersion", value) for value in ("3.0", "0.0", "3.999")),  # too low
        *(("OData-MaxVersion", value) for value in ("", "4", "x", "-4.0", "4.0;x", "4.0, 4.0", "4." + "0" * 5_000)),
        *(("OData-Version", value) for value in ("3.0", "4.5", "5.0", "4", "x")),
    ],
)
def test_unsupported_or_malformed_version_is_rejected(client: RestClient, header: str, value: str) -> None:
    response = client("GET", "/gts", headers={header: value}, code=400)
    problem = response.json()
    assert (problem["code"], problem["header"]) == ("BAD_ODATA_VERSION", header)
    assert response.headers["odata-version"] == "4.0"
    payload = {"name": "a", "type_id": gts.QUERY_RETURNS, "fields": FIELDS}
    client("POST", "/gts", json=payload, headers={header: value}, code=400)
    assert client("GET", "/gts").json()["value"] == []


# Metadata and context URLs


def test_metadata_document_describes_every_entity_set_with_declared_types(client: RestClient) -> None:
    response = client("GET", "/$metadata")
    assert response.headers["content-type"].startswith("application/xml")
    root = ElementTree.fromstring(response.content)
    assert (root.tag, root.attrib["Version"]) == (f"{EDMX}Edmx", "4.0")
    assert [element.attrib["Name"] for element in root.findall(f".//{EDM}EntitySet")] == ENTITY_SETS
    assert [element.attrib["Name"] for element in root.findall(f".//{EDM}PropertyRef")] == ["id"] * len(ENTITY_SETS)
    declared_types = {
        element.attrib["Name"] for tag in ("EntityType", "ComplexType") for element in root.iter(f"{EDM}{tag}")
    }
    used_types = [
        element.attrib["Type"] for tag in ("Property", "NavigationProperty") for element in root.iter(f"{EDM}{tag}")
    ]
    used_types += [element.attrib["EntityType"] for element in root.iter(f"{EDM}EntitySet")]
    for text in used_types:
        name = text.removeprefix("Collection(").removesuffix(")")
        assert name in EDM_TYPES.values() or name.removeprefix("Penstock.") in declared_types, text
    schema = properties(root, "gts")
    assert (schema["id"], schema["name"], schema["version"]) == ("Edm.Guid", "Edm.String", "Edm.Int64")
    assert schema["fields"] == "Collection(Penstock.ResultSchemaFieldsItem)"
    assert EDM_TYPES.keys() == set(FieldKind)


def test_metadata_document_in_json_declares_the_same_properties_as_in_xml(client: RestClient) -> None:
    document = client("GET", "/$metadata", headers={"accept": "application/json"}).json()
    assert (document["$Version"], document["$EntityContainer"]) == ("4.0", "Penstock.Container")
    types, root = document["Penstock"], metadata(client)
    for name in ENTITY_SETS:
        entity_type = types[types["Container"][name]["$Type"].removeprefix("Penstock.")]
        assert (entity_type["$Kind"], entity_type["$Key"]) == ("EntityType", ["id"])
        declared = {
            key: f"Collection({value['$Type']})" if value.get("$Collection") else value["$Type"]
            for key, value in entity_type.items()
            if not key.startswith("$") and "$Kind" not in value
        }
        assert declared == properties(root, name)
    client("GET", "/$metadata", headers={"accept": "text/csv"}, code=406)


def test_service_document_lists_the_entity_sets_with_urls_that_resolve(client: RestClient) -> None:
    document = client("GET", "/").json()
    assert [(item["name"], item["kind"]) for item in document["value"]] == [(name, "EntitySet") for name in ENTITY_SETS]
    for item in document["value"]:
        assert client("GET", urljoin("/", item["url"])).json()["@odata.context"] == f"/$metadata#{item['name']}"
    assert document["@odata.context"] == "/$metadata"


def test_metadata_document_has_every_member_of_every_entity(client: RestClient, local_lake: Lake) -> None:
    lake = Lake(local_lake._workspace, Caller(TENANT, uuid4(), "ada", Role.ADMIN), local_lake._folder)
    dataset = str(lake.create("shop.orders", {"id": [1]}).current().id)
    schema = create(client, "Orders", metadata={"owner": "sales"})
    query = {"name": "q", "sql": "SELECT 'x' AS a, [1] AS b", "returns_schema_id": schema["id"]}
    client("POST", "/queries", json=query, code=201)
    append = {"type": "append", "parameters": {"source": {"dataset_id": dataset}}}
    pipeline = {"name": "p", "working": {"dataset_id": dataset}, "operations": [append]}
    pipeline_id = client("POST", "/pipelines", json=pipeline, code=201).json()["id"]
    run = client("POST", f"/pipelines/{pipeline_id}/runs", code=202).json()
    client("POST", f"/runs/{run['id']}/cancel", code=202)
    root = metadata(client)
    for name in ENTITY_SETS:
        (item,) = client("GET", f"/{name}").json()["value"]
        types = properties(root, name)
        assert item.keys() <= types.keys(), name
        for member, value in item.items():
            if value is not None:
                assert isinstance(value, list) == types[member].startswith("Collection("), (name, member)
                assert isinstance(value, dict) == (types[member] == "Penstock.JsonObject"), (name, member)


def resolve(client: RestClient, response: httpx.Response) -> str:
    """Read the metadata document that the context URL of a response names, and return the fragment of the URL."""
    url, fragment = urldefrag(urljoin(str(response.url), response.json()["@odata.context"]))
    ElementTree.fromstring(client("GET", url).content)
    return fragment


def test_context_url_resolves_and_names_the_selected_members(client: RestClient) -> None:
    schema = create(client, "Orders")
    assert resolve(client, client("GET", "/gts")) == "gts"
    assert resolve(client, client("GET", "/gts", params={"$select": "id, name"})) == "gts(id,name)"
    assert resolve(client, client("GET", "/gts", params={"$select": "*"})) == "gts"
    assert resolve(client, client("GET", "/datasets", params={"$select": "name"})) == "datasets(name)"
    query = {"name": "q", "sql": "SELECT 'x' AS a, [1] AS b", "returns_schema_id": schema["id"]}
    path = f"/queries/{client('POST', '/queries', json=query, code=201).json()['id']}/results"
    assert resolve(client, client("GET", path)) == path.strip("/")
    assert resolve(client, client("GET", path, params={"$select": "b,a"})) == f"{path.strip('/')}(b,a)"


def test_every_response_with_one_schema_has_a_context_url_that_resolves(client: RestClient) -> None:
    payload = {"name": "Orders", "type_id": gts.QUERY_RETURNS, "fields": FIELDS}
    created = client("POST", "/gts", json=payload, code=201)
    path = f"/gts/{created.json()['id']}"
    current = client("GET", path)
    assert current.json() == created.json()
    replaced = client("PUT", path, json={**current.json(), "description": "d"})  # the context is ignored in a request
    patched = client("PATCH", path, json={**replaced.json(), "description": "e"})
    moved = client("POST", f"{path}/transitions", json={"to": "DEPRECATED", "version": 3})
    built_in = client("GET", f"/gts/{gts.parse(gts.QUERY_RETURNS).uuid}")
    for response in (created, current, replaced, patched, moved, built_in):
        assert resolve(client, response) == "gts/$entity"
    assert moved.json()["version"] == 4


# Counts


def test_count_returns_the_number_of_matching_schemas_as_text(client: RestClient) -> None:
    for number in range(5):
        create(client, f"schema {number}", **({"description": "odd"} if number % 2 else {}))
    create(client.as_caller(tenant=uuid4()), "schema of another tenant")
    cases: list[tuple[dict[str, str], str]] = [
        ({}, "5"),
        ({"$filter": "description eq 'odd'"}, "2"),
        ({"$filter": "name eq 'x'"}, "0"),
        ({"$search": "odd"}, "2"),
        ({"$filter": f"type_id eq '{gts.BASE_TYPE}'"}, "1"),  # the built-in type
        ({"$top": "1", "$skip": "4", "$orderby": "name desc", "$filter": "version eq 1"}, "5"),
    ]
    for params, expected in cases:
        response = client("GET", "/gts/$count", params=params)
        assert (response.text, response.headers["content-type"]) == (expected, "text/plain; charset=utf-8"), params
    assert client("GET", "/gts/%24count").text == "5"
    assert client("GET", "/gts/$count", headers={"accept": "application/json"}).text == "5"


@pytest.mark.parametrize("query", ["$filter=cake eq 1", "$filter=(", "$format=json", "name=x", "$filter=a&$filter=b"])
def test_count_with_bad_option_is_rejected(client: RestClient, query: str) -> None:
    client("GET", f"/gts/$count?{query}", code=400)


def test_count_needs_a_token_and_only_get(client: RestClient) -> None:
    client.without_token()("GET", "/gts/$count", code=401)
    assert client("POST", "/gts/$count", code=405).headers["allow"] == "GET, HEAD"


# Content negotiation


@pytest.mark.parametrize(
    "accept", ["application/xml", "text/html", "application/json;q=0", "x", "application/atom+xml"]
)
@pytest.mark.parametrize("path", ["/", *(f"/{name}" for name in ENTITY_SETS), "/me"])
def test_route_without_the_accepted_media_type_returns_406(client: RestClient, path: str, accept: str) -> None:
    problem = client("GET", path, headers={"accept": accept}, code=406).json()
    assert (problem["code"], problem["offered"]) == ("NOT_ACCEPTABLE", ["application/json"])


@pytest.mark.parametrize(
    "accept",
    [
        "*/*",
        "application/*",
        "application/json;odata.metadata=minimal",
        "application/xml, application/json;q=0.1",
        "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
        "",
    ],
)
def test_accept_header_that_allows_json_returns_json(client: RestClient, accept: str) -> None:
    entity = create(client, "Orders")
    for path in ("/gts", f"/gts/{entity['id']}"):
        assert client("GET", path, headers={"accept": accept}).headers["content-type"] == "application/json"
    exported = client("GET", f"/gts/{entity['id']}/json-schema", headers={"accept": accept})
    assert exported.headers["content-type"] == "application/schema+json"


def test_several_accept_headers_are_one_list(client: RestClient) -> None:
    lines = [("accept", "text/csv"), ("accept", "application/json;q=0.5")]
    request_headers = list(client("GET", "/gts").request.headers.items())
    headers = httpx.Headers([*((name, value) for name, value in request_headers if name != "accept"), *lines])
    response = client._send("GET", "/$metadata", headers=headers)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")


def test_write_without_an_accepted_media_type_changes_nothing(client: RestClient) -> None:
    payload = {"name": "Orders", "type_id": gts.QUERY_RETURNS, "fields": FIELDS}
    headers = {"accept": "application/xml"}
    client("POST", "/gts", json=payload, headers=headers, code=406)
    assert client("GET", "/gts").json()["value"] == []
    entity = create(client, "Orders")
    client("DELETE", f"/gts/{entity['id']}", headers=headers, code=204)  # the response has no body


def test_every_route_of_an_entity_set_negotiates_the_version(app: FastAPI) -> None:
    roots = tuple(f"/{name}" for name in ENTITY_SETS)
    plain = {
        route.path for route in app.state.routes if route.path.startswith(roots) and not isinstance(route, ODataRoute)
    }
    assert plain == {
        "/datasets/{dataset}/operations",
        "/datasets/{dataset}/profile",
        "/queries/executions",
        "/queries/executions/{id}",
    }
