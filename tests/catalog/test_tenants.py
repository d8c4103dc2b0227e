"""No tenant sees another: not by id, not by name, not past the database's own guard."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from sqlalchemy import create_engine, delete, exists, insert, select, text, true, update
from sqlalchemy.exc import DBAPIError

from penstock.catalog import commit as commits
from penstock.catalog import snapshots as history
from penstock.catalog import writer_leases as leases
from penstock.catalog import migrate as upgrade
from penstock.catalog import retention, runs, tables
from penstock.catalog.database import APP_ROLE, Database, Tx, mine, parse_url
from penstock.core.registry import gts
from penstock.core.caller import Caller, Role
from penstock.core.dataset.changes import Change
from penstock.core.pipeline.run import Run, State
from penstock.errors import NotFound, Unsupported
from penstock.lake import Dataset, Lake
from penstock.service.datasets import alter
from penstock.service.datasets import compact
from penstock.service.pipelines import definitions as pipelines
from penstock.service.queries import definitions as queries
from penstock.service.datasets import read
from penstock.service.registry import schemas
from penstock.service.datasets import sweep
from penstock.service.datasets import write
from penstock.service.datasets.row_source import reader
from penstock.service.transactions.client import Transactions
from workspaces import Place

ONE_ROW = {"id": [1], "word": ["x"]}

# Every use that takes a dataset's id, with a caller and an id.
USES: dict[str, Callable[[Lake, Any], Any]] = {
    "find": lambda lake, id: read.find(lake.workspace, lake.caller, id),
    "at a version": lambda lake, id: read.at(lake.workspace, lake.caller, id, version=1),
    "at a commit": lambda lake, id: read.at(lake.workspace, lake.caller, id, commit_no=1),
    "versions": lambda lake, id: read.versions(lake.workspace, lake.caller, id),
    "append": lambda lake, id: write.append(lake.workspace, lake.caller, id, reader(ONE_ROW)),
    "overwrite": lambda lake, id: write.overwrite(lake.workspace, lake.caller, id, reader(ONE_ROW)),
    "alter": lambda lake, id: alter.alter(lake.workspace, lake.caller, id, add=pa.schema([("n", pa.int8())])),
    "compact": lambda lake, id: compact.compact(lake.workspace, lake.caller, id),
    "drop": lambda lake, id: alter.drop(lake.workspace, lake.caller, id),
    "commit": lambda lake, id: commits.commit(
        lake.workspace.db, lake.caller, [Change(id, 1, "append", pa.schema([]), rebase=True)],
        lease=lake.workspace.writers.lease(lake.caller), key="x",
    ),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("known", [False, True], ids=["new tenant", "tenant with data"])
def test_a_foreign_id_answers_as_an_unknown_one(
    lake: Lake, stranger: Lake, numbers: Dataset, use: str, known: bool
) -> None:
    if known:
        stranger.create("demo.own", {"id": [1]})
    unknown = uuid4()
    answers = []
    for id in (numbers.id, unknown):
        with pytest.raises(NotFound) as refusal:
            USES[use](stranger, id)
        answers.append({key: str(value).replace(str(id), "ID") for key, value in refusal.value.facts().items()})
    assert answers[0] == answers[1]
    assert numbers.version == 1


def test_names_lists_and_snapshots_of_tenants_do_not_meet(lake: Lake, stranger: Lake, numbers: Dataset) -> None:
    assert stranger.datasets() == []
    assert stranger.snapshot().commit_no == 0
    with pytest.raises(NotFound):
        stranger.dataset("demo.numbers")
    theirs = stranger.create("demo.numbers", {"id": [9]})
    assert theirs.id != numbers.id
    assert [at.name for at in stranger.datasets()] == ["demo.numbers"]
    assert (theirs.to_arrow().to_pydict(), numbers.num_rows) == ({"id": [9]}, 3)
    assert stranger.snapshot().commit_no == 1


def test_a_stranger_learns_nothing_from_sweeping(lake: Lake, stranger: Lake, numbers: Dataset) -> None:
    numbers.overwrite(ONE_ROW)
    swept = sweep.sweep(stranger.workspace, stranger.caller, sweep.Keep(days=0, versions=1), really=True)
    assert (swept.files, swept.versions) == (0, 0)
    assert numbers.at(1).to_arrow().num_rows == 3


_paths: list[str] = []  # of the dataset in question
_leases: list[UUID] = []  # of its writer

# What the catalog offers inside a transaction: with a foreign id, nothing of it finds or changes anything.
INSIDE: dict[str, Callable[[Tx, Any], Any]] = {
    "datasets_now": lambda tx, _: history.datasets_now(tx),
    "versions": lambda tx, at: history.versions(tx, at.dataset, limit=10),
    "files": lambda tx, at: _or_nothing(lambda: history.files(tx, at)),
    "pruned files": lambda tx, at: _or_nothing(lambda: history.files(tx, at, {"id": (1, 3)})),
    "heads": lambda tx, _: retention.heads(tx),
    "newest_at": lambda tx, at: retention.newest_at(tx, at.dataset, tx.now),
    "faded": lambda tx, at: retention.faded(tx, at.dataset, None),
    "mark_swept": lambda tx, at: retention.mark_swept(tx, at.dataset, None),
    "known": lambda tx, _: retention.known(tx, _paths),
    "ended": lambda tx, _: leases.ended(tx, _leases, silent_since=tx.now.replace(year=2100)),
    "fence": lambda tx, _: leases.fence(tx, tx.now.replace(year=2100)),
    "commit_no": lambda tx, _: history.commit_no(tx),
}


def _or_nothing(use: Callable[[], Any]) -> Any:
    try:
        return use()
    except NotFound:
        return None


@pytest.mark.parametrize("function", INSIDE)
def test_no_catalog_function_finds_or_changes_what_is_anothers(
    lake: Lake, stranger: Lake, numbers: Dataset, function: str
) -> None:
    at = numbers.now().snapshot
    _paths[:] = [file.path for file in numbers.now().files()]
    _leases[:] = [lake.workspace.writers.lease(lake.caller)]
    with stranger.workspace.db.write(stranger.caller) as tx:
        assert not INSIDE[function](tx, at)
    assert numbers.to_arrow().num_rows == 3
    assert numbers.append(ONE_ROW).version == 2, "its owner's lease is as it was"


@pytest.mark.parametrize(
    "statement",
    [
        select(tables.datasets.c.dataset_id),
        select(tables.datasets),
        select(tables.datasets).where(tables.datasets.c.tenant_id != tables.datasets.c.dataset_id),
        select(tables.datasets).join(tables.leases, true()).where(mine(tables.leases)),
        select(tables.leases).where(mine(tables.leases), exists(select(tables.audit.c.at))),
        delete(tables.leases),
        update(tables.leases).values(holder="me"),
        insert(tables.leases).from_select(["holder"], select(tables.audit.c.author)),
    ],
    ids=lambda statement: str(statement).replace("\n", "")[-60:],
)
def test_a_statement_without_the_tenant_condition_never_leaves_the_process(lake: Lake, statement: Any) -> None:
    with pytest.raises(RuntimeError, match="without the tenant condition"), lake.workspace.db.read(lake.caller) as tx:
        tx.all(statement)


# -- PostgreSQL's own guard ------------------------------------------------------------------------------------------


@pytest.fixture
def owner(postgres_url: str) -> Any:
    engine = create_engine(parse_url(postgres_url))
    yield engine
    engine.dispose()


def test_every_table_of_tenants_is_enabled_and_forced(postgres_url: str, owner: Any) -> None:
    """Walk PostgreSQL's own catalog: whatever has a tenant_id is guarded, and views run as who asks."""
    with owner.connect() as connection:
        guarded = connection.execute(
            text(
                "SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity, "
                "  (SELECT count(*) FROM pg_policy p WHERE p.polrelid = c.oid AND p.polqual IS NOT NULL "
                "   AND p.polwithcheck IS NOT NULL), "
                "  pg_get_userbyid(c.relowner) "
                "FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' "
                "WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace"
            )
        ).all()
        leaky = connection.execute(
            text("SELECT relname FROM pg_class WHERE relkind IN ('v', 'm') AND relnamespace = 'public'::regnamespace")
        ).all()
    assert {row[0] for row in guarded} == {table.name for table in tables.metadata.sorted_tables}
    assert all(forced and policies == 1 for _, forced, policies, _ in guarded)
    assert APP_ROLE not in {row[3] for row in guarded}, "the application's role owns nothing"
    assert leaky == []
    db = Database(postgres_url)
    assert upgrade.unprotected(db) == []
    db.close()


