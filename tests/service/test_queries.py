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
TRANSITION_PATHS: dict[LifecycleState, tuple[LifecycleState, ...]] = {
    LifecycleState.ACTIVE: (),
    LifecycleState.DEPRECATED: (LifecycleState.DEPRECATED,),
    LifecycleState.ARCHIVED: (LifecycleState.DEPRECATED, LifecycleState.ARCHIVED),
}


def inspection_of(draft: QueryDraft) -> QueryInspection:
    """Return the inspection that the sandbox makes of SQL that reads one dataset."""
    return QueryInspection((ORDERS,), ("Region",) if "$Region" in draft.sql else ())


def no_inspection(draft: QueryDraft) -> QueryInspection:
    raise AssertionError(f"this test needs no inspection of {draft}")


def create_schema(lake: Lake, name: str = "orders", **members: Any) -> str:
    payload = {"name": name, "type_id": gts.QUERY_RETURNS, "fields": [{"name": "id", "type": "number"}], **members}
    return str(schemas.create(lake._workspace, lake.caller, payload).id)


def query_body(returns: Any, name: str = "monthly", **members: Any) -> dict[str, Any]:
    return {"name": name, "sql": "SELECT id FROM finance.orders", "returns_schema_id": str(returns), **members}


def create_query(lake: Lake, returns: Any = None, name: str = "monthly", **members: Any) -> RegisteredQuery:
    body = query_body(returns or create_schema(lake, f"of {uuid4()}"), name, **members)
    return query_definitions.create(lake._workspace, lake.caller, body, inspection_of)


def test_transition_of_a_referenced_schema_to_archived_is_rejected(lake: Lake) -> None:
    returns = create_schema(lake)
    query = create_query(lake, returns)

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
            query_body(create_schema(lake, name), name),
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
    orders, query = lake.create("finance.orders", {"id": [1]}), create_query(lake)
    query_definitions.delete(lake._workspace, lake.caller, str(query.id), None)
    orders.drop()


def load_query(lake: Lake, key: Any) -> RegisteredQuery:
    return query_definitions.show(lake._workspace, lake.caller, str(key))


def replace_query(
    lake: Lake,
    key: Any,
    new: Any,
    expected: VersionPrecondition | None = None,
    inspector: query_definitions.Inspector = inspection_of,
) -> RegisteredQuery:
    return query_definitions.replace_with(lake._workspace, lake.caller, str(key), new, expected, inspector)


def change_state(lake: Lake, key: Any, to: Any, **members: Any) -> RegisteredQuery:
    return query_definitions.change_state(lake._workspace, lake.caller, str(key), {"to": to, **members}, None)


def in_state(lake: Lake, state: LifecycleState) -> RegisteredQuery:
    query = create_query(lake, state="DRAFT" if state is LifecycleState.DRAFT else "ACTIVE")
    for step in TRANSITION_PATHS.get(state, ()):
        query = change_state(lake, query.id, step, version=query.version)
    return query


def as_role(lake: Lake, role: Role) -> Lake:
    return Lake(lake._workspace, replace(lake.caller, role=role), lake._folder)


def reason_of_error(error_class: type[PenstockError], use: Callable[..., Any], *args: Any, **keywords: Any) -> str:
    with pytest.raises(error_class) as raised:
        use(*args, **keywords)
    return raised.value.reason


# -- create and find ---------------------------------------------------------------------------------------------------


def test_show_returns_created_query_by_id_and_name(lake: Lake) -> None:
    returns = create_schema(lake)
    body = query_body(returns, "Monthly  ", description="d", sql="SELECT $Region", parameters=PARAMETERS)
    query = query_definitions.create(lake._workspace, lake.caller, {"entity": body}, inspection_of)
    assert (query.draft, query.datasets, query.version) == (parse_new_query(body), (ORDERS,), 1)
    assert (query.state, query.created_by, query.updated_by) == (
        LifecycleState.ACTIVE,
        lake.caller.user,
        lake.caller.user,
    )
    assert query.created_at == query.updated_at == query.state_changed_at
    for key in (query.id, str(query.id).upper(), "monthly", " MONTHLY"):
        assert load_query(lake, key) == query
    assert query_definitions.search(lake._workspace, lake.caller, ALL).items == [query]
    for key in (uuid4(), "weekly", "", "a\0b", "\ud800"):
        assert reason_of_error(NotFound, load_query, lake, key) == "query_not_found"


def test_show_treats_uuid_text_as_id(lake: Lake) -> None:
    first = create_query(lake)
    second = create_query(lake, name=str(first.id))
    assert load_query(lake, first.id) == first
    assert load_query(lake, second.id) == second


