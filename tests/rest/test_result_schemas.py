"""Result schemas over REST, on both databases: contract scenarios by id, and further rules."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from penstock.catalog.queries import query_store
from penstock.core.caller import Caller, Role, user_id
from penstock.core.registry import gts
from penstock.core.registry.lifecycle import TRANSITIONS, LifecycleState
from penstock.core.registry.query import QueryDraft, RegisteredQuery
from penstock.errors import NotFound, Unsupported
from penstock.lake import Lake
from penstock.rest.app import create_app
from penstock.rest.context import RestContext
from penstock.service.auth.tokens import TokenVerifier
from penstock.service.registry import schemas
from rest.rest_client import OTHER_TENANT, SECRET, RestClient, bearer, in_process_client, token
from support.workspaces import WorkspaceFixture

NAME = "Orders by day"
FIELDS = [
    {"name": "order_id", "type": "string", "optional": False, "description": "Order identifier"},
    {"name": "total_amount", "type": "number", "optional": False, "description": "Order total"},
    {"name": "order_date", "type": "datetime", "optional": False, "description": "When order was placed"},
]
UNKNOWN = "00000000-0000-0000-0000-000000000000"


def payload(**changes: Any) -> dict[str, Any]:
    return {"name": NAME, "type_id": gts.QUERY_RETURNS, "description": "One row an order", "fields": FIELDS, **changes}


@pytest.fixture
def lake(workspace: WorkspaceFixture) -> Iterator[Lake]:
    with workspace.open() as opened:
        yield opened


class SchemaClient(RestClient):
    """Client of one tenant and role."""

    def __init__(self, client: RestClient, tenant: UUID, role: Role = Role.ADMIN) -> None:
        super().__init__(client._send, token(role, tenant))
        self.tenant = tenant

    def with_role(self, role: Role) -> "SchemaClient":
        return SchemaClient(self, self.tenant, role)

    def of_tenant(self, tenant: UUID) -> "SchemaClient":
        return SchemaClient(self, tenant)

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request without checking its status."""
        assert self._bearer_token
        return self._send(method, path, headers=bearer(self._bearer_token), **options)


@pytest.fixture
def client(lake: Lake) -> SchemaClient:
    """Return an admin client of a tenant that no other test uses."""
    return SchemaClient(
        in_process_client(create_app(RestContext.create(lake._workspace, TokenVerifier(SECRET))), None), uuid4()
    )


@pytest.fixture
def developer(client: SchemaClient) -> SchemaClient:
    return client.with_role(Role.DEVELOPER)


@pytest.fixture
def viewer(client: SchemaClient) -> SchemaClient:
    return client.with_role(Role.VIEWER)


def create_schema(client: SchemaClient, **changes: Any) -> dict[str, Any]:
    schema: dict[str, Any] = client("POST", "/gts", json=payload(**changes), code=201).json()
    return schema


def names(response: httpx.Response) -> list[str]:
    return [item["name"] for item in response.json()["value"]]


def insert_query(lake: Lake, client: SchemaClient, schema: str, name: str = "a query") -> None:
    """Insert a query that refers to the schema."""
    caller = caller_of(client)
    with lake._workspace.db.write(caller) as tx:
        user, now, draft = caller.user, tx.now, QueryDraft(name, None, "SELECT 1", (), UUID(schema))
        query_store.insert(tx, RegisteredQuery(uuid4(), draft, (), 1, now, now, user, now, user))


def caller_of(client: SchemaClient) -> Caller:
    return Caller(client.tenant, user_id("", "ada"), "ada", Role.ADMIN)


# Contract scenarios


def test_create_base_schema(developer: SchemaClient) -> None:
    """fdd-analytics-feature-schema-query-returns-test-create-base-schema"""
    response = developer("POST", "/gts", json=payload(), code=201)
    schema = response.json()
    assert UUID(schema["id"])
    assert schema["gts_id"] == f"{gts.QUERY_RETURNS}{schema['id']}"
    assert schema["tenant_id"] == str(developer.tenant)
    assert (schema["type_id"], schema["state"], schema["version"]) == (gts.QUERY_RETURNS, "ACTIVE", 1)
    assert schema["fields"] == FIELDS
    assert response.headers["location"] == f"/gts/{schema['id']}"
    assert response.headers["etag"] == '"1"'
    assert developer("GET", response.headers["location"]).json() == schema
    for bad in ("nonsense", "gts.a.b.c.d.v1~", f"{gts.QUERY_RETURNS}x", gts.BASE_TYPE, gts.QUERY_RETURNS.upper(), 7):
        assert developer("POST", "/gts", json=payload(name="x", type_id=bad), code=400).json()["errors"]
    derived = f"{gts.QUERY_RETURNS}acme.shop._.orders.v1~"
    assert create_schema(developer, name="derived", type_id=f"gts://{derived}")["type_id"] == derived


@pytest.mark.parametrize(
    "field_type",
    [
        "object", "struct", "json", "money", "string[][]", {"type": "object"}, ["string"], 5,
        {"properties": {"a": "string"}},
    ],
)  # fmt: skip
def test_reject_nested(developer: SchemaClient, field_type: Any) -> None:
    """fdd-analytics-feature-schema-query-returns-test-reject-nested"""
    fields = [*FIELDS, {"name": "customer", "type": field_type}]
    problem = developer("POST", "/gts", json=payload(fields=fields), code=400).json()
    assert (problem["error"], problem["field"]) == ("Only scalar types allowed in query returns", "customer")
    assert problem["errors"][0]["pointer"].startswith("/fields/3")
    assert developer("GET", "/gts").json()["value"] == []


