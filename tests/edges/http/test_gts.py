"""The registry over REST, on both databases: every scenario of the contract by its id, and what the rulings add."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from edges.http.client import OTHER, SECRET, Client, bearer, near, token
from penstock.catalog import queries
from penstock.core.registry import gts
from penstock.core.caller import Caller, Role, person
from penstock.core.registry.lifecycle import TRANSITIONS, State
from penstock.core.registry.query import Draft, Query
from penstock.errors import NotFound, Unsupported
from penstock.rest.app import application
from penstock.rest.context import Edge
from penstock.lake import Lake
from penstock.service.registry import schemas
from penstock.service.auth.tokens import Tokens
from workspaces import Place

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
def lake(place: Place) -> Iterator[Lake]:
    with place.open() as opened:
        yield opened


class Person(Client):
    """Somebody of a tenant, with a role."""

    def __init__(self, client: Client, tenant: UUID, role: Role = Role.ADMIN) -> None:
        super().__init__(client._send, token(role, tenant))
        self.tenant = tenant

    def with_role(self, role: Role) -> "Person":
        return Person(self, self.tenant, role)

    def of(self, tenant: UUID) -> "Person":
        return Person(self, tenant)

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Whatever the answer is."""
        assert self._sent
        return self._send(method, path, headers=bearer(self._sent), **options)


@pytest.fixture
def client(lake: Lake) -> Person:
    """An admin of a tenant that nobody else in the database has."""
    return Person(near(application(Edge(lake.workspace, Tokens(SECRET))), None), uuid4())


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
    """A query that refers to the schema."""
    caller = caller_of(client)
    with lake.workspace.db.write(caller) as tx:
        who, now, draft = caller.user, tx.now, Draft(name, None, "SELECT 1", (), UUID(schema))
        queries.insert(tx, Query(uuid4(), draft, (), 1, now, now, who, now, who))


def caller_of(client: Person) -> Caller:
    return Caller(client.tenant, person("", "ada"), "ada", Role.ADMIN)


# The contract's scenarios


def test_create_base_schema(developer: Person) -> None:
    """fdd-analytics-feature-schema-query-returns-test-create-base-schema"""
    answer = developer("POST", "/gts", json=payload(), code=201)
    told = answer.json()
    assert UUID(told["id"])
    assert told["gts_id"] == f"{gts.QUERY_RETURNS}{told['id']}"
    assert told["tenant_id"] == str(developer.tenant)
    assert (told["type_id"], told["state"], told["version"]) == (gts.QUERY_RETURNS, "ACTIVE", 1)
    assert told["fields"] == FIELDS
    assert answer.headers["location"] == f"/gts/{told['id']}"
    assert answer.headers["etag"] == '"1"'
    assert developer("GET", answer.headers["location"]).json() == told
    for bad in ("nonsense", "gts.a.b.c.d.v1~", f"{gts.QUERY_RETURNS}x", gts.BASE, gts.QUERY_RETURNS.upper(), 7):
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
    told = developer("POST", "/gts", json=payload(fields=fields), code=400).json()
    assert (told["error"], told["field"]) == ("Only scalar types allowed in query returns", "customer")
    assert told["errors"][0]["pointer"].startswith("/fields/3")
    assert developer("GET", "/gts").json()["value"] == []


def test_crud_lifecycle(client: Person, developer: Person) -> None:
    """fdd-analytics-feature-schema-query-returns-test-crud-lifecycle"""
    schema = made(developer)
    path = f"/gts/{schema['id']}"
    assert developer("GET", path).json() == schema
    changed = developer("PUT", path, json=payload(name="Orders", version=1)).json()
    assert (changed["name"], changed["version"]) == ("Orders", 2)
    told = developer("PUT", path, json=payload(name="Late", version=1), code=409).json()
    assert (told["error"], told["current_version"]) == ("Schema was modified by another user", 2)
    stranger = client.of(OTHER)
    for method, more in (("GET", {}), ("PUT", {"json": payload(version=2)}), ("DELETE", {})):
        assert stranger(method, path, code=404, **more).json()["error"] == "Schema not found"
    assert client("DELETE", path, code=204).content == b""
    assert developer("GET", path, code=404).json()["error"] == "Schema not found"