def test_turns_alone_can_be_looked_at_over_all_tenants(owner: Any) -> None:
    """And only looked at: what there is besides the rule of the tenant is one policy, for reading ids."""
    with owner.connect() as connection:
        beside = connection.execute(
            text("SELECT tablename, cmd FROM pg_policies WHERE schemaname = 'public' AND policyname <> 'own_tenant'")
        ).all()
        rules = connection.execute(
            text("SELECT DISTINCT qual, with_check, cmd FROM pg_policies WHERE policyname = 'own_tenant'")
        ).all()
    assert [tuple(row) for row in beside] == [("run_turns", "SELECT")]
    assert len(rules) == 1
    kinds = {column.name: type(column.type).__name__ for column in tables.run_turns.columns}
    assert kinds == {
        "tenant_id": "Uuid",
        "run_id": "Uuid",
        "turn": "BigInteger",
        "queued_at": "Instant",
        "due_at": "Instant",
    }


@pytest.mark.parametrize(
    "statement",
    [
        select(tables.pipeline_runs),
        select(tables.run_turns).join(tables.pipeline_runs, true()),
        select(tables.run_turns).where(exists(select(tables.audit.c.at))),
        delete(tables.run_turns),
        update(tables.run_turns).values(turn=0),
        insert(tables.run_turns).from_select(["turn"], select(tables.run_turns.c.turn)),
    ],
    ids=lambda statement: str(statement).replace("\n", "")[-60:],
)
def test_who_looks_at_turns_sees_and_changes_nothing_else(lake: Lake, statement: Any) -> None:
    with pytest.raises(RuntimeError, match="without the tenant condition"), lake.workspace.db.turns() as tx:
        tx.all(statement)


