"""A pipeline is kept under its name, changed by whoever read it last, and leaves its runs behind."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, select, text

from penstock.catalog import result_schemas as schemas
from penstock.catalog import migrate as upgrade
from penstock.catalog import pipelines, tables
from penstock.catalog.database import Database, Tx, mine, parse_url
from penstock.core.caller import Caller, Role
from penstock.core.result_schema import fields
from penstock.core.odata import options
from penstock.core.pipeline.definition import Stored, read
from penstock.core.registry.schema_entry import Draft, Entry
from penstock.errors import AlreadyExists, Conflict, NotFound
from penstock.lake import Lake

SOURCE, WORKING = "a1b2c3d4-e5f6-7890-abcd-ef1234567890", "550e8400-e29b-41d4-a716-446655440000"
AGGREGATION = {"group_by": ["zone", "account"], "aggregations": [{"column": "b", "expression": "SUM(x)"}]}


def stored(tx: Tx, name: str = "monthly", **parameters: Any) -> Stored:
    append = {"type": "append", "parameters": {"source": {"dataset_id": SOURCE}, **parameters}}
    pipeline = read({"name": name, "working": {"dataset_id": WORKING}, "operations": [append]})
    return Stored(pipelines.new_id(), pipeline, 1, tx.now, tx.caller.user, tx.now, tx.caller.user)


def kept(lake: Lake, name: str = "monthly", **parameters: Any) -> Stored:
    with lake.workspace.db.write(lake.caller) as tx:
        new = stored(tx, name, **parameters)
        pipelines.insert(tx, new)
    return new


def renamed(before: Stored, name: str) -> Stored:
    return replace(before, pipeline=replace(before.pipeline, name=name), version=before.version + 1)


def removed(lake: Lake, pipeline: UUID) -> None:
    with lake.workspace.db.write(lake.caller) as tx:
        pipelines.remove(tx, pipelines.hold(tx, pipeline))


def names(lake: Lake, **asked: str) -> list[str]:
    pairs = [(f"${name}", value) for name, value in asked.items()]
    with lake.workspace.db.read(lake.caller) as tx:
        page = pipelines.search(tx, options(pairs, pipelines.FIELDS, default_top=50, max_top=200))
    return [each.pipeline.name for each in page.items]


def audited(lake: Lake) -> list[str]:
    with lake.workspace.db.read(lake.caller) as tx:
        rows = tx.all(select(tables.audit.c.action).where(mine(tables.audit)).order_by(tables.audit.c.at))
        return [row.action for row in rows if row.action.startswith("pipeline.")]


def test_a_pipeline_is_found_as_it_was_kept(lake: Lake) -> None:
    new = kept(lake, "Größe  ", aggregation=AGGREGATION, source_selector="zone = 'ﬁ' AND \"b\" > 3")
    with lake.workspace.db.read(lake.caller) as tx:
        found = pipelines.find(tx, new.id)
    assert found == new
    assert str(found.as_json()) == str(new.as_json()), "member by member, in order"


@pytest.mark.parametrize("name", ["monthly", "MONTHLY", "  Monthly\t"])
def test_a_name_is_taken_whatever_its_case_and_outer_blanks(lake: Lake, stranger: Lake, name: str) -> None:
    kept(lake)
    with pytest.raises(AlreadyExists) as refusal:
        kept(lake, name)
    assert (refusal.value.reason, refusal.value.context) == ("pipeline_name_taken", {"name": name})
    kept(stranger, name)  # in another tenant it is free


def test_a_name_is_free_again_once_its_pipeline_is_removed(lake: Lake) -> None:
    removed(lake, kept(lake).id)
    kept(lake)
    assert names(lake) == ["monthly"]


def test_a_name_cannot_be_taken_by_a_change(lake: Lake) -> None:
    kept(lake, "weekly")
    before = kept(lake)
    with pytest.raises(AlreadyExists) as refusal, lake.workspace.db.write(lake.caller) as tx:
        pipelines.replace(tx, before, renamed(before, "WEEKLY"))
    assert refusal.value.reason == "pipeline_name_taken"
    assert names(lake, orderby="name") == ["monthly", "weekly"]


def test_a_pipeline_may_change_the_case_of_its_own_name(lake: Lake) -> None:
    before = kept(lake)
    with lake.workspace.db.write(lake.caller) as tx:
        pipelines.replace(tx, before, renamed(before, "Monthly"))
        assert pipelines.find(tx, before.id) == renamed(before, "Monthly")


def test_of_two_who_read_one_version_one_changes_it(lake: Lake) -> None:
    before = kept(lake)
    with lake.workspace.db.write(lake.caller) as tx:
        pipelines.replace(tx, before, renamed(before, "first"))
    with pytest.raises(Conflict) as refusal, lake.workspace.db.write(lake.caller) as tx:
        pipelines.replace(tx, before, renamed(before, "second"))
    assert refusal.value.reason == "pipeline_changed"
    assert refusal.value.context == {"pipeline_id": str(before.id), "current_version": 2}
    assert names(lake) == ["first"]


def test_whoever_changes_pipelines_is_on_record(lake: Lake) -> None:
    before = kept(lake)
    with lake.workspace.db.write(lake.caller) as tx:
        pipelines.replace(tx, before, renamed(before, "other"))
    removed(lake, before.id)
    assert audited(lake) == ["pipeline.create", "pipeline.update", "pipeline.delete"]


@pytest.mark.parametrize("use", ["find", "hold", "replace"])
def test_foreign_and_removed_pipelines_answer_as_unknown_ones(lake: Lake, stranger: Lake, use: str) -> None:
    foreign, gone = kept(stranger), kept(lake, "gone")
    removed(lake, gone.id)
    answers = set()
    for each in (foreign, gone, replace(gone, id=uuid4())):
        with pytest.raises(NotFound) as refusal, lake.workspace.db.write(lake.caller) as tx:
            match use:
                case "replace":
                    pipelines.replace(tx, each, renamed(each, "mine"))
                case _:
                    getattr(pipelines, use)(tx, each.id)
        answers.add(str(refusal.value.facts()).replace(str(each.id), "ID"))
    assert len(answers) == 1
    assert names(stranger) == ["monthly"]


SEARCHES: list[tuple[dict[str, str], list[str]]] = [
    ({}, ["Ärger", "straße", "monthly"]),  # the newest first
    ({"filter": "name eq 'monthly'"}, ["monthly"]),
    ({"filter": "toupper(name) eq 'STRASSE'"}, ["straße"]),
    ({"filter": "tolower(name) eq 'ärger' and version eq 1"}, ["Ärger"]),
    ({"filter": "version gt 1"}, []),
    ({"orderby": "name"}, ["monthly", "straße", "Ärger"]),  # by code point
    ({"orderby": "name", "top": "1", "skip": "1"}, ["straße"]),
    ({"search": "STRASSE"}, ["straße"]),
]


@pytest.mark.parametrize(("asked", "found"), SEARCHES, ids=[str(asked) for asked, _ in SEARCHES])
def test_pipelines_are_found(lake: Lake, stranger: Lake, asked: dict[str, str], found: list[str]) -> None:
    for name in ("monthly", "straße", "Ärger"):
        kept(lake, name)
    removed(lake, kept(lake, "gone").id)
    kept(stranger, "theirs")
    assert names(lake, **asked) == found


def test_a_pipeline_is_found_by_what_it_says_of_itself(lake: Lake) -> None:
    kept(lake, "other")
    one = kept(lake)
    for field in pipelines.FIELDS:
        value = one.as_json()[field]
        literal = f"'{value}'" if field == "name" else value
        assert "monthly" in names(lake, filter=f"{field} eq {literal}"), field
    assert names(lake, filter=f"id eq {one.id}") == ["monthly"]


# -- the step that brought them ---------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database without any table."""
    url = f"sqlite:///{tmp_path}/catalog.db"
    if request.param == "postgresql":
        server, name = parse_url(request.getfixturevalue("postgres_url")), f"steps_{uuid4().hex}"
        engine = create_engine(server, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        url = server.set(database=name).render_as_string(hide_password=False)
    db = Database(url)
    yield db
    db.close()


def test_the_step_to_pipelines_leaves_what_was_there(empty: Database) -> None:
    _step(empty, "0003")
    caller = Caller(uuid4(), uuid4(), "ada", Role.ADMIN)
    with empty.write(caller) as tx:
        draft = Draft("orders", None, fields([{"name": "id", "type": "string"}]), {"team": "red"})
        entry = Entry(uuid4(), caller.tenant, draft, 1, tx.now, tx.now, caller.user, tx.now, caller.user)
        schemas.insert(tx, entry)
    assert upgrade.migrate(empty) == ("0003", upgrade.HEAD)
    with empty.write(caller) as tx:
        assert schemas.find(tx, entry.id) == entry
        new = stored(tx)
        pipelines.insert(tx, new)
        assert pipelines.find(tx, new.id) == new
    if empty.engine.dialect.name == "postgresql":
        assert upgrade.unprotected(empty) == []


def _step(db: Database, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(upgrade.__file__).with_name("migrations")))
    with db.raw() as connection, connection.begin():
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        if connection.dialect.name == "postgresql":
            connection.execute(text("GRANT SELECT ON alembic_version TO penstock_app"))