def test_odata_filter(client: Person) -> None:
    """fdd-analytics-feature-schema-query-returns-test-odata-filter"""
    made(client)
    made(client.of(uuid4()), name="somebody else's")
    asked = {"$filter": f"type_id eq '{gts.QUERY_RETURNS}'"}
    assert names(client("GET", "/gts", params=asked)) == [NAME]


def test_odata_pagination(client: Person) -> None:
    """fdd-analytics-feature-schema-query-returns-test-odata-pagination"""
    for number in range(1, 36):
        made(client, name=f"schema {number:02}")
    asked = {"$top": "10", "$skip": "20", "$orderby": "name"}
    answer = client("GET", "/gts", params=asked)
    assert names(answer) == [f"schema {number:02}" for number in range(21, 31)]
    last = client("GET", answer.json()["@odata.nextLink"])
    assert names(last) == [f"schema {number}" for number in range(31, 36)]
    assert "@odata.nextLink" not in last.json()
    newest_first = [f"schema {number:02}" for number in range(35, 0, -1)]
    assert names(client("GET", "/gts")) == newest_first
    counted = client("GET", "/gts", params={"$count": "true", "$top": "0"}).json()
    assert (counted["@odata.count"], counted["value"]) == (35, [])
    walked, path = [], "/gts?$top=4"
    while path:
        page = client("GET", path)
        walked += names(page)
        path = page.json().get("@odata.nextLink")
    assert walked == newest_first


# Error bodies, to the letter


def test_errors_have_the_words_and_keys_that_clients_look_for(lake: Lake, client: Person, viewer: Person) -> None:
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


def facts(answer: httpx.Response, key: str) -> tuple[str, Any]:
    told = answer.json()
    return told["error"], told[key]


def test_all_that_is_wrong_is_told_at_once(client: Person) -> None:
    sent = {"type_id": "x", "fields": [{"name": "a b", "type": "string"}, {"type": "money"}], "colour": "red"}
    told = client("POST", "/gts", json=sent, code=400).json()
    pointers = {each["pointer"] for each in told["errors"]}
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
def test_bad_payloads_are_refused_and_nothing_is_kept(client: Person, sent: Any) -> None:
    assert client("POST", "/gts", json=sent, code=400).json()["status"] == 400
    assert client("GET", "/gts").json()["value"] == []


def test_a_payload_may_be_wrapped_and_may_carry_what_the_server_manages(client: Person) -> None:
    wrapped = client("POST", "/gts", json={"entity": payload(id=UNKNOWN, created_by="me", version=9)}, code=201).json()
    assert wrapped["id"] != UNKNOWN
    assert wrapped["version"] == 1
    assert (
        client("PUT", f"/gts/{wrapped['id']}", json={"entity": wrapped | {"description": None}}).json()["version"] == 2
    )


def test_a_schema_is_reached_by_its_uuid_and_by_its_gts_id(client: Person) -> None:
    schema = made(client)
    for key in (schema["id"], schema["id"].upper(), schema["gts_id"]):
        assert client("GET", f"/gts/{key}").json() == schema
    other = f"{gts.QUERY_RETURNS}acme.shop._.orders.v1~{schema['id']}"
    for key in (
        other,
        f"{gts.BASE}{schema['id']}",
        "7",
        "x" * 500,
        f"{{{schema['id']}}}",
        schema["id"].replace("-", ""),
    ):
        client("GET", f"/gts/{key}", code=404)


def test_types_are_entries_that_nobody_changes(client: Person) -> None:
    asked = {"$filter": f"type_id eq '{gts.BASE}'", "$count": "true"}
    told = client("GET", "/gts", params=asked).json()
    assert [each["name"] for each in told["value"]] == ["Query Returns Schema"]
    assert told["@odata.count"] == 1
    [entry] = told["value"]
    assert client("GET", f"/gts/{entry['id']}").json() == entry
    client("PUT", f"/gts/{entry['id']}", json=payload(version=1), code=409)
    client("DELETE", f"/gts/{entry['id']}", code=409)
    both = {"$filter": f"type_id in ('{gts.BASE}', '{gts.QUERY_RETURNS}')"}
    made(client)
    assert names(client("GET", "/gts", params=both)) == ["Query Returns Schema", NAME]
    assert names(client("GET", "/gts", params=both | {"$top": "1", "$skip": "1"})) == [NAME]
    assert names(client("GET", "/gts")) == [NAME]