@pytest.mark.parametrize("reference", ["", "gts://"])
def test_create_accepts_schema_id_and_full_type_id(lake: Lake, reference: str) -> None:
    returns = create_schema(lake, type_id=f"{gts.QUERY_RETURNS}acme.shop._.orders.v1~")
    full = f"{reference}{gts.QUERY_RETURNS}acme.shop._.orders.v1~{returns}"
    assert create_query(lake, full).draft.returns_schema_id == UUID(returns)
    for wrong in (f"{gts.QUERY_RETURNS}{returns}", uuid4(), schemas.BUILT_IN_SCHEMAS[0].id):
        assert reason_of_error(NotFound, create_query, lake, wrong, "other") == "schema_not_found"


def test_create_reports_all_payload_errors_before_inspection(lake: Lake) -> None:
    query = create_query(lake)
    good = query_body(create_schema(lake))
    wrong: list[tuple[Any, str]] = [
        (None, "bad_payload"),
        ([], "bad_payload"),
        ({}, "bad_query"),
        (good | {"sql": ""}, "bad_query"),
        (good | {"owner": "me"}, "bad_query"),
        (good | {"returns_schema_id": "orders"}, "bad_query"),
    ]
    for body, reason in wrong:
        assert (
            reason_of_error(Invalid, query_definitions.create, lake._workspace, lake.caller, body, no_inspection)
            == reason
        )
        assert (
            reason_of_error(Invalid, replace_query, lake, query.id, body, VersionPrecondition((1,)), no_inspection)
            == reason
        )
    assert query_definitions.search(lake._workspace, lake.caller, ALL).items == [query]


def test_create_with_certain_mismatch_is_rejected(lake: Lake) -> None:
    problem = {"field": "id", "expected": "number", "actual": "string", "message": "Type mismatch for field id"}

    def mismatched(_: QueryDraft) -> QueryInspection:
        return QueryInspection((ORDERS,), (), [problem])

    query, returns = create_query(lake), create_schema(lake)
    for use in (
        lambda: query_definitions.create(lake._workspace, lake.caller, query_body(returns, "other"), mismatched),
        lambda: replace_query(lake, query.id, query_body(returns), VersionPrecondition((1,)), mismatched),
    ):
        with pytest.raises(Invalid) as raised:
            use()
        assert raised.value.reason == "query_does_not_fit"
        assert raised.value.context == {"schema_id": returns, "errors": [{"pointer": "/sql", **problem}]}
    assert query_definitions.search(lake._workspace, lake.caller, ALL).items == [query]


def test_create_requires_parameters_of_the_sql(lake: Lake) -> None:
    query = create_query(lake)
    for changes in ({"parameters": PARAMETERS}, {"sql": "SELECT $Region"}):
        assert reason_of_error(Invalid, create_query, lake, None, "other", **changes) == "bad_placeholders"
        new = query_body(query.draft.returns_schema_id, **changes)
        assert (
            reason_of_error(Invalid, replace_query, lake, query.id, new, VersionPrecondition((1,)))
            == "bad_placeholders"
        )
    assert load_query(lake, query.id) == query


# -- replace and delete --------------------------------------------------------------------------------------------------


def test_replace_with_accepts_changed_representation(lake: Lake) -> None:
    query = create_query(lake)
    after = replace_query(lake, query.id, {**query.as_json(), "name": "weekly"}, inspector=no_inspection)
    assert after == replace(query, draft=replace(query.draft, name="weekly"), version=2, updated_at=after.updated_at)
    assert after.updated_at > query.updated_at
    assert load_query(lake, "weekly") == after
    assert reason_of_error(NotFound, load_query, lake, "monthly") == "query_not_found"


def test_replace_with_new_sql_inspects_it(lake: Lake) -> None:
    query, other = create_query(lake), QueryDatasetRef("finance", "refunds", 3)
    new = query_body(query.draft.returns_schema_id, sql="SELECT id FROM finance.refunds AS r AT (VERSION => 3)")
    after = replace_query(lake, query.id, new, VersionPrecondition((1,)), lambda _: QueryInspection((other,), ()))
    assert after.datasets == load_query(lake, query.id).datasets == (other,)
    assert query_definitions.get_version(lake._workspace, lake.caller, "monthly", 1).datasets == (ORDERS,)


def test_replace_with_no_change_creates_no_version(lake: Lake) -> None:
    query = create_query(lake)
    assert (
        replace_query(
            lake, query.id, query_body(query.draft.returns_schema_id), VersionPrecondition((1,)), no_inspection
        )
        == query
    )


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
    query = create_query(lake)
    new = query_body(query.draft.returns_schema_id, "weekly") | ({} if version is None else {"version": version})
    if reason is None:
        assert replace_query(lake, query.id, new, expected).version == 2
        return
    with pytest.raises(Conflict) as raised:
        replace_query(lake, query.id, new, expected)
    assert raised.value.reason == reason
    assert raised.value.context == {"query_id": str(query.id), "current_version": 1}
    assert load_query(lake, query.id) == query


