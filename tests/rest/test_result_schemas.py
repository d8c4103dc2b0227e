"""Result schemas over REST, on both databases: every scenario of the contract by its id, and the rulings."""

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
from rest.rest_client import OTHER, SECRET, Client, bearer, in_process_client, token
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


class Person(Client):
    """Client of one tenant and role."""

    def __init__(self, client: Client, tenant: UUID, role: Role = Role.ADMIN) -> None:
        super().__init__(client._send, token(role, tenant))
        self.tenant = tenant

    def with_role(self, role: Role) -> "Person":
        return Person(self, self.tenant, role)

    def of(self, tenant: UUID) -> "Person":
        return Person(self, tenant)

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request without checking its status."""
        assert self._sent
        return self._send(method, path, headers=bearer(self._sent), **options)


@pytest.fixture
def client(lake: Lake) -> Person:
    """Return an admin client of a tenant that no other test uses."""
    return Person(
        in_process_client(create_app(RestContext.create(lake._workspace, TokenVerifier(SECRET))), None), uuid4()
    )


@pytest.fixture
def developer(client: Person) -> Person:
    return client.with_role(Role.DEVELOPER)


@pytest.fixture
def viewer(client: Person) -> Person:
    return client.with_role(Role.VIEWER)


def made(client: Person, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = client("POST", "/gts", json=payload(**changes), code=201).json()
    return found


def names(answer: httpx.Response) -> list[str]:
    return [each["name"] for each in answer.json()["value"]]


def refer(lake: Lake, client: Person, schema: str, name: str = "a query") -> None:
    """Insert a query that refers to the schema."""
    caller = caller_of(client)
    with lake._workspace.db.write(caller) as tx:
        who, now, draft = caller.user, tx.now, QueryDraft(name, None, "SELECT 1", (), UUID(schema))
        query_store.insert(tx, RegisteredQuery(uuid4(), draft, (), 1, now, now, who, now, who))


def caller_of(client: Person) -> Caller:
    return Caller(client.tenant, user_id("", "ada"), "ada", Role.ADMIN)


# The contract's scenarios


def test_create_base_schema(developer: Person) -> None:
    """fdd-analytics-feature-schema-query-returns-test-create-base-schema"""
    answer = developer("POST", "/gts", json=payload(), code=201)
    schema = answer.json()
    assert UUID(schema["id"])
    assert schema["gts_id"] == f"{gts.QUERY_RETURNS}{schema['id']}"
    assert schema["tenant_id"] == str(developer.tenant)
    assert (schema["type_id"], schema["state"], schema["version"]) == (gts.QUERY_RETURNS, "ACTIVE", 1)
    assert schema["fields"] == FIELDS
    assert answer.headers["location"] == f"/gts/{schema['id']}"
    assert answer.headers["etag"] == '"1"'
    assert developer("GET", answer.headers["location"]).json() == schema
    for bad in ("nonsense", "gts.a.b.c.d.v1~", f"{gts.QUERY_RETURNS}x", gts.BASE_TYPE, gts.QUERY_RETURNS.upper(), 7):
        assert developer("POST", "/gts", json=payload(name="x", type_id=bad), code=400).json()["errors"]
    derived = f"{gts.QUERY_RETURNS}acme.shop._.orders.v1~"
    assert made(developer, name="derived", type_id=f"gts://{derived}")["type_id"] == derived


@pytest.mark.parametrize(
    "kind",
    [
        "object", "struct", "json", "money", "string[][]", {"type": "object"}, ["string"], 5,
        {"properties": {"a": "string"}},
    ],
)  # fmt: skip
def test_reject_nested(developer: Person, kind: Any) -> None:
    """fdd-analytics-feature-schema-query-returns-test-reject-nested"""
    fields = [*FIELDS, {"name": "customer", "type": kind}]
    problem = developer("POST", "/gts", json=payload(fields=fields), code=400).json()
    assert (problem["error"], problem["field"]) == ("Only scalar types allowed in query returns", "customer")
    assert problem["errors"][0]["pointer"].startswith("/fields/3")
    assert developer("GET", "/gts").json()["value"] == []


def test_crud_lifecycle(client: Person, developer: Person) -> None:
    """fdd-analytics-feature-schema-query-returns-test-crud-lifecycle"""
    schema = made(developer)
    path = f"/gts/{schema['id']}"
    assert developer("GET", path).json() == schema
    changed = developer("PUT", path, json=payload(name="Orders", version=1)).json()
    assert (changed["name"], changed["version"]) == ("Orders", 2)
    problem = developer("PUT", path, json=payload(name="Late", version=1), code=409).json()
    assert (problem["error"], problem["current_version"]) == ("Schema was modified by another user", 2)
    other_tenant = client.of(OTHER)
    for method, more in (("GET", {}), ("PUT", {"json": payload(version=2)}), ("DELETE", {})):
        assert other_tenant(method, path, code=404, **more).json()["error"] == "Schema not found"
    assert client("DELETE", path, code=204).content == b""
    assert developer("GET", path, code=404).json()["error"] == "Schema not found"


def test_odata_filter(client: Person) -> None:
    """fdd-analytics-feature-schema-query-returns-test-odata-filter"""
    made(client)
    made(client.of(uuid4()), name="other tenant's")
    params = {"$filter": f"type_id eq '{gts.QUERY_RETURNS}'"}
    assert names(client("GET", "/gts", params=params)) == [NAME]


def test_odata_pagination(client: Person) -> None:
    """fdd-analytics-feature-schema-query-returns-test-odata-pagination"""
    for number in range(1, 36):
        made(client, name=f"schema {number:02}")
    params = {"$top": "10", "$skip": "20", "$orderby": "name"}
    answer = client("GET", "/gts", params=params)
    assert names(answer) == [f"schema {number:02}" for number in range(21, 31)]
    assert "@odata.nextLink" not in answer.json()
    last = client("GET", "/gts", params={**params, "$skip": "30"})
    assert names(last) == [f"schema {number}" for number in range(31, 36)]
    newest_first = [f"schema {number:02}" for number in range(35, 0, -1)]
    assert names(client("GET", "/gts")) == newest_first
    counted = client("GET", "/gts", params={"$count": "true", "$top": "0"}).json()
    assert (counted["@odata.count"], counted["value"]) == (35, [])
    walked, path = [], "/gts"
    while path:
        page = client("GET", path, headers={"prefer": "odata.maxpagesize=4"})
        walked += names(page)
        path = page.json().get("@odata.nextLink")
    assert walked == newest_first


# Exact error bodies


def test_errors_have_contract_sentences_and_members(lake: Lake, client: Person, viewer: Person) -> None:
    schema = made(client)
    path = f"/gts/{schema['id']}"
    assert facts(client("GET", f"/gts/{UNKNOWN}", code=404), "schema_id") == ("Schema not found", UNKNOWN)
    bad = payload(fields=[{"name": "a", "type": "object"}])
    sentence = "Only scalar types allowed in query returns"
    assert facts(client("POST", "/gts", json=bad, code=400), "field") == (sentence, "a")
    taken = client("POST", "/gts", json=payload(name="  ORDERS by Day "), code=409)
    assert facts(taken, "name") == ("Schema name already exists", "  ORDERS by Day ")
    refer(lake, client, schema["id"])
    used = client("DELETE", path, code=409)
    assert facts(used, "query_count") == ("Schema is referenced by active queries", 1)
    stale = client("PUT", path, json=payload(version=7), code=409)
    assert facts(stale, "current_version") == ("Schema was modified by another user", 1)
    forbidden = viewer("POST", "/gts", json=payload(name="x"), code=403)
    assert facts(forbidden, "required_role") == ("Insufficient permissions", "analytics.developer")


@pytest.mark.parametrize(
    ("field", "pointer"), [({"name": "a"}, "/fields/0/type"), ({"name": "a", "type": "array"}, "/fields/0/items")]
)
def test_create_field_without_scalar_type_returns_contract_sentence(
    client: Person, field: dict[str, Any], pointer: str
) -> None:
    response = client("POST", "/gts", json=payload(fields=[field]), code=400)
    assert facts(response, "field") == ("Only scalar types allowed in query returns", "a")
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


def facts(answer: httpx.Response, key: str) -> tuple[str, Any]:
    problem = answer.json()
    return problem["error"], problem[key]


def test_create_schema_reports_all_errors(client: Person) -> None:
    sent = {"type_id": "x", "fields": [{"name": "a b", "type": "string"}, {"type": "money"}], "colour": "red"}
    problem = client("POST", "/gts", json=sent, code=400).json()
    pointers = {each["pointer"] for each in problem["errors"]}
    assert pointers == {"/colour", "/name", "/type_id", "/fields/0/name", "/fields/1/name", "/fields/1/type"}


@pytest.mark.parametrize(
    "sent",
    [
        [], "text", 5, {}, {"entity": []}, {"name": None}, payload(name=""), payload(name="   "), payload(name=5),
        payload(name="x" * 501), payload(name="a\0b"), payload(fields=[]), payload(fields={}), payload(fields=None),
        payload(description=5), payload(metadata=[]), payload(metadata={"a": "\0"}), payload(state="ARCHIVED"),
        payload(state="active"), payload(fields=[{"name": "a", "type": "string"}] * 2),
        payload(metadata={"a": {"b": [[[[[]]]]]}, "deep": None} | {"d": eval("[" * 60 + "]" * 60)}),
    ],
)  # fmt: skip
def test_create_schema_with_bad_payload_stores_nothing(client: Person, sent: Any) -> None:
    assert client("POST", "/gts", json=sent, code=400).json()["status"] == 400
    assert client("GET", "/gts").json()["value"] == []


def test_create_schema_accepts_wrapped_payload_and_server_managed_members(client: Person) -> None:
    wrapped = client("POST", "/gts", json={"entity": payload(id=UNKNOWN, created_by="me", version=9)}, code=201).json()
    assert wrapped["id"] != UNKNOWN
    assert wrapped["version"] == 1
    assert (
        client("PUT", f"/gts/{wrapped['id']}", json={"entity": wrapped | {"description": None}}).json()["version"] == 2
    )


def test_show_schema_by_uuid_and_by_gts_id(client: Person) -> None:
    schema = made(client)
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


def test_built_in_types_are_readable_and_immutable(client: Person) -> None:
    params = {"$filter": f"type_id eq '{gts.BASE_TYPE}'", "$count": "true"}
    page = client("GET", "/gts", params=params).json()
    assert [each["name"] for each in page["value"]] == ["Query Returns Schema"]
    assert page["@odata.count"] == 1
    [entry] = page["value"]
    assert client("GET", f"/gts/{entry['id']}").json() == {"@odata.context": "/$metadata#gts/$entity", **entry}
    client("PUT", f"/gts/{entry['id']}", json=payload(version=1), code=409)
    client("DELETE", f"/gts/{entry['id']}", code=409)
    both = {"$filter": f"type_id in ('{gts.BASE_TYPE}', '{gts.QUERY_RETURNS}')"}
    made(client)
    assert names(client("GET", "/gts", params=both)) == [NAME, "Query Returns Schema"]
    assert names(client("GET", "/gts", params=both | {"$top": "1", "$skip": "1"})) == ["Query Returns Schema"]
    assert names(client("GET", "/gts")) == [NAME]


def test_create_schema_accepts_three_array_notations_and_returns_one(client: Person) -> None:
    ways: list[Any] = [{"type": "string", "array": True}, {"type": "string[]"}, {"type": "array", "items": "string"}]
    fields = [{"name": f"f{i}", **way} for i, way in enumerate(ways)]
    returned = made(client, fields=fields)["fields"]
    assert returned == [{"name": f"f{i}", "type": "string", "optional": False, "array": True} for i in range(3)]


# Changing


def test_replace_schema_requires_version_in_body_or_if_match(client: Person) -> None:
    path = f"/gts/{made(client)['id']}"
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


def test_if_match_accepts_lists_and_compares_strongly(client: Person) -> None:
    path = f"/gts/{made(client)['id']}"
    for other in ('W/"1"', '"2", "3"', '"x"', '""', '"01"', '"1,"', '"٢"'.encode(), 'W/"1", "2"'):
        client("PUT", path, json=payload(description="b"), headers={"if-match": other}, code=412)
    for version, matching in enumerate(('"7", "1"', 'W/"9",, "2" ,', '"a,b","3"', '"4"'), 1):
        changed = client("PUT", path, json=payload(description=f"d{version}"), headers={"if-match": matching})
        assert changed.json()["version"] == version + 1
    client("DELETE", path, headers={"if-match": '"1", "4"'}, code=412)
    client("DELETE", path, headers={"if-match": '"1", "5"'}, code=204)


def test_create_and_change_schema_accept_the_envelope_of_id_and_entity(client: Person) -> None:
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


def test_replace_schema_without_change_creates_no_version(client: Person) -> None:
    schema = made(client)
    assert client("PUT", f"/gts/{schema['id']}", json=payload(version=1)).json() == schema


def test_replace_schema_does_not_change_state_or_type(client: Person) -> None:
    path = f"/gts/{made(client)['id']}"
    client("PUT", path, json=payload(version=1, state="ACTIVE", description="x"))
    for other in ({"state": "DRAFT"}, {"type_id": f"{gts.QUERY_RETURNS}acme.shop._.orders.v1~"}):
        client("PUT", path, json=payload(version=2, **other), code=400)


def test_patch_schema_with_merge_patch_and_json_patch(client: Person) -> None:
    path = f"/gts/{made(client, metadata={'owner': 'finance', 'tags': ['a']})['id']}"
    merge = {"content-type": "application/merge-patch+json"}
    first = client("PATCH", path, content=b'{"metadata": {"owner": null}, "version": 1}', headers=merge).json()
    assert (first["metadata"], first["name"]) == ({"tags": ["a"]}, NAME)
    plain = client("PATCH", path, json={"description": None}, headers={"if-match": '"2"'}).json()
    assert plain["description"] is None
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
    for kind in ("text/plain", "application/xml", "application/json-patch"):
        client("PATCH", path, content=b"{}", headers={"content-type": kind}, code=415)


def test_every_schema_change_stores_a_revision(client: Person) -> None:
    path = f"/gts/{made(client)['id']}"
    client("PUT", path, json=payload(version=1, fields=FIELDS[:2]))
    client("POST", f"{path}/transitions", json={"to": "DEPRECATED", "version": 2, "reason": "old"})
    revisions = client("GET", f"{path}/versions").json()["value"]
    assert [(each["version"], each["change"], each["state"]) for each in revisions] == [
        (3, "deprecate", "DEPRECATED"), (2, "update", "ACTIVE"), (1, "create", "ACTIVE"),
    ]  # fmt: skip
    assert (revisions[0]["reason"], revisions[0]["author"]) == ("old", "ada")
    assert [each["version"] for each in client("GET", f"{path}/versions?$top=1&before=3").json()["value"]] == [2]
    assert client("GET", f"{path}/versions/1").json()["fields"] == FIELDS
    client("GET", f"{path}/versions/9", code=404)
    client("GET", f"{path}/versions/x", code=400)
    diff = client("GET", f"{path}/diff?from=1&to=2").json()
    assert (diff["from"], diff["to"], diff["members"], diff["compatible"]) == (1, 2, ["fields"], False)
    assert diff["breaking"] == [{"change": "removed", "field": "order_date", "from": FIELDS[2]}]
    assert client("GET", f"{path}/diff?from=2&to=1").json()["compatible"] is True
    client("GET", f"{path}/diff?from=1", code=400)


def test_breaking_change_requires_force_by_admin(lake: Lake, client: Person, developer: Person) -> None:
    schema = made(client)
    path = f"/gts/{schema['id']}"
    narrower = {"fields": FIELDS[:2]}
    ask = lambda: developer("POST", f"{path}/compatibility", json=narrower).json()  # noqa: E731
    assert (ask()["compatible"], ask()["accepted"], ask()["query_count"]) == (False, True, 0)
    refer(lake, client, schema["id"])
    assert (ask()["accepted"], ask()["query_count"]) == (False, 1)
    problem = developer("PUT", path, json=payload(version=1, **narrower), code=409).json()
    assert (problem["code"], problem["query_count"]) == ("BREAKING_CHANGE", 1)
    developer("PUT", f"{path}?force=true", json=payload(version=1, **narrower), code=403)
    wider = [*FIELDS, {"name": "note", "type": "string", "optional": True}]
    assert developer("PUT", path, json=payload(version=1, fields=wider)).json()["version"] == 2
    assert client("PUT", f"{path}?force=true", json=payload(version=2, **narrower)).json()["version"] == 3
    references = client("GET", f"{path}/references").json()
    assert (references["query_count"], references["queries"][0]["name"]) == (1, "a query")


def test_concurrent_replacements_of_one_version_have_one_winner(workspace: WorkspaceFixture, client: Person) -> None:
    path = f"/gts/{made(client)['id']}"
    for version in range(1, 6):
        with ThreadPoolExecutor(2) as pool:
            sends = [
                pool.submit(_code, client, path, payload(version=version, description=f"{version} {n}")) for n in "ab"
            ]
            assert sorted(each.result() for each in sends) == [200, 409]


def _code(client: Person, path: str, sent: Any) -> int:
    return client.send("PUT", path, json=sent).status_code


def test_schema_name_is_free_after_deletion_or_archiving(client: Person) -> None:
    first = made(client)
    client("DELETE", f"/gts/{first['id']}", code=204)
    second = made(client, state="DRAFT")
    client("POST", "/gts", json=payload(), code=409)
    client("POST", f"/gts/{second['id']}/transitions", json={"to": "ARCHIVED", "version": 1})
    third = made(client)
    back = client("POST", f"/gts/{second['id']}/transitions", json={"to": "DEPRECATED", "version": 2}, code=409)
    assert back.json()["error"] == "Schema name already exists"
    other = made(client, name="another")
    client("PUT", f"/gts/{other['id']}", json=payload(name=NAME.upper(), version=1), code=409)
    client("PUT", f"/gts/{third['id']}", json=payload(name=NAME.upper(), version=1))


# States


@pytest.mark.parametrize("to", list(LifecycleState))
@pytest.mark.parametrize("start", list(LifecycleState))
@pytest.mark.parametrize("role", [Role.VIEWER, Role.DEVELOPER, Role.ADMIN])
def test_schema_transitions_require_roles(
    client: Person, start: LifecycleState, to: LifecycleState, role: Role
) -> None:
    schema = in_state(client, start)
    transition = TRANSITIONS.get((start, to))
    sent = {"to": to.value, "version": schema["version"]}
    needed = transition.role if transition else Role.ADMIN if to is LifecycleState.DEPRECATED else Role.DEVELOPER
    refused = role < needed
    code = 403 if refused else 200 if transition else 409
    body = client.with_role(role)("POST", f"/gts/{schema['id']}/transitions", json=sent, code=code).json()
    if code == 200:
        assert (body["state"], body["version"]) == (to.value, schema["version"] + 1)
    else:
        assert client("GET", f"/gts/{schema['id']}").json() == schema


def in_state(client: Person, state: LifecycleState) -> dict[str, Any]:
    schema = made(client, name=f"{state} {uuid4()}", state="DRAFT" if state is LifecycleState.DRAFT else "ACTIVE")
    way = {
        LifecycleState.DEPRECATED: [LifecycleState.DEPRECATED],
        LifecycleState.ARCHIVED: [LifecycleState.DEPRECATED, LifecycleState.ARCHIVED],
    }.get(state, [])
    for step in way:
        sent = {"to": step.value, "version": schema["version"]}
        schema = client("POST", f"/gts/{schema['id']}/transitions", json=sent).json()
    return schema


def test_schema_changes_are_limited_by_state(client: Person) -> None:
    deprecated, archived = in_state(client, LifecycleState.DEPRECATED), in_state(client, LifecycleState.ARCHIVED)
    path = f"/gts/{deprecated['id']}"
    client("PATCH", path, json={"name": "other", "version": 2}, code=409)
    client("PATCH", path, json={"fields": FIELDS[:1], "version": 2}, code=409)
    assert client("PATCH", path, json={"description": "gone soon", "metadata": {}, "version": 2}).json()["version"] == 3
    client("PATCH", f"/gts/{archived['id']}", json={"description": "x", "version": 3}, code=409)


@pytest.mark.parametrize("sent", [{}, [], {"to": "ACTIVE"}, {"to": "GONE", "version": 1}, {"to": 5, "version": 1},
                                  {"to": "ACTIVE", "version": 1, "x": 1}, {"to": "ACTIVE", "version": 1, "reason": 5}])  # fmt: skip
def test_transition_with_bad_payload_is_rejected(client: Person, sent: Any) -> None:
    schema = made(client, state="DRAFT")
    client("POST", f"/gts/{schema['id']}/transitions", json=sent, code=400)


def test_deprecated_schema_responses_have_sunset_header(client: Person) -> None:
    schema = in_state(client, LifecycleState.DEPRECATED)
    answer = client("GET", f"/gts/{schema['id']}")
    since = datetime.fromisoformat(schema["state_changed_at"])
    assert answer.headers["deprecation"] == f"@{int(since.timestamp())}"
    assert answer.headers["sunset"] == (since + timedelta(days=90)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    assert "deprecation" not in client("GET", f"/gts/{made(client, name='new')['id']}").headers


@pytest.mark.parametrize(("days", "state"), [(89, "DEPRECATED"), (90, "ARCHIVED"), (91, "ARCHIVED")])
def test_archive_job_archives_schemas_after_grace_period(lake: Lake, client: Person, days: int, state: str) -> None:
    schema, used = in_state(client, LifecycleState.DEPRECATED), made(client, name="still used")
    refer(lake, client, used["id"])
    client("POST", f"/gts/{used['id']}/transitions", json={"to": "DEPRECATED", "version": 1})
    since = datetime.fromisoformat(client("GET", f"/gts/{used['id']}").json()["state_changed_at"])
    done = schemas.archive_deprecated(
        lake._workspace, schemas.archive_caller(client.tenant), days=90, now=since + timedelta(days=days)
    )
    assert client("GET", f"/gts/{schema['id']}").json()["state"] == state
    assert client("GET", f"/gts/{used['id']}").json()["state"] == "DEPRECATED"
    assert [str(entry.id) for entry in done.archived] == ([schema["id"]] if state == "ARCHIVED" else [])
    assert [(str(entry.id), count) for entry, count in done.referenced] == ([(used["id"], 1)] if days >= 90 else [])


# Who may do what


OPERATIONS: dict[str, tuple[Role, Callable[[Person, str, int], httpx.Response]]] = {
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


@pytest.mark.parametrize("operation", OPERATIONS)
def test_schema_routes_require_roles_of_contract_matrix(client: Person, operation: str) -> None:
    needed, act = OPERATIONS[operation]
    for role in Role:
        schema = made(client, name=f"for {role.name}")
        answer = act(client.with_role(role), schema["id"], 1)
        if role >= needed:
            assert answer.status_code in (200, 201, 204), answer.text
        else:
            assert answer.status_code == 403
            assert answer.json()["required_role"] == needed.claim


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name not in ("create", "search")])
def test_schema_of_other_tenant_returns_same_404_as_unknown_one(client: Person, operation: str) -> None:
    schema = made(client)
    other_tenant = client.of(uuid4())
    _, act = OPERATIONS[operation]
    theirs, nobodys = act(other_tenant, schema["id"], 1), act(other_tenant, UNKNOWN, 1)
    assert theirs.status_code == nobodys.status_code == 404
    assert theirs.text.replace(schema["id"], UNKNOWN) == nobodys.text
    assert client("GET", f"/gts/{schema['id']}").json() == schema
    assert other_tenant("GET", "/gts", params={"$count": "true"}).json()["@odata.count"] == 0
    made(other_tenant)  # a name that another tenant has is free


def test_concurrent_schema_deletion_and_new_query_exclude_each_other(
    workspace: WorkspaceFixture, lake: Lake, client: Person
) -> None:
    for _ in range(8):
        schema = made(client, name=f"{uuid4()}")

        def referring(id: str = schema["id"]) -> bool:
            try:
                refer(lake, client, id, name=f"{uuid4()}")
                return True
            except (NotFound, Unsupported):
                return False

        with ThreadPoolExecutor(2) as pool:
            deleted = pool.submit(lambda id=schema["id"]: client.send("DELETE", f"/gts/{id}").status_code)
            referred = pool.submit(referring)
        assert (deleted.result(), referred.result()) in ((204, False), (409, True))


@pytest.mark.parametrize("state", [LifecycleState.DRAFT, LifecycleState.DEPRECATED, LifecycleState.ARCHIVED])
def test_new_query_requires_active_schema(lake: Lake, client: Person, state: LifecycleState) -> None:
    schema = in_state(client, state)
    with pytest.raises(Unsupported, match="ACTIVE"):
        refer(lake, client, schema["id"])


# Searching


def test_search_schemas_by_field_and_words_with_select(client: Person) -> None:
    made(client, name="Ärger im Büro", description="50% off_sale", fields=[{"name": "mood", "type": "number"}])
    made(client)
    assert names(client("GET", "/gts", params={"$filter": "fields/any(f: f/name eq 'mood')"})) == ["Ärger im Büro"]
    assert names(client("GET", "/gts", params={"$search": "ÄRGER büro"})) == ["Ärger im Büro"]
    assert names(client("GET", "/gts", params={"$search": '"50% OFF_"'})) == ["Ärger im Büro"]
    assert names(client("GET", "/gts", params={"$filter": "tolower(name) eq 'ärger im büro'"})) == ["Ärger im Büro"]
    chosen = client("GET", "/gts", params={"$select": "name,gts_id,metadata", "$top": "1"}).json()["value"]
    assert [set(each) for each in chosen] == [{"name", "gts_id", "metadata"}]
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


def test_validate_rows_against_schema(viewer: Person, client: Person) -> None:
    path = f"/gts/{made(client)['id']}/validate"
    good = {"order_id": "A", "total_amount": 1.5, "order_date": "2026-01-31T10:30:00Z"}
    assert viewer("POST", path, json={"rows": [good]}).json() == {"valid": True, "error_count": 0, "errors": []}
    report = viewer("POST", path, json={"rows": [good, {"order_id": 5, "total_amount": True}]}).json()
    assert [each["message"] for each in report["errors"]] == [
        "Type mismatch for field order_id", "Type mismatch for field total_amount", "Missing required field: order_date",
    ]  # fmt: skip
    many = viewer("POST", path, json={"rows": [{}] * 200}).json()
    assert (many["error_count"], len(many["errors"])) == (600, 100)
    assert viewer("POST", path, json={"rows": {}}).json()["errors"][0]["message"] == "Result must be array"
    assert viewer("POST", path, json={"rows": [good | {"more": 1}], "strict": True}).json()["valid"] is False
    for bad in ({}, [], {"rows": [], "x": 1}, {"rows": [], "strict": "yes"}):
        viewer("POST", path, json=bad, code=400)


def test_infer_schema_from_dataset_and_samples(lake: Lake, client: Person) -> None:
    orders = b"order_id,total_amount,day,note\nA,1.5,2026-01-31,\nB,2,2026-02-01,x\n"
    client("POST", "/datasets?name=shop.orders", content=orders, headers={"content-type": "text/csv"}, code=201)
    kinds = {"order_id": "string", "total_amount": "number", "day": "date", "note": "string"}
    inferred = client("POST", "/gts/infer", json={"dataset": "shop.orders"}).json()
    assert {each["name"]: each["type"] for each in inferred["fields"]} == kinds
    sample = client("POST", "/gts/infer?name=Mine", content=orders, headers={"content-type": "text/csv"}).json()
    assert sample["name"] == "Mine"
    assert [each["name"] for each in sample["fields"] if each["optional"]] == ["note"]
    rows = [{"a": 1, "b": "2026-01-31", "c": [True]}, {"a": 2.5, "b": "2026-02-01", "c": []}, {"a": None, "c": [False]}]
    found = client("POST", "/gts/infer", json={"rows": rows}).json()["fields"]
    assert found == [
        {"name": "a", "type": "number", "optional": True}, {"name": "b", "type": "date", "optional": True},
        {"name": "c", "type": "boolean", "optional": False, "array": True},
    ]  # fmt: skip
    assert client("POST", "/gts", json=sample, code=201)
    for bad in ({}, {"rows": []}, {"rows": 5}, {"dataset": "shop.orders", "x": 1}, {"rows": [{"a": {}}]}):
        client("POST", "/gts/infer", json=bad, code=400)
    client("POST", "/gts/infer", json={"dataset": "shop.nothing"}, code=404)


def test_export_json_schema(client: Person) -> None:
    answer = client("GET", f"/gts/{made(client)['id']}/json-schema")
    assert answer.headers["content-type"] == "application/schema+json"
    inferred = answer.json()
    assert (inferred["title"], inferred["required"]) == (NAME, ["order_id", "total_amount", "order_date"])
    assert inferred["properties"]["order_date"] == {
        "type": "string",
        "format": "date-time",
        "description": "When order was placed",
    }


# Canaries


def test_search_schemas_returns_nothing_of_other_tenants(client: Person, soak: bool) -> None:
    """Many requests as tenant B, with A's ids and names: nothing of A's comes back."""
    canary = f"canary {uuid4()}"
    schema = made(client, name=canary, description=canary, metadata={"note": canary},
                  fields=[{"name": "secret_field", "type": "string", "description": canary}])  # fmt: skip
    other_tenant = client.of(uuid4())
    seen = []
    for number, (_, act) in enumerate(list(OPERATIONS.values()) * (12 if soak else 3)):
        for key in (schema["id"], schema["gts_id"], schema["id"].upper()):
            seen.append(act(other_tenant, key, 1 + number % 3))
        seen.append(other_tenant.send("GET", "/gts", params={"$search": canary, "$count": "true"}))
        seen.append(other_tenant.send("GET", "/gts", params={"$filter": f"name eq '{canary}' or id eq {schema['id']}"}))
        seen.append(other_tenant.send("GET", "/gts", params={"$filter": "fields/any(f: f/name eq 'secret_field')"}))
    for answer in seen:
        assert canary not in answer.text
        assert canary not in str(answer.headers)
        assert answer.status_code < 500
    assert client("GET", f"/gts/{schema['id']}").json() == schema


# What a hostile reader found


def test_metadata_change_from_1_to_true_is_a_change(client: Person) -> None:
    schema = made(client, metadata={"flag": 1})
    changed = client("PATCH", f"/gts/{schema['id']}", json={"metadata": {"flag": True}, "version": 1}).json()
    assert (changed["metadata"], changed["version"]) == ({"flag": True}, 2)


def test_replace_schema_checks_version_in_body_and_if_match(client: Person) -> None:
    path = f"/gts/{made(client)['id']}"
    for condition in ('"1"', "*"):
        client("PUT", path, json=payload(version=77), headers={"if-match": condition}, code=409)
        client("PATCH", path, json={"version": 77, "description": "x"}, headers={"if-match": condition}, code=409)
        moved = {"to": "DEPRECATED", "version": 77}
        client("POST", f"{path}/transitions", json=moved, headers={"if-match": condition}, code=409)
    client("PUT", path, json=payload(version=1), headers={"if-match": '"9"'}, code=412)


def test_role_is_checked_before_payload(viewer: Person, client: Person) -> None:
    path = f"/gts/{made(client)['id']}"
    viewer("PUT", path, json=[], code=403)
    viewer("PATCH", path, json={"x": 1}, code=403)
    viewer("POST", f"{path}/transitions", json={"to": "GONE"}, code=403)
    viewer("POST", "/gts", json=[], code=403)


def test_patch_schema_with_unknown_member_is_rejected(client: Person) -> None:
    path = f"/gts/{made(client)['id']}"
    for change in ({"bogus": None}, {"state": None}, {"type_id": None}, {"name": None}, {"fields": None}):
        client("PATCH", path, json={**change, "version": 1}, code=400)


def test_compatibility_report_agrees_with_change(client: Person) -> None:
    deprecated = in_state(client, LifecycleState.DEPRECATED)
    wider = {"fields": [*FIELDS, {"name": "note", "type": "string", "optional": True}]}
    path = f"/gts/{deprecated['id']}"
    assert client("POST", f"{path}/compatibility", json=wider).json()["accepted"] is False
    client("PATCH", path, json={**wider, "version": 2}, code=409)
    archived = in_state(client, LifecycleState.ARCHIVED)
    same = {name: archived[name] for name in ("name", "description", "fields", "metadata", "version")}
    client("PUT", f"/gts/{archived['id']}", json=same, code=409)


def test_forced_schema_change_is_recorded(lake: Lake, client: Person) -> None:
    schema = made(client)
    refer(lake, client, schema["id"])
    path = f"/gts/{schema['id']}"
    client("PUT", f"{path}?force=true", json=payload(version=1, fields=FIELDS[:1]))
    assert "force" in client("GET", f"{path}/versions").json()["value"][0]["reason"]


def test_show_built_in_type_by_gts_id(client: Person) -> None:
    entry = client("GET", f"/gts/{gts.QUERY_RETURNS}").json()
    assert (entry["gts_id"], entry["type_id"]) == (gts.QUERY_RETURNS, gts.BASE_TYPE)
    assert client("GET", f"/gts/{entry['id']}").json() == entry


@pytest.mark.parametrize("etag", ["*", 'W/"1"', '"0", "1"', ' "1" '])
def test_show_schema_with_current_etag_returns_304(client: Person, etag: str) -> None:
    client("GET", f"/gts/{made(client)['id']}", headers={"if-none-match": etag}, code=304)


def test_archive_job_continues_after_deleted_schema(
    lake: Lake, client: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, stays = in_state(client, LifecycleState.DEPRECATED), in_state(client, LifecycleState.DEPRECATED)
    due = schemas.result_schemas.list_deprecated

    def then_one_is_deleted(tx: Any) -> Any:
        found = due(tx)
        client("DELETE", f"/gts/{gone['id']}", code=204)
        return found

    monkeypatch.setattr(schemas.result_schemas, "list_deprecated", then_one_is_deleted)
    later = datetime.fromisoformat(stays["state_changed_at"]) + timedelta(days=90)
    schemas.archive_deprecated(lake._workspace, schemas.archive_caller(client.tenant), days=90, now=later)
    assert client("GET", f"/gts/{stays['id']}").json()["state"] == "ARCHIVED"


def test_validate_rows_cost_does_not_grow_with_declared_fields(client: Person) -> None:
    """Count the errors of 400,000 empty rows with 2,000 required fields without 800 million checks."""
    many = [{"name": f"f{number}", "type": "string"} for number in range(2_000)]
    path = f"/gts/{made(client, fields=many)['id']}/validate"
    report = client("POST", path, json={"rows": [{}] * 400_000}).json()
    assert (report["error_count"], len(report["errors"])) == (800_000_000, 100)


def test_duplicate_json_member_is_found_in_linear_time(client: Person) -> None:
    members = ",".join(f'"k{number}":0' for number in range(200_000))
    body = f'{{{members},"zz":0,"zz":0}}'.encode()
    problem = client("POST", "/gts", content=body, headers={"content-type": "application/json"}, code=400).json()
    assert "member 'zz' is duplicated" in problem["detail"]


@pytest.mark.parametrize("kind", ["text/plain", "", "application/octet-stream"])
def test_body_with_wrong_content_type_is_not_read(client: Person, kind: str) -> None:
    """Reject bodies of other media types unread: only JSON has a small limit."""

    def endless() -> Iterator[bytes]:
        yield b"x" * 1000
        raise AssertionError("the body was read")

    headers = {"content-type": kind} if kind else {}
    client("POST", "/gts", content=endless(), headers=headers, code=415)
    client(
        "POST",
        "/gts",
        content=b"{}",
        code=415,
        headers={"content-type": "application/json", "content-encoding": "gzip"},
    )


def test_infer_schema_from_sample_with_duplicate_column_is_rejected(client: Person) -> None:
    client("POST", "/gts/infer", content=b"a,a\n1,2\n", headers={"content-type": "text/csv"}, code=400)
