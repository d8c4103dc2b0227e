"""Create all tables of the catalog, with indexes and, on PostgreSQL, row-level security."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, TEXT, VARCHAR

from penstock.catalog.database import RUN_QUEUE_SETTING
from penstock.catalog.migrate import enable_row_security

revision = "0001_initial"
down_revision = None

Timestamp = sa.DateTime(timezone=True)
OrderedJson = sa.JSON(none_as_null=True)
Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")

TABLES = [
    "tenants", "datasets", "dataset_schemas", "dataset_versions", "data_files", "file_ranges", "receipts", "leases",
    "transactions", "audit", "gts_schemas", "gts_schema_versions", "gts_schema_fields", "gts_queries",
    "gts_query_versions", "pipelines", "pipeline_runs", "run_queue",
]  # fmt: skip
APPEND_ONLY = ["dataset_schemas", "receipts", "audit", "gts_schema_versions", "gts_query_versions"]


def upgrade() -> None:
    _create_tables()
    if op.get_bind().dialect.name == "postgresql":
        op.create_index("ix_gts_schemas_fields", "gts_schemas", ["fields"], postgresql_using="gin")
        enable_row_security(op.get_bind(), TABLES, append_only=APPEND_ONLY)
        # Workers read the queue over all tenants, as ids only. They claim a run as the tenant that owns it.
        op.execute(
            "CREATE POLICY any_queued_run ON run_queue FOR SELECT "
            f"USING (current_setting('{RUN_QUEUE_SETTING}', true) = 'all')"
        )


def _create_tables() -> None:
    op.create_table(
        "audit",
        _column("tenant_id", sa.Uuid),
        _column("audit_id", sa.Uuid),
        _column("at", Timestamp),
        _column("user_id", sa.Uuid),
        _column("author", sa.String(320)),
        _column("action", sa.String(40)),
        sa.Column("commit_no", sa.BigInteger),
        _column("detail", sa.Text),
        sa.PrimaryKeyConstraint("tenant_id", "audit_id"),
    )
    op.create_index("ix_audit_at", "audit", ["tenant_id", "at"])
    op.create_table(
        "file_ranges",
        _column("tenant_id", sa.Uuid),
        _column("dataset_id", sa.Uuid),
        _column("column_no", sa.SmallInteger),
        _column("coordinate", sa.BigInteger),
        _column("file_no", sa.BigInteger),
        sa.PrimaryKeyConstraint("tenant_id", "dataset_id", "column_no", "coordinate", "file_no"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_file_ranges_file", "file_ranges", ["tenant_id", "dataset_id", "file_no"])
    op.create_table(
        "gts_schemas",
        _column("tenant_id", sa.Uuid),
        _column("id", sa.Uuid),
        _column("type_id", _text(255)),
        _column("name", _text(500)),
        _column("name_lower", _text(1500)),
        _column("name_upper", _text(1500)),
        _column("name_key", _text(1500)),
        sa.Column("description", _text()),
        sa.Column("description_lower", _text()),
        sa.Column("description_upper", _text()),
        _column("fields", Json),
        sa.Column("metadata", Json),
        _column("state", _text(50), server_default="ACTIVE"),
        _column("state_changed_at", Timestamp),
        _column("created_at", Timestamp),
        _column("created_by", sa.Uuid),
        _column("updated_at", Timestamp),
        _column("updated_by", sa.Uuid),
        _column("version", sa.Integer, server_default="1"),
        sa.Column("deleted_at", Timestamp),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant_id", "id", name="uq_gts_schemas_tenant"),
    )
    op.create_index("ix_gts_schemas_created", "gts_schemas", ["tenant_id", "created_at", "id"])
    op.create_index("ix_gts_schemas_name", "gts_schemas", ["tenant_id", "name"])
    op.create_index("ix_gts_schemas_state", "gts_schemas", ["tenant_id", "state", "state_changed_at"])
    op.create_index("ix_gts_schemas_type", "gts_schemas", ["tenant_id", "type_id"])
    _unique_index(
        "uq_gts_schemas_name",
        "gts_schemas",
        ["tenant_id", "name_key"],
        sa.text("deleted_at IS NULL AND state != 'ARCHIVED'"),
    )
    op.create_table(
        "leases",
        _column("tenant_id", sa.Uuid),
        _column("lease_id", sa.Uuid),
        _column("holder", sa.String(200)),
        _column("started_at", Timestamp),
        _column("heartbeat_at", Timestamp),
        sa.Column("ended_at", Timestamp),
        sa.PrimaryKeyConstraint("tenant_id", "lease_id"),
    )
    op.create_table(
        "pipelines",
        _column("tenant_id", sa.Uuid),
        _column("id", sa.Uuid),
        _column("name", _text(255)),
        _column("name_lower", _text(765)),
        _column("name_upper", _text(765)),
        _column("name_key", _text(765)),
        _column("definition", OrderedJson),
        _column("version", sa.Integer),
        _column("created_at", Timestamp),
        _column("created_by", sa.Uuid),
        _column("updated_at", Timestamp),
        _column("updated_by", sa.Uuid),
        sa.Column("deleted_at", Timestamp),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
    )
    op.create_index("ix_pipelines_created", "pipelines", ["tenant_id", "created_at", "id"])
    _unique_index("uq_pipelines_name", "pipelines", ["tenant_id", "name_key"], sa.text("deleted_at IS NULL"))
    op.create_table(
        "receipts",
        _column("tenant_id", sa.Uuid),
        _column("key", sa.String(200)),
        _column("fingerprint", sa.String(64)),
        _column("commit_no", sa.BigInteger),
        _column("dataset_commits", sa.Text),
        _column("created_at", Timestamp),
        sa.PrimaryKeyConstraint("tenant_id", "key"),
    )
    op.create_table(
        "tenants",
        _column("tenant_id", sa.Uuid),
        _column("commit_no", sa.BigInteger),
        _column("committed_at", Timestamp),
        _column("created_at", Timestamp),
        sa.PrimaryKeyConstraint("tenant_id"),
    )
    op.create_table(
        "transactions",
        _column("tenant_id", sa.Uuid),
        _column("id", sa.Uuid),
        _column("user_id", sa.Uuid),
        _column("state", sa.String(20)),
        _column("commit_no", sa.BigInteger),
        _column("auto_commit", sa.Boolean),
        _column("seq", sa.BigInteger),
        sa.Column("write_set", sa.Text),
        _column("owner", sa.String(200)),
        sa.Column("operation_process", sa.String(200)),
        sa.Column("receipt", sa.String(200)),
        _column("created_at", Timestamp),
        _column("heartbeat_at", Timestamp),
        _column("expires_at", Timestamp),
        sa.Column("ended_at", Timestamp),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
    )
    op.create_index("ix_transactions_state", "transactions", ["tenant_id", "state"])
    op.create_table(
        "datasets",
        _column("tenant_id", sa.Uuid),
        _column("dataset_id", sa.Uuid),
        _column("schema_name", sa.String(128)),
        _column("table_name", sa.String(128)),
        _column("name_key", sa.String(257)),
        _column("location", sa.String(255)),
        _column("read_only", sa.Boolean),
        _column("row_ids", sa.Boolean),
        _column("next_row_id", sa.BigInteger),
        _column("next_file_no", sa.BigInteger),
        _column("created_at", Timestamp),
        _column("created_by", sa.Uuid),
        _column("updated_at", Timestamp),
        _column("updated_by", sa.Uuid),
        sa.Column("dropped_at", Timestamp),
        sa.Column("dropped_commit_no", sa.BigInteger),
        sa.Column("locked_by", sa.Uuid),
        sa.Column("locked_until", Timestamp),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"], name="fk_datasets_tenants"),
        sa.PrimaryKeyConstraint("tenant_id", "dataset_id"),
    )
    _unique_index("uq_datasets_name", "datasets", ["tenant_id", "name_key"], sa.text("dropped_at IS NULL"))
    op.create_table(
        "gts_queries",
        _column("tenant_id", sa.Uuid),
        _column("id", sa.Uuid),
        _column("name", _text(500)),
        _column("name_lower", _text(1500)),
        _column("name_upper", _text(1500)),
        _column("name_key", _text(1500)),
        sa.Column("description", _text()),
        sa.Column("description_lower", _text()),
        sa.Column("description_upper", _text()),
        _column("sql", _text()),
        _column("parameters", Json),
        _column("reads", Json),
        _column("returns_schema_id", sa.Uuid),
        _column("state", _text(50), server_default="ACTIVE"),
        _column("state_changed_at", Timestamp),
        _column("created_at", Timestamp),
        _column("created_by", sa.Uuid),
        _column("updated_at", Timestamp),
        _column("updated_by", sa.Uuid),
        _column("version", sa.Integer, server_default="1"),
        sa.Column("deleted_at", Timestamp),
        sa.ForeignKeyConstraint(
            ["tenant_id", "returns_schema_id"],
            ["gts_schemas.tenant_id", "gts_schemas.id"],
            name="fk_gts_queries_gts_schemas",
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_gts_queries_created", "gts_queries", ["tenant_id", "created_at", "id"])
    op.create_index("ix_gts_queries_schema", "gts_queries", ["tenant_id", "returns_schema_id"])
    _unique_index("uq_gts_queries_name", "gts_queries", ["tenant_id", "name_key"], sa.text("deleted_at IS NULL"))
    op.create_index("uq_gts_queries_tenant", "gts_queries", ["tenant_id", "id"], unique=True)
    op.create_table(
        "gts_schema_fields",
        _column("tenant_id", sa.Uuid),
        _column("schema_id", sa.Uuid),
        _column("position", sa.Integer),
        _column("name", _text(128)),
        _column("type", _text(20)),
        _column("array", sa.Boolean),
        _column("optional", sa.Boolean),
        sa.ForeignKeyConstraint(
            ["tenant_id", "schema_id"],
            ["gts_schemas.tenant_id", "gts_schemas.id"],
            name="fk_gts_schema_fields_gts_schemas",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "schema_id", "position"),
    )
    op.create_index("ix_gts_schema_fields_name", "gts_schema_fields", ["tenant_id", "name", "schema_id"])
    op.create_table(
        "gts_schema_versions",
        _column("tenant_id", sa.Uuid),
        _column("schema_id", sa.Uuid),
        _column("version", sa.Integer),
        _column("name", _text(500)),
        sa.Column("description", _text()),
        _column("fields", Json),
        sa.Column("metadata", Json),
        _column("state", _text(50)),
        _column("change", sa.String(40)),
        sa.Column("reason", _text()),
        _column("changed_at", Timestamp),
        _column("changed_by", sa.Uuid),
        _column("author", sa.String(320)),
        sa.ForeignKeyConstraint(
            ["tenant_id", "schema_id"],
            ["gts_schemas.tenant_id", "gts_schemas.id"],
            name="fk_gts_schema_versions_gts_schemas",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "schema_id", "version"),
    )
    op.create_table(
        "pipeline_runs",
        _column("tenant_id", sa.Uuid),
        _column("id", sa.Uuid),
        sa.Column("pipeline_id", sa.Uuid),
        _column("name", _text(255)),
        _column("name_lower", _text(765)),
        _column("name_upper", _text(765)),
        _column("definition", OrderedJson),
        _column("state", _text(20)),
        sa.Column("idempotency_key", sa.String(200)),
        _column("request_digest", sa.String(64)),
        _column("created_at", Timestamp),
        _column("created_by", sa.Uuid),
        _column("author", _text(320)),
        _column("role", sa.String(40)),
        _column("worker", sa.String(200)),
        _column("attempts", sa.Integer, server_default="0"),
        _column("heartbeat_at", Timestamp),
        sa.Column("started_at", Timestamp),
        sa.Column("ended_at", Timestamp),
        sa.Column("cancel_requested_at", Timestamp),
        sa.Column("commit_no", sa.BigInteger),
        _column("reads", OrderedJson),
        _column("written", OrderedJson),
        _column("results", OrderedJson),
        sa.Column("progress", OrderedJson),
        sa.Column("error", OrderedJson),
        sa.Column("error_kind", sa.String(20)),
        sa.ForeignKeyConstraint(
            ["tenant_id", "pipeline_id"], ["pipelines.tenant_id", "pipelines.id"], name="fk_pipeline_runs_pipelines"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
    )
    op.create_index("ix_pipeline_runs_created", "pipeline_runs", ["tenant_id", "created_at", "id"])
    op.create_index("ix_pipeline_runs_pipeline", "pipeline_runs", ["tenant_id", "pipeline_id", "created_at", "id"])
    op.create_index("ix_pipeline_runs_state", "pipeline_runs", ["tenant_id", "state", "created_at", "id"])
    _unique_index(
        "uq_pipeline_runs_key",
        "pipeline_runs",
        ["tenant_id", "idempotency_key"],
        sa.text("idempotency_key IS NOT NULL AND state IN ('queued', 'running', 'succeeded')"),
    )
    op.create_table(
        "data_files",
        _column("tenant_id", sa.Uuid),
        _column("dataset_id", sa.Uuid),
        _column("file_no", sa.BigInteger),
        _column("path", sa.String(512)),
        _column("rows", sa.BigInteger),
        _column("bytes", sa.BigInteger),
        _column("checksum", sa.String(80)),
        sa.Column("first_row_id", sa.BigInteger),
        sa.Column("low_row_id", sa.BigInteger),
        sa.Column("high_row_id", sa.BigInteger),
        _column("stats", sa.Text),
        _column("begin_version", sa.BigInteger),
        sa.Column("end_version", sa.BigInteger),
        sa.ForeignKeyConstraint(
            ["tenant_id", "dataset_id"], ["datasets.tenant_id", "datasets.dataset_id"], name="fk_data_files_datasets"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "dataset_id", "file_no"),
    )
    op.create_index("ix_data_files_end", "data_files", ["tenant_id", "dataset_id", "end_version"])
    op.create_index("uq_data_files_path", "data_files", ["tenant_id", "path"], unique=True)
    op.create_table(
        "dataset_schemas",
        _column("tenant_id", sa.Uuid),
        _column("dataset_id", sa.Uuid),
        _column("schema_no", sa.Integer),
        _column("fields", sa.Text),
        sa.ForeignKeyConstraint(
            ["tenant_id", "dataset_id"],
            ["datasets.tenant_id", "datasets.dataset_id"],
            name="fk_dataset_schemas_datasets",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "dataset_id", "schema_no"),
    )
    op.create_table(
        "dataset_versions",
        _column("tenant_id", sa.Uuid),
        _column("dataset_id", sa.Uuid),
        _column("version", sa.BigInteger),
        _column("commit_no", sa.BigInteger),
        _column("schema_no", sa.Integer),
        _column("operation", sa.String(40)),
        _column("inserted", sa.BigInteger),
        _column("updated", sa.BigInteger),
        _column("deleted", sa.BigInteger),
        _column("rows", sa.BigInteger),
        _column("files", sa.BigInteger),
        _column("bytes", sa.BigInteger),
        _column("created_at", Timestamp),
        _column("created_by", sa.Uuid),
        _column("author", sa.String(320)),
        sa.Column("swept_at", Timestamp),
        sa.ForeignKeyConstraint(
            ["tenant_id", "dataset_id"],
            ["datasets.tenant_id", "datasets.dataset_id"],
            name="fk_dataset_versions_datasets",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "dataset_id", "version"),
    )
    op.create_index(
        "uq_dataset_versions_commit", "dataset_versions", ["tenant_id", "dataset_id", "commit_no"], unique=True
    )
    op.create_table(
        "gts_query_versions",
        _column("tenant_id", sa.Uuid),
        _column("query_id", sa.Uuid),
        _column("version", sa.Integer),
        _column("name", _text(500)),
        sa.Column("description", _text()),
        _column("sql", _text()),
        _column("parameters", Json),
        _column("reads", Json),
        _column("returns_schema_id", sa.Uuid),
        _column("state", _text(50)),
        _column("change", sa.String(40)),
        sa.Column("reason", _text()),
        _column("changed_at", Timestamp),
        _column("changed_by", sa.Uuid),
        _column("author", sa.String(320)),
        sa.ForeignKeyConstraint(
            ["tenant_id", "query_id"],
            ["gts_queries.tenant_id", "gts_queries.id"],
            name="fk_gts_query_versions_gts_queries",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "query_id", "version"),
    )
    op.create_table(
        "run_queue",
        _column("tenant_id", sa.Uuid),
        _column("run_id", sa.Uuid),
        _column("round_no", sa.BigInteger),
        _column("queued_at", Timestamp),
        sa.Column("claimed_until", Timestamp),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"], ["pipeline_runs.tenant_id", "pipeline_runs.id"], name="fk_run_queue_pipeline_runs"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "run_id"),
    )
    op.create_index("ix_run_queue_round", "run_queue", ["round_no", "queued_at"])


def _column(name: str, data_type: Any, server_default: str | None = None) -> sa.Column[Any]:
    """Return a column that is NOT NULL."""
    return sa.Column(name, data_type, nullable=False, server_default=server_default)


def _text(length: int | None = None) -> sa.String:
    """Return a text type that PostgreSQL sorts by code point, as SQLite does."""
    plain = sa.Text() if length is None else sa.String(length)
    return plain.with_variant(TEXT(collation="C") if length is None else VARCHAR(length, collation="C"), "postgresql")


def _unique_index(name: str, table: str, columns: list[str], condition: sa.TextClause) -> None:
    """Create a unique index over the rows that meet a condition."""
    op.create_index(name, table, columns, unique=True, sqlite_where=condition, postgresql_where=condition)
