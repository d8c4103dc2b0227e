"""Pipelines over REST: stored unchanged, replaced only with the current version, validated when written."""

import json
from typing import Any

import pytest

from penstock.core.caller import Role
from rest.rest_client import OTHER_TENANT, RestClient

ID = "a1b2c3d4-e5f6-7890-abcd-ef1234567890"
UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"
OPERATION = {"type": "append", "order": 0, "parameters": {"source": {"dataset_id": ID}}}
PIPELINE = {"name": "Nightly", "working": {"dataset_id": ID}, "operations": [OPERATION]}
JSON = {"content-type": "application/json"}
COLUMNS = [{"name": "id", "type": "int64"}, {"name": "word", "type": "string"}]


@pytest.fixture
def pipeline(client: RestClient) -> dict[str, Any]:
    created: dict[str, Any] = client("POST", "/pipelines", code=201, json=PIPELINE).json()
    return created


# --- create and show


def test_create_pipeline_stores_definition_unchanged(client: RestClient) -> None:
    merge = {"source": {"dataset_id": ID, "dataset_version": 2}, "key_columns": ["id"], "strategy": "upsert"}
    definition = {
        **PIPELINE,
        "operations": [OPERATION, {"type": "merge", "order": 1, "alias": "late", "parameters": merge}],
        "output": {"schema_name": "shop", "table_name": "report"},
    }
    created = client("POST", "/pipelines", code=201, json=definition)
    body = created.json()
    assert {name: body[name] for name in definition} == definition
    assert (body["version"], created.headers["etag"]) == (1, '"1"')
    assert body["created_at"] == body["updated_at"]
    assert created.headers["location"] == f"/pipelines/{body['id']}"
    assert client("GET", created.headers["location"]).json() == body


def test_create_pipeline_accepts_returned_pipeline(client: RestClient, pipeline: dict[str, Any]) -> None:
    second = client("POST", "/pipelines", code=201, json={**pipeline, "name": "Weekly"}).json()
    assert second["id"] != pipeline["id"]
    assert second["version"] == 1


def test_show_pipeline_with_current_etag_returns_304(client: RestClient, pipeline: dict[str, Any]) -> None:
    path = f"/pipelines/{pipeline['id']}"
    response = client("GET", path, code=304, headers={"if-none-match": '"7", W/"1"'})
    assert (response.content, response.headers["etag"]) == (b"", '"1"')
    client("GET", path, headers={"if-none-match": '"2"'})


def test_create_pipeline_reports_all_errors(client: RestClient) -> None:
    body = {
        "name": " ",
        "working": {"dataset_id": "x"},
        "operations": [{"type": "append", "parameters": {}}],
        "more": 1,
    }
    problem = client("POST", "/pipelines", code=400, json=body).json()
    assert problem["code"] == "BAD_PIPELINE"
    assert {(error["pointer"], error["code"]) for error in problem["errors"]} == {
        ("/more", "BAD_PIPELINE"),
        ("/name", "BAD_PIPELINE"),
        ("/working/dataset_id", "BAD_PIPELINE"),
        ("/operations/0/parameters/source", "APPEND_000"),
    }
    assert client("GET", "/pipelines").json()["value"] == []


def test_create_pipeline_with_taken_name_is_rejected(client: RestClient, pipeline: dict[str, Any]) -> None:
    problem = client("POST", "/pipelines", code=409, json={**PIPELINE, "name": " NIGHTLY "}).json()
    assert problem["code"] == "PIPELINE_NAME_TAKEN"


def test_search_pipelines_supports_odata_options(client: RestClient) -> None:
    for name in ("Alpha", "Beta", "Gamma"):
        client("POST", "/pipelines", code=201, json={**PIPELINE, "name": name})
    newest = client("GET", "/pipelines").json()
    assert newest["@odata.context"] == "/$metadata#pipelines"
    assert [item["name"] for item in newest["value"]] == ["Gamma", "Beta", "Alpha"]
    params = {"$filter": "endswith(name, 'a') and version eq 1", "$orderby": "name", "$count": "true"}
    params_with_select = {**params, "$select": "name,output,operations"}
    page = client("GET", "/pipelines", params=params_with_select, headers={"prefer": "odata.maxpagesize=2"}).json()
    assert page["@odata.count"] == 3
    assert page["value"] == [{"name": name, "operations": [OPERATION]} for name in ("Alpha", "Beta")]
    second_page = client("GET", page["@odata.nextLink"]).json()
    assert [item["name"] for item in second_page["value"]] == ["Gamma"]
    assert [item["name"] for item in client("GET", "/pipelines?$search=BET").json()["value"]] == ["Beta"]
    assert client("GET", "/pipelines?$filter=operations eq 1", code=400).json()["code"] == "UNKNOWN_FIELD"


# --- replace and delete


def test_replace_pipeline_requires_version(client: RestClient, pipeline: dict[str, Any]) -> None:
    path, body = f"/pipelines/{pipeline['id']}", {**PIPELINE, "name": "Hourly"}
    assert client("PUT", path, code=400, json=body).json()["code"] == "MISSING_VERSION"
    stale = client("PUT", path, code=409, json={**body, "version": 7}).json()
    assert (stale["code"], stale["current_version"]) == ("PIPELINE_CHANGED", 1)
    client("PUT", path, code=412, json=body, headers={"if-match": '"7"'})
    client("PUT", path, code=400, json=body, headers={"if-match": "7"})
    by_body = client("PUT", path, json={**body, "version": 1})
    assert (by_body.json()["name"], by_body.json()["version"], by_body.headers["etag"]) == ("Hourly", 2, '"2"')
    by_header = client("PUT", path, json=PIPELINE, headers={"if-match": '"2"'})
    assert (by_header.json()["name"], by_header.json()["version"]) == ("Nightly", 3)
    assert client("GET", path).json() == by_header.json()
    assert client("PUT", path, code=400, json={"version": 3}).json()["code"] == "BAD_PIPELINE"


