"""The catalog's tables. Every one has `tenant_id`, first in every unique key but for ids that the server has made."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    JSON,
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
    UniqueConstraint,
    Uuid,
)
from sqlalchemy.dialects.postgresql import JSONB, TEXT, VARCHAR


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


Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
Told = JSON(none_as_null=True)  # as it was written: members stay in order, on PostgreSQL too


def words(length: int | None = None) -> String:
    """Text that is sorted by code point on every database."""
    plain: String = Text() if length is None else String(length)
    return plain.with_variant(TEXT(collation="C") if length is None else VARCHAR(length, collation="C"), "postgresql")


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

# core.transaction.Standing. The id is also the lease of its files.
transactions = Table(
    "transactions",
    metadata,
    _tenant(),
    Column("id", Uuid, nullable=False),
    Column("user_id", Uuid, nullable=False),
    Column("state", String(20), nullable=False),
    Column("commit_no", BigInteger, nullable=False),
    Column("auto_commit", Boolean, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("work", Text),  # service.work, as JSON; gone when it is over
    Column("owner", String(200), nullable=False),
    Column("operating", String(200)),
    Column("receipt", String(200)),
    Column("created_at", Instant, nullable=False),
    Column("beaten_at", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
    Column("ended_at", Instant),
    PrimaryKeyConstraint("tenant_id", "id"),
    Index("ix_transactions_state", "tenant_id", "state"),
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

# What queries promise to return. Names and descriptions are also kept as Python folds them: databases do not agree.
gts_schemas = Table(
    "gts_schemas",
    metadata,
    _tenant(),
    Column("id", Uuid, nullable=False),
    Column("type_id", words(255), nullable=False),
    Column("name", words(500), nullable=False),
    Column("name_lower", words(1500), nullable=False),
    Column("name_upper", words(1500), nullable=False),
    Column("name_key", words(1500), nullable=False),  # the name as it is compared: outer blanks and case do not count
    Column("description", words()),
    Column("description_lower", words()),
    Column("description_upper", words()),
    Column("fields", Json, nullable=False),  # core.contract.Field.as_json
    Column("metadata", Json),
    Column("state", words(50), nullable=False, server_default="ACTIVE"),
    Column("state_changed_at", Instant, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("created_by", Uuid, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("updated_by", Uuid, nullable=False),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("deleted_at", Instant),
    PrimaryKeyConstraint("id"),
    UniqueConstraint("tenant_id", "id", name="uq_gts_schemas_tenant"),
    Index("ix_gts_schemas_type", "tenant_id", "type_id"),
    Index("ix_gts_schemas_state", "tenant_id", "state", "state_changed_at"),
    Index("ix_gts_schemas_name", "tenant_id", "name"),
    Index("ix_gts_schemas_created", "tenant_id", "created_at", "id"),
    Index("ix_gts_schemas_fields", "fields", postgresql_using="gin").ddl_if(dialect="postgresql"),
)
_named = (gts_schemas.c.deleted_at.is_(None)) & (gts_schemas.c.state != "ARCHIVED")
Index(
    "uq_gts_schemas_name",
    gts_schemas.c.tenant_id,
    gts_schemas.c.name_key,
    unique=True,
    sqlite_where=_named,
    postgresql_where=_named,
)

gts_schema_versions = Table(
    "gts_schema_versions",
    metadata,
    _tenant(),
    Column("schema_id", Uuid, nullable=False),
    Column("version", Integer, nullable=False),
    Column("name", words(500), nullable=False),
    Column("description", words()),
    Column("fields", Json, nullable=False),
    Column("metadata", Json),
    Column("state", words(50), nullable=False),
    Column("change", String(40), nullable=False),  # create, update, or the verb of a transition
    Column("reason", words()),
    Column("changed_at", Instant, nullable=False),
    Column("changed_by", Uuid, nullable=False),
    Column("author", String(320), nullable=False),  # changed_by, for people
    PrimaryKeyConstraint("tenant_id", "schema_id", "version"),
    ForeignKeyConstraint(["tenant_id", "schema_id"], ["gts_schemas.tenant_id", "gts_schemas.id"]),
)

# The fields of the newest versions: PostgreSQL does not use an index on JSON under row-level security.
gts_schema_fields = Table(
    "gts_schema_fields",
    metadata,
    _tenant(),
    Column("schema_id", Uuid, nullable=False),
    Column("position", Integer, nullable=False),
    Column("name", words(128), nullable=False),
    Column("type", words(20), nullable=False),
    Column("array", Boolean, nullable=False),
    Column("optional", Boolean, nullable=False),
    PrimaryKeyConstraint("tenant_id", "schema_id", "position"),
    ForeignKeyConstraint(["tenant_id", "schema_id"], ["gts_schemas.tenant_id", "gts_schemas.id"]),
    Index("ix_gts_schema_fields_name", "tenant_id", "name", "schema_id"),
)

gts_queries = Table(
    "gts_queries",
    metadata,
    _tenant(),
    Column("id", Uuid, nullable=False),
    Column("name", words(500), nullable=False),
    Column("name_lower", words(1500), nullable=False),
    Column("name_upper", words(1500), nullable=False),
    Column("name_key", words(1500), nullable=False),
    Column("description", words()),
    Column("description_lower", words()),
    Column("description_upper", words()),
    Column("sql", words(), nullable=False),
    Column("parameters", Json, nullable=False),  # core.parameters.Parameter.as_json
    Column("reads", Json, nullable=False),  # core.query.Reference.as_json
    Column("returns_schema_id", Uuid, nullable=False),
    Column("state", words(50), nullable=False, server_default="ACTIVE"),
    Column("state_changed_at", Instant, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("created_by", Uuid, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("updated_by", Uuid, nullable=False),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("deleted_at", Instant),
    PrimaryKeyConstraint("id"),
    ForeignKeyConstraint(["tenant_id", "returns_schema_id"], ["gts_schemas.tenant_id", "gts_schemas.id"]),
    Index("uq_gts_queries_tenant", "tenant_id", "id", unique=True),
    Index("ix_gts_queries_schema", "tenant_id", "returns_schema_id"),
    Index("ix_gts_queries_created", "tenant_id", "created_at", "id"),
)
_live = gts_queries.c.deleted_at.is_(None)
Index(
    "uq_gts_queries_name",
    gts_queries.c.tenant_id,
    gts_queries.c.name_key,
    unique=True,
    sqlite_where=_live,
    postgresql_where=_live,
)

gts_query_versions = Table(
    "gts_query_versions",
    metadata,
    _tenant(),
    Column("query_id", Uuid, nullable=False),
    Column("version", Integer, nullable=False),
    Column("name", words(500), nullable=False),
    Column("description", words()),
    Column("sql", words(), nullable=False),
    Column("parameters", Json, nullable=False),
    Column("reads", Json, nullable=False),
    Column("returns_schema_id", Uuid, nullable=False),
    Column("state", words(50), nullable=False),
    Column("change", String(40), nullable=False),  # create, update, or the verb of a transition
    Column("reason", words()),
    Column("changed_at", Instant, nullable=False),
    Column("changed_by", Uuid, nullable=False),
    Column("author", String(320), nullable=False),  # changed_by, for people
    PrimaryKeyConstraint("tenant_id", "query_id", "version"),
    ForeignKeyConstraint(["tenant_id", "query_id"], ["gts_queries.tenant_id", "gts_queries.id"]),
)

pipelines = Table(
    "pipelines",
    metadata,
    _tenant(),
    Column("id", Uuid, nullable=False),
    Column("name", words(255), nullable=False),
    Column("name_lower", words(765), nullable=False),
    Column("name_upper", words(765), nullable=False),
    Column("name_key", words(765), nullable=False),
    Column("definition", Told, nullable=False),  # core.pipeline.Pipeline.as_json
    Column("version", Integer, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("created_by", Uuid, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("updated_by", Uuid, nullable=False),
    Column("deleted_at", Instant),
    PrimaryKeyConstraint("tenant_id", "id"),
    Index("ix_pipelines_created", "tenant_id", "created_at", "id"),
)
_kept = pipelines.c.deleted_at.is_(None)
Index(
    "uq_pipelines_name",
    pipelines.c.tenant_id,
    pipelines.c.name_key,
    unique=True,
    sqlite_where=_kept,
    postgresql_where=_kept,
)

# core.run.Run. A run outlives its pipeline, which is therefore kept here as it was.
pipeline_runs = Table(
    "pipeline_runs",
    metadata,
    _tenant(),
    Column("id", Uuid, nullable=False),
    Column("pipeline_id", Uuid),
    Column("name", words(255), nullable=False),
    Column("name_lower", words(765), nullable=False),
    Column("name_upper", words(765), nullable=False),
    Column("definition", Told, nullable=False),
    Column("state", words(20), nullable=False),
    Column("idempotency_key", String(200)),
    Column("request", String(64), nullable=False),  # a digest of what was asked: is a repeated key the same request?
    Column("created_at", Instant, nullable=False),
    Column("created_by", Uuid, nullable=False),
    Column("author", words(320), nullable=False),  # created_by, for people
    Column("role", String(40), nullable=False),  # the author's, in whose name it runs
    Column("holder", String(200), nullable=False),  # for people: host and process; empty while anybody may take it
    Column("tries", Integer, nullable=False, server_default="0"),  # how often it was begun; only the last may end it
    Column("heartbeat_at", Instant, nullable=False),
    Column("started_at", Instant),
    Column("ended_at", Instant),
    Column("cancel_requested_at", Instant),
    Column("commit_no", BigInteger),
    Column("reads", Told, nullable=False),
    Column("written", Told, nullable=False),
    Column("results", Told, nullable=False),
    Column("progress", Told),
    Column("error", Told),
    Column("error_kind", String(20)),
    PrimaryKeyConstraint("tenant_id", "id"),
    ForeignKeyConstraint(["tenant_id", "pipeline_id"], ["pipelines.tenant_id", "pipelines.id"]),
    Index("ix_pipeline_runs_created", "tenant_id", "created_at", "id"),
    Index("ix_pipeline_runs_pipeline", "tenant_id", "pipeline_id", "created_at", "id"),
    Index("ix_pipeline_runs_state", "tenant_id", "state", "created_at", "id"),
)
_counts = pipeline_runs.c.idempotency_key.is_not(None) & pipeline_runs.c.state.in_(["queued", "running", "succeeded"])
Index(
    "uq_pipeline_runs_key",  # of several requests with one key one is under way or has succeeded
    pipeline_runs.c.tenant_id,
    pipeline_runs.c.idempotency_key,
    unique=True,
    sqlite_where=_counts,
    postgresql_where=_counts,
)

# The runs that any process may take, until they are over. Whoever takes runs must see whose turn it is, over all tenants:
# this is the one table that can be looked at so, and therefore it holds ids, numbers and moments, and nothing else.
run_turns = Table(
    "run_turns",
    metadata,
    _tenant(),
    Column("run_id", Uuid, nullable=False),
    Column("turn", BigInteger, nullable=False),  # the lowest is next; then the one that was queued first
    Column("queued_at", Instant, nullable=False),
    Column("due_at", Instant),  # NULL: it waits. Otherwise somebody has it, and who falls silent loses it then
    PrimaryKeyConstraint("tenant_id", "run_id"),
    ForeignKeyConstraint(["tenant_id", "run_id"], ["pipeline_runs.tenant_id", "pipeline_runs.id"]),
    Index("ix_run_turns_turn", "turn", "queued_at"),
)
