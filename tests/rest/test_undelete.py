"""Undo of deletions over REST, on both databases: result schemas, queries and pipelines."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest

from penstock.core.caller import Role
from penstock.core.registry import gts
from penstock.lake import Lake
from penstock.rest.app import create_app
from penstock.rest.context import RestContext
from penstock.service.auth.tokens import TokenVerifier
from penstock.service.queries.execution import QueryExecutor
from penstock.service.queries.sandbox import Sandbox
from rest.rest_client import SECRET, RestClient, in_process_client, token

UNKNOWN = "00000000-0000-4000-8000-000000000000"
FIELDS = [{"name": "a", "type": "number"}]
OPERATION = {"type": "append", "parameters": {"source": {"dataset_id": UNKNOWN}}}
ENTITIES = {"/gts": "SCHEMA", "/queries": "QUERY", "/pipelines": "PIPELINE"}
for_every_entity = pytest.mark.parametrize("collection", ENTITIES)


@pytest.fixture
def tenant() -> UUID:
    return uuid4()


@pytest.fixture
def client(lake: Lake, sandbox: Sandbox, tenant: UUID) -> Iterator[RestClient]:
    executor = QueryExecutor(lake._workspace, sandbox)
    context = RestContext.create(lake._workspace, TokenVerifier(SECRET), query_executor=executor)
    yield in_process_client(create_app(context), token(tenant=tenant))
    context.run_worker.close()


def create(client: RestClient, collection: str, name: str = "Monthly", **members: Any) -> dict[str, Any]:
    """Create an entity; a query gets a result schema of its own."""
    contents: dict[str, dict[str, Any]] = {
        "/gts": {"type_id": gts.QUERY_RETURNS, "fields": FIELDS},
        "/queries": {"sql": "SELECT 1 AS a"},
        "/pipelines": {"working": {"dataset_id": UNKNOWN}, "operations": [OPERATION]},
    }
    if collection == "/queries" and "returns_schema_id" not in members:
        members["returns_schema_id"] = create(client, "/gts", f"of {uuid4()}")["id"]
    payload = {"name": name, **contents[collection], **members}
    entity: dict[str, Any] = client("POST", collection, json=payload, code=201).json()
    return entity


def delete(client: RestClient, collection: str, entity: dict[str, Any]) -> str:
    """Delete an entity and return its path."""
    path = f"{collection}/{entity['id']}"
    client("DELETE", path, code=204)
    return path


@for_every_entity
def test_undelete_after_deletion_returns_entity_with_next_version(client: RestClient, collection: str) -> None:
    entity = create(client, collection)
    path = delete(client, collection, entity)
    response = client("POST", f"{path}/undelete")
    body = response.json()
    assert body == {**entity, "version": 2, "updated_at": body["updated_at"]}
    assert body["updated_at"] > entity["updated_at"]
    assert response.headers["etag"] == '"2"'
    response = client("GET", path)
    assert (response.json(), response.headers["etag"]) == (body, '"2"')
    assert [item["id"] for item in client("GET", f"{collection}?$filter=name eq 'Monthly'").json()["value"]] == [
        entity["id"]
    ]


@for_every_entity
def test_undelete_of_entity_that_is_not_deleted_returns_409(client: RestClient, collection: str) -> None:
    entity = create(client, collection)
    problem = client("POST", f"{collection}/{entity['id']}/undelete", code=409).json()
    assert (problem["code"], problem["current_version"]) == (f"{ENTITIES[collection]}_NOT_DELETED", 1)
    assert "is not deleted" in problem["detail"]
    assert client("GET", f"{collection}/{entity['id']}").json()["version"] == 1


@for_every_entity
def test_undelete_with_taken_name_returns_409_until_name_is_free(client: RestClient, collection: str) -> None:
    path = delete(client, collection, create(client, collection))
    other = create(client, collection, " MONTHLY ")
    problem = client("POST", f"{path}/undelete", code=409).json()
    assert problem["code"] == f"{ENTITIES[collection]}_NAME_TAKEN"
    assert "'Monthly'. Rename or delete it first" in problem["detail"]
    client("GET", path, code=404)
    delete(client, collection, other)
    client("POST", f"{path}/undelete")


@for_every_entity
def test_undelete_takes_no_parameters(client: RestClient, collection: str) -> None:
    path = delete(client, collection, create(client, collection))
    assert client("POST", f"{path}/undelete", json={"version": 1}, code=400).json()["code"] == "BAD_PAYLOAD"
    assert client("POST", f"{path}/undelete?force=true", code=400).json()["code"] == "UNKNOWN_PARAMETER"
    client("POST", f"{path}/undelete", headers={"if-match": '"2"'}, code=412)
    client("POST", f"{path}/undelete", json={}, headers={"if-match": '"1"'})


@for_every_entity
def test_undelete_requires_the_role_of_deletion(client: RestClient, tenant: UUID, collection: str) -> None:
    path = delete(client, collection, create(client, collection))
    required_role = Role.DEVELOPER if collection == "/pipelines" else Role.ADMIN
    for role in (role for role in Role if role < required_role):
        problem = client.as_caller(role, tenant)("POST", f"{path}/undelete", code=403).json()
        assert problem["required_role"] == required_role.claim
    client.without_token()("POST", f"{path}/undelete", code=401)
    client.as_caller(required_role, tenant)("POST", f"{path}/undelete")


@for_every_entity
def test_undelete_of_other_tenant_returns_same_404_as_unknown_one(client: RestClient, collection: str) -> None:
    entity = create(client, collection)
    path, other_tenant = delete(client, collection, entity), client.as_caller(tenant=uuid4())
    existing_text, unknown_text = (
        other_tenant("POST", f"{collection}/{id}/undelete", code=404).text for id in (entity["id"], UNKNOWN)
    )
    assert existing_text.replace(entity["id"], UNKNOWN) == unknown_text
    other_tenant("POST", f"{collection}/none/undelete", code=404)
    create(other_tenant, collection)
    client("POST", f"{path}/undelete")


@for_every_entity
def test_concurrent_undeletions_have_one_winner(client: RestClient, collection: str) -> None:
    for number in range(4):
        path = delete(client, collection, create(client, collection, f"name {number}"))
        with ThreadPoolExecutor(2) as pool:
            codes = list(pool.map(lambda path: _status(client, "POST", path), [f"{path}/undelete"] * 2))
        assert sorted(codes) == [200, 409]
        assert client("GET", path).json()["version"] == 2


@for_every_entity
def test_concurrent_undeletion_and_creation_of_one_name_have_one_winner(client: RestClient, collection: str) -> None:
    for number in range(4):
        entity = create(client, collection, f"name {number}")
        path = delete(client, collection, entity)
        with ThreadPoolExecutor(2) as pool:
            undeletion = pool.submit(_status, client, "POST", f"{path}/undelete")
            creation = pool.submit(_status, client, "POST", collection, json=entity)
        assert (undeletion.result(), creation.result()) in ((200, 409), (409, 201))
        entities = client("GET", f"{collection}?$filter=name eq 'name {number}'").json()["value"]
        assert len(entities) == 1


def _status(client: RestClient, method: str, path: str, **options: Any) -> int:
    headers = {"authorization": f"Bearer {client._bearer_token}"}
    return client._send(method, path, headers=headers, **options).status_code


def test_undelete_schema_by_gts_id_keeps_state_and_stores_revision(client: RestClient) -> None:
    schema = create(client, "/gts")
    path = f"/gts/{schema['id']}"
    client("POST", f"{path}/transitions", json={"to": "DEPRECATED", "version": 1})
    delete(client, "/gts", schema)
    client("POST", f"/gts/{gts.QUERY_RETURNS[:-1]}.other~{schema['id']}/undelete", code=404)
    response = client("POST", f"/gts/{schema['gts_id']}/undelete")
    assert response.json()["state"] == "DEPRECATED"
    assert {"deprecation", "sunset"} <= response.headers.keys()
    revisions = client("GET", f"{path}/versions").json()["value"]
    assert [(item["version"], item["change"], item["author"]) for item in revisions] == [
        (3, "undelete", "ada"),
        (2, "deprecate", "ada"),
        (1, "create", "ada"),
    ]
    schemas = client("GET", "/gts", params={"$filter": "fields/any(f: f/name eq 'a')"}).json()["value"]
    assert [item["id"] for item in schemas] == [schema["id"]]


def test_undelete_archived_schema_ignores_taken_name(client: RestClient) -> None:
    schema = create(client, "/gts")
    path = f"/gts/{schema['id']}"
    for version, state in enumerate(("DEPRECATED", "ARCHIVED"), 1):
        client("POST", f"{path}/transitions", json={"to": state, "version": version})
    delete(client, "/gts", schema)
    create(client, "/gts")  # the name of an archived schema is free
    assert client("POST", f"{path}/undelete").json()["state"] == "ARCHIVED"


def test_undelete_built_in_type_is_rejected(client: RestClient) -> None:
    problem = client("POST", f"/gts/{gts.QUERY_RETURNS}/undelete", code=409).json()
    assert problem["code"] == "BUILT_IN_TYPE"


def test_undelete_query_with_deleted_schema_returns_409_until_schema_is_undeleted(client: RestClient) -> None:
    query = create(client, "/queries")
    path, schema_path = delete(client, "/queries", query), f"/gts/{query['returns_schema_id']}"
    client("DELETE", schema_path, code=204)
    problem = client("POST", f"{path}/undelete", code=409).json()
    assert (problem["code"], problem["schema_id"]) == ("SCHEMA_NOT_LIVE", query["returns_schema_id"])
    assert "is deleted. Undo the deletion of the schema first" in problem["detail"]
    client("POST", f"{schema_path}/undelete")
    client("POST", f"{path}/undelete")
    assert client("DELETE", schema_path, code=409).json()["query_count"] == 1


def test_undelete_query_with_archived_schema_returns_409(client: RestClient) -> None:
    query = create(client, "/queries")
    path, schema_path = delete(client, "/queries", query), f"/gts/{query['returns_schema_id']}"
    for version, state in enumerate(("DEPRECATED", "ARCHIVED"), 1):
        client("POST", f"{schema_path}/transitions", json={"to": state, "version": version})
    problem = client("POST", f"{path}/undelete", code=409).json()
    assert (problem["code"], problem["state"]) == ("SCHEMA_NOT_LIVE", "ARCHIVED")
    client("POST", f"{schema_path}/transitions", json={"to": "DEPRECATED", "version": 3})
    client("POST", f"{path}/undelete")  # an existing reference to a deprecated schema stays valid


def test_undelete_query_by_name_selects_query_that_was_deleted_last(client: RestClient) -> None:
    older = create(client, "/queries")
    delete(client, "/queries", older)
    newer = create(client, "/queries")
    delete(client, "/queries", newer)
    assert client("POST", "/queries/monthly/undelete").json()["id"] == newer["id"]
    assert client("POST", "/queries/Monthly/undelete", code=409).json()["code"] == "QUERY_NAME_TAKEN"
    client("DELETE", f"/queries/{newer['id']}", code=204)
    client("POST", f"/queries/{older['id']}/undelete")
    assert client("POST", "/queries/unknown/undelete", code=404).json()["code"] == "QUERY_NOT_FOUND"


def test_concurrent_query_undeletion_and_schema_deletion_exclude_each_other(client: RestClient) -> None:
    for number in range(4):
        query = create(client, "/queries", f"name {number}")
        path = delete(client, "/queries", query)
        with ThreadPoolExecutor(2) as pool:
            undeletion = pool.submit(_status, client, "POST", f"{path}/undelete")
            deletion = pool.submit(_status, client, "DELETE", f"/gts/{query['returns_schema_id']}")
        assert (undeletion.result(), deletion.result()) in ((200, 409), (409, 204))