def test_delete_pipeline_checks_if_match(client: RestClient, pipeline: dict[str, Any]) -> None:
    path = f"/pipelines/{pipeline['id']}"
    client("DELETE", path, code=412, headers={"if-match": '"2"'})
    client("DELETE", path, code=204, headers={"if-match": '"1"'})
    for method in ("GET", "DELETE"):
        assert client(method, path, code=404).json()["code"] == "PIPELINE_NOT_FOUND"
    client("POST", "/pipelines", code=201, json=PIPELINE)


# --- validate


def test_validate_pipeline_accepts_valid_pipeline(client: RestClient) -> None:
    dataset = client("POST", "/datasets", code=201, json={"name": "a.b", "schema": COLUMNS}).json()["id"]
    body = {**PIPELINE, "working": {"dataset_id": dataset}, "operations": [_append(dataset)]}
    assert client("POST", "/pipelines/validate", json=body).json() == {"valid": True, "errors": []}
    assert client("GET", "/pipelines").json()["value"] == []


def test_validate_pipeline_reports_errors_with_pointers(client: RestClient) -> None:
    dataset = client("POST", "/datasets", code=201, json={"name": "a.b", "schema": COLUMNS}).json()["id"]
    operations = [_append(dataset), _append(UNKNOWN_ID), _append(dataset, source_selector="nope = 1")]
    response = client(
        "POST", "/pipelines/validate", json={**PIPELINE, "working": {"dataset_id": dataset}, "operations": operations}
    )
    assert response.json() == {
        "valid": False,
        "errors": [
            {
                "pointer": "/operations/1",
                "code": "APPEND_001",
                "message": "Dataset not found",
                "details": {"dataset_id": UNKNOWN_ID, "operation_order": 1},
            },
            {
                "pointer": "/operations/2",
                "code": "APPEND_006",
                "message": "Column referenced in expression not found in source dataset",
                "details": {
                    "column": "nope",
                    "context": "source_selector",
                    "source_columns": ["id", "word"],
                    "operation_order": 2,
                },
            },
        ],
    }


INVALID_BODIES: list[tuple[Any, str]] = [
    ([], ""),
    (None, ""),
    ({}, "/name"),
    ({**PIPELINE, "operations": []}, "/operations"),
]


@pytest.mark.parametrize(("payload", "pointer"), INVALID_BODIES, ids=lambda value: str(value)[:40])
def test_validate_pipeline_with_bad_structure_returns_200_with_errors(
    client: RestClient, payload: Any, pointer: str
) -> None:
    body = client("POST", "/pipelines/validate", content=json.dumps(payload), headers=JSON).json()
    assert not body["valid"]
    assert body["errors"][0]["pointer"] == pointer


def test_validate_pipeline_rejects_only_invalid_json(client: RestClient) -> None:
    assert client("POST", "/pipelines/validate", code=400, content=b"{", headers=JSON).json()["code"] == "BAD_JSON"
    client("POST", "/pipelines/validate", code=415, content=b"{}", headers={"content-type": "application/yaml"})


def _append(source: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "append", "parameters": {"source": {"dataset_id": source}, **parameters}}


# --- roles


ROLES = [
    ("GET", "/pipelines", None, (200, 200)),
    ("GET", "/pipelines/{}", None, (200, 200)),
    ("POST", "/pipelines/validate", PIPELINE, (200, 200)),
    ("POST", "/pipelines", {**PIPELINE, "name": "Another"}, (403, 201)),
    ("PUT", "/pipelines/{}", {**PIPELINE, "version": 1, "name": "Another"}, (403, 200)),
    ("POST", "/pipelines/{}/runs", {}, (403, 202)),
    ("DELETE", "/pipelines/{}", None, (403, 204)),
]


@pytest.mark.parametrize(("method", "path", "body", "codes"), ROLES)
def test_pipeline_routes_require_roles(
    client: RestClient, pipeline: dict[str, Any], method: str, path: str, body: Any, codes: tuple[int, int]
) -> None:
    options = {} if body is None else {"json": body}
    for role, code in zip((Role.VIEWER, Role.DEVELOPER), codes, strict=True):
        response = client.as_caller(role)(method, path.format(pipeline["id"]), code=code, **options)
        assert code != 403 or response.json()["required_role"] == "analytics.developer"
    client.without_token()(method, path.format(pipeline["id"]), code=401, **options)


def test_pipeline_of_other_tenant_returns_same_404_as_unknown_one(client: RestClient, pipeline: dict[str, Any]) -> None:
    other_tenant = client.as_caller(tenant=OTHER_TENANT)
    for method, suffix, options in (
        ("GET", "", {}),
        ("PUT", "", {"json": {**PIPELINE, "version": 1}}),
        ("DELETE", "", {}),
        ("POST", "/runs", {}),
    ):
        existing_text, unknown_text = (
            other_tenant(method, f"/pipelines/{id}{suffix}", code=404, **options).text  # type: ignore[arg-type]
            for id in (pipeline["id"], UNKNOWN_ID)
        )
        assert existing_text.replace(pipeline["id"], UNKNOWN_ID) == unknown_text
    assert other_tenant("GET", "/pipelines").json()["value"] == []
    assert other_tenant("GET", "/pipelines/none", code=404).json()["code"] == "PIPELINE_NOT_FOUND"
    other_tenant("POST", "/pipelines", code=201, json=PIPELINE)
