"""A query is kept under its name with all its versions, and its schema stays for as long as it does."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from penstock.catalog import result_schemas as schemas
from penstock.catalog import migrate as upgrade
from penstock.catalog import queries, tables
from penstock.catalog.database import Database, Tx, add, mine, parse_url
from penstock.core.caller import Caller, Role
from penstock.core.result_schema import FieldType, fields
from penstock.core.registry.lifecycle import State
from penstock.core.odata import options
from penstock.core.registry.query_parameters import Parameter
from penstock.core.registry.query import Draft, Query, Reference
from penstock.core.registry.schema_entry import Draft as SchemaDraft
from penstock.core.registry.schema_entry import Entry
from penstock.errors import AlreadyExists, Conflict, NotFound, PenstockError, Unsupported
from penstock.lake import Lake

PARAMETERS = (
    Parameter("region", FieldType.STRING),
    Parameter("least", FieldType.NUMBER, required=False, default=0.5),
    Parameter("many", FieldType.NUMBER, required=False, default=10**30),
    Parameter("since", FieldType.DATE, required=False),
)
DATASETS = (Reference("finance", "orders"), Reference("finance", "orders", 3))


def schema(lake: Lake, name: str = "orders", state: State = State.ACTIVE) -> UUID:
    with lake.workspace.db.write(lake.caller) as tx:
        entry = _entry(tx, name, state)
        schemas.insert(tx, entry)
    return entry.id


def _entry(tx: Tx, name: str, state: State = State.ACTIVE) -> Entry:
    draft = SchemaDraft(name, None, fields([{"name": "id", "type": "number"}]), None, state=state)
    return Entry(schemas.new_id(), tx.caller.tenant, draft, 1, tx.now, tx.now, tx.caller.user, tx.now, tx.caller.user)


def kept(lake: Lake, name: str = "monthly", returns: UUID | None = None, **members: Any) -> Query:
    returns = returns or schema(lake, f"of {uuid4()}")
    draft = replace(Draft(name, None, "SELECT 1 AS id", (), returns), **members)
    with lake.workspace.db.write(lake.caller) as tx:
        who = tx.caller.user
        query = Query(queries.new_id(), draft, DATASETS, 1, tx.now, tx.now, who, tx.now, who)
        queries.insert(tx, query)
    return query


def later(before: Query, **members: Any) -> Query:
    return replace(
        before,
        draft=replace(before.draft, **members),
        version=before.version + 1,
        updated_at=before.updated_at + timedelta(seconds=1),
    )


def changed(lake: Lake, before: Query, **members: Any) -> Query:
    after = later(before, **members)
    with lake.workspace.db.write(lake.caller) as tx:
        queries.replace(tx, before, after)
    return after


def removed(lake: Lake, query: UUID) -> None:
    with lake.workspace.db.write(lake.caller) as tx:
        queries.remove(tx, queries.hold(tx, query))


def names(lake: Lake, **asked: str) -> list[str]:
    pairs = [(f"${name}", value) for name, value in asked.items()]
    with lake.workspace.db.read(lake.caller) as tx:
        page = queries.search(tx, options(pairs, queries.FIELDS, default_top=50, max_top=200))
    return [each.draft.name for each in page.items]


@contextmanager
def refused(kind: type[PenstockError], reason: str) -> Iterator[None]:
    with pytest.raises(kind) as refusal:
        yield
    assert refusal.value.reason == reason


def test_a_query_is_found_as_it_was_kept(lake: Lake) -> None:
    new = kept(lake, "Größe  ", description="ﬁne", sql="SELECT $region", parameters=PARAMETERS, state=State.DRAFT)
    with lake.workspace.db.read(lake.caller) as tx:
        assert queries.find(tx, new.id) == new
        assert queries.named(tx, "\tGRÖSSE ") == new
    assert str(new.as_json()) == str(_found(lake, new.id).as_json()), "digit by digit"


def _found(lake: Lake, query: UUID) -> Query:
    with lake.workspace.db.read(lake.caller) as tx:
        return queries.find(tx, query)


@pytest.mark.parametrize("name", ["monthly", "MONTHLY", "  Monthly\t"])
def test_a_name_is_taken_whatever_its_case_and_outer_blanks(lake: Lake, stranger: Lake, name: str) -> None:
    kept(lake, state=State.ARCHIVED)
    with pytest.raises(AlreadyExists) as refusal:
        kept(lake, name)
    assert (refusal.value.reason, refusal.value.context) == ("query_name_taken", {"name": name})
    kept(stranger, name)  # in another tenant it is free
    before = kept(lake, "weekly")
    with refused(AlreadyExists, "query_name_taken"):
        changed(lake, before, name=name)
    assert _found(lake, before.id) == before


def test_a_name_is_free_again_once_its_query_is_removed(lake: Lake) -> None:
    removed(lake, kept(lake).id)
    second = kept(lake)
    assert names(lake) == ["monthly"]
    with lake.workspace.db.read(lake.caller) as tx:
        assert queries.named(tx, "monthly") == second


def test_a_query_may_change_the_case_of_its_own_name(lake: Lake) -> None:
    before = kept(lake)
    assert _found(lake, before.id) != changed(lake, before, name="Monthly") == _found(lake, before.id)


def test_of_two_who_read_one_version_one_changes_it(lake: Lake) -> None:
    before = kept(lake)
    changed(lake, before, name="first")
    with pytest.raises(Conflict) as refusal:
        changed(lake, before, name="second")
    assert refusal.value.reason == "query_changed"
    assert refusal.value.context == {"query_id": str(before.id), "current_version": 2}
    assert names(lake) == ["first"]


def test_every_version_is_kept_as_it_was(lake: Lake) -> None:
    first = kept(lake, parameters=PARAMETERS)
    second = changed(lake, first, sql="SELECT 2 AS id", parameters=())
    third = later(second, state=State.DEPRECATED)
    with lake.workspace.db.write(lake.caller) as tx:
        queries.replace(tx, second, third, "deprecate", "use the new one")
    with lake.workspace.db.read(lake.caller) as tx:
        found = queries.versions(tx, first.id, before=2**31 - 1, limit=10)
        assert [(each.version, each.change, each.reason) for each in found] == [
            (3, "deprecate", "use the new one"), (2, "update", None), (1, "create", None),
        ]  # fmt: skip
        assert [(each.draft, each.datasets) for each in found] == [(q.draft, DATASETS) for q in (third, second, first)]
        assert [(each.changed_at, each.changed_by) for each in found] == [
            (q.updated_at, q.updated_by) for q in (third, second, first)
        ]
        assert {each.author for each in found} == {lake.caller.name}
        assert queries.versions(tx, first.id, before=3, limit=1) == found[1:2]
        assert queries.version(tx, first.id, 1) == found[2]
        with refused(NotFound, "version_not_found"):
            queries.version(tx, first.id, 4)


def test_whoever_changes_queries_is_on_record(lake: Lake) -> None:
    removed(lake, changed(lake, kept(lake), name="other").id)
    with lake.workspace.db.read(lake.caller) as tx:
        rows = tx.all(sa.select(tables.audit.c.action).where(mine(tables.audit)).order_by(tables.audit.c.at))
    assert [row.action for row in rows if row.action.startswith("query.")] == [
        "query.create", "query.update", "query.delete",
    ]  # fmt: skip


@pytest.mark.parametrize("use", ["find", "hold", "named", "replace"])
def test_foreign_and_removed_queries_answer_as_unknown_ones(lake: Lake, stranger: Lake, use: str) -> None:
    foreign, gone = kept(stranger, "foreign"), kept(lake, "gone")
    removed(lake, gone.id)
    answers = set()
    for each in (foreign, gone, later(replace(gone, id=uuid4()), name="unknown")):
        key = each.draft.name if use == "named" else each.id
        with pytest.raises(NotFound) as refusal, lake.workspace.db.write(lake.caller) as tx:
            if use == "replace":
                queries.replace(tx, each, later(each, name="mine"))
            else:
                getattr(queries, use)(tx, key)
        answers.add(str(refusal.value.facts()).replace(str(key), "KEY"))
    assert len(answers) == 1
    assert names(stranger) == ["foreign"]


# -- the schema that a query refers to -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.DRAFT, State.DEPRECATED, State.ARCHIVED])
def test_a_query_may_only_turn_to_an_active_schema(lake: Lake, state: State) -> None:
    settled = schema(lake, "settled", state)
    with refused(Unsupported, "schema_not_active"):
        kept(lake, returns=settled)
    before = kept(lake)
    with refused(Unsupported, "schema_not_active"):
        changed(lake, before, returns_schema_id=settled)
    assert _found(lake, before.id) == before
    other = schema(lake, "other")
    assert changed(lake, before, returns_schema_id=other) == _found(lake, before.id)


def test_a_query_keeps_a_schema_that_was_deprecated_since(lake: Lake) -> None:
    returns = schema(lake)
    before = kept(lake, returns=returns)
    with lake.workspace.db.write(lake.caller) as tx:
        entry = schemas.hold(tx, returns)
        schemas.change(tx, entry, _deprecated(entry), "deprecate")
    assert changed(lake, before, sql="SELECT 2 AS id").version == 2


def _deprecated(entry: Entry) -> Entry:
    return replace(entry, draft=replace(entry.draft, state=State.DEPRECATED), version=entry.version + 1)


def test_a_schema_of_another_tenant_is_not_there(lake: Lake, stranger: Lake) -> None:
    foreign = schema(stranger)
    with refused(NotFound, "schema_not_found"):
        kept(lake, returns=foreign)
    before = kept(lake)
    with refused(NotFound, "schema_not_found"):
        changed(lake, before, returns_schema_id=foreign)


def dropped(lake: Lake, id: UUID) -> bool:
    try:
        with lake.workspace.db.write(lake.caller) as tx:
            schemas.remove(tx, schemas.hold(tx, id).id)
    except Conflict as refusal:
        assert refusal.reason == "schema_in_use"  # noqa: PT017
        return False
    return True


@pytest.mark.parametrize("state", State)
def test_a_schema_stays_while_a_query_refers_to_it(lake: Lake, state: State) -> None:
    one, other = schema(lake, "one"), schema(lake, "other")
    query = kept(lake, returns=one, state=state)
    assert not dropped(lake, one)
    query = changed(lake, query, returns_schema_id=other)
    assert (dropped(lake, one), dropped(lake, other)) == (True, False)
    removed(lake, query.id)
    assert dropped(lake, other)


@pytest.mark.parametrize("use", ["insert", "replace"])
def test_a_schema_is_never_deleted_under_a_query_that_turns_to_it(lake: Lake, use: str, soak: bool) -> None:
    for turn in range(100 if soak else 8):
        wanted, before = schema(lake, f"{turn}"), kept(lake, f"q{turn}")

        def turned(wanted: UUID = wanted, before: Query = before) -> bool:
            try:
                if use == "insert":
                    kept(lake, f"new {before.id}", wanted)
                else:
                    changed(lake, before, returns_schema_id=wanted)
            except NotFound as refusal:
                assert refusal.reason == "schema_not_found"  # noqa: PT017
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            first, second = pool.submit(turned), pool.submit(dropped, lake, wanted)
        assert first.result() != second.result()


# -- searching -----------------------------------------------------------------------------------------------------------

SEARCHES: list[tuple[dict[str, str], list[str]]] = [
    ({}, ["Ärger", "straße", "monthly"]),  # the newest first
    ({"filter": "name eq 'monthly'"}, ["monthly"]),
    ({"filter": "toupper(name) eq 'STRASSE'"}, ["straße"]),
    ({"filter": "tolower(description) eq 'über ärger' and version eq 1"}, ["Ärger"]),
    ({"filter": "description eq null"}, []),
    ({"filter": "state eq 'DRAFT'"}, ["straße"]),
    ({"orderby": "name"}, ["monthly", "straße", "Ärger"]),  # by code point
    ({"orderby": "state desc,name", "top": "1", "skip": "1"}, ["monthly"]),
    ({"search": "STRASSE"}, ["straße"]),
    ({"search": "ÜBER ärger"}, ["Ärger"]),
]


@pytest.mark.parametrize(("asked", "found"), SEARCHES, ids=[str(asked) for asked, _ in SEARCHES])
def test_queries_are_found(lake: Lake, stranger: Lake, asked: dict[str, str], found: list[str]) -> None:
    for name in ("monthly", "straße", "Ärger"):
        state = State.DRAFT if name == "straße" else State.ACTIVE
        kept(lake, name, description=f"Über {name}", state=state)
    removed(lake, kept(lake, "gone").id)
    kept(stranger, "theirs")
    assert names(lake, **asked) == found


def test_a_query_is_found_by_what_it_says_of_itself(lake: Lake) -> None:
    kept(lake, "other")
    one = kept(lake, description="each month")
    for field, kind in queries.FIELDS.items():
        value = one.as_json()[field]
        literal = f"'{value}'" if kind.value == "text" else value
        assert "monthly" in names(lake, filter=f"{field} eq {literal}"), field
    assert names(lake, filter=f"returns_schema_id eq {one.draft.returns_schema_id}") == ["monthly"]


# -- the step that brought all this --------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database without any table. On PostgreSQL its owner is no superuser, so the rules hold for the owner too."""
    url = f"sqlite:///{tmp_path}/catalog.db"
    if request.param == "postgresql":
        server, name = parse_url(request.getfixturevalue("postgres_url")), f"keeper_{uuid4().hex}"
        engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sa.text(f"CREATE ROLE {name} LOGIN CREATEROLE"))
            connection.execute(sa.text(f"CREATE DATABASE {name} OWNER {name}"))
        engine.dispose()
        url = server.set(database=name, username=name).render_as_string(hide_password=False)
    db = Database(url)
    yield db
    db.close()