def test_crud_lifecycle(client: SchemaClient, developer: SchemaClient) -> None:
    """fdd-analytics-feature-schema-query-returns-test-crud-lifecycle"""
    schema = create_schema(developer)
    path = f"/gts/{schema['id']}"
    assert developer("GET", path).json() == schema
    changed = developer("PUT", path, json=payload(name="Orders", version=1)).json()
    assert (changed["name"], changed["version"]) == ("Orders", 2)
    problem = developer("PUT", path, json=payload(name="Late", version=1), code=409).json()
    assert (problem["error"], problem["current_version"]) == ("Schema was modified by another user", 2)
    other_tenant = client.of_tenant(OTHER_TENANT)
    for method, options in (("GET", {}), ("PUT", {"json": payload(version=2)}), ("DELETE", {})):
        assert other_tenant(method, path, code=404, **options).json()["error"] == "Schema not found"
    assert client("DELETE", path, code=204).content == b""
    assert developer("GET", path, code=404).json()["error"] == "Schema not found"


def test_odata_filter(client: SchemaClient) -> None:
    """fdd-analytics-feature-schema-query-returns-test-odata-filter"""
    create_schema(client)
    create_schema(client.of_tenant(uuid4()), name="other tenant's")
    params = {"$filter": f"type_id eq '{gts.QUERY_RETURNS}'"}
    assert names(client("GET", "/gts", params=params)) == [NAME]


def test_odata_pagination(client: SchemaClient) -> None:
    """fdd-analytics-feature-schema-query-returns-test-odata-pagination"""
    for number in range(1, 36):
        create_schema(client, name=f"schema {number:02}")
    params = {"$top": "10", "$skip": "20", "$orderby": "name"}
    response = client("GET", "/gts", params=params)
    assert names(response) == [f"schema {number:02}" for number in range(21, 31)]
    assert "@odata.nextLink" not in response.json()
    last = client("GET", "/gts", params={**params, "$skip": "30"})
    assert names(last) == [f"schema {number}" for number in range(31, 36)]
    newest_first = [f"schema {number:02}" for number in range(35, 0, -1)]
    assert names(client("GET", "/gts")) == newest_first
    counted = client("GET", "/gts", params={"$count": "true", "$top": "0"}).json()
    assert (counted["@odata.count"], counted["value"]) == (35, [])
    all_names, path = [], "/gts"
    while path:
        page = client("GET", path, headers={"prefer": "odata.maxpagesize=4"})
        all_names += names(page)
        path = page.json().get("@odata.nextLink")
    assert all_names == newest_first


# Exact error bodies


def test_errors_have_contract_sentences_and_members(lake: Lake, client: SchemaClient, viewer: SchemaClient) -> None:
    schema = create_schema(client)
    path = f"/gts/{schema['id']}"
    assert facts(client("GET", f"/gts/{UNKNOWN}", code=404), "schema_id") == ("Schema not found", UNKNOWN)
    invalid_body = payload(fields=[{"name": "a", "type": "object"}])
    sentence = "Only scalar types allowed in query returns"
    assert facts(client("POST", "/gts", json=invalid_body, code=400), "field") == (sentence, "a")
    name_taken = client("POST", "/gts", json=payload(name="  ORDERS by Day "), code=409)
    assert facts(name_taken, "name") == ("Schema name already exists", "  ORDERS by Day ")
    insert_query(lake, client, schema["id"])
    in_use = client("DELETE", path, code=409)
    assert facts(in_use, "query_count") == ("Schema is referenced by active queries", 1)
    stale = client("PUT", path, json=payload(version=7), code=409)
    assert facts(stale, "current_version") == ("Schema was modified by another user", 1)
    forbidden = viewer("POST", "/gts", json=payload(name="x"), code=403)
    assert facts(forbidden, "required_role") == ("Insufficient permissions", "analytics.developer")


@pytest.mark.parametrize(
    ("field", "pointer"), [({"name": "a"}, "/fields/0/type"), ({"name": "a", "type": "array"}, "/fields/0/items")]
)
def test_create_field_without_scalar_type_returns_contract_sentence(
    client: SchemaClient, field: dict[str, Any], pointer: str
) -> None:
    response = client("POST", "/gts", json=payload(fields=[field]), code=400)
    assert facts(response, "field") == ("Only scalar types allowed in query returns", "a")
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


def facts(response: httpx.Response, key: str) -> tuple[str, Any]:
    problem = response.json()
    return problem["error"], problem[key]


def test_create_schema_reports_all_errors(client: SchemaClient) -> None:
    body = {"type_id": "x", "fields": [{"name": "a b", "type": "string"}, {"type": "money"}], "colour": "red"}
    problem = client("POST", "/gts", json=body, code=400).json()
    pointers = {error["pointer"] for error in problem["errors"]}
    assert pointers == {"/colour", "/name", "/type_id", "/fields/0/name", "/fields/1/name", "/fields/1/type"}


@pytest.mark.parametrize(
    "body",
    [
        [], "text", 5, {}, {"entity": []}, {"name": None}, payload(name=""), payload(name="   "), payload(name=5),
        payload(name="x" * 501), payload(name="a\0b"), payload(fields=[]), payload(fields={}), payload(fields=None),
        payload(description=5), payload(metadata=[]), payload(metadata={"a": "\0"}), payload(state="ARCHIVED"),
        payload(state="active"), payload(fields=[{"name": "a", "type": "string"}] * 2),
        payload(metadata={"a": {"b": [[[[[]]]]]}, "deep": None} | {"d": eval("[" * 60 + "]" * 60)}),
    ],
)  # fmt: skip
def test_create_schema_with_bad_payload_stores_nothing(client: SchemaClient, body: Any) -> None:
    assert client("POST", "/gts", json=body, code=400).json()["status"] == 400
    assert client("GET", "/gts").json()["value"] == []


