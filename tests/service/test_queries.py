"""Registered queries: create, change, lifecycle and preconditions."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from penstock.core.caller import Role
from penstock.core.odata import options
from penstock.core.registry import gts
from penstock.core.registry.lifecycle import TRANSITIONS, LifecycleState
from penstock.core.registry.query import QueryDatasetRef, QueryDraft, RegisteredQuery, parse_new_query
from penstock.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, PenstockError, Unsupported
from penstock.lake import Lake
from penstock.service.queries import definitions as query_definitions
from penstock.service.queries.definitions import QueryInspection
from penstock.service.registry import schemas
from penstock.service.registry.preconditions import VersionPrecondition

ALL = options([], query_definitions.FIELDS, default_top=50, max_top=200)
NEWEST = 2**31 - 1
ORDERS = QueryDatasetRef("finance", "orders")
PARAMETERS = [{"name": "region", "type": "string"}]
WAYS: dict[LifecycleState, tuple[LifecycleState, ...]] = {
    LifecycleState.ACTIVE: (),
    LifecycleState.DEPRECATED: (LifecycleState.DEPRECATED,),
    LifecycleState.ARCHIVED: (LifecycleState.DEPRECATED, LifecycleState.ARCHIVED),
}


def looked(draft: QueryDraft) -> QueryInspection:
    """Return the inspection that the sandbox makes of SQL that reads one dataset."""
    return QueryInspection((ORDERS,), ("Region",) if "$Region" in draft.sql else ())


def unasked(draft: QueryDraft) -> QueryInspection:
    raise AssertionError(f"this test needs no inspection of {draft}")


def schema(lake: Lake, name: str = "orders", **members: Any) -> str:
    payload = {"name": name, "type_id": gts.QUERY_RETURNS, "fields": [{"name": "id", "type": "number"}], **members}
    return str(schemas.create(lake._workspace, lake.caller, payload).id)


def value(returns: Any, name: str = "monthly", **members: Any) -> dict[str, Any]:
    return {"name": name, "sql": "SELECT id FROM finance.orders", "returns_schema_id": str(returns), **members}


def created(lake: Lake, returns: Any = None, name: str = "monthly", **members: Any) -> RegisteredQuery:
    sent = value(returns or schema(lake, f"of {uuid4()}"), name, **members)
    return query_definitions.create(lake._workspace, lake.caller, sent, looked)


def test_transition_of_a_referenced_schema_to_archived_is_refused(lake: Lake) -> None:
    returns = schema(lake)
    query = created(lake, returns)

    def move(to: str, version: int) -> None:
        schemas.change_state(lake._workspace, lake.caller, returns, {"to": to, "version": version}, None)

    move("DEPRECATED", 1)
    with pytest.raises(Conflict) as raised:
        move("ARCHIVED", 2)
    assert (raised.value.reason, raised.value.context["query_count"]) == ("schema_in_use", 1)
    assert schemas.show(lake._workspace, lake.caller, returns).draft.state is LifecycleState.DEPRECATED
    query_definitions.delete(lake._workspace, lake.caller, str(query.id), None)
    move("ARCHIVED", 2)


def test_drop_of_a_dataset_that_queries_read_requires_force(lake: Lake) -> None:
    orders, other = lake.create("Finance.Orders", {"id": [1]}), lake.create("finance.order", {"id": [1]})
    pinned = replace(ORDERS, version=1)
    first, second = (
        query_definitions.create(
            lake._workspace,
            lake.caller,
            value(schema(lake, name), name),
            lambda _, ref=ref: QueryInspection((ref,), ()),
        )
        for name, ref in (("b", ORDERS), ("a", pinned))
    )
    other.drop()
    with pytest.raises(Unsupported) as raised:
        orders.drop()
    assert raised.value.reason == "dataset_in_use"
    assert raised.value.context == {
        "dataset": "Finance.Orders",
        "query_count": 2,
        "queries": [{"id": str(second.id), "name": "a"}, {"id": str(first.id), "name": "b"}],
    }
    assert "Finance.Orders: a, b." in raised.value.message
    assert orders.current().num_rows == 1
    query_definitions.delete(lake._workspace, lake.caller, "a", None)
    with pytest.raises(Unsupported):
        orders.drop()
    orders.drop(force=True)
    assert not lake.datasets()


def test_drop_ignores_queries_that_were_deleted(lake: Lake) -> None:
    orders, query = lake.create("finance.orders", {"id": [1]}), created(lake)
    query_definitions.delete(lake._workspace, lake.caller, str(query.id), None)
    orders.drop()


def load_query(lake: Lake, key: Any) -> RegisteredQuery:
    return query_definitions.show(lake._workspace, lake.caller, str(key))


def replaced(
    lake: Lake,
    key: Any,
    new: Any,
    expected: VersionPrecondition | None = None,
    look: query_definitions.Inspector = looked,
) -> RegisteredQuery:
    return query_definitions.replace_with(lake._workspace, lake.caller, str(key), new, expected, look)


def moved(lake: Lake, key: Any, to: Any, **members: Any) -> RegisteredQuery:
    return query_definitions.change_state(lake._workspace, lake.caller, str(key), {"to": to, **members}, None)


def in_state(lake: Lake, state: LifecycleState) -> RegisteredQuery:
    query = created(lake, state="DRAFT" if state is LifecycleState.DRAFT else "ACTIVE")
    for step in WAYS.get(state, ()):
        query = moved(lake, query.id, step, version=query.version)
    return query


def as_(lake: Lake, role: Role) -> Lake:
    return Lake(lake._workspace, replace(lake.caller, role=role), lake._folder)


def refused(kind: type[PenstockError], use: Callable[..., Any], *args: Any, **named: Any) -> str:
    with pytest.raises(kind) as raised:
        use(*args, **named)
    return raised.value.reason


# -- making and finding ------------------------------------------------------------------------------------------------


def test_show_returns_created_query_by_id_and_name(lake: Lake) -> None:
    returns = schema(lake)
    sent = value(returns, "Monthly  ", description="d", sql="SELECT $Region", parameters=PARAMETERS)
    made = query_definitions.create(lake._workspace, lake.caller, {"entity": sent}, looked)
    assert (made.draft, made.datasets, made.version) == (parse_new_query(sent), (ORDERS,), 1)
    assert (made.state, made.created_by, made.updated_by) == (LifecycleState.ACTIVE, lake.caller.user, lake.caller.user)
    assert made.created_at == made.updated_at == made.state_changed_at
    for key in (made.id, str(made.id).upper(), "monthly", " MONTHLY"):
        assert load_query(lake, key) == made
    assert query_definitions.search(lake._workspace, lake.caller, ALL).items == [made]
    for key in (uuid4(), "weekly", "", "a\0b", "\ud800"):
        assert refused(NotFound, load_query, lake, key) == "query_not_found"


def test_show_treats_uuid_text_as_id(lake: Lake) -> None:
    first = created(lake)
    second = created(lake, name=str(first.id))
    assert load_query(lake, first.id) == first
    assert load_query(lake, second.id) == second


@pytest.mark.parametrize("kind", ["", "gts://"])
def test_create_accepts_schema_id_and_full_type_id(lake: Lake, kind: str) -> None:
    returns = schema(lake, type_id=f"{gts.QUERY_RETURNS}acme.shop._.orders.v1~")
    full = f"{kind}{gts.QUERY_RETURNS}acme.shop._.orders.v1~{returns}"
    assert created(lake, full).draft.returns_schema_id == UUID(returns)
    for wrong in (f"{gts.QUERY_RETURNS}{returns}", uuid4(), schemas.BUILT_IN_SCHEMAS[0].id):
        assert refused(NotFound, created, lake, wrong, "other") == "schema_not_found"


def test_create_reports_all_payload_errors_before_inspection(lake: Lake) -> None:
    made = created(lake)
    good = value(schema(lake))
    wrong: list[tuple[Any, str]] = [
        (None, "bad_payload"),
        ([], "bad_payload"),
        ({}, "bad_query"),
        (good | {"sql": ""}, "bad_query"),
        (good | {"owner": "me"}, "bad_query"),
        (good | {"returns_schema_id": "orders"}, "bad_query"),
    ]
    for sent, reason in wrong:
        assert refused(Invalid, query_definitions.create, lake._workspace, lake.caller, sent, unasked) == reason
        assert refused(Invalid, replaced, lake, made.id, sent, VersionPrecondition((1,)), unasked) == reason
    assert query_definitions.search(lake._workspace, lake.caller, ALL).items == [made]


def test_create_with_certain_mismatch_is_rejected(lake: Lake) -> None:
    problem = {"field": "id", "expected": "number", "actual": "string", "message": "Type mismatch for field id"}

    def misfit(_: QueryDraft) -> QueryInspection:
        return QueryInspection((ORDERS,), (), [problem])

    made, returns = created(lake), schema(lake)
    for use in (
        lambda: query_definitions.create(lake._workspace, lake.caller, value(returns, "other"), misfit),
        lambda: replaced(lake, made.id, value(returns), VersionPrecondition((1,)), misfit),
    ):
        with pytest.raises(Invalid) as raised:
            use()
        assert raised.value.reason == "query_does_not_fit"
        assert raised.value.context == {"schema_id": returns, "errors": [{"pointer": "/sql", **problem}]}
    assert query_definitions.search(lake._workspace, lake.caller, ALL).items == [made]


def test_create_requires_parameters_of_the_sql(lake: Lake) -> None:
    made = created(lake)
    for changes in ({"parameters": PARAMETERS}, {"sql": "SELECT $Region"}):
        assert refused(Invalid, created, lake, None, "other", **changes) == "bad_placeholders"
        new = value(made.draft.returns_schema_id, **changes)
        assert refused(Invalid, replaced, lake, made.id, new, VersionPrecondition((1,))) == "bad_placeholders"
    assert load_query(lake, made.id) == made


# -- changing ------------------------------------------------------------------------------------------------------------


def test_replace_with_accepts_changed_representation(lake: Lake) -> None:
    made = created(lake)
    after = replaced(lake, made.id, {**made.as_json(), "name": "weekly"}, look=unasked)
    assert after == replace(made, draft=replace(made.draft, name="weekly"), version=2, updated_at=after.updated_at)
    assert after.updated_at > made.updated_at
    assert load_query(lake, "weekly") == after
    assert refused(NotFound, load_query, lake, "monthly") == "query_not_found"


def test_replace_with_new_sql_inspects_it(lake: Lake) -> None:
    made, other = created(lake), QueryDatasetRef("finance", "refunds", 3)
    new = value(made.draft.returns_schema_id, sql="SELECT id FROM finance.refunds AS r AT (VERSION => 3)")
    after = replaced(lake, made.id, new, VersionPrecondition((1,)), lambda _: QueryInspection((other,), ()))
    assert after.datasets == load_query(lake, made.id).datasets == (other,)
    assert query_definitions.get_version(lake._workspace, lake.caller, "monthly", 1).datasets == (ORDERS,)


def test_replace_with_no_change_creates_no_version(lake: Lake) -> None:
    made = created(lake)
    assert replaced(lake, made.id, value(made.draft.returns_schema_id), VersionPrecondition((1,)), unasked) == made


EXPECTATIONS: list[tuple[VersionPrecondition | None, int | None, str | None]] = [
    (VersionPrecondition((1,)), None, None),
    (VersionPrecondition(None, from_header=True), None, None),
    (None, 1, None),
    (VersionPrecondition((2,)), None, "query_changed"),
    (VersionPrecondition((2,), from_header=True), None, "precondition_failed"),
    (None, 2, "query_changed"),
    (VersionPrecondition((2,), from_header=True), 1, "precondition_failed"),
]


@pytest.mark.parametrize(("expected", "version", "reason"), EXPECTATIONS)
def test_replace_with_stale_version_conflicts(
    lake: Lake, expected: VersionPrecondition | None, version: int | None, reason: str | None
) -> None:
    made = created(lake)
    new = value(made.draft.returns_schema_id, "weekly") | ({} if version is None else {"version": version})
    if reason is None:
        assert replaced(lake, made.id, new, expected).version == 2
        return
    with pytest.raises(Conflict) as raised:
        replaced(lake, made.id, new, expected)
    assert raised.value.reason == reason
    assert raised.value.context == {"query_id": str(made.id), "current_version": 1}
    assert load_query(lake, made.id) == made


def test_replace_with_missing_version_is_rejected(lake: Lake) -> None:
    made = created(lake)
    assert refused(Invalid, replaced, lake, made.id, value(made.draft.returns_schema_id, "weekly")) == "missing_version"


@pytest.mark.parametrize("expected", [VersionPrecondition((1,)), VersionPrecondition(None, from_header=True)])
def test_replace_with_concurrent_change_conflicts(lake: Lake, expected: VersionPrecondition) -> None:
    made = created(lake)

    def overtaken(draft: QueryDraft) -> QueryInspection:
        moved(lake, made.id, "DEPRECATED", version=1)
        return looked(draft)

    new = value(made.draft.returns_schema_id, sql="SELECT 2 AS id")
    assert refused(Conflict, replaced, lake, made.id, new, expected, overtaken) == "query_changed"
    now = load_query(lake, made.id)
    assert (now.state, now.draft.sql, now.version) == (LifecycleState.DEPRECATED, made.draft.sql, 2)


def test_delete_removes_query_and_frees_its_name(lake: Lake) -> None:
    made = created(lake)
    for expected, reason in [
        (VersionPrecondition((2,)), "query_changed"),
        (VersionPrecondition((2,), from_header=True), "precondition_failed"),
    ]:
        assert (
            refused(Conflict, query_definitions.delete, lake._workspace, lake.caller, str(made.id), expected) == reason
        )
    query_definitions.delete(lake._workspace, lake.caller, str(made.id), VersionPrecondition((1,)))
    for key in (made.id, "monthly"):
        assert refused(NotFound, load_query, lake, key) == "query_not_found"
    assert created(lake).id != made.id
    assert refused(AlreadyExists, created, lake) == "query_name_taken"


# -- states --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", LifecycleState)
@pytest.mark.parametrize("current", LifecycleState)
def test_change_state_follows_schema_lifecycle_and_roles(
    lake: Lake, current: LifecycleState, to: LifecycleState
) -> None:
    before = in_state(lake, current)
    path = TRANSITIONS.get((current, to))
    if path is None:
        assert refused(Unsupported, moved, lake, before.id, to, version=before.version) == "illegal_transition"
        assert load_query(lake, before.id) == before
        return
    for role in Role:
        if role < path.role:
            someone = as_(lake, role)
            assert refused(Forbidden, moved, someone, before.id, to, version=before.version) == "role_too_low"
    after = moved(as_(lake, path.role), before.id, to, version=before.version, reason="because")
    assert (after.state, after.version) == (to, before.version + 1)
    assert after.state_changed_at == after.updated_at > before.updated_at
    assert load_query(lake, before.id) == after
    newest, *_ = query_definitions.list_versions(lake._workspace, lake.caller, str(before.id), before=NEWEST, limit=9)
    assert (newest.change, newest.reason, newest.draft.state) == (path.verb, "because", to)


@pytest.mark.parametrize(
    "sent",
    [
        None, [], "ACTIVE", {}, {"to": "active", "version": 1}, {"to": ["ACTIVE"], "version": 1}, {"to": "DEPRECATED"},
        {"to": "DEPRECATED", "version": "1"}, {"to": "DEPRECATED", "version": 1, "reason": 7},
        {"to": "DEPRECATED", "version": 1, "reason": "\0"}, {"to": "DEPRECATED", "version": 1, "why": "x"},
    ],
)  # fmt: skip
def test_change_state_with_invalid_payload_is_rejected(lake: Lake, sent: Any) -> None:
    made = created(lake)
    refused(Invalid, query_definitions.change_state, lake._workspace, lake.caller, str(made.id), sent, None)
    assert load_query(lake, made.id) == made


def test_change_state_with_stale_version_conflicts(lake: Lake) -> None:
    made = created(lake)
    assert refused(Conflict, moved, lake, made.id, "DEPRECATED", version=2) == "query_changed"
    assert load_query(lake, made.id) == made


@pytest.mark.parametrize("state", LifecycleState)
def test_state_limits_changes_of_a_query(lake: Lake, state: LifecycleState) -> None:
    before = in_state(lake, state)
    changes = {"description": {"description": "new"}, "sql": {"sql": "SELECT 2 AS id"}}
    open_ = {LifecycleState.DEPRECATED: ["description"], LifecycleState.ARCHIVED: []}.get(state, list(changes))
    for member, change in changes.items():
        now = load_query(lake, before.id)
        new = {**now.as_json(), **change}
        if member in open_:
            assert replaced(lake, now.id, new).version == now.version + 1
        else:
            assert refused(Unsupported, replaced, lake, now.id, new, None, unasked) == "read_only_state"
            assert load_query(lake, now.id) == now


# -- its schema ----------------------------------------------------------------------------------------------------------


def test_delete_schema_with_referring_query_is_rejected(lake: Lake) -> None:
    returns, other = schema(lake), schema(lake, "other")
    made = created(lake, returns)
    with pytest.raises(Conflict) as raised:
        schemas.delete(lake._workspace, lake.caller, returns, None)
    assert (raised.value.reason, raised.value.context["query_count"]) == ("schema_in_use", 1)
    response = schemas.list_references(lake._workspace, lake.caller, returns)
    assert response["queries"] == [{"id": str(made.id), "name": "monthly", "state": "ACTIVE", "version": 1}]
    replaced(lake, made.id, value(other), VersionPrecondition((1,)))
    schemas.delete(lake._workspace, lake.caller, returns, None)
    assert refused(Conflict, schemas.delete, lake._workspace, lake.caller, other, None) == "schema_in_use"
    query_definitions.delete(lake._workspace, lake.caller, "monthly", None)
    schemas.delete(lake._workspace, lake.caller, other, None)


def test_create_with_schema_deleted_during_inspection_is_rejected(lake: Lake) -> None:
    returns, made = schema(lake), created(lake)

    def too_late(draft: QueryDraft) -> QueryInspection:
        schemas.delete(lake._workspace, lake.caller, str(draft.returns_schema_id), None)
        return looked(draft)

    sent = value(returns, "other")
    assert (
        refused(NotFound, query_definitions.create, lake._workspace, lake.caller, sent, too_late) == "schema_not_found"
    )
    second = value(schema(lake, "second"))
    assert refused(NotFound, replaced, lake, made.id, second, VersionPrecondition((1,)), too_late) == "schema_not_found"
    assert load_query(lake, made.id) == made


def test_concurrent_schema_delete_and_create_never_both_succeed(lake: Lake, soak: bool) -> None:
    def happened(use: Callable[[], Any]) -> bool:
        try:
            use()
        except (NotFound, Conflict) as error:
            assert error.reason in ("schema_not_found", "schema_in_use")  # noqa: PT017
            return False
        return True

    for turn in range(100 if soak else 8):
        returns = schema(lake, f"{turn}")
        with ThreadPoolExecutor(2) as pool:
            made = pool.submit(happened, lambda id=returns, turn=turn: created(lake, id, f"{turn}"))
            deleted = pool.submit(happened, lambda id=returns: schemas.delete(lake._workspace, lake.caller, id, None))
        assert made.result() != deleted.result()


# -- who may -------------------------------------------------------------------------------------------------------------

USES: dict[str, tuple[Role, Callable[[Lake, RegisteredQuery], Any]]] = {
    "create": (Role.DEVELOPER, lambda lake, query: created(lake, query.draft.returns_schema_id, "another")),
    "show": (Role.VIEWER, lambda lake, query: load_query(lake, query.id)),
    "search": (Role.VIEWER, lambda lake, _: query_definitions.search(lake._workspace, lake.caller, ALL)),
    "versions": (
        Role.VIEWER,
        lambda lake, query: query_definitions.list_versions(
            lake._workspace, lake.caller, str(query.id), before=NEWEST, limit=9
        ),
    ),
    "version": (
        Role.VIEWER,
        lambda lake, query: query_definitions.get_version(lake._workspace, lake.caller, str(query.id), 1),
    ),
    "replace": (
        Role.DEVELOPER,
        lambda lake, query: replaced(
            lake, query.id, value(query.draft.returns_schema_id, "weekly"), VersionPrecondition((1,))
        ),
    ),
    "deprecate": (Role.ADMIN, lambda lake, query: moved(lake, query.id, "DEPRECATED", version=1)),
    "remove": (
        Role.ADMIN,
        lambda lake, query: query_definitions.delete(lake._workspace, lake.caller, str(query.id), None),
    ),
}


@pytest.mark.parametrize("use", USES)
def test_roles_limit_read_write_and_delete(lake: Lake, use: str) -> None:
    made = created(lake)
    least, function = USES[use]
    for role in Role:
        if role < least:
            assert refused(Forbidden, function, as_(lake, role), made) == "role_too_low"
        elif role is least:
            function(as_(lake, role), made)


@pytest.mark.parametrize("use", ["show", "versions", "version", "replace", "deprecate", "remove"])
def test_query_of_other_tenant_equals_unknown_query(lake: Lake, other_tenant: Lake, use: str) -> None:
    made = created(lake)
    answers = set()
    for id in (made.id, uuid4()):
        with pytest.raises(NotFound) as raised:
            USES[use][1](other_tenant, replace(made, id=id))
        answers.add(str(raised.value.as_dict()).replace(str(id), "ID"))
    assert len(answers) == 1
    assert load_query(lake, made.id) == made
    assert query_definitions.search(other_tenant._workspace, other_tenant.caller, ALL).items == []
    assert refused(NotFound, load_query, other_tenant, "monthly") == "query_not_found"
