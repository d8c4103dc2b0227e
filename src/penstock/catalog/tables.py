"""The catalog's tables. Every one has `tenant_id`, first in every unique key."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    Text,
    TypeDecorator,
    Uuid,
)


class Instant(TypeDecorator[datetime]):
    """A moment, in UTC on the way in and on the way out, on every database."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return value if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        moment: datetime = value
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _tenant() -> Column[UUID]:
    return Column("tenant_id", Uuid, nullable=False)


def _of(parent: str, *columns: str) -> ForeignKeyConstraint:
    return ForeignKeyConstraint(columns, [f"{parent}.{column}" for column in columns])


metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "fk": "fk_%(table_name)s_%(referred_table_name)s"}
)

tenants = Table(
    "tenants",
    metadata,
    _tenant(),
    Column("commit_no", BigInteger, nullable=False),  # the newest commit; one number names a snapshot of everything
    Column("committed_at", Instant, nullable=False),
    Column("created_at", Instant, nullable=False),
    PrimaryKeyConstraint("tenant_id"),
)

datasets = Table(
    "datasets",
    metadata,
    _tenant(),
    Column("dataset_id", Uuid, nullable=False),
    Column("schema_name", String(128), nullable=False),
    Column("table_name", String(128), nullable=False),
    Column("name_key", String(257), nullable=False),  # the name as it is compared: lower case
    Column("location", String(255), nullable=False),  # the folder of its files, below the workspace
    Column("read_only", Boolean, nullable=False),
    Column("row_ids", Boolean, nullable=False),
    Column("next_row_id", BigInteger, nullable=False),
    Column("next_file", BigInteger, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("created_by", Uuid, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("updated_by", Uuid, nullable=False),
    Column("dropped_at", Instant),
    Column("dropped_commit_no", BigInteger),
    Column("held_by", Uuid),  # the one who alone may commit until `held_until`
    Column("held_until", Instant),
    PrimaryKeyConstraint("tenant_id", "dataset_id"),
    _of("tenants", "tenant_id"),
)
Index(
    "uq_datasets_name",
    datasets.c.tenant_id,
    datasets.c.name_key,
    unique=True,
    sqlite_where=datasets.c.dropped_at.is_(None),
    postgresql_where=datasets.c.dropped_at.is_(None),
)

dataset_schemas = Table(
    "dataset_schemas",
    metadata,
    _tenant(),
    Column("dataset_id", Uuid, nullable=False),
    Column("schema_no", Integer, nullable=False),
    Column("fields", Text, nullable=False),  # core.schema.to_fields, as JSON
    PrimaryKeyConstraint("tenant_id", "dataset_id", "schema_no"),
    _of("datasets", "tenant_id", "dataset_id"),
)

dataset_versions = Table(
    "dataset_versions",
    metadata,
    _tenant(),
    Column("dataset_id", Uuid, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("commit_no", BigInteger, nullable=False),
    Column("schema_no", Integer, nullable=False),
    Column("operation", String(40), nullable=False),
    Column("inserted", BigInteger, nullable=False),
    Column("updated", BigInteger, nullable=False),
    Column("deleted", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),  # of the whole version, as are files and bytes
    Column("files", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("created_by", Uuid, nullable=False),
    Column("author", String(320), nullable=False),  # created_by, for people
    Column("swept_at", Instant),  # its files are gone
    PrimaryKeyConstraint("tenant_id", "dataset_id", "version"),  # the lock: of several writers one inserts base + 1
    _of("datasets", "tenant_id", "dataset_id"),
    Index("uq_dataset_versions_commit", "tenant_id", "dataset_id", "commit_no", unique=True),
)

data_files = Table(
    "data_files",
    metadata,
    _tenant(),
    Column("dataset_id", Uuid, nullable=False),
    Column("file_no", BigInteger, nullable=False),
    Column("path", String(512), nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("checksum", String(80), nullable=False),
    Column("first_row_id", BigInteger),  # fresh files: row i has the id first_row_id + i
    Column("low_row_id", BigInteger),
    Column("high_row_id", BigInteger),
    Column("stats", Text, nullable=False),  # core.stats.to_json
    Column("begin_version", BigInteger, nullable=False),
    Column("end_version", BigInteger),  # NULL: still live
    PrimaryKeyConstraint("tenant_id", "dataset_id", "file_no"),
    _of("datasets", "tenant_id", "dataset_id"),
    Index("ix_data_files_end", "tenant_id", "dataset_id", "end_version"),
    Index("uq_data_files_path", "tenant_id", "path", unique=True),
)

# Where the values of live files lie (core.bins): plans find the few files that matter without reading the others.
# Rows go when their file ends. Plans of older versions look at the files that ended since besides.
file_bins = Table(
    "file_bins",
    metadata,
    _tenant(),
    Column("dataset_id", Uuid, nullable=False),
    Column("column_no", SmallInteger, nullable=False),  # the column's place in the schema; −1: the row ids
    Column("place", BigInteger, nullable=False),
    Column("file_no", BigInteger, nullable=False),
    PrimaryKeyConstraint("tenant_id", "dataset_id", "column_no", "place", "file_no"),
    Index("ix_file_bins_file", "tenant_id", "dataset_id", "file_no"),
    sqlite_with_rowid=False,
)

receipts = Table(
    "receipts",
    metadata,
    _tenant(),
    Column("key", String(200), nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("commit_no", BigInteger, nullable=False),
    Column("written", Text, nullable=False),  # core.change.Written, as JSON
    Column("created_at", Instant, nullable=False),
    PrimaryKeyConstraint("tenant_id", "key"),
)

leases = Table(
    "leases",
    metadata,
    _tenant(),
    Column("lease_id", Uuid, nullable=False),
    Column("holder", String(200), nullable=False),  # for people: host and process
    Column("started_at", Instant, nullable=False),
    Column("heartbeat_at", Instant, nullable=False),
    Column("ended_at", Instant),
    PrimaryKeyConstraint("tenant_id", "lease_id"),
)

audit = Table(
    "audit",
    metadata,
    _tenant(),
    Column("audit_id", Uuid, nullable=False),
    Column("at", Instant, nullable=False),
    Column("user_id", Uuid, nullable=False),
    Column("author", String(320), nullable=False),
    Column("action", String(40), nullable=False),
    Column("commit_no", BigInteger),
    Column("detail", Text, nullable=False),
    PrimaryKeyConstraint("tenant_id", "audit_id"),
    Index("ix_audit_at", "tenant_id", "at"),
)