def test_create_schema_accepts_wrapped_payload_and_server_managed_members(client: SchemaClient) -> None:
    wrapped = client("POST", "/gts", json={"entity": payload(id=UNKNOWN, created_by="me", version=9)}, code=201).json()
    assert wrapped["id"] != UNKNOWN
    assert wrapped["version"] == 1
    assert (
        client("PUT", f"/gts/{wrapped['id']}", json={"entity": wrapped | {"description": None}}).json()["version"] == 2
    )


def test_show_schema_by_uuid_and_by_gts_id(client: SchemaClient) -> None:
    schema = create_schema(client)
    for key in (schema["id"], schema["id"].upper(), schema["gts_id"]):
        assert client("GET", f"/gts/{key}").json() == schema
    other = f"{gts.QUERY_RETURNS}acme.shop._.orders.v1~{schema['id']}"
    for key in (
        other,
        f"{gts.BASE_TYPE}{schema['id']}",
        "7",
        "x" * 500,
        f"{{{schema['id']}}}",
        schema["id"].replace("-", ""),
    ):
        client("GET", f"/gts/{key}", code=404)


def test_built_in_types_are_readable_and_immutable(client: SchemaClient) -> None:
    params = {"$filter": f"type_id eq '{gts.BASE_TYPE}'", "$count": "true"}
    page = client("GET", "/gts", params=params).json()
    assert [item["name"] for item in page["value"]] == ["Query Returns Schema"]
    assert page["@odata.count"] == 1
    [entry] = page["value"]
    assert client("GET", f"/gts/{entry['id']}").json() == {"@odata.context": "/$metadata#gts/$entity", **entry}
    client("PUT", f"/gts/{entry['id']}", json=payload(version=1), code=409)
    client("DELETE", f"/gts/{entry['id']}", code=409)
    both = {"$filter": f"type_id in ('{gts.BASE_TYPE}', '{gts.QUERY_RETURNS}')"}
    create_schema(client)
    assert names(client("GET", "/gts", params=both)) == [NAME, "Query Returns Schema"]
    assert names(client("GET", "/gts", params=both | {"$top": "1", "$skip": "1"})) == ["Query Returns Schema"]
    assert names(client("GET", "/gts")) == [NAME]


def test_create_schema_accepts_three_array_notations_and_returns_one(client: SchemaClient) -> None:
    notations: list[Any] = [
        {"type": "string", "array": True},
        {"type": "string[]"},
        {"type": "array", "items": "string"},
    ]
    fields = [{"name": f"f{i}", **notation} for i, notation in enumerate(notations)]
    returned = create_schema(client, fields=fields)["fields"]
    assert returned == [{"name": f"f{i}", "type": "string", "optional": False, "array": True} for i in range(3)]


# Changes


def test_replace_schema_requires_version_in_body_or_if_match(client: SchemaClient) -> None:
    path = f"/gts/{create_schema(client)['id']}"
    assert client("PUT", path, json=payload(), code=400).json()["code"] == "MISSING_VERSION"
    changed = client("PUT", path, json=payload(description="b"), headers={"if-match": '"1"'})
    assert changed.headers["etag"] == '"2"'
    stale = client("PUT", path, json=payload(description="c"), headers={"if-match": '"1"'}, code=412)
    assert stale.json()["current_version"] == 2
    for bad in ("1", '"2', '"2" "3"', 'w/"2"', '"2", 3', '*, "2"', ",", ""):
        assert (
            client("PUT", path, json=payload(), headers={"if-match": bad}, code=400).json()["code"] == "BAD_CONDITION"
        )
    for bad in (0, -1, "2", 2.5, True, [2]):
        client("PUT", path, json=payload(version=bad), code=400)
    assert client("PUT", path, json=payload(description="d"), headers={"if-match": "*"}).json()["version"] == 3
    assert client("GET", path, headers={"if-none-match": '"3"'}, code=304).content == b""
    client("DELETE", path, headers={"if-match": '"1"'}, code=412)
    client("DELETE", path, headers={"if-match": '"3"'}, code=204)


def test_if_match_accepts_lists_and_compares_strongly(client: SchemaClient) -> None:
    path = f"/gts/{create_schema(client)['id']}"
    for other in ('W/"1"', '"2", "3"', '"x"', '""', '"01"', '"1,"', '"٢"'.encode(), 'W/"1", "2"'):
        client("PUT", path, json=payload(description="b"), headers={"if-match": other}, code=412)
    for version, matching in enumerate(('"7", "1"', 'W/"9",, "2" ,', '"a,b","3"', '"4"'), 1):
        changed = client("PUT", path, json=payload(description=f"d{version}"), headers={"if-match": matching})
        assert changed.json()["version"] == version + 1
    client("DELETE", path, headers={"if-match": '"1", "4"'}, code=412)
    client("DELETE", path, headers={"if-match": '"1", "5"'}, code=204)


def test_create_and_change_schema_accept_the_envelope_of_id_and_entity(client: SchemaClient) -> None:
    created = client("POST", "/gts", json={"id": UNKNOWN, "entity": payload()}, code=201).json()
    path = f"/gts/{created['id']}"
    assert created["id"] != UNKNOWN
    envelope = {"id": created["id"], "entity": payload(description="b", version=1)}
    assert client("PUT", path, json=envelope).json()["version"] == 2
    merged = client("PATCH", path, json={"id": created["id"], "entity": {"description": "c", "version": 2}}).json()
    assert (merged["description"], merged["name"], merged["version"]) == ("c", NAME, 3)
    patch = {"content-type": "application/json-patch+json"}
    operations = [
        {"op": "test", "path": "/entity/version", "value": 3},
        {"op": "copy", "from": "/entity/name", "path": "/entity/description"},
        {"op": "add", "path": "/entity/fields/-", "value": {"name": "note", "type": "string", "optional": True}},
    ]
    patched = client("PATCH", path, json=operations, headers=patch).json()
    assert (patched["description"], patched["fields"][-1]["name"], patched["version"]) == (NAME, "note", 4)
    stale = client("PATCH", path, json=operations, headers=patch, code=409).json()
    assert (stale["code"], stale["current_version"]) == ("SCHEMA_CHANGED", 4)
    whole = [{"op": "replace", "path": "/entity", "value": payload(name="Whole")}]
    assert client("PATCH", path, json=whole, headers=patch | {"if-match": '"4"'}).json()["name"] == "Whole"
    for other in ({"entity": payload(), "name": "x"}, {"id": UNKNOWN}, {"id": UNKNOWN, "entity": 5}):
        client("POST", "/gts", json=other, code=400)
    unknown = [{"op": "add", "path": "/entityname", "value": "x"}]
    client("PATCH", path, json=unknown, headers=patch | {"if-match": '"5"'}, code=400)