def test_arrays_of_scalars_are_said_in_three_ways_and_shown_in_one(client: Person) -> None:
    ways: list[Any] = [{"type": "string", "array": True}, {"type": "string[]"}, {"type": "array", "items": "string"}]
    fields = [{"name": f"f{i}", **way} for i, way in enumerate(ways)]
    shown = made(client, fields=fields)["fields"]
    assert shown == [{"name": f"f{i}", "type": "string", "optional": False, "array": True} for i in range(3)]


# Changing


def test_a_version_comes_in_the_body_or_in_if_match(client: Person) -> None:
    path = f"/gts/{made(client)['id']}"
    assert client("PUT", path, json=payload(), code=400).json()["code"] == "NO_VERSION"
    changed = client("PUT", path, json=payload(description="b"), headers={"if-match": '"1"'})
    assert changed.headers["etag"] == '"2"'
    stale = client("PUT", path, json=payload(description="c"), headers={"if-match": '"1"'}, code=412)
    assert stale.json()["current_version"] == 2
    for bad in ("1", 'W/"2"', '"2", "3"', '"x"', '""', '"٢"'.encode()):
        client("PUT", path, json=payload(), headers={"if-match": bad}, code=400)
    for bad in (0, -1, "2", 2.5, True, [2]):
        client("PUT", path, json=payload(version=bad), code=400)
    assert client("PUT", path, json=payload(description="d"), headers={"if-match": "*"}).json()["version"] == 3
    assert client("GET", path, headers={"if-none-match": '"3"'}, code=304).content == b""
    client("DELETE", path, headers={"if-match": '"1"'}, code=412)
    client("DELETE", path, headers={"if-match": '"3"'}, code=204)


def test_a_put_that_changes_nothing_makes_no_version(client: Person) -> None:
    schema = made(client)
    assert client("PUT", f"/gts/{schema['id']}", json=payload(version=1)).json() == schema


def test_state_and_type_do_not_change_by_a_put(client: Person) -> None:
    path = f"/gts/{made(client)['id']}"
    client("PUT", path, json=payload(version=1, state="ACTIVE", description="x"))
    for other in ({"state": "DRAFT"}, {"type_id": f"{gts.QUERY_RETURNS}acme.shop._.orders.v1~"}):
        client("PUT", path, json=payload(version=2, **other), code=400)


def test_patches_of_both_kinds(client: Person) -> None:
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


def test_every_change_keeps_a_revision(client: Person) -> None:
    path = f"/gts/{made(client)['id']}"
    client("PUT", path, json=payload(version=1, fields=FIELDS[:2]))
    client("POST", f"{path}/transitions", json={"to": "DEPRECATED", "version": 2, "reason": "old"})
    told = client("GET", f"{path}/versions").json()["value"]
    assert [(each["version"], each["change"], each["state"]) for each in told] == [
        (3, "deprecate", "DEPRECATED"), (2, "update", "ACTIVE"), (1, "create", "ACTIVE"),
    ]  # fmt: skip
    assert (told[0]["reason"], told[0]["author"]) == ("old", "ada")
    assert [each["version"] for each in client("GET", f"{path}/versions?$top=1&before=3").json()["value"]] == [2]
    assert client("GET", f"{path}/versions/1").json()["fields"] == FIELDS
    client("GET", f"{path}/versions/9", code=404)
    client("GET", f"{path}/versions/x", code=400)
    diff = client("GET", f"{path}/diff?from=1&to=2").json()
    assert (diff["from"], diff["to"], diff["members"], diff["compatible"]) == (1, 2, ["fields"], False)
    assert diff["breaking"] == [{"change": "removed", "field": "order_date", "from": FIELDS[2]}]
    assert client("GET", f"{path}/diff?from=2&to=1").json()["compatible"] is True
    client("GET", f"{path}/diff?from=1", code=400)


def test_a_change_that_breaks_readers_needs_an_admins_force(lake: Lake, client: Person, developer: Person) -> None:
    schema = made(client)
    path = f"/gts/{schema['id']}"
    narrower = {"fields": FIELDS[:2]}
    ask = lambda: developer("POST", f"{path}/compatibility", json=narrower).json()  # noqa: E731
    assert (ask()["compatible"], ask()["accepted"], ask()["query_count"]) == (False, True, 0)
    refer(lake, client, schema["id"])
    assert (ask()["accepted"], ask()["query_count"]) == (False, 1)
    told = developer("PUT", path, json=payload(version=1, **narrower), code=409).json()
    assert (told["code"], told["query_count"]) == ("BREAKS_READERS", 1)
    developer("PUT", f"{path}?force=true", json=payload(version=1, **narrower), code=403)
    wider = [*FIELDS, {"name": "note", "type": "string", "optional": True}]
    assert developer("PUT", path, json=payload(version=1, fields=wider)).json()["version"] == 2
    assert client("PUT", f"{path}?force=true", json=payload(version=2, **narrower)).json()["version"] == 3
    told = client("GET", f"{path}/references").json()
    assert (told["query_count"], told["queries"][0]["name"]) == (1, "a query")


