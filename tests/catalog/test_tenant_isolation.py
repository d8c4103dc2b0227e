"""Tenant isolation of the catalog: ids, names, the statement guard and row-level security."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from sqlalchemy import create_engine, delete, exists, insert, select, text, true, update
from sqlalchemy.exc import DBAPIError

from penstock.catalog import commit, migrate, retention, runs, snapshots, tables, writer_leases
from penstock.catalog.database import APP_ROLE, CatalogTransaction, Database, parse_url
from penstock.catalog.tenant_guard import tenant_filter
from penstock.core.caller import Caller, Role
from penstock.core.dataset.changes import Change
from penstock.core.pipeline.run import Run, RunState
from penstock.core.registry import gts
from penstock.errors import NotFound, Unsupported
from penstock.lake import Dataset, Lake
from penstock.service.datasets import alter, compact, read, sweep, write
from penstock.service.datasets.row_source import open_reader
from penstock.service.pipelines import definitions as pipeline_definitions
from penstock.service.queries import definitions as query_definitions
from penstock.service.registry import schemas
from penstock.service.transactions.client import ClientTransactions
from support.workspaces import WorkspaceFixture

ONE_ROW = {"id": [1], "word": ["x"]}

# Every function with a dataset id as its argument.
USES: dict[str, Callable[[Lake, Any], Any]] = {
    "find": lambda lake, id: read.find(lake._workspace, lake.caller, id),
    "at a version": lambda lake, id: read.find_version(lake._workspace, lake.caller, id, version=1),
    "at a commit": lambda lake, id: read.find_version(lake._workspace, lake.caller, id, commit_no=1),
    "versions": lambda lake, id: read.versions(lake._workspace, lake.caller, id),
    "append": lambda lake, id: write.append(lake._workspace, lake.caller, id, open_reader(ONE_ROW)),
    "overwrite": lambda lake, id: write.overwrite(lake._workspace, lake.caller, id, open_reader(ONE_ROW)),
    "alter": lambda lake, id: alter.alter(lake._workspace, lake.caller, id, add=pa.schema([("n", pa.int8())])),
    "compact": lambda lake, id: compact.compact(lake._workspace, lake.caller, id),
    "drop": lambda lake, id: alter.drop(lake._workspace, lake.caller, id),
    "commit": lambda lake, id: commit.commit(
        lake._workspace.db, lake.caller, [Change(id, 1, "append", pa.schema([]), rebase=True)],
        lease=lake._workspace.writers.lease(lake.caller), key="x",
    ),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("existing", [False, True], ids=["new tenant", "tenant with data"])
def test_dataset_of_another_tenant_is_not_found(
    lake: Lake, other_tenant: Lake, three_rows: Dataset, use: str, existing: bool
) -> None:
    if existing:
        other_tenant.create("demo.own", {"id": [1]})
    unknown = uuid4()
    errors = []
    for id in (three_rows.id, unknown):
        with pytest.raises(NotFound) as raised:
            USES[use](other_tenant, id)
        errors.append({key: str(value).replace(str(id), "ID") for key, value in raised.value.as_dict().items()})
    assert errors[0] == errors[1]
    assert three_rows.version == 1


def test_names_lists_and_snapshots_are_separate_for_each_tenant(
    lake: Lake, other_tenant: Lake, three_rows: Dataset
) -> None:
    assert other_tenant.datasets() == []
    assert other_tenant.snapshot().commit_no == 0
    with pytest.raises(NotFound):
        other_tenant.dataset("demo.numbers")
    foreign = other_tenant.create("demo.numbers", {"id": [9]})
    assert foreign.id != three_rows.id
    assert [dataset.name for dataset in other_tenant.datasets()] == ["demo.numbers"]
    assert (foreign.to_arrow().to_pydict(), three_rows.num_rows) == ({"id": [9]}, 3)
    assert other_tenant.snapshot().commit_no == 1


def test_sweep_of_another_tenant_finds_nothing(lake: Lake, other_tenant: Lake, three_rows: Dataset) -> None:
    three_rows.overwrite(ONE_ROW)
    swept = sweep.sweep(
        other_tenant._workspace, other_tenant.caller, sweep.RetentionPolicy(days=0, versions=1), execute=True
    )
    assert (swept.files, swept.versions) == (0, 0)
    assert three_rows.at(1).to_arrow().num_rows == 3


_paths: list[str] = []  # the dataset
_leases: list[UUID] = []  # its writer

# Functions of the catalog inside a transaction: with the id of another tenant, they find and change nothing.
INSIDE: dict[str, Callable[[CatalogTransaction, Any], Any]] = {
    "datasets_now": lambda tx, _: snapshots.list_newest(tx),
    "versions": lambda tx, at: snapshots.versions(tx, at.dataset, limit=10),
    "files": lambda tx, at: _or_nothing(lambda: snapshots.files(tx, at)),
    "pruned files": lambda tx, at: _or_nothing(lambda: snapshots.files(tx, at, {"id": (1, 3)})),
    "heads": lambda tx, _: retention.list_heads(tx),
    "newest_at": lambda tx, at: retention.newest_at(tx, at.dataset, tx.now),
    "faded": lambda tx, at: retention.expired_files(tx, at.dataset, None),
    "mark_swept": lambda tx, at: retention.mark_swept(tx, at.dataset, None),
    "known": lambda tx, _: retention.registered_paths(tx, _paths),
    "ended": lambda tx, _: writer_leases.find_ended(tx, _leases, stale_before=tx.now.replace(year=2100)),
    "fence": lambda tx, _: writer_leases.expire_stale(tx, tx.now.replace(year=2100)),
    "commit_no": lambda tx, _: snapshots.commit_no(tx),
}


def _or_nothing(use: Callable[[], Any]) -> Any:
    try:
        return use()
    except NotFound:
        return None


@pytest.mark.parametrize("function", INSIDE)
def test_catalog_functions_find_and_change_nothing_of_another_tenant(
    lake: Lake, other_tenant: Lake, three_rows: Dataset, function: str
) -> None:
    snapshot = three_rows.current().snapshot
    _paths[:] = [file.path for file in three_rows.current().files()]
    _leases[:] = [lake._workspace.writers.lease(lake.caller)]
    with other_tenant._workspace.db.write(other_tenant.caller) as tx:
        assert not INSIDE[function](tx, snapshot)
    assert three_rows.to_arrow().num_rows == 3
    assert three_rows.append(ONE_ROW).version == 2, "its owner's lease is as it was"


@pytest.mark.parametrize(
    "statement",
    [
        select(tables.datasets.c.dataset_id),
        select(tables.datasets),
        select(tables.datasets).where(tables.datasets.c.tenant_id != tables.datasets.c.dataset_id),
        select(tables.datasets).join(tables.leases, true()).where(tenant_filter(tables.leases)),
        select(tables.leases).where(tenant_filter(tables.leases), exists(select(tables.audit.c.at))),
        delete(tables.leases),
        update(tables.leases).values(holder="me"),
        insert(tables.leases).from_select(["holder"], select(tables.audit.c.author)),
    ],
    ids=lambda statement: str(statement).replace("\n", "")[-60:],
)
def test_statement_without_the_tenant_condition_is_not_sent(lake: Lake, statement: Any) -> None:
    with pytest.raises(RuntimeError, match="without the tenant condition"), lake._workspace.db.read(lake.caller) as tx:
        tx.all(statement)


# -- row-level security ----------------------------------------------------------------------------------------------


@pytest.fixture
def owner(postgres_url: str) -> Any:
    engine = create_engine(parse_url(postgres_url))
    yield engine
    engine.dispose()


def test_row_level_security_is_enabled_and_forced_on_every_table(postgres_url: str, owner: Any) -> None:
    """Read the system catalog: every table with a tenant_id has row-level security, and views run as the caller."""
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
    assert migrate.tables_without_row_security(db) == []
    db.close()


def test_only_the_run_queue_can_be_read_over_all_tenants(owner: Any) -> None:
    """Besides the policies of the tenant there is one policy, for reading ids."""
    with owner.connect() as connection:
        other_policies = connection.execute(
            text("SELECT tablename, cmd FROM pg_policies WHERE schemaname = 'public' AND policyname <> 'own_tenant'")
        ).all()
        rules = connection.execute(
            text("SELECT DISTINCT qual, with_check, cmd FROM pg_policies WHERE policyname = 'own_tenant'")
        ).all()
    assert [tuple(row) for row in other_policies] == [("run_queue", "SELECT")]
    assert len(rules) == 1
    column_types = {column.name: type(column.type).__name__ for column in tables.run_queue.columns}
    assert column_types == {
        "tenant_id": "CatalogUuid",
        "run_id": "CatalogUuid",
        "round_no": "BigInteger",
        "queued_at": "UtcTimestamp",
        "claimed_until": "UtcTimestamp",
    }


@pytest.mark.parametrize(
    "statement",
    [
        select(tables.pipeline_runs),
        select(tables.run_queue).join(tables.pipeline_runs, true()),
        select(tables.run_queue).where(exists(select(tables.audit.c.at))),
        delete(tables.run_queue),
        update(tables.run_queue).values(round_no=0),
        insert(tables.run_queue).from_select(["round_no"], select(tables.run_queue.c.round_no)),
    ],
    ids=lambda statement: str(statement).replace("\n", "")[-60:],
)
def test_read_run_queue_rejects_other_tables_and_changes(lake: Lake, statement: Any) -> None:
    with pytest.raises(RuntimeError, match="without the tenant condition"), lake._workspace.db.read_run_queue() as tx:
        tx.all(statement)


def test_unique_keys_start_with_the_tenant_or_are_generated_ids() -> None:
    for table in tables.metadata.sorted_tables:
        keys = [list(table.primary_key.columns), *(list(i.columns) for i in table.indexes if i.unique)]
        column_names = [[column.name for column in columns] for columns in keys]
        assert all(names == ["id"] or names[0] == "tenant_id" for names in column_names), table.name


@pytest.mark.parametrize("table", [table.name for table in tables.metadata.sorted_tables])
def test_session_without_a_tenant_sees_no_rows(postgres_url: str, tmp_path: Path, owner: Any, table: str) -> None:
    with WorkspaceFixture.make(tmp_path / "workspace", postgres_url).open() as lake:
        lake.create("demo.numbers", {"id": list(range(10))}, idempotency_key="k").delete([1])  # marks the row
        _register(lake)
        ClientTransactions(lake._workspace).create(lake.caller)
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
    """Insert a schema, a query that refers to it, a pipeline and a run of it."""
    payload = {"name": "numbers", "type_id": gts.QUERY_RETURNS, "fields": [{"name": "id", "type": "number"}]}
    schema = schemas.create(lake._workspace, lake.caller, payload)
    requested = {"name": "all", "sql": "SELECT id FROM demo.numbers", "returns_schema_id": str(schema.id)}
    query_definitions.create(
        lake._workspace, lake.caller, requested, lambda _: query_definitions.QueryInspection((), ())
    )
    ref = {"dataset_id": str(lake.dataset("demo.numbers").id)}
    append = {"type": "append", "parameters": {"source": ref}}
    value = {"name": "twice", "working": ref, "operations": [append]}
    pipeline = pipeline_definitions.create(lake._workspace, lake.caller, value).id
    with lake._workspace.db.write(lake.caller) as tx:
        run = Run(uuid4(), pipeline, "twice", value, RunState.QUEUED, tx.now, lake.caller.user, "ada")
        runs.insert(tx, run, role=Role.ADMIN, request_digest="", worker="here", round_no=0)


def test_session_cannot_write_rows_of_another_tenant(postgres_url: str, owner: Any) -> None:
    with owner.connect() as connection:
        connection.execute(text(f"SET LOCAL ROLE {APP_ROLE}"))
        connection.execute(text("SELECT set_config('penstock.tenant', :t, true)"), {"t": str(uuid4())})
        with pytest.raises(DBAPIError, match="row-level security"):
            connection.execute(
                text("INSERT INTO tenants (tenant_id, commit_no, created_at) VALUES (:t, 0, now())"), {"t": uuid4()}
            )


@pytest.mark.parametrize("table", ["audit", "receipts", "dataset_schemas", "gts_schema_versions", "gts_query_versions"])
def test_append_only_tables_reject_update_and_delete(owner: Any, postgres_url: str, table: str) -> None:
    for change in (f"DELETE FROM {table}", f"UPDATE {table} SET tenant_id = tenant_id"):
        with owner.connect() as connection:
            connection.execute(text(f"SET LOCAL ROLE {APP_ROLE}"))
            with pytest.raises(DBAPIError, match="permission denied"):
                connection.execute(text(change))


def test_app_role_that_bypasses_row_security_is_reported(owner: Any, postgres_url: str) -> None:
    db = Database(postgres_url)
    try:
        with owner.begin() as connection:
            connection.execute(text(f"ALTER ROLE {APP_ROLE} BYPASSRLS"))
        assert migrate.tables_without_row_security(db) != []
        with owner.connect() as connection, pytest.raises(Unsupported, match="BYPASSRLS"):
            migrate.enable_row_security(connection, [], append_only=[])
    finally:
        with owner.begin() as connection:
            connection.execute(text(f"ALTER ROLE {APP_ROLE} NOBYPASSRLS"))
    assert migrate.tables_without_row_security(db) == []
    db.close()


def test_login_without_the_app_role_raises_unsupported(owner: Any, postgres_url: str, tmp_path: Path) -> None:
    with owner.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS guest"))
        connection.execute(text("CREATE ROLE guest LOGIN"))
    fixture = WorkspaceFixture.make(tmp_path / "workspace", postgres_url)
    with pytest.raises(Unsupported, match=f"GRANT {APP_ROLE}") as raised:
        WorkspaceFixture(fixture.folder, postgres_url.replace("owner@", "guest@")).open()
    assert raised.value.reason == "missing_app_role"


def test_stalled_writer_blocks_others_until_a_timeout_only(postgres_url: str) -> None:
    db = Database(postgres_url)
    with db.write(Caller(uuid4(), uuid4(), "ada", Role.ADMIN)) as tx:
        limits = [
            tx.all(text(f"SHOW {name}"))[0][0] for name in ("lock_timeout", "idle_in_transaction_session_timeout")
        ]
    assert limits == ["1min", "2min"]
    db.close()


def test_pooled_connection_keeps_no_tenant(postgres_url: str) -> None:
    db = Database(postgres_url)
    caller = Caller(uuid4(), uuid4(), "ada", Role.ADMIN)
    states = set()
    for ending in ("commit", "error", "read"):
        try:
            with db.read(caller) if ending == "read" else db.write(caller) as tx:
                if ending == "error":
                    raise ZeroDivisionError
                snapshots.commit_no(tx)
        except ZeroDivisionError:
            pass
        with db.connect_without_tenant() as connection:  # the same connection, taken from the pool again
            states.add(connection.execute(text("SELECT pg_backend_pid(), current_user")).one())
            assert connection.scalar(text("SELECT current_setting('penstock.tenant', true)")) in (None, "")
    assert len(states) == 1, "one pooled connection served every call"
    assert states.pop()[1] == "owner"
    db.close()


def test_login_with_only_the_app_role_can_write_but_not_alter_tables(
    postgres_url: str, owner: Any, tmp_path: Path
) -> None:
    with owner.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS clerk"))
        connection.execute(text(f"CREATE ROLE clerk LOGIN IN ROLE {APP_ROLE}"))
    fixture = WorkspaceFixture.make(tmp_path / "workspace", postgres_url)
    clerk = WorkspaceFixture(fixture.folder, postgres_url.replace("owner@", "clerk@"))
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