def test_replace_schema_without_change_creates_no_version(client: SchemaClient) -> None:
    schema = create_schema(client)
    assert client("PUT", f"/gts/{schema['id']}", json=payload(version=1)).json() == schema


def test_replace_schema_does_not_change_state_or_type(client: SchemaClient) -> None:
    path = f"/gts/{create_schema(client)['id']}"
    client("PUT", path, json=payload(version=1, state="ACTIVE", description="x"))
    for other in ({"state": "DRAFT"}, {"type_id": f"{gts.QUERY_RETURNS}acme.shop._.orders.v1~"}):
        client("PUT", path, json=payload(version=2, **other), code=400)


def test_patch_schema_with_merge_patch_and_json_patch(client: SchemaClient) -> None:
    path = f"/gts/{create_schema(client, metadata={'owner': 'finance', 'tags': ['a']})['id']}"
    merge = {"content-type": "application/merge-patch+json"}
    first = client("PATCH", path, content=b'{"metadata": {"owner": null}, "version": 1}', headers=merge).json()
    assert (first["metadata"], first["name"]) == ({"tags": ["a"]}, NAME)
    second = client("PATCH", path, json={"description": None}, headers={"if-match": '"2"'}).json()
    assert second["description"] is None
    operations = [
        {"op": "test", "path": "/version", "value": 3},
        {"op": "add", "path": "/fields/-", "value": {"name": "note", "type": "string", "optional": True}},
        {"op": "replace", "path": "/metadata/tags/0", "value": "b"},
    ]
    patch = {"content-type": "application/json-patch+json"}
    patched = client("PATCH", path, json=operations, headers=patch).json()
    assert (patched["fields"][-1]["name"], patched["metadata"], patched["version"]) == ("note", {"tags": ["b"]}, 4)
    assert client("PATCH", path, json=operations, headers=patch, code=409).json()["current_version"] == 4
    client("PATCH", path, json=operations[1:], headers=patch, code=400)
    client("PATCH", path, json=[{"op": "remove", "path": "/nothing"}], headers=patch | {"if-match": '"4"'}, code=400)
    client("PATCH", path, json={"state": "DRAFT", "version": 4}, code=400)
    for content_type in ("text/plain", "application/xml", "application/json-patch"):
        client("PATCH", path, content=b"{}", headers={"content-type": content_type}, code=415)


def test_every_schema_change_stores_a_revision(client: SchemaClient) -> None:
    path = f"/gts/{create_schema(client)['id']}"
    client("PUT", path, json=payload(version=1, fields=FIELDS[:2]))
    client("POST", f"{path}/transitions", json={"to": "DEPRECATED", "version": 2, "reason": "old"})
    revisions = client("GET", f"{path}/versions").json()["value"]
    assert [(revision["version"], revision["change"], revision["state"]) for revision in revisions] == [
        (3, "deprecate", "DEPRECATED"), (2, "update", "ACTIVE"), (1, "create", "ACTIVE"),
    ]  # fmt: skip
    assert (revisions[0]["reason"], revisions[0]["author"]) == ("old", "ada")
    assert [revision["version"] for revision in client("GET", f"{path}/versions?$top=1&before=3").json()["value"]] == [
        2
    ]
    assert client("GET", f"{path}/versions/1").json()["fields"] == FIELDS
    client("GET", f"{path}/versions/9", code=404)
    client("GET", f"{path}/versions/x", code=400)
    diff = client("GET", f"{path}/diff?from=1&to=2").json()
    assert (diff["from"], diff["to"], diff["members"], diff["compatible"]) == (1, 2, ["fields"], False)
    assert diff["breaking"] == [{"change": "removed", "field": "order_date", "from": FIELDS[2]}]
    assert client("GET", f"{path}/diff?from=2&to=1").json()["compatible"] is True
    client("GET", f"{path}/diff?from=1", code=400)


def test_breaking_change_requires_force_by_admin(lake: Lake, client: SchemaClient, developer: SchemaClient) -> None:
    schema = create_schema(client)
    path = f"/gts/{schema['id']}"
    narrower = {"fields": FIELDS[:2]}
    compatibility = lambda: developer("POST", f"{path}/compatibility", json=narrower).json()  # noqa: E731
    assert (compatibility()["compatible"], compatibility()["accepted"], compatibility()["query_count"]) == (
        False,
        True,
        0,
    )
    insert_query(lake, client, schema["id"])
    assert (compatibility()["accepted"], compatibility()["query_count"]) == (False, 1)
    problem = developer("PUT", path, json=payload(version=1, **narrower), code=409).json()
    assert (problem["code"], problem["query_count"]) == ("BREAKING_CHANGE", 1)
    developer("PUT", f"{path}?force=true", json=payload(version=1, **narrower), code=403)
    wider = [*FIELDS, {"name": "note", "type": "string", "optional": True}]
    assert developer("PUT", path, json=payload(version=1, fields=wider)).json()["version"] == 2
    assert client("PUT", f"{path}?force=true", json=payload(version=2, **narrower)).json()["version"] == 3
    references = client("GET", f"{path}/references").json()
    assert (references["query_count"], references["queries"][0]["name"]) == (1, "a query")


