"""Registered queries: made, changed, moved through their states. To run one is another matter."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from penstock.catalog import queries
from penstock.catalog.database import Tx
from penstock.catalog.odata_sql import Page
from penstock.core.registry import revisions as kept
from penstock.core.registry import lifecycle
from penstock.core.registry import query
from penstock.core.caller import Caller, Role
from penstock.core.names import unstorable, uuid
from penstock.core.odata import Options
from penstock.core.registry.query import Draft, Query, Reference, Revision
from penstock.errors import Invalid
from penstock.service.registry import schemas
from penstock.service.registry.preconditions import Expected, meant_for
from penstock.service.workspace import Workspace

FIELDS = queries.FIELDS  # that can be searched
_MEANING = {"sql", "parameters", "returns_schema_id"}  # a change of these has to be looked into


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a look at a draft's SQL told, without running it."""

    datasets: tuple[Reference, ...]
    parameters_in_sql: tuple[str, ...]
    problems: Sequence[Mapping[str, Any]] = ()  # what its result can never have of what the schema promises


Inspected = Callable[[Draft], Inspection]


def create(ws: Workspace, caller: Caller, payload: Any, inspected: Inspected) -> Query:
    caller.require(Role.DEVELOPER)
    draft = query.drafted(payload)
    datasets = _fitting(ws, caller, payload, draft, inspected)
    with ws.db.write(caller) as tx:
        made = Query(queries.new_id(), draft, datasets, 1, tx.now, tx.now, caller.user, tx.now, caller.user)
        queries.insert(tx, made)
    return made


def show(ws: Workspace, caller: Caller, key: str) -> Query:
    """A query by its id or its name."""
    with _reading(ws, caller, key) as (_, one):
        return one


def search(ws: Workspace, caller: Caller, options: Options) -> Page[Query]:
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        return queries.search(tx, options)


def replace_with(
    ws: Workspace, caller: Caller, key: str, payload: Any, expected: Expected | None, inspected: Inspected
) -> Query:
    """Put name, description, SQL, parameters and schema in place of what is there."""
    caller.require(Role.DEVELOPER)
    meant = meant_for(expected, query.entity(payload))
    with _reading(ws, caller, key) as (_, before):
        for each in meant:
            each.check(before.version, queries.was_changed(before))
    draft = query.revised(before, payload)
    members = kept.changed(before.draft, draft, query.MEMBERS)
    query.assert_editable(before.state, members)
    if not members:
        return before
    # Nobody waits for the look at the SQL. Whoever changes the query meanwhile comes first: its version is compared.
    looked = _fitting(ws, caller, payload, draft, inspected) if members & _MEANING else before.datasets
    with ws.db.write(caller) as tx:
        after = replace(
            before,
            draft=draft,
            datasets=looked,
            version=before.version + 1,
            updated_at=tx.now,
            updated_by=caller.user,
        )
        queries.replace(tx, before, after)
    return after


def move(ws: Workspace, caller: Caller, key: str, payload: Any, expected: Expected | None) -> Query:
    """Take a query to another state: `{"to", "version", "reason"?}`."""
    caller.require(Role.DEVELOPER)
    to, reason = lifecycle.asked_state(payload)
    caller.require(lifecycle.least_role(to))
    meant = meant_for(expected, payload)
    with ws.db.write(caller) as tx:
        before = _held(tx, key)
        transition = lifecycle.transition(before.state, to, "query")
        caller.require(transition.role)
        for each in meant:
            each.check(before.version, queries.was_changed(before))
        after = replace(
            before,
            draft=replace(before.draft, state=to),
            version=before.version + 1,
            state_changed_at=tx.now,
            updated_at=tx.now,
            updated_by=caller.user,
        )
        queries.replace(tx, before, after, transition.verb, reason)
    return after


def remove(ws: Workspace, caller: Caller, key: str, expected: Expected | None) -> None:
    caller.require(Role.ADMIN)
    with ws.db.write(caller) as tx:
        held = _held(tx, key)
        if expected:
            expected.check(held.version, queries.was_changed(held))
        queries.remove(tx, held)


def versions(ws: Workspace, caller: Caller, key: str, *, before: int, limit: int) -> list[Revision]:
    """Its versions, the newest first."""
    with _reading(ws, caller, key) as (tx, one):
        return queries.versions(tx, one.id, before=before, limit=min(limit, schemas.MAX_VERSIONS))


def version(ws: Workspace, caller: Caller, key: str, number: int) -> Revision:
    with _reading(ws, caller, key) as (tx, one):
        return queries.version(tx, one.id, number)


def found(tx: Tx, key: str) -> Query:
    """A query by its id or its name. What looks like an id is one, so that nobody can hide a query behind its own id."""
    if id := uuid(key):
        return queries.find(tx, id)
    if unstorable(key):
        raise queries.not_found(ascii(key[:300])[1:-1])
    return queries.named(tx, key)


def _fitting(ws: Workspace, caller: Caller, payload: Any, draft: Draft, inspected: Inspected) -> tuple[Reference, ...]:
    """The datasets that a draft reads, if its SQL and its schema go together as far as one can tell."""
    schemas.show(ws, caller, query.entity(payload)["returns_schema_id"])  # a type before the id must be its own
    seen = inspected(draft)
    query.check_placeholders(draft, seen.parameters_in_sql)
    if seen.problems:
        count, first = len(seen.problems), seen.problems[0]
        hint = f" ({first['hint']})" if "hint" in first else ""
        raise Invalid(
            "query_does_not_fit",
            f"the result can never fit the schema: {count} field{'s do' if count > 1 else ' does'} not match, "
            f"the first is: {first['message']}{hint}",
            schema_id=str(draft.returns_schema_id),
            errors=[{"pointer": "/sql", **problem} for problem in seen.problems],
        )
    return seen.datasets


@contextmanager
def _reading(ws: Workspace, caller: Caller, key: str) -> Iterator[tuple[Tx, Query]]:
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        yield tx, found(tx, key)


def _held(tx: Tx, key: str) -> Query:
    return queries.hold(tx, found(tx, key).id)