def test_of_two_puts_with_one_version_one_wins(place: Place, client: Person) -> None:
    path = f"/gts/{made(client)['id']}"
    for version in range(1, 6):
        with ThreadPoolExecutor(2) as pool:
            sends = [
                pool.submit(_code, client, path, payload(version=version, description=f"{version} {n}")) for n in "ab"
            ]
            assert sorted(each.result() for each in sends) == [200, 409]


def _code(client: Person, path: str, sent: Any) -> int:
    return client.send("PUT", path, json=sent).status_code


def test_a_name_is_free_again_after_its_schema_was_deleted_or_archived(client: Person) -> None:
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


@pytest.mark.parametrize("to", list(State))
@pytest.mark.parametrize("start", list(State))
@pytest.mark.parametrize("role", [Role.VIEWER, Role.DEVELOPER, Role.ADMIN])
def test_who_may_take_a_schema_from_where_to_where(client: Person, start: State, to: State, role: Role) -> None:
    schema = in_state(client, start)
    wanted = TRANSITIONS.get((start, to))
    sent = {"to": to.value, "version": schema["version"]}
    needed = wanted.role if wanted else Role.ADMIN if to is State.DEPRECATED else Role.DEVELOPER
    refused = role < needed
    code = 403 if refused else 200 if wanted else 409
    told = client.with_role(role)("POST", f"/gts/{schema['id']}/transitions", json=sent, code=code).json()
    if code == 200:
        assert (told["state"], told["version"]) == (to.value, schema["version"] + 1)
    else:
        assert client("GET", f"/gts/{schema['id']}").json() == schema


def in_state(client: Person, state: State) -> dict[str, Any]:
    schema = made(client, name=f"{state} {uuid4()}", state="DRAFT" if state is State.DRAFT else "ACTIVE")
    way = {State.DEPRECATED: [State.DEPRECATED], State.ARCHIVED: [State.DEPRECATED, State.ARCHIVED]}.get(state, [])
    for step in way:
        sent = {"to": step.value, "version": schema["version"]}
        schema = client("POST", f"/gts/{schema['id']}/transitions", json=sent).json()
    return schema


def test_what_may_change_in_which_state(client: Person) -> None:
    deprecated, archived = in_state(client, State.DEPRECATED), in_state(client, State.ARCHIVED)
    path = f"/gts/{deprecated['id']}"
    client("PATCH", path, json={"name": "other", "version": 2}, code=409)
    client("PATCH", path, json={"fields": FIELDS[:1], "version": 2}, code=409)
    assert client("PATCH", path, json={"description": "gone soon", "metadata": {}, "version": 2}).json()["version"] == 3
    client("PATCH", f"/gts/{archived['id']}", json={"description": "x", "version": 3}, code=409)


@pytest.mark.parametrize("sent", [{}, [], {"to": "ACTIVE"}, {"to": "GONE", "version": 1}, {"to": 5, "version": 1},
                                  {"to": "ACTIVE", "version": 1, "x": 1}, {"to": "ACTIVE", "version": 1, "reason": 5}])  # fmt: skip
def test_a_transition_that_cannot_be_read_is_refused(client: Person, sent: Any) -> None:
    schema = made(client, state="DRAFT")
    client("POST", f"/gts/{schema['id']}/transitions", json=sent, code=400)