def test_concurrent_replacements_of_one_version_have_one_winner(
    workspace: WorkspaceFixture, client: SchemaClient
) -> None:
    path = f"/gts/{create_schema(client)['id']}"
    for version in range(1, 6):
        with ThreadPoolExecutor(2) as pool:
            replacements = [
                pool.submit(_code, client, path, payload(version=version, description=f"{version} {n}")) for n in "ab"
            ]
            assert sorted(replacement.result() for replacement in replacements) == [200, 409]


def _code(client: SchemaClient, path: str, body: Any) -> int:
    return client.send("PUT", path, json=body).status_code


def test_schema_name_is_free_after_deletion_or_archiving(client: SchemaClient) -> None:
    first = create_schema(client)
    client("DELETE", f"/gts/{first['id']}", code=204)
    second = create_schema(client, state="DRAFT")
    client("POST", "/gts", json=payload(), code=409)
    client("POST", f"/gts/{second['id']}/transitions", json={"to": "ARCHIVED", "version": 1})
    third = create_schema(client)
    rejected = client("POST", f"/gts/{second['id']}/transitions", json={"to": "DEPRECATED", "version": 2}, code=409)
    assert rejected.json()["error"] == "Schema name already exists"
    other = create_schema(client, name="another")
    client("PUT", f"/gts/{other['id']}", json=payload(name=NAME.upper(), version=1), code=409)
    client("PUT", f"/gts/{third['id']}", json=payload(name=NAME.upper(), version=1))


# States


@pytest.mark.parametrize("to", list(LifecycleState))
@pytest.mark.parametrize("start", list(LifecycleState))
@pytest.mark.parametrize("role", [Role.VIEWER, Role.DEVELOPER, Role.ADMIN])
def test_schema_transitions_require_roles(
    client: SchemaClient, start: LifecycleState, to: LifecycleState, role: Role
) -> None:
    schema = in_state(client, start)
    transition = TRANSITIONS.get((start, to))
    transition_body = {"to": to.value, "version": schema["version"]}
    required_role = transition.role if transition else Role.ADMIN if to is LifecycleState.DEPRECATED else Role.DEVELOPER
    is_forbidden = role < required_role
    code = 403 if is_forbidden else 200 if transition else 409
    body = client.with_role(role)("POST", f"/gts/{schema['id']}/transitions", json=transition_body, code=code).json()
    if code == 200:
        assert (body["state"], body["version"]) == (to.value, schema["version"] + 1)
    else:
        assert client("GET", f"/gts/{schema['id']}").json() == schema


def in_state(client: SchemaClient, state: LifecycleState) -> dict[str, Any]:
    schema = create_schema(
        client, name=f"{state} {uuid4()}", state="DRAFT" if state is LifecycleState.DRAFT else "ACTIVE"
    )
    steps = {
        LifecycleState.DEPRECATED: [LifecycleState.DEPRECATED],
        LifecycleState.ARCHIVED: [LifecycleState.DEPRECATED, LifecycleState.ARCHIVED],
    }.get(state, [])
    for step in steps:
        body = {"to": step.value, "version": schema["version"]}
        schema = client("POST", f"/gts/{schema['id']}/transitions", json=body).json()
    return schema


def test_schema_changes_are_limited_by_state(client: SchemaClient) -> None:
    deprecated, archived = in_state(client, LifecycleState.DEPRECATED), in_state(client, LifecycleState.ARCHIVED)
    path = f"/gts/{deprecated['id']}"
    client("PATCH", path, json={"name": "other", "version": 2}, code=409)
    client("PATCH", path, json={"fields": FIELDS[:1], "version": 2}, code=409)
    assert client("PATCH", path, json={"description": "gone soon", "metadata": {}, "version": 2}).json()["version"] == 3
    client("PATCH", f"/gts/{archived['id']}", json={"description": "x", "version": 3}, code=409)


@pytest.mark.parametrize("body", [{}, [], {"to": "ACTIVE"}, {"to": "GONE", "version": 1}, {"to": 5, "version": 1},
                                  {"to": "ACTIVE", "version": 1, "x": 1}, {"to": "ACTIVE", "version": 1, "reason": 5}])  # fmt: skip
def test_transition_with_bad_payload_is_rejected(client: SchemaClient, body: Any) -> None:
    schema = create_schema(client, state="DRAFT")
    client("POST", f"/gts/{schema['id']}/transitions", json=body, code=400)


