"""Datasets, versions, files, receipts, leases and the audit."""

import sqlalchemy as sa
from alembic import op

from penstock.catalog.migrate import protect

revision = "0001"
down_revision = None

TABLES = [
    "tenants", "datasets", "dataset_schemas", "dataset_versions", "data_files",
    "file_bins", "receipts", "leases", "audit",
]  # fmt: skip

Big, Moment = sa.BigInteger, sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "tenants",
        _column("tenant_id", sa.Uuid),
        _column("commit_no", Big),
        _column("committed_at", Moment),
        _column("created_at", Moment),
        sa.PrimaryKeyConstraint("tenant_id"),
    )
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
        _column("next_row_id", Big),
        _column("next_file", Big),
        _column("created_at", Moment),
        _column("created_by", sa.Uuid),
        _column("updated_at", Moment),
        _column("updated_by", sa.Uuid),
        sa.Column("dropped_at", Moment),
        sa.Column("dropped_commit_no", Big),
        sa.PrimaryKeyConstraint("tenant_id", "dataset_id"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"], name="fk_datasets_tenants"),
    )
    still_there = sa.text("dropped_at IS NULL")
    op.create_index(
        "uq_datasets_name",
        "datasets",
        ["tenant_id", "name_key"],
        unique=True,
        sqlite_where=still_there,
        postgresql_where=still_there,
    )
    op.create_table(
        "dataset_schemas",
        _column("tenant_id", sa.Uuid),
        _column("dataset_id", sa.Uuid),
        _column("schema_no", sa.Integer),
        _column("fields", sa.Text),
        sa.PrimaryKeyConstraint("tenant_id", "dataset_id", "schema_no"),
        _of_dataset("dataset_schemas"),
    )
    op.create_table(
        "dataset_versions",
        _column("tenant_id", sa.Uuid),
        _column("dataset_id", sa.Uuid),
        _column("version", Big),
        _column("commit_no", Big),
        _column("schema_no", sa.Integer),
        _column("operation", sa.String(40)),
        _column("inserted", Big),
        _column("updated", Big),
        _column("deleted", Big),
        _column("rows", Big),
        _column("files", Big),
        _column("bytes", Big),
        _column("created_at", Moment),
        _column("created_by", sa.Uuid),
        _column("author", sa.String(320)),
        sa.Column("swept_at", Moment),
        sa.PrimaryKeyConstraint("tenant_id", "dataset_id", "version"),
        _of_dataset("dataset_versions"),
    )
    op.create_index(
        "uq_dataset_versions_commit", "dataset_versions", ["tenant_id", "dataset_id", "commit_no"], unique=True
    )
    op.create_table(
        "data_files",
        _column("tenant_id", sa.Uuid),
        _column("dataset_id", sa.Uuid),
        _column("file_no", Big),
        _column("path", sa.String(512)),
        _column("rows", Big),
        _column("bytes", Big),
        _column("checksum", sa.String(80)),
        sa.Column("first_row_id", Big),
        sa.Column("low_row_id", Big),
        sa.Column("high_row_id", Big),
        _column("stats", sa.Text),
        _column("begin_version", Big),
        sa.Column("end_version", Big),
        sa.PrimaryKeyConstraint("tenant_id", "dataset_id", "file_no"),
        _of_dataset("data_files"),
    )
    op.create_index("ix_data_files_end", "data_files", ["tenant_id", "dataset_id", "end_version"])
    op.create_index("uq_data_files_path", "data_files", ["tenant_id", "path"], unique=True)
    op.create_table(
        "file_bins",
        _column("tenant_id", sa.Uuid),
        _column("dataset_id", sa.Uuid),
        _column("column_no", sa.SmallInteger),
        _column("place", Big),
        _column("file_no", Big),
        sa.PrimaryKeyConstraint("tenant_id", "dataset_id", "column_no", "place", "file_no"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_file_bins_file", "file_bins", ["tenant_id", "dataset_id", "file_no"])
    op.create_table(
        "receipts",
        _column("tenant_id", sa.Uuid),
        _column("key", sa.String(200)),
        _column("fingerprint", sa.String(64)),
        _column("commit_no", Big),
        _column("written", sa.Text),
        _column("created_at", Moment),
        sa.PrimaryKeyConstraint("tenant_id", "key"),
    )
    op.create_table(
        "leases",
        _column("tenant_id", sa.Uuid),
        _column("lease_id", sa.Uuid),
        _column("holder", sa.String(200)),
        _column("started_at", Moment),
        _column("heartbeat_at", Moment),
        sa.Column("ended_at", Moment),
        sa.PrimaryKeyConstraint("tenant_id", "lease_id"),
    )
    op.create_table(
        "audit",
        _column("tenant_id", sa.Uuid),
        _column("audit_id", sa.Uuid),
        _column("at", Moment),
        _column("user_id", sa.Uuid),
        _column("author", sa.String(320)),
        _column("action", sa.String(40)),
        sa.Column("commit_no", Big),
        _column("detail", sa.Text),
        sa.PrimaryKeyConstraint("tenant_id", "audit_id"),
    )
    op.create_index("ix_audit_at", "audit", ["tenant_id", "at"])
    if op.get_bind().dialect.name == "postgresql":
        protect(op.get_bind(), TABLES, append_only=["dataset_schemas", "receipts", "audit"])


def _column(name: str, kind: sa.types.TypeEngine | type) -> sa.Column:  # type: ignore[type-arg]
    return sa.Column(name, kind, nullable=False)


def _of_dataset(table: str) -> sa.ForeignKeyConstraint:
    ours = ["tenant_id", "dataset_id"]
    return sa.ForeignKeyConstraint(ours, [f"datasets.{c}" for c in ours], name=f"fk_{table}_datasets")