def test_replace_with_missing_version_is_rejected(lake: Lake) -> None:
    query = create_query(lake)
    assert (
        reason_of_error(Invalid, replace_query, lake, query.id, query_body(query.draft.returns_schema_id, "weekly"))
        == "missing_version"
    )


@pytest.mark.parametrize("expected", [VersionPrecondition((1,)), VersionPrecondition(None, from_header=True)])
def test_replace_with_concurrent_change_conflicts(lake: Lake, expected: VersionPrecondition) -> None:
    query = create_query(lake)

    def inspect_during_change(draft: QueryDraft) -> QueryInspection:
        change_state(lake, query.id, "DEPRECATED", version=1)
        return inspection_of(draft)

    new = query_body(query.draft.returns_schema_id, sql="SELECT 2 AS id")
    assert (
        reason_of_error(Conflict, replace_query, lake, query.id, new, expected, inspect_during_change)
        == "query_changed"
    )
    current = load_query(lake, query.id)
    assert (current.state, current.draft.sql, current.version) == (LifecycleState.DEPRECATED, query.draft.sql, 2)


def test_delete_removes_query_and_frees_its_name(lake: Lake) -> None:
    query = create_query(lake)
    for expected, reason in [
        (VersionPrecondition((2,)), "query_changed"),
        (VersionPrecondition((2,), from_header=True), "precondition_failed"),
    ]:
        assert (
            reason_of_error(Conflict, query_definitions.delete, lake._workspace, lake.caller, str(query.id), expected)
            == reason
        )
    query_definitions.delete(lake._workspace, lake.caller, str(query.id), VersionPrecondition((1,)))
    for key in (query.id, "monthly"):
        assert reason_of_error(NotFound, load_query, lake, key) == "query_not_found"
    assert create_query(lake).id != query.id
    assert reason_of_error(AlreadyExists, create_query, lake) == "query_name_taken"


# -- states --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", LifecycleState)
@pytest.mark.parametrize("current", LifecycleState)
def test_change_state_follows_schema_lifecycle_and_roles(
    lake: Lake, current: LifecycleState, to: LifecycleState
) -> None:
    before = in_state(lake, current)
    path = TRANSITIONS.get((current, to))
    if path is None:
        assert (
            reason_of_error(Unsupported, change_state, lake, before.id, to, version=before.version)
            == "illegal_transition"
        )
        assert load_query(lake, before.id) == before
        return
    for role in Role:
        if role < path.role:
            user = as_role(lake, role)
            assert (
                reason_of_error(Forbidden, change_state, user, before.id, to, version=before.version) == "role_too_low"
            )
    after = change_state(as_role(lake, path.role), before.id, to, version=before.version, reason="because")
    assert (after.state, after.version) == (to, before.version + 1)
    assert after.state_changed_at == after.updated_at > before.updated_at
    assert load_query(lake, before.id) == after
    newest, *_ = query_definitions.list_versions(lake._workspace, lake.caller, str(before.id), before=NEWEST, limit=9)
    assert (newest.change, newest.reason, newest.draft.state) == (path.verb, "because", to)


@pytest.mark.parametrize(
    "body",
    [
        None, [], "ACTIVE", {}, {"to": "active", "version": 1}, {"to": ["ACTIVE"], "version": 1}, {"to": "DEPRECATED"},
        {"to": "DEPRECATED", "version": "1"}, {"to": "DEPRECATED", "version": 1, "reason": 7},
        {"to": "DEPRECATED", "version": 1, "reason": "\0"}, {"to": "DEPRECATED", "version": 1, "why": "x"},
    ],
)  # fmt: skip
def test_change_state_with_invalid_payload_is_rejected(lake: Lake, body: Any) -> None:
    query = create_query(lake)
    reason_of_error(Invalid, query_definitions.change_state, lake._workspace, lake.caller, str(query.id), body, None)
    assert load_query(lake, query.id) == query


def test_change_state_with_stale_version_conflicts(lake: Lake) -> None:
    query = create_query(lake)
    assert reason_of_error(Conflict, change_state, lake, query.id, "DEPRECATED", version=2) == "query_changed"
    assert load_query(lake, query.id) == query


@pytest.mark.parametrize("state", LifecycleState)
def test_state_limits_changes_of_a_query(lake: Lake, state: LifecycleState) -> None:
    before = in_state(lake, state)
    changes = {"description": {"description": "new"}, "sql": {"sql": "SELECT 2 AS id"}}
    open_ = {LifecycleState.DEPRECATED: ["description"], LifecycleState.ARCHIVED: []}.get(state, list(changes))
    for member, change in changes.items():
        current = load_query(lake, before.id)
        new = {**current.as_json(), **change}
        if member in open_:
            assert replace_query(lake, current.id, new).version == current.version + 1
        else:
            assert (
                reason_of_error(Unsupported, replace_query, lake, current.id, new, None, no_inspection)
                == "read_only_state"
            )
            assert load_query(lake, current.id) == current