def test_deprecated_schema_responses_have_sunset_header(client: SchemaClient) -> None:
    schema = in_state(client, LifecycleState.DEPRECATED)
    response = client("GET", f"/gts/{schema['id']}")
    since = datetime.fromisoformat(schema["state_changed_at"])
    assert response.headers["deprecation"] == f"@{int(since.timestamp())}"
    assert response.headers["sunset"] == (since + timedelta(days=90)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    assert "deprecation" not in client("GET", f"/gts/{create_schema(client, name='new')['id']}").headers


@pytest.mark.parametrize(("days", "state"), [(89, "DEPRECATED"), (90, "ARCHIVED"), (91, "ARCHIVED")])
def test_archive_job_archives_schemas_after_grace_period(
    lake: Lake, client: SchemaClient, days: int, state: str
) -> None:
    schema, referenced = in_state(client, LifecycleState.DEPRECATED), create_schema(client, name="still used")
    insert_query(lake, client, referenced["id"])
    client("POST", f"/gts/{referenced['id']}/transitions", json={"to": "DEPRECATED", "version": 1})
    since = datetime.fromisoformat(client("GET", f"/gts/{referenced['id']}").json()["state_changed_at"])
    result = schemas.archive_deprecated(
        lake._workspace, schemas.archive_caller(client.tenant), days=90, now=since + timedelta(days=days)
    )
    assert client("GET", f"/gts/{schema['id']}").json()["state"] == state
    assert client("GET", f"/gts/{referenced['id']}").json()["state"] == "DEPRECATED"
    assert [str(entry.id) for entry in result.archived] == ([schema["id"]] if state == "ARCHIVED" else [])
    assert [(str(entry.id), count) for entry, count in result.referenced] == (
        [(referenced["id"], 1)] if days >= 90 else []
    )


# Roles


SCHEMA_OPERATIONS: dict[str, tuple[Role, Callable[[SchemaClient, str, int], httpx.Response]]] = {
    "create": (Role.DEVELOPER, lambda c, _id, _n: c.send("POST", "/gts", json=payload(name=f"{uuid4()}"))),
    "read": (Role.VIEWER, lambda c, id, _n: c.send("GET", f"/gts/{id}")),
    "search": (Role.VIEWER, lambda c, _id, _n: c.send("GET", "/gts")),
    "put": (Role.DEVELOPER, lambda c, id, n: c.send("PUT", f"/gts/{id}", json=payload(name=f"{uuid4()}", version=n))),
    "patch": (
        Role.DEVELOPER,
        lambda c, id, n: c.send("PATCH", f"/gts/{id}", json={"version": n, "description": f"{n}"}),
    ),
    "delete": (Role.ADMIN, lambda c, id, _n: c.send("DELETE", f"/gts/{id}")),
    "deprecate": (
        Role.ADMIN,
        lambda c, id, n: c.send("POST", f"/gts/{id}/transitions", json={"to": "DEPRECATED", "version": n}),
    ),
    "versions": (Role.VIEWER, lambda c, id, _n: c.send("GET", f"/gts/{id}/versions")),
    "version": (Role.VIEWER, lambda c, id, _n: c.send("GET", f"/gts/{id}/versions/1")),
    "diff": (Role.VIEWER, lambda c, id, _n: c.send("GET", f"/gts/{id}/diff?from=1&to=1")),
    "compatibility": (
        Role.VIEWER,
        lambda c, id, _n: c.send("POST", f"/gts/{id}/compatibility", json={"fields": FIELDS}),
    ),
    "references": (Role.VIEWER, lambda c, id, _n: c.send("GET", f"/gts/{id}/references")),
    "json schema": (Role.VIEWER, lambda c, id, _n: c.send("GET", f"/gts/{id}/json-schema")),
    "validate": (Role.VIEWER, lambda c, id, _n: c.send("POST", f"/gts/{id}/validate", json={"rows": []})),
}


@pytest.mark.parametrize("operation", SCHEMA_OPERATIONS)
def test_schema_routes_require_roles_of_contract_matrix(client: SchemaClient, operation: str) -> None:
    required_role, send = SCHEMA_OPERATIONS[operation]
    for role in Role:
        schema = create_schema(client, name=f"for {role.name}")
        response = send(client.with_role(role), schema["id"], 1)
        if role >= required_role:
            assert response.status_code in (200, 201, 204), response.text
        else:
            assert response.status_code == 403
            assert response.json()["required_role"] == required_role.claim


@pytest.mark.parametrize("operation", [name for name in SCHEMA_OPERATIONS if name not in ("create", "search")])
def test_schema_of_other_tenant_returns_same_404_as_unknown_one(client: SchemaClient, operation: str) -> None:
    schema = create_schema(client)
    other_tenant = client.of_tenant(uuid4())
    _, send = SCHEMA_OPERATIONS[operation]
    existing, unknown = send(other_tenant, schema["id"], 1), send(other_tenant, UNKNOWN, 1)
    assert existing.status_code == unknown.status_code == 404
    assert existing.text.replace(schema["id"], UNKNOWN) == unknown.text
    assert client("GET", f"/gts/{schema['id']}").json() == schema
    assert other_tenant("GET", "/gts", params={"$count": "true"}).json()["@odata.count"] == 0
    create_schema(other_tenant)  # names are unique per tenant


def test_concurrent_schema_deletion_and_new_query_exclude_each_other(
    workspace: WorkspaceFixture, lake: Lake, client: SchemaClient
) -> None:
    for _ in range(8):
        schema = create_schema(client, name=f"{uuid4()}")

        def can_insert_query(id: str = schema["id"]) -> bool:
            try:
                insert_query(lake, client, id, name=f"{uuid4()}")
                return True
            except (NotFound, Unsupported):
                return False

        with ThreadPoolExecutor(2) as pool:
            deleted = pool.submit(lambda id=schema["id"]: client.send("DELETE", f"/gts/{id}").status_code)
            inserted = pool.submit(can_insert_query)
        assert (deleted.result(), inserted.result()) in ((204, False), (409, True))


@pytest.mark.parametrize("state", [LifecycleState.DRAFT, LifecycleState.DEPRECATED, LifecycleState.ARCHIVED])
def test_new_query_requires_active_schema(lake: Lake, client: SchemaClient, state: LifecycleState) -> None:
    schema = in_state(client, state)
    with pytest.raises(Unsupported, match="ACTIVE"):
        insert_query(lake, client, schema["id"])


# Search


def test_search_schemas_by_field_and_words_with_select(client: SchemaClient) -> None:
    create_schema(client, name="Ärger im Büro", description="50% off_sale", fields=[{"name": "mood", "type": "number"}])
    create_schema(client)
    assert names(client("GET", "/gts", params={"$filter": "fields/any(f: f/name eq 'mood')"})) == ["Ärger im Büro"]
    assert names(client("GET", "/gts", params={"$search": "ÄRGER büro"})) == ["Ärger im Büro"]
    assert names(client("GET", "/gts", params={"$search": '"50% OFF_"'})) == ["Ärger im Büro"]
    assert names(client("GET", "/gts", params={"$filter": "tolower(name) eq 'ärger im büro'"})) == ["Ärger im Büro"]
    selected = client("GET", "/gts", params={"$select": "name,gts_id,metadata", "$top": "1"}).json()["value"]
    assert [set(item) for item in selected] == [{"name", "gts_id", "metadata"}]
    for options in (
        "$filter=colour eq 'red'",
        "$filter=name",
        "$orderby=fields",
        "$top=-1",
        "$expand=x",
        "x=1",
        "$select=y",
    ):
        problem = client("GET", f"/gts?{options}", code=400).json()
        assert problem["status"] == 400
    assert "available" in client("GET", "/gts?$filter=colour eq 'red'", code=400).json()


# Rows and samples


def test_validate_rows_against_schema(viewer: SchemaClient, client: SchemaClient) -> None:
    path = f"/gts/{create_schema(client)['id']}/validate"
    good = {"order_id": "A", "total_amount": 1.5, "order_date": "2026-01-31T10:30:00Z"}
    assert viewer("POST", path, json={"rows": [good]}).json() == {"valid": True, "error_count": 0, "errors": []}
    report = viewer("POST", path, json={"rows": [good, {"order_id": 5, "total_amount": True}]}).json()
    assert [error["message"] for error in report["errors"]] == [
        "Type mismatch for field order_id", "Type mismatch for field total_amount", "Missing required field: order_date",
    ]  # fmt: skip
    large_report = viewer("POST", path, json={"rows": [{}] * 200}).json()
    assert (large_report["error_count"], len(large_report["errors"])) == (600, 100)
    assert viewer("POST", path, json={"rows": {}}).json()["errors"][0]["message"] == "Result must be array"
    assert viewer("POST", path, json={"rows": [good | {"more": 1}], "strict": True}).json()["valid"] is False
    for bad in ({}, [], {"rows": [], "x": 1}, {"rows": [], "strict": "yes"}):
        viewer("POST", path, json=bad, code=400)


def test_infer_schema_from_dataset_and_samples(lake: Lake, client: SchemaClient) -> None:
    orders = b"order_id,total_amount,day,note\nA,1.5,2026-01-31,\nB,2,2026-02-01,x\n"
    client("POST", "/datasets?name=shop.orders", content=orders, headers={"content-type": "text/csv"}, code=201)
    types = {"order_id": "string", "total_amount": "number", "day": "date", "note": "string"}
    inferred = client("POST", "/gts/infer", json={"dataset": "shop.orders"}).json()
    assert {field["name"]: field["type"] for field in inferred["fields"]} == types
    sample = client("POST", "/gts/infer?name=Mine", content=orders, headers={"content-type": "text/csv"}).json()
    assert sample["name"] == "Mine"
    assert [field["name"] for field in sample["fields"] if field["optional"]] == ["note"]
    rows = [{"a": 1, "b": "2026-01-31", "c": [True]}, {"a": 2.5, "b": "2026-02-01", "c": []}, {"a": None, "c": [False]}]
    fields = client("POST", "/gts/infer", json={"rows": rows}).json()["fields"]
    assert fields == [
        {"name": "a", "type": "number", "optional": True}, {"name": "b", "type": "date", "optional": True},
        {"name": "c", "type": "boolean", "optional": False, "array": True},
    ]  # fmt: skip
    assert client("POST", "/gts", json=sample, code=201)
    for bad in ({}, {"rows": []}, {"rows": 5}, {"dataset": "shop.orders", "x": 1}, {"rows": [{"a": {}}]}):
        client("POST", "/gts/infer", json=bad, code=400)
    client("POST", "/gts/infer", json={"dataset": "shop.nothing"}, code=404)


def test_export_json_schema(client: SchemaClient) -> None:
    response = client("GET", f"/gts/{create_schema(client)['id']}/json-schema")
    assert response.headers["content-type"] == "application/schema+json"
    inferred = response.json()
    assert (inferred["title"], inferred["required"]) == (NAME, ["order_id", "total_amount", "order_date"])
    assert inferred["properties"]["order_date"] == {
        "type": "string",
        "format": "date-time",
        "description": "When order was placed",
    }


# Tenant isolation


def test_search_schemas_returns_nothing_of_other_tenants(client: SchemaClient, soak: bool) -> None:
    """Send requests of another tenant with the ids and names of a schema: no response contains its texts."""
    canary = f"canary {uuid4()}"
    schema = create_schema(client, name=canary, description=canary, metadata={"note": canary},
                  fields=[{"name": "secret_field", "type": "string", "description": canary}])  # fmt: skip
    other_tenant = client.of_tenant(uuid4())
    responses = []
    for number, (_, send) in enumerate(list(SCHEMA_OPERATIONS.values()) * (12 if soak else 3)):
        for key in (schema["id"], schema["gts_id"], schema["id"].upper()):
            responses.append(send(other_tenant, key, 1 + number % 3))
        responses.append(other_tenant.send("GET", "/gts", params={"$search": canary, "$count": "true"}))
        responses.append(
            other_tenant.send("GET", "/gts", params={"$filter": f"name eq '{canary}' or id eq {schema['id']}"})
        )
        responses.append(
            other_tenant.send("GET", "/gts", params={"$filter": "fields/any(f: f/name eq 'secret_field')"})
        )
    for response in responses:
        assert canary not in response.text
        assert canary not in str(response.headers)
        assert response.status_code < 500
    assert client("GET", f"/gts/{schema['id']}").json() == schema


# Regressions


def test_metadata_change_from_1_to_true_is_a_change(client: SchemaClient) -> None:
    schema = create_schema(client, metadata={"flag": 1})
    changed = client("PATCH", f"/gts/{schema['id']}", json={"metadata": {"flag": True}, "version": 1}).json()
    assert (changed["metadata"], changed["version"]) == ({"flag": True}, 2)


def test_replace_schema_checks_version_in_body_and_if_match(client: SchemaClient) -> None:
    path = f"/gts/{create_schema(client)['id']}"
    for condition in ('"1"', "*"):
        client("PUT", path, json=payload(version=77), headers={"if-match": condition}, code=409)
        client("PATCH", path, json={"version": 77, "description": "x"}, headers={"if-match": condition}, code=409)
        moved = {"to": "DEPRECATED", "version": 77}
        client("POST", f"{path}/transitions", json=moved, headers={"if-match": condition}, code=409)
    client("PUT", path, json=payload(version=1), headers={"if-match": '"9"'}, code=412)


def test_role_is_checked_before_payload(viewer: SchemaClient, client: SchemaClient) -> None:
    path = f"/gts/{create_schema(client)['id']}"
    viewer("PUT", path, json=[], code=403)
    viewer("PATCH", path, json={"x": 1}, code=403)
    viewer("POST", f"{path}/transitions", json={"to": "GONE"}, code=403)
    viewer("POST", "/gts", json=[], code=403)


def test_patch_schema_with_unknown_member_is_rejected(client: SchemaClient) -> None:
    path = f"/gts/{create_schema(client)['id']}"
    for change in ({"bogus": None}, {"state": None}, {"type_id": None}, {"name": None}, {"fields": None}):
        client("PATCH", path, json={**change, "version": 1}, code=400)


def test_compatibility_report_agrees_with_change(client: SchemaClient) -> None:
    deprecated = in_state(client, LifecycleState.DEPRECATED)
    wider = {"fields": [*FIELDS, {"name": "note", "type": "string", "optional": True}]}
    path = f"/gts/{deprecated['id']}"
    assert client("POST", f"{path}/compatibility", json=wider).json()["accepted"] is False
    client("PATCH", path, json={**wider, "version": 2}, code=409)
    archived = in_state(client, LifecycleState.ARCHIVED)
    same = {name: archived[name] for name in ("name", "description", "fields", "metadata", "version")}
    client("PUT", f"/gts/{archived['id']}", json=same, code=409)


def test_forced_schema_change_is_recorded(lake: Lake, client: SchemaClient) -> None:
    schema = create_schema(client)
    insert_query(lake, client, schema["id"])
    path = f"/gts/{schema['id']}"
    client("PUT", f"{path}?force=true", json=payload(version=1, fields=FIELDS[:1]))
    assert "force" in client("GET", f"{path}/versions").json()["value"][0]["reason"]


def test_show_built_in_type_by_gts_id(client: SchemaClient) -> None:
    entry = client("GET", f"/gts/{gts.QUERY_RETURNS}").json()
    assert (entry["gts_id"], entry["type_id"]) == (gts.QUERY_RETURNS, gts.BASE_TYPE)
    assert client("GET", f"/gts/{entry['id']}").json() == entry


@pytest.mark.parametrize("etag", ["*", 'W/"1"', '"0", "1"', ' "1" '])
def test_show_schema_with_current_etag_returns_304(client: SchemaClient, etag: str) -> None:
    client("GET", f"/gts/{create_schema(client)['id']}", headers={"if-none-match": etag}, code=304)


def test_archive_job_continues_after_deleted_schema(
    lake: Lake, client: SchemaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted, remaining = in_state(client, LifecycleState.DEPRECATED), in_state(client, LifecycleState.DEPRECATED)
    list_deprecated = schemas.result_schemas.list_deprecated

    def list_and_delete_one(tx: Any) -> Any:
        entries = list_deprecated(tx)
        client("DELETE", f"/gts/{deleted['id']}", code=204)
        return entries

    monkeypatch.setattr(schemas.result_schemas, "list_deprecated", list_and_delete_one)
    later = datetime.fromisoformat(remaining["state_changed_at"]) + timedelta(days=90)
    schemas.archive_deprecated(lake._workspace, schemas.archive_caller(client.tenant), days=90, now=later)
    assert client("GET", f"/gts/{remaining['id']}").json()["state"] == "ARCHIVED"


def test_validate_rows_cost_does_not_grow_with_declared_fields(client: SchemaClient) -> None:
    """Count the errors of 400,000 empty rows with 2,000 required fields without 800 million checks."""
    fields = [{"name": f"f{number}", "type": "string"} for number in range(2_000)]
    path = f"/gts/{create_schema(client, fields=fields)['id']}/validate"
    report = client("POST", path, json={"rows": [{}] * 400_000}).json()
    assert (report["error_count"], len(report["errors"])) == (800_000_000, 100)


def test_duplicate_json_member_is_found_in_linear_time(client: SchemaClient) -> None:
    members = ",".join(f'"k{number}":0' for number in range(200_000))
    body = f'{{{members},"zz":0,"zz":0}}'.encode()
    problem = client("POST", "/gts", content=body, headers={"content-type": "application/json"}, code=400).json()
    assert "member 'zz' is duplicated" in problem["detail"]


@pytest.mark.parametrize("content_type", ["text/plain", "", "application/octet-stream"])
def test_body_with_wrong_content_type_is_not_read(client: SchemaClient, content_type: str) -> None:
    """Reject bodies of other media types unread: only JSON has a small limit."""

    def endless() -> Iterator[bytes]:
        yield b"x" * 1000
        raise AssertionError("the body was read")

    headers = {"content-type": content_type} if content_type else {}
    client("POST", "/gts", content=endless(), headers=headers, code=415)
    client(
        "POST",
        "/gts",
        content=b"{}",
        code=415,
        headers={"content-type": "application/json", "content-encoding": "gzip"},
    )


def test_infer_schema_from_sample_with_duplicate_column_is_rejected(client: SchemaClient) -> None:
    client("POST", "/gts/infer", content=b"a,a\n1,2\n", headers={"content-type": "text/csv"}, code=400)