_OLD = sa.table(
    "gts_queries",
    *(sa.column(name, sa.Uuid) for name in ("tenant_id", "id", "returns_schema_id", "created_by", "updated_by")),
    *(sa.column(name, sa.Text) for name in ("name", "name_key", "description", "sql")),
    *(sa.column(name, tables.Instant) for name in ("created_at", "updated_at", "deleted_at")),
    sa.column("parameters", tables.Json),
    sa.column("version", sa.Integer),
)


def test_the_step_to_versions_of_queries_keeps_those_that_are_there(empty: Database) -> None:
    _step(empty, "0004")
    callers = [Caller(uuid4(), uuid4(), name, Role.ADMIN) for name in ("ada", "bob")]
    before = datetime(2026, 3, 1, 12, tzinfo=UTC)
    ids = dict[tuple[Caller, str], UUID]()
    for caller in callers:
        with empty.write(caller) as tx:
            entry = _entry(tx, "orders")
            schemas.insert(tx, entry)
            for name, gone in (("Straße", None), ("gone", before)):
                ids[caller, name] = uuid4()
                tx.run(
                    add(_OLD).values(  # type: ignore[arg-type]
                        id=ids[caller, name], name=name, name_key=name.casefold(), description="Größe", sql="SELECT 1",
                        parameters=[{"name": "p", "type": "string"}], returns_schema_id=entry.id, created_at=before,
                        created_by=caller.user, updated_at=before, updated_by=caller.user, version=1, deleted_at=gone,
                    )
                )  # fmt: skip
    assert upgrade.migrate(empty) == ("0004", upgrade.HEAD)
    for caller in callers:
        id = ids[caller, "Straße"]
        with empty.write(caller) as tx:
            found = queries.find(tx, id)
            draft = Draft(
                "Straße", "Größe", "SELECT 1", (Parameter("p", FieldType.STRING),), found.draft.returns_schema_id
            )
            assert found == Query(id, draft, (), 1, before, before, caller.user, before, caller.user)
            for asked in ("toupper(name) eq 'STRASSE'", "tolower(description) eq 'größe'"):
                page = queries.search(tx, options([("$filter", asked)], queries.FIELDS, default_top=50, max_top=50))
                assert page.items == [found], "the removed one is still out of sight"
            [first] = queries.versions(tx, id, before=9, limit=9)
            assert (first.version, first.draft, first.change, first.changed_by) == (1, draft, "create", caller.user)
            queries.replace(tx, found, later(found, name="gone"))
            queries.insert(tx, replace(found, id=uuid4()))  # the name of each is free again
    if empty.engine.dialect.name == "postgresql":
        assert upgrade.unprotected(empty) == []


def _step(db: Database, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(upgrade.__file__).with_name("migrations")))
    with db.raw() as connection, connection.begin():
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text("GRANT SELECT ON alembic_version TO penstock_app"))