def test_every_unique_key_starts_with_the_tenant_or_is_an_id_that_the_server_made() -> None:
    for table in tables.metadata.sorted_tables:
        keys = [list(table.primary_key.columns), *(list(i.columns) for i in table.indexes if i.unique)]
        named = [[column.name for column in columns] for columns in keys]
        assert all(names == ["id"] or names[0] == "tenant_id" for names in named), table.name


@pytest.mark.parametrize("table", [table.name for table in tables.metadata.sorted_tables])
def test_without_a_tenant_the_application_sees_no_row(
    postgres_url: str, tmp_path: Path, owner: Any, table: str
) -> None:
    with Place.make(tmp_path / "workspace", postgres_url).open() as lake:
        lake.create("demo.numbers", {"id": [1]}, idempotency_key="k")
        _register(lake)
        Transactions(lake.workspace).create(lake.caller)
    with owner.connect() as connection:
        assert connection.scalar(text(f"SELECT count(*) FROM {table}")) > 0, "there is something to see"
        for tenant in (None, "", str(uuid4())):
            connection.execute(text(f"SET LOCAL ROLE {APP_ROLE}"))
            if tenant is not None:
                connection.execute(text("SELECT set_config('penstock.tenant', :t, true)"), {"t": tenant})
            assert connection.scalar(text(f"SELECT count(*) FROM {table}")) == 0
            if connection.scalar(text("SELECT has_table_privilege(:t, 'DELETE')"), {"t": table}):
                assert connection.execute(text(f"DELETE FROM {table}")).rowcount == 0
            connection.rollback()


def _register(lake: Lake) -> None:
    """A schema and a query that refers to it; a pipeline and a run of it."""
    payload = {"name": "numbers", "type_id": gts.QUERY_RETURNS, "fields": [{"name": "id", "type": "number"}]}
    schema = schemas.create(lake.workspace, lake.caller, payload)
    asked = {"name": "all", "sql": "SELECT id FROM demo.numbers", "returns_schema_id": str(schema.id)}
    queries.create(lake.workspace, lake.caller, asked, lambda _: queries.Inspection((), ()))
    ref = {"dataset_id": str(lake.dataset("demo.numbers").id)}
    append = {"type": "append", "parameters": {"source": ref}}
    value = {"name": "twice", "working": ref, "operations": [append]}
    pipeline = pipelines.create(lake.workspace, lake.caller, value).id
    with lake.workspace.db.write(lake.caller) as tx:
        run = Run(uuid4(), pipeline, "twice", value, State.QUEUED, tx.now, lake.caller.user, "ada")
        runs.insert(tx, run, role=Role.ADMIN, request="", holder="here", turn=0)


def test_the_application_cannot_write_into_another_tenant(postgres_url: str, owner: Any) -> None:
    with owner.connect() as connection:
        connection.execute(text(f"SET LOCAL ROLE {APP_ROLE}"))
        connection.execute(text("SELECT set_config('penstock.tenant', :t, true)"), {"t": str(uuid4())})
        with pytest.raises(DBAPIError, match="row-level security"):
            connection.execute(
                text("INSERT INTO tenants (tenant_id, commit_no, created_at) VALUES (:t, 0, now())"), {"t": uuid4()}
            )