# -- the schema ----------------------------------------------------------------------------------------------------------


def test_delete_schema_with_referring_query_is_rejected(lake: Lake) -> None:
    returns, other = create_schema(lake), create_schema(lake, "other")
    query = create_query(lake, returns)
    with pytest.raises(Conflict) as raised:
        schemas.delete(lake._workspace, lake.caller, returns, None)
    assert (raised.value.reason, raised.value.context["query_count"]) == ("schema_in_use", 1)
    response = schemas.list_references(lake._workspace, lake.caller, returns)
    assert response["queries"] == [{"id": str(query.id), "name": "monthly", "state": "ACTIVE", "version": 1}]
    replace_query(lake, query.id, query_body(other), VersionPrecondition((1,)))
    schemas.delete(lake._workspace, lake.caller, returns, None)
    assert reason_of_error(Conflict, schemas.delete, lake._workspace, lake.caller, other, None) == "schema_in_use"
    query_definitions.delete(lake._workspace, lake.caller, "monthly", None)
    schemas.delete(lake._workspace, lake.caller, other, None)


def test_create_with_schema_deleted_during_inspection_is_rejected(lake: Lake) -> None:
    returns, query = create_schema(lake), create_query(lake)

    def inspect_after_delete(draft: QueryDraft) -> QueryInspection:
        schemas.delete(lake._workspace, lake.caller, str(draft.returns_schema_id), None)
        return inspection_of(draft)

    body = query_body(returns, "other")
    assert (
        reason_of_error(NotFound, query_definitions.create, lake._workspace, lake.caller, body, inspect_after_delete)
        == "schema_not_found"
    )
    second = query_body(create_schema(lake, "second"))
    assert (
        reason_of_error(
            NotFound, replace_query, lake, query.id, second, VersionPrecondition((1,)), inspect_after_delete
        )
        == "schema_not_found"
    )
    assert load_query(lake, query.id) == query


def test_concurrent_schema_delete_and_create_never_both_succeed(lake: Lake, soak: bool) -> None:
    def succeeds(use: Callable[[], Any]) -> bool:
        try:
            use()
        except (NotFound, Conflict) as error:
            assert error.reason in ("schema_not_found", "schema_in_use")  # noqa: PT017
            return False
        return True

    for round_no in range(100 if soak else 8):
        returns = create_schema(lake, f"{round_no}")
        with ThreadPoolExecutor(2) as pool:
            creation = pool.submit(
                succeeds, lambda id=returns, round_no=round_no: create_query(lake, id, f"{round_no}")
            )
            deleted = pool.submit(succeeds, lambda id=returns: schemas.delete(lake._workspace, lake.caller, id, None))
        assert creation.result() != deleted.result()


# -- roles ---------------------------------------------------------------------------------------------------------------

USES: dict[str, tuple[Role, Callable[[Lake, RegisteredQuery], Any]]] = {
    "create": (Role.DEVELOPER, lambda lake, query: create_query(lake, query.draft.returns_schema_id, "another")),
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
        lambda lake, query: replace_query(
            lake, query.id, query_body(query.draft.returns_schema_id, "weekly"), VersionPrecondition((1,))
        ),
    ),
    "deprecate": (Role.ADMIN, lambda lake, query: change_state(lake, query.id, "DEPRECATED", version=1)),
    "remove": (
        Role.ADMIN,
        lambda lake, query: query_definitions.delete(lake._workspace, lake.caller, str(query.id), None),
    ),
}


@pytest.mark.parametrize("use", USES)
def test_roles_limit_read_write_and_delete(lake: Lake, use: str) -> None:
    query = create_query(lake)
    min_role, function = USES[use]
    for role in Role:
        if role < min_role:
            assert reason_of_error(Forbidden, function, as_role(lake, role), query) == "role_too_low"
        elif role is min_role:
            function(as_role(lake, role), query)


@pytest.mark.parametrize("use", ["show", "versions", "version", "replace", "deprecate", "remove"])
def test_query_of_other_tenant_equals_unknown_query(lake: Lake, other_tenant: Lake, use: str) -> None:
    query = create_query(lake)
    errors = set()
    for id in (query.id, uuid4()):
        with pytest.raises(NotFound) as raised:
            USES[use][1](other_tenant, replace(query, id=id))
        errors.add(str(raised.value.as_dict()).replace(str(id), "ID"))
    assert len(errors) == 1
    assert load_query(lake, query.id) == query
    assert query_definitions.search(other_tenant._workspace, other_tenant.caller, ALL).items == []
    assert reason_of_error(NotFound, load_query, other_tenant, "monthly") == "query_not_found"
