"""Pipelines over REST: stored unchanged, replaced only with the current version, validated when written."""

import json
from typing import Any

import pytest

from penstock.core.caller import Role
from rest.rest_client import OTHER, Client

ID = "a1b2c3d4-e5f6-7890-abcd-ef1234567890"
ABSENT = "00000000-0000-4000-8000-000000000000"
OPERATION = {"type": "append", "order": 0, "parameters": {"source": {"dataset_id": ID}}}
PIPELINE = {"name": "Nightly", "working": {"dataset_id": ID}, "operations": [OPERATION]}
JSON = {"content-type": "application/json"}
COLUMNS = [{"name": "id", "type": "int64"}, {"name": "word", "type": "string"}]


@pytest.fixture
def stored(client: Client) -> dict[str, Any]:
    made: dict[str, Any] = client("POST", "/pipelines", code=201, json=PIPELINE).json()
    return made


# --- create and show


def test_create_pipeline_stores_definition_unchanged(client: Client) -> None:
    merge = {"source": {"dataset_id": ID, "dataset_version": 2}, "key_columns": ["id"], "strategy": "upsert"}
    sent = {
        **PIPELINE,
        "operations": [OPERATION, {"type": "merge", "order": 1, "alias": "late", "parameters": merge}],
        "output": {"schema_name": "shop", "table_name": "report"},
    }
    made = client("POST", "/pipelines", code=201, json=sent)
    body = made.json()
    assert {name: body[name] for name in sent} == sent
    assert (body["version"], made.headers["etag"]) == (1, '"1"')
    assert body["created_at"] == body["updated_at"]
    assert made.headers["location"] == f"/pipelines/{body['id']}"
    assert client("GET", made.headers["location"]).json() == body


def test_create_pipeline_accepts_returned_pipeline(client: Client, stored: dict[str, Any]) -> None:
    again = client("POST", "/pipelines", code=201, json={**stored, "name": "Weekly"}).json()
    assert again["id"] != stored["id"]
    assert again["version"] == 1


def test_show_pipeline_with_current_etag_returns_304(client: Client, stored: dict[str, Any]) -> None:
    here = f"/pipelines/{stored['id']}"
    same = client("GET", here, code=304, headers={"if-none-match": '"7", W/"1"'})
    assert (same.content, same.headers["etag"]) == (b"", '"1"')
    client("GET", here, headers={"if-none-match": '"2"'})


def test_create_pipeline_reports_all_errors(client: Client) -> None:
    sent = {
        "name": " ",
        "working": {"dataset_id": "x"},
        "operations": [{"type": "append", "parameters": {}}],
        "more": 1,
    }
    problem = client("POST", "/pipelines", code=400, json=sent).json()
    assert problem["code"] == "BAD_PIPELINE"
    assert {(each["pointer"], each["code"]) for each in problem["errors"]} == {
        ("/more", "BAD_PIPELINE"),
        ("/name", "BAD_PIPELINE"),
        ("/working/dataset_id", "BAD_PIPELINE"),
        ("/operations/0/parameters/source", "APPEND_000"),
    }
    assert client("GET", "/pipelines").json()["value"] == []


def test_create_pipeline_with_taken_name_is_rejected(client: Client, stored: dict[str, Any]) -> None:
    taken = client("POST", "/pipelines", code=409, json={**PIPELINE, "name": " NIGHTLY "}).json()
    assert taken["code"] == "PIPELINE_NAME_TAKEN"


def test_search_pipelines_supports_odata_options(client: Client) -> None:
    for name in ("Alpha", "Beta", "Gamma"):
        client("POST", "/pipelines", code=201, json={**PIPELINE, "name": name})
    newest = client("GET", "/pipelines").json()
    assert newest["@odata.context"] == "/$metadata#pipelines"
    assert [each["name"] for each in newest["value"]] == ["Gamma", "Beta", "Alpha"]
    params = {"$filter": "endswith(name, 'a') and version eq 1", "$orderby": "name", "$count": "true"}
    selected = {**params, "$select": "name,output,operations"}
    page = client("GET", "/pipelines", params=selected, headers={"prefer": "odata.maxpagesize=2"}).json()
    assert page["@odata.count"] == 3
    assert page["value"] == [{"name": name, "operations": [OPERATION]} for name in ("Alpha", "Beta")]
    rest = client("GET", page["@odata.nextLink"]).json()
    assert [each["name"] for each in rest["value"]] == ["Gamma"]
    assert [each["name"] for each in client("GET", "/pipelines?$search=BET").json()["value"]] == ["Beta"]
    assert client("GET", "/pipelines?$filter=operations eq 1", code=400).json()["code"] == "UNKNOWN_FIELD"


# --- changed