@pytest.mark.parametrize("table", ["audit", "receipts", "dataset_schemas", "gts_schema_versions", "gts_query_versions"])
def test_what_is_written_for_the_record_stays(owner: Any, postgres_url: str, table: str) -> None:
    for change in (f"DELETE FROM {table}", f"UPDATE {table} SET tenant_id = tenant_id"):
        with owner.connect() as connection:
            connection.execute(text(f"SET LOCAL ROLE {APP_ROLE}"))
            with pytest.raises(DBAPIError, match="permission denied"):
                connection.execute(text(change))


def test_a_role_above_the_rules_is_noticed(owner: Any, postgres_url: str) -> None:
    db = Database(postgres_url)
    try:
        with owner.begin() as connection:
            connection.execute(text(f"ALTER ROLE {APP_ROLE} BYPASSRLS"))
        assert upgrade.unprotected(db) != []
        with owner.connect() as connection, pytest.raises(Unsupported, match="BYPASSRLS"):
            upgrade.protect(connection, [], append_only=[])
    finally:
        with owner.begin() as connection:
            connection.execute(text(f"ALTER ROLE {APP_ROLE} NOBYPASSRLS"))
    assert upgrade.unprotected(db) == []
    db.close()


def test_a_login_without_the_role_is_told_what_to_do(owner: Any, postgres_url: str, tmp_path: Path) -> None:
    with owner.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS guest"))
        connection.execute(text("CREATE ROLE guest LOGIN"))
    place = Place.make(tmp_path / "workspace", postgres_url)
    with pytest.raises(Unsupported, match=f"GRANT {APP_ROLE}") as refusal:
        Place(place.folder, postgres_url.replace("owner@", "guest@")).open()
    assert refusal.value.reason == "no_app_role"


def test_a_stuck_writer_cannot_hold_up_the_others_for_ever(postgres_url: str) -> None:
    db = Database(postgres_url)
    with db.write(Caller(uuid4(), uuid4(), "ada", Role.ADMIN)) as tx:
        limits = [
            tx.all(text(f"SHOW {name}"))[0][0] for name in ("lock_timeout", "idle_in_transaction_session_timeout")
        ]
    assert limits == ["1min", "2min"]
    db.close()


def test_a_connection_never_carries_a_tenant_into_the_next_call(postgres_url: str) -> None:
    db = Database(postgres_url)
    caller = Caller(uuid4(), uuid4(), "ada", Role.ADMIN)
    seen = set()
    for ending in ("commit", "error", "read"):
        try:
            with db.read(caller) if ending == "read" else db.write(caller) as tx:
                if ending == "error":
                    raise ZeroDivisionError
                history.commit_no(tx)
        except ZeroDivisionError:
            pass
        with db.raw() as connection:  # the same connection, fresh from the pool
            seen.add(connection.execute(text("SELECT pg_backend_pid(), current_user")).one())
            assert connection.scalar(text("SELECT current_setting('penstock.tenant', true)")) in (None, "")
    assert len(seen) == 1, "one pooled connection served every call"
    assert seen.pop()[1] == "owner"
    db.close()


def test_a_login_that_is_only_a_member_of_the_application_role_is_enough(
    postgres_url: str, owner: Any, tmp_path: Path
) -> None:
    with owner.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS clerk"))
        connection.execute(text(f"CREATE ROLE clerk LOGIN IN ROLE {APP_ROLE}"))
    place = Place.make(tmp_path / "workspace", postgres_url)
    clerk = Place(place.folder, postgres_url.replace("owner@", "clerk@"))
    with clerk.open() as lake:
        assert lake.create("demo.numbers", {"id": [1, 2]}).append({"id": [3]}).version == 2
        assert lake.dataset("demo.numbers").num_rows == 3
    engine = create_engine(parse_url(clerk.url or ""))
    with engine.connect() as connection:
        for forbidden in ("DROP TABLE data_files", "ALTER TABLE data_files DISABLE ROW LEVEL SECURITY"):
            with pytest.raises(DBAPIError, match="must be owner"):
                connection.execute(text(forbidden))
            connection.rollback()
        assert connection.scalar(text("SELECT count(*) FROM datasets")) == 0
    engine.dispose()
