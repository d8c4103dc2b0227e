"""Queries are registered if they can keep their promise, and changed by those who know what they change."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from penstock.core.registry import gts
from penstock.core.caller import Role
from penstock.core.registry.lifecycle import TRANSITIONS, State
from penstock.core.odata import options
from penstock.core.registry.query import Draft, Query, Reference, drafted
from penstock.errors import (AlreadyExists, Conflict, Forbidden, Invalid, NotFound, PenstockError, Unsupported)
from penstock.lake import Lake
from penstock.service.queries import definitions as queries
from penstock.service.registry import schemas
from penstock.service.registry.preconditions import Expected
from penstock.service.queries.definitions import Inspection

ALL = options([], queries.FIELDS, default_top=50, max_top=200)
NEWEST = 2**31 - 1
ORDERS = Reference("finance", "orders")
PARAMETERS = [{"name": "region", "type": "string"}]
WAYS: dict[State, tuple[State, ...]] = {
    State.ACTIVE: (),
    State.DEPRECATED: (State.DEPRECATED,),
    State.ARCHIVED: (State.DEPRECATED, State.ARCHIVED),
}


def looked(draft: Draft) -> Inspection:
    """What the sandbox would tell of SQL that reads one dataset."""
    return Inspection((ORDERS,), ("Region",) if "$Region" in draft.sql else ())


def unasked(draft: Draft) -> Inspection:
    raise AssertionError(f"nobody needs to look into {draft}")


def schema(lake: Lake, name: str = "orders", **members: Any) -> str:
    payload = {"name": name, "type_id": gts.QUERY_RETURNS, "fields": [{"name": "id", "type": "number"}], **members}
    return str(schemas.create(lake.workspace, lake.caller, payload).id)


def value(returns: Any, name: str = "monthly", **members: Any) -> dict[str, Any]:
    return {"name": name, "sql": "SELECT id FROM finance.orders", "returns_schema_id": str(returns), **members}


def created(lake: Lake, returns: Any = None, name: str = "monthly", **members: Any) -> Query:
    sent = value(returns or schema(lake, f"of {uuid4()}"), name, **members)
    return queries.create(lake.workspace, lake.caller, sent, looked)


def shown(lake: Lake, key: Any) -> Query:
    return queries.show(lake.workspace, lake.caller, str(key))


def replaced(
    lake: Lake, key: Any, new: Any, expected: Expected | None = None, look: queries.Inspected = looked
) -> Query:
    return queries.replace_with(lake.workspace, lake.caller, str(key), new, expected, look)


def moved(lake: Lake, key: Any, to: Any, **members: Any) -> Query:
    return queries.move(lake.workspace, lake.caller, str(key), {"to": to, **members}, None)


def in_state(lake: Lake, state: State) -> Query:
    query = created(lake, state="DRAFT" if state is State.DRAFT else "ACTIVE")
    for step in WAYS.get(state, ()):
        query = moved(lake, query.id, step, version=query.version)
    return query


def as_(lake: Lake, role: Role) -> Lake:
    return Lake(lake.workspace, replace(lake.caller, role=role), lake.home)


def refused(kind: type[PenstockError], use: Callable[..., Any], *args: Any, **named: Any) -> str:
    with pytest.raises(kind) as refusal:
        use(*args, **named)
    return refusal.value.reason


# -- making and finding ------------------------------------------------------------------------------------------------


def test_a_query_is_shown_as_it_was_created_by_id_and_by_name(lake: Lake) -> None:
    returns = schema(lake)
    sent = value(returns, "Monthly  ", description="d", sql="SELECT $Region", parameters=PARAMETERS)
    made = queries.create(lake.workspace, lake.caller, {"entity": sent}, looked)
    assert (made.draft, made.datasets, made.version) == (drafted(sent), (ORDERS,), 1)
    assert (made.state, made.created_by, made.updated_by) == (State.ACTIVE, lake.caller.user, lake.caller.user)
    assert made.created_at == made.updated_at == made.state_changed_at
    for key in (made.id, str(made.id).upper(), "monthly", " MONTHLY"):
        assert shown(lake, key) == made
    assert queries.search(lake.workspace, lake.caller, ALL).items == [made]
    for key in (uuid4(), "weekly", "", "a\0b", "\ud800"):
        assert refused(NotFound, shown, lake, key) == "query_not_found"


def test_what_looks_like_an_id_is_never_a_name(lake: Lake) -> None:
    first = created(lake)
    second = created(lake, name=str(first.id))
    assert shown(lake, first.id) == first
    assert shown(lake, second.id) == second


@pytest.mark.parametrize("kind", ["", "gts://"])
def test_a_schema_is_named_by_its_id_or_its_full_name(lake: Lake, kind: str) -> None:
    returns = schema(lake, type_id=f"{gts.QUERY_RETURNS}acme.shop._.orders.v1~")
    full = f"{kind}{gts.QUERY_RETURNS}acme.shop._.orders.v1~{returns}"
    assert created(lake, full).draft.returns_schema_id == UUID(returns)
    for wrong in (f"{gts.QUERY_RETURNS}{returns}", uuid4(), schemas.TYPES[0].id):
        assert refused(NotFound, created, lake, wrong, "other") == "schema_not_found"


def test_all_that_is_wrong_with_a_query_is_told_before_anybody_looks_into_it(lake: Lake) -> None:
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
        assert refused(Invalid, queries.create, lake.workspace, lake.caller, sent, unasked) == reason
        assert refused(Invalid, replaced, lake, made.id, sent, Expected(1), unasked) == reason
    assert queries.search(lake.workspace, lake.caller, ALL).items == [made]


def test_a_query_that_can_never_fit_its_schema_is_refused(lake: Lake) -> None:
    problem = {"field": "id", "expected": "number", "actual": "string", "message": "Type mismatch for field id"}

    def misfit(_: Draft) -> Inspection:
        return Inspection((ORDERS,), (), [problem])

    made, returns = created(lake), schema(lake)
    for use in (
        lambda: queries.create(lake.workspace, lake.caller, value(returns, "other"), misfit),
        lambda: replaced(lake, made.id, value(returns), Expected(1), misfit),
    ):
        with pytest.raises(Invalid) as refusal:
            use()
        assert refusal.value.reason == "query_does_not_fit"
        assert refusal.value.context == {"schema_id": returns, "errors": [{"pointer": "/sql", **problem}]}
    assert queries.search(lake.workspace, lake.caller, ALL).items == [made]


def test_parameters_are_those_that_the_sql_uses(lake: Lake) -> None:
    made = created(lake)
    for changes in ({"parameters": PARAMETERS}, {"sql": "SELECT $Region"}):
        assert refused(Invalid, created, lake, None, "other", **changes) == "bad_placeholders"
        new = value(made.draft.returns_schema_id, **changes)
        assert refused(Invalid, replaced, lake, made.id, new, Expected(1)) == "bad_placeholders"
    assert shown(lake, made.id) == made


# -- changing ------------------------------------------------------------------------------------------------------------


def test_what_was_shown_can_be_changed_and_sent_back(lake: Lake) -> None:
    made = created(lake)
    after = replaced(lake, made.id, {**made.as_json(), "name": "weekly"}, look=unasked)
    assert after == replace(made, draft=replace(made.draft, name="weekly"), version=2, updated_at=after.updated_at)
    assert after.updated_at > made.updated_at
    assert shown(lake, "weekly") == after
    assert refused(NotFound, shown, lake, "monthly") == "query_not_found"


def test_new_sql_is_looked_into(lake: Lake) -> None:
    made, other = created(lake), Reference("finance", "refunds", 3)
    new = value(made.draft.returns_schema_id, sql="SELECT id FROM finance.refunds AS r AT (VERSION => 3)")
    after = replaced(lake, made.id, new, Expected(1), lambda _: Inspection((other,), ()))
    assert after.datasets == shown(lake, made.id).datasets == (other,)
    assert queries.version(lake.workspace, lake.caller, "monthly", 1).datasets == (ORDERS,)


def test_what_changes_nothing_makes_no_version(lake: Lake) -> None:
    made = created(lake)
    assert replaced(lake, made.id, value(made.draft.returns_schema_id), Expected(1), unasked) == made


EXPECTATIONS: list[tuple[Expected | None, int | None, str | None]] = [
    (Expected(1), None, None),
    (Expected(None, condition=True), None, None),
    (None, 1, None),
    (Expected(2), None, "query_changed"),
    (Expected(2, condition=True), None, "precondition_failed"),
    (None, 2, "query_changed"),
    (Expected(2, condition=True), 1, "precondition_failed"),
]


@pytest.mark.parametrize(("expected", "version", "reason"), EXPECTATIONS)
def test_a_change_is_made_for_a_version(
    lake: Lake, expected: Expected | None, version: int | None, reason: str | None
) -> None:
    made = created(lake)
    new = value(made.draft.returns_schema_id, "weekly") | ({} if version is None else {"version": version})
    if reason is None:
        assert replaced(lake, made.id, new, expected).version == 2
        return
    with pytest.raises(Conflict) as refusal:
        replaced(lake, made.id, new, expected)
    assert refusal.value.reason == reason
    assert refusal.value.context == {"query_id": str(made.id), "current_version": 1}
    assert shown(lake, made.id) == made


def test_a_change_that_does_not_say_its_version_is_refused(lake: Lake) -> None:
    made = created(lake)
    assert refused(Invalid, replaced, lake, made.id, value(made.draft.returns_schema_id, "weekly")) == "no_version"


@pytest.mark.parametrize("expected", [Expected(1), Expected(None, condition=True)])
def test_whoever_changes_a_query_while_another_looks_comes_first(lake: Lake, expected: Expected) -> None:
    made = created(lake)

    def overtaken(draft: Draft) -> Inspection:
        moved(lake, made.id, "DEPRECATED", version=1)
        return looked(draft)

    new = value(made.draft.returns_schema_id, sql="SELECT 2 AS id")
    assert refused(Conflict, replaced, lake, made.id, new, expected, overtaken) == "query_changed"
    now = shown(lake, made.id)
    assert (now.state, now.draft.sql, now.version) == (State.DEPRECATED, made.draft.sql, 2)


def test_a_removed_query_is_gone_and_its_name_is_free(lake: Lake) -> None:
    made = created(lake)
    for expected, reason in [(Expected(2), "query_changed"), (Expected(2, condition=True), "precondition_failed")]:
        assert refused(Conflict, queries.remove, lake.workspace, lake.caller, str(made.id), expected) == reason
    queries.remove(lake.workspace, lake.caller, str(made.id), Expected(1))
    for key in (made.id, "monthly"):
        assert refused(NotFound, shown, lake, key) == "query_not_found"
    assert created(lake).id != made.id
    assert refused(AlreadyExists, created, lake) == "query_name_taken"


# -- states --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", State)
@pytest.mark.parametrize("current", State)
def test_a_query_moves_along_the_paths_of_schemas_by_the_same_roles(lake: Lake, current: State, to: State) -> None:
    before = in_state(lake, current)
    path = TRANSITIONS.get((current, to))
    if path is None:
        assert refused(Unsupported, moved, lake, before.id, to, version=before.version) == "illegal_transition"
        assert shown(lake, before.id) == before
        return
    for role in Role:
        if role < path.role:
            someone = as_(lake, role)
            assert refused(Forbidden, moved, someone, before.id, to, version=before.version) == "role_too_low"
    after = moved(as_(lake, path.role), before.id, to, version=before.version, reason="because")
    assert (after.state, after.version) == (to, before.version + 1)
    assert after.state_changed_at == after.updated_at > before.updated_at
    assert shown(lake, before.id) == after
    newest, *_ = queries.versions(lake.workspace, lake.caller, str(before.id), before=NEWEST, limit=9)
    assert (newest.change, newest.reason, newest.draft.state) == (path.verb, "because", to)


@pytest.mark.parametrize(
    "sent",
    [
        None, [], "ACTIVE", {}, {"to": "active", "version": 1}, {"to": ["ACTIVE"], "version": 1}, {"to": "DEPRECATED"},
        {"to": "DEPRECATED", "version": "1"}, {"to": "DEPRECATED", "version": 1, "reason": 7},
        {"to": "DEPRECATED", "version": 1, "reason": "\0"}, {"to": "DEPRECATED", "version": 1, "why": "x"},
    ],
)  # fmt: skip
def test_a_transition_that_cannot_be_read_is_refused(lake: Lake, sent: Any) -> None:
    made = created(lake)
    refused(Invalid, queries.move, lake.workspace, lake.caller, str(made.id), sent, None)
    assert shown(lake, made.id) == made


def test_a_transition_is_made_for_a_version(lake: Lake) -> None:
    made = created(lake)
    assert refused(Conflict, moved, lake, made.id, "DEPRECATED", version=2) == "query_changed"
    assert shown(lake, made.id) == made


@pytest.mark.parametrize("state", State)
def test_states_settle_a_query(lake: Lake, state: State) -> None:
    before = in_state(lake, state)
    changes = {"description": {"description": "new"}, "sql": {"sql": "SELECT 2 AS id"}}
    open_ = {State.DEPRECATED: ["description"], State.ARCHIVED: []}.get(state, list(changes))
    for member, change in changes.items():
        now = shown(lake, before.id)
        new = {**now.as_json(), **change}
        if member in open_:
            assert replaced(lake, now.id, new).version == now.version + 1
        else:
            assert refused(Unsupported, replaced, lake, now.id, new, None, unasked) == "read_only_state"
            assert shown(lake, now.id) == now


# -- its schema ----------------------------------------------------------------------------------------------------------


def test_a_schema_cannot_be_deleted_while_a_query_refers_to_it(lake: Lake) -> None:
    returns, other = schema(lake), schema(lake, "other")
    made = created(lake, returns)
    with pytest.raises(Conflict) as refusal:
        schemas.delete(lake.workspace, lake.caller, returns, None)
    assert (refusal.value.reason, refusal.value.context["query_count"]) == ("schema_in_use", 1)
    told = schemas.references(lake.workspace, lake.caller, returns)
    assert told["queries"] == [{"id": str(made.id), "name": "monthly", "state": "ACTIVE", "version": 1}]
    replaced(lake, made.id, value(other), Expected(1))
    schemas.delete(lake.workspace, lake.caller, returns, None)
    assert refused(Conflict, schemas.delete, lake.workspace, lake.caller, other, None) == "schema_in_use"
    queries.remove(lake.workspace, lake.caller, "monthly", None)
    schemas.delete(lake.workspace, lake.caller, other, None)


def test_a_schema_that_goes_while_its_query_is_looked_into_is_missed(lake: Lake) -> None:
    returns, made = schema(lake), created(lake)

    def too_late(draft: Draft) -> Inspection:
        schemas.delete(lake.workspace, lake.caller, str(draft.returns_schema_id), None)
        return looked(draft)

    sent = value(returns, "other")
    assert refused(NotFound, queries.create, lake.workspace, lake.caller, sent, too_late) == "schema_not_found"
    second = value(schema(lake, "second"))
    assert refused(NotFound, replaced, lake, made.id, second, Expected(1), too_late) == "schema_not_found"
    assert shown(lake, made.id) == made


def test_a_delete_of_a_schema_and_a_new_query_never_both_happen(lake: Lake, soak: bool) -> None:
    def happened(use: Callable[[], Any]) -> bool:
        try:
            use()
        except (NotFound, Conflict) as refusal:
            assert refusal.reason in ("schema_not_found", "schema_in_use")  # noqa: PT017
            return False
        return True

    for turn in range(100 if soak else 8):
        returns = schema(lake, f"{turn}")
        with ThreadPoolExecutor(2) as pool:
            made = pool.submit(happened, lambda id=returns, turn=turn: created(lake, id, f"{turn}"))
            deleted = pool.submit(happened, lambda id=returns: schemas.delete(lake.workspace, lake.caller, id, None))
        assert made.result() != deleted.result()


# -- who may -------------------------------------------------------------------------------------------------------------

USES: dict[str, tuple[Role, Callable[[Lake, Query], Any]]] = {
    "create": (Role.DEVELOPER, lambda lake, query: created(lake, query.draft.returns_schema_id, "another")),
    "show": (Role.VIEWER, lambda lake, query: shown(lake, query.id)),
    "search": (Role.VIEWER, lambda lake, _: queries.search(lake.workspace, lake.caller, ALL)),
    "versions": (
        Role.VIEWER,
        lambda lake, query: queries.versions(lake.workspace, lake.caller, str(query.id), before=NEWEST, limit=9),
    ),
    "version": (Role.VIEWER, lambda lake, query: queries.version(lake.workspace, lake.caller, str(query.id), 1)),
    "replace": (
        Role.DEVELOPER,
        lambda lake, query: replaced(lake, query.id, value(query.draft.returns_schema_id, "weekly"), Expected(1)),
    ),
    "deprecate": (Role.ADMIN, lambda lake, query: moved(lake, query.id, "DEPRECATED", version=1)),
    "remove": (Role.ADMIN, lambda lake, query: queries.remove(lake.workspace, lake.caller, str(query.id), None)),
}


@pytest.mark.parametrize("use", USES)
def test_viewers_read_developers_write_and_admins_delete(lake: Lake, use: str) -> None:
    made = created(lake)
    least, function = USES[use]
    for role in Role:
        if role < least:
            assert refused(Forbidden, function, as_(lake, role), made) == "role_too_low"
        elif role is least:
            function(as_(lake, role), made)


@pytest.mark.parametrize("use", ["show", "versions", "version", "replace", "deprecate", "remove"])
def test_a_foreign_query_answers_as_an_unknown_one(lake: Lake, stranger: Lake, use: str) -> None:
    made = created(lake)
    answers = set()
    for id in (made.id, uuid4()):
        with pytest.raises(NotFound) as refusal:
            USES[use][1](stranger, replace(made, id=id))
        answers.add(str(refusal.value.facts()).replace(str(id), "ID"))
    assert len(answers) == 1
    assert shown(lake, made.id) == made
    assert queries.search(stranger.workspace, stranger.caller, ALL).items == []
    assert refused(NotFound, shown, stranger, "monthly") == "query_not_found"