def test_deprecated_answers_say_when_it_ends(client: Person) -> None:
    schema = in_state(client, State.DEPRECATED)
    answer = client("GET", f"/gts/{schema['id']}")
    since = datetime.fromisoformat(schema["state_changed_at"])
    assert answer.headers["deprecation"] == f"@{int(since.timestamp())}"
    assert answer.headers["sunset"] == (since + timedelta(days=90)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    assert "deprecation" not in client("GET", f"/gts/{made(client, name='new')['id']}").headers


@pytest.mark.parametrize(("days", "state"), [(89, "DEPRECATED"), (90, "ARCHIVED"), (91, "ARCHIVED")])
def test_the_archive_job_after_so_many_days(lake: Lake, client: Person, days: int, state: str) -> None:
    schema, used = in_state(client, State.DEPRECATED), made(client, name="still used")
    refer(lake, client, used["id"])
    client("POST", f"/gts/{used['id']}/transitions", json={"to": "DEPRECATED", "version": 1})
    since = datetime.fromisoformat(client("GET", f"/gts/{used['id']}").json()["state_changed_at"])
    done = schemas.archive(lake.workspace, schemas.archiver(client.tenant), days=90, now=since + timedelta(days=days))
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
def test_each_role_may_do_what_the_matrix_says(client: Person, operation: str) -> None:
    needed, act = OPERATIONS[operation]
    for role in Role:
        schema = made(client, name=f"for {role.name}")
        answer = act(client.with_role(role), schema["id"], 1)
        if role >= needed:
            assert answer.status_code in (200, 201, 204), answer.text
        else:
            assert answer.status_code == 403
            assert answer.json()["required_role"] == needed.wire


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name not in ("create", "search")])
def test_another_tenants_schema_is_as_one_that_is_not_there(client: Person, operation: str) -> None:
    schema = made(client)
    stranger = client.of(uuid4())
    _, act = OPERATIONS[operation]
    theirs, nobodys = act(stranger, schema["id"], 1), act(stranger, UNKNOWN, 1)
    assert theirs.status_code == nobodys.status_code == 404
    assert theirs.text.replace(schema["id"], UNKNOWN) == nobodys.text
    assert client("GET", f"/gts/{schema['id']}").json() == schema
    assert stranger("GET", "/gts", params={"$count": "true"}).json()["@odata.count"] == 0
    made(stranger)  # a name that another tenant has is free


def test_a_delete_and_a_new_query_never_both_happen(place: Place, lake: Lake, client: Person) -> None:
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


@pytest.mark.parametrize("state", [State.DRAFT, State.DEPRECATED, State.ARCHIVED])
def test_a_new_query_may_only_refer_to_an_active_schema(lake: Lake, client: Person, state: State) -> None:
    schema = in_state(client, state)
    with pytest.raises(Unsupported, match="ACTIVE"):
        refer(lake, client, schema["id"])


# Searching


def test_search_by_field_by_words_and_with_a_projection(client: Person) -> None:
    made(client, name="Ärger im Büro", description="50% off_sale", fields=[{"name": "mood", "type": "number"}])
    made(client)
    assert names(client("GET", "/gts", params={"$filter": "fields/any(f: f/name eq 'mood')"})) == ["Ärger im Büro"]
    assert names(client("GET", "/gts", params={"$search": "ÄRGER büro"})) == ["Ärger im Büro"]
    assert names(client("GET", "/gts", params={"$search": '"50% OFF_"'})) == ["Ärger im Büro"]
    assert names(client("GET", "/gts", params={"$filter": "tolower(name) eq 'ärger im büro'"})) == ["Ärger im Büro"]
    chosen = client("GET", "/gts", params={"$select": "name,gts_id,metadata", "$top": "1"}).json()["value"]
    assert [set(each) for each in chosen] == [{"name", "gts_id", "metadata"}]
    for asked in (
        "$filter=colour eq 'red'",
        "$filter=name",
        "$orderby=fields",
        "$top=-1",
        "$expand=x",
        "x=1",
        "$select=y",
    ):
        told = client("GET", f"/gts?{asked}", code=400).json()
        assert told["status"] == 400
    assert "available" in client("GET", "/gts?$filter=colour eq 'red'", code=400).json()


# Rows and samples


def test_rows_are_checked_against_a_schema(viewer: Person, client: Person) -> None:
    path = f"/gts/{made(client)['id']}/validate"
    good = {"order_id": "A", "total_amount": 1.5, "order_date": "2026-01-31T10:30:00Z"}
    assert viewer("POST", path, json={"rows": [good]}).json() == {"valid": True, "error_count": 0, "errors": []}
    told = viewer("POST", path, json={"rows": [good, {"order_id": 5, "total_amount": True}]}).json()
    assert [each["message"] for each in told["errors"]] == [
        "Type mismatch for field order_id", "Type mismatch for field total_amount", "Missing required field: order_date",
    ]  # fmt: skip
    many = viewer("POST", path, json={"rows": [{}] * 200}).json()
    assert (many["error_count"], len(many["errors"])) == (600, 100)
    assert viewer("POST", path, json={"rows": {}}).json()["errors"][0]["message"] == "Result must be array"
    assert viewer("POST", path, json={"rows": [good | {"more": 1}], "strict": True}).json()["valid"] is False
    for bad in ({}, [], {"rows": [], "x": 1}, {"rows": [], "strict": "yes"}):
        viewer("POST", path, json=bad, code=400)