def test_replace_pipeline_requires_version(client: Client, stored: dict[str, Any]) -> None:
    here, sent = f"/pipelines/{stored['id']}", {**PIPELINE, "name": "Hourly"}
    assert client("PUT", here, code=400, json=sent).json()["code"] == "MISSING_VERSION"
    stale = client("PUT", here, code=409, json={**sent, "version": 7}).json()
    assert (stale["code"], stale["current_version"]) == ("PIPELINE_CHANGED", 1)
    client("PUT", here, code=412, json=sent, headers={"if-match": '"7"'})
    client("PUT", here, code=400, json=sent, headers={"if-match": "7"})
    by_body = client("PUT", here, json={**sent, "version": 1})
    assert (by_body.json()["name"], by_body.json()["version"], by_body.headers["etag"]) == ("Hourly", 2, '"2"')
    by_header = client("PUT", here, json=PIPELINE, headers={"if-match": '"2"'})
    assert (by_header.json()["name"], by_header.json()["version"]) == ("Nightly", 3)
    assert client("GET", here).json() == by_header.json()
    assert client("PUT", here, code=400, json={"version": 3}).json()["code"] == "BAD_PIPELINE"


def test_delete_pipeline_checks_if_match(client: Client, stored: dict[str, Any]) -> None:
    here = f"/pipelines/{stored['id']}"
    client("DELETE", here, code=412, headers={"if-match": '"2"'})
    client("DELETE", here, code=204, headers={"if-match": '"1"'})
    for method in ("GET", "DELETE"):
        assert client(method, here, code=404).json()["code"] == "PIPELINE_NOT_FOUND"
    client("POST", "/pipelines", code=201, json=PIPELINE)


# --- checked as it is written


def test_validate_pipeline_accepts_valid_pipeline(client: Client) -> None:
    dataset = client("POST", "/datasets", code=201, json={"name": "a.b", "schema": COLUMNS}).json()["id"]
    good = {**PIPELINE, "working": {"dataset_id": dataset}, "operations": [_append(dataset)]}
    assert client("POST", "/pipelines/validate", json=good).json() == {"valid": True, "errors": []}
    assert client("GET", "/pipelines").json()["value"] == []


def test_validate_pipeline_reports_errors_with_pointers(client: Client) -> None:
    dataset = client("POST", "/datasets", code=201, json={"name": "a.b", "schema": COLUMNS}).json()["id"]
    operations = [_append(dataset), _append(ABSENT), _append(dataset, source_selector="nope = 1")]
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
                "details": {"dataset_id": ABSENT, "operation_order": 1},
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


SHAPES: list[tuple[Any, str]] = [([], ""), (None, ""), ({}, "/name"), ({**PIPELINE, "operations": []}, "/operations")]


@pytest.mark.parametrize(("sent", "pointer"), SHAPES, ids=lambda value: str(value)[:40])
def test_validate_pipeline_with_bad_structure_returns_200_with_errors(client: Client, sent: Any, pointer: str) -> None:
    body = client("POST", "/pipelines/validate", content=json.dumps(sent), headers=JSON).json()
    assert not body["valid"]
    assert body["errors"][0]["pointer"] == pointer


def test_validate_pipeline_rejects_only_invalid_json(client: Client) -> None:
    assert client("POST", "/pipelines/validate", code=400, content=b"{", headers=JSON).json()["code"] == "BAD_JSON"
    client("POST", "/pipelines/validate", code=415, content=b"{}", headers={"content-type": "application/yaml"})


def _append(source: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "append", "parameters": {"source": {"dataset_id": source}, **parameters}}


# --- who may


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
    client: Client, stored: dict[str, Any], method: str, path: str, body: Any, codes: tuple[int, int]
) -> None:
    sent = {} if body is None else {"json": body}
    for role, code in zip((Role.VIEWER, Role.DEVELOPER), codes, strict=True):
        response = client.as_(role)(method, path.format(stored["id"]), code=code, **sent)
        assert code != 403 or response.json()["required_role"] == "analytics.developer"
    client.without_token()(method, path.format(stored["id"]), code=401, **sent)


def test_pipeline_of_other_tenant_returns_same_404_as_unknown_one(client: Client, stored: dict[str, Any]) -> None:
    other_tenant = client.as_(tenant=OTHER)
    for method, tail, sent in (
        ("GET", "", {}),
        ("PUT", "", {"json": {**PIPELINE, "version": 1}}),
        ("DELETE", "", {}),
        ("POST", "/runs", {}),
    ):
        theirs, none = (
            other_tenant(method, f"/pipelines/{id}{tail}", code=404, **sent).text  # type: ignore[arg-type]
            for id in (stored["id"], ABSENT)
        )
        assert theirs.replace(stored["id"], ABSENT) == none
    assert other_tenant("GET", "/pipelines").json()["value"] == []
    assert other_tenant("GET", "/pipelines/none", code=404).json()["code"] == "PIPELINE_NOT_FOUND"
    other_tenant("POST", "/pipelines", code=201, json=PIPELINE)