def test_a_schema_is_inferred_from_a_dataset_and_from_samples(lake: Lake, client: Person) -> None:
    orders = b"order_id,total_amount,day,note\nA,1.5,2026-01-31,\nB,2,2026-02-01,x\n"
    client("POST", "/datasets?name=shop.orders", content=orders, headers={"content-type": "text/csv"}, code=201)
    kinds = {"order_id": "string", "total_amount": "number", "day": "date", "note": "string"}
    told = client("POST", "/gts/infer", json={"dataset": "shop.orders"}).json()
    assert {each["name"]: each["type"] for each in told["fields"]} == kinds
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


def test_a_schema_is_exported_as_json_schema(client: Person) -> None:
    answer = client("GET", f"/gts/{made(client)['id']}/json-schema")
    assert answer.headers["content-type"] == "application/schema+json"
    told = answer.json()
    assert (told["title"], told["required"]) == (NAME, ["order_id", "total_amount", "order_date"])
    assert told["properties"]["order_date"] == {
        "type": "string",
        "format": "date-time",
        "description": "When order was placed",
    }


# Canaries


def test_a_stranger_never_sees_a_word_of_somebody_elses(client: Person, soak: bool) -> None:
    """Many requests as tenant B, with A's ids and names: nothing of A's comes back."""
    canary = f"canary {uuid4()}"
    schema = made(client, name=canary, description=canary, metadata={"note": canary},
                  fields=[{"name": "secret_field", "type": "string", "description": canary}])  # fmt: skip
    stranger = client.of(uuid4())
    seen = []
    for number, (_, act) in enumerate(list(OPERATIONS.values()) * (12 if soak else 3)):
        for key in (schema["id"], schema["gts_id"], schema["id"].upper()):
            seen.append(act(stranger, key, 1 + number % 3))
        seen.append(stranger.send("GET", "/gts", params={"$search": canary, "$count": "true"}))
        seen.append(stranger.send("GET", "/gts", params={"$filter": f"name eq '{canary}' or id eq {schema['id']}"}))
        seen.append(stranger.send("GET", "/gts", params={"$filter": "fields/any(f: f/name eq 'secret_field')"}))
    for answer in seen:
        assert canary not in answer.text
        assert canary not in str(answer.headers)
        assert answer.status_code < 500
    assert client("GET", f"/gts/{schema['id']}").json() == schema


# What a hostile reader found


def test_a_change_from_1_to_true_is_a_change(client: Person) -> None:
    schema = made(client, metadata={"flag": 1})
    changed = client("PATCH", f"/gts/{schema['id']}", json={"metadata": {"flag": True}, "version": 1}).json()
    assert (changed["metadata"], changed["version"]) == ({"flag": True}, 2)


def test_both_versions_that_are_sent_must_be_right(client: Person) -> None:
    path = f"/gts/{made(client)['id']}"
    for condition in ('"1"', "*"):
        client("PUT", path, json=payload(version=77), headers={"if-match": condition}, code=409)
        client("PATCH", path, json={"version": 77, "description": "x"}, headers={"if-match": condition}, code=409)
        moved = {"to": "DEPRECATED", "version": 77}
        client("POST", f"{path}/transitions", json=moved, headers={"if-match": condition}, code=409)
    client("PUT", path, json=payload(version=1), headers={"if-match": '"9"'}, code=412)


def test_who_may_not_is_told_so_before_what_is_wrong(viewer: Person, client: Person) -> None:
    path = f"/gts/{made(client)['id']}"
    viewer("PUT", path, json=[], code=403)
    viewer("PATCH", path, json={"x": 1}, code=403)
    viewer("POST", f"{path}/transitions", json={"to": "GONE"}, code=403)
    viewer("POST", "/gts", json=[], code=403)


def test_a_patch_names_only_what_there_is(client: Person) -> None:
    path = f"/gts/{made(client)['id']}"
    for change in ({"bogus": None}, {"state": None}, {"type_id": None}, {"name": None}, {"fields": None}):
        client("PATCH", path, json={**change, "version": 1}, code=400)


def test_the_verdict_beforehand_is_that_of_the_change(client: Person) -> None:
    deprecated = in_state(client, State.DEPRECATED)
    wider = {"fields": [*FIELDS, {"name": "note", "type": "string", "optional": True}]}
    path = f"/gts/{deprecated['id']}"
    assert client("POST", f"{path}/compatibility", json=wider).json()["accepted"] is False
    client("PATCH", path, json={**wider, "version": 2}, code=409)
    archived = in_state(client, State.ARCHIVED)
    same = {name: archived[name] for name in ("name", "description", "fields", "metadata", "version")}
    client("PUT", f"/gts/{archived['id']}", json=same, code=409)


def test_a_forced_change_is_on_record(lake: Lake, client: Person) -> None:
    schema = made(client)
    refer(lake, client, schema["id"])
    path = f"/gts/{schema['id']}"
    client("PUT", f"{path}?force=true", json=payload(version=1, fields=FIELDS[:1]))
    assert "force" in client("GET", f"{path}/versions").json()["value"][0]["reason"]


def test_a_type_is_reached_by_its_own_name(client: Person) -> None:
    entry = client("GET", f"/gts/{gts.QUERY_RETURNS}").json()
    assert (entry["gts_id"], entry["type_id"]) == (gts.QUERY_RETURNS, gts.BASE)
    assert client("GET", f"/gts/{entry['id']}").json() == entry


@pytest.mark.parametrize("known", ["*", 'W/"1"', '"0", "1"', ' "1" '])
def test_what_is_known_is_not_sent_again(client: Person, known: str) -> None:
    client("GET", f"/gts/{made(client)['id']}", headers={"if-none-match": known}, code=304)


def test_the_archive_job_goes_on_where_a_schema_vanishes(
    lake: Lake, client: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, stays = in_state(client, State.DEPRECATED), in_state(client, State.DEPRECATED)
    due = schemas.schemas.deprecated

    def then_one_is_deleted(tx: Any) -> Any:
        found = due(tx)
        client("DELETE", f"/gts/{gone['id']}", code=204)
        return found

    monkeypatch.setattr(schemas.schemas, "deprecated", then_one_is_deleted)
    later = datetime.fromisoformat(stays["state_changed_at"]) + timedelta(days=90)
    schemas.archive(lake.workspace, schemas.archiver(client.tenant), days=90, now=later)
    assert client("GET", f"/gts/{stays['id']}").json()["state"] == "ARCHIVED"


def test_many_promised_fields_make_no_row_dear(client: Person) -> None:
    """400,000 empty rows against 2,000 required fields: counted in full, without looking 800 million times."""
    many = [{"name": f"f{number}", "type": "string"} for number in range(2_000)]
    path = f"/gts/{made(client, fields=many)['id']}/validate"
    told = client("POST", path, json={"rows": [{}] * 400_000}).json()
    assert (told["error_count"], len(told["errors"])) == (800_000_000, 100)


def test_a_doubled_member_is_found_in_one_look(client: Person) -> None:
    members = ",".join(f'"k{number}":0' for number in range(200_000))
    body = f'{{{members},"zz":0,"zz":0}}'.encode()
    told = client("POST", "/gts", content=body, headers={"content-type": "application/json"}, code=400).json()
    assert "'zz' is there twice" in told["detail"]


@pytest.mark.parametrize("kind", ["text/plain", "", "application/octet-stream"])
def test_a_body_of_another_kind_is_not_read(client: Person, kind: str) -> None:
    """Only JSON has a small limit, so whatever else comes is refused before it is taken in."""

    def endless() -> Iterator[bytes]:
        yield b"x" * 1000
        raise AssertionError("somebody reads it")

    headers = {"content-type": kind} if kind else {}
    client("POST", "/gts", content=endless(), headers=headers, code=415)
    client(
        "POST",
        "/gts",
        content=b"{}",
        code=415,
        headers={"content-type": "application/json", "content-encoding": "gzip"},
    )


def test_a_sample_with_a_doubled_column_is_refused(client: Person) -> None:
    client("POST", "/gts/infer", content=b"a,a\n1,2\n", headers={"content-type": "text/csv"}, code=400)
