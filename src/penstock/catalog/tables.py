"""The tables of the catalog, documented in docs/catalog-schema.md.

Every table has `tenant_id`. It is the first column of every unique key except keys of ids that the server generates.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
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
    LargeBinary,
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


class UtcTimestamp(TypeDecorator[datetime]):
    """A timestamp that is stored and returned in UTC on every database."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return value if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        timestamp: datetime = value
        return timestamp.astimezone(UTC) if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        if dialect.name == "sqlite":  # stores text without a time zone
            return _parse_utc_text
        return super().result_processor(dialect, coltype)


def _parse_utc_text(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(f"{text}+00:00")


class CatalogUuid(Uuid[UUID]):
    """A UUID. SQLite stores text; a text that occurs often, such as the id of a tenant, is parsed once."""

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        if dialect.name == "sqlite":
            return _parse_uuid_text
        return super().result_processor(dialect, coltype)  # type: ignore[no-any-return, no-untyped-call]


def _parse_uuid_text(text: str | None) -> UUID | None:
    return None if text is None else _cached_uuid(text)


_cached_uuid = lru_cache(maxsize=4_096)(UUID)


Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
OrderedJson = JSON(none_as_null=True)  # members keep their order, on PostgreSQL too


def text_c(length: int | None = None) -> String:
    """Return a text type that is sorted by code point on every database."""
    plain: String = Text() if length is None else String(length)
    return plain.with_variant(TEXT(collation="C") if length is None else VARCHAR(length, collation="C"), "postgresql")


def _tenant_column() -> Column[UUID]:
    return Column("tenant_id", CatalogUuid, nullable=False)


def _foreign_key(parent: str, *columns: str) -> ForeignKeyConstraint:
    return ForeignKeyConstraint(columns, [f"{parent}.{column}" for column in columns])


metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "fk": "fk_%(table_name)s_%(referred_table_name)s"}
)

tenants = Table(
    "tenants",
    metadata,
    _tenant_column(),
    Column("commit_no", BigInteger, nullable=False),  # newest commit; identifies a lake snapshot
    Column("committed_at", UtcTimestamp, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    PrimaryKeyConstraint("tenant_id"),
)

datasets = Table(
    "datasets",
    metadata,
    _tenant_column(),
    Column("dataset_id", CatalogUuid, nullable=False),
    Column("schema_name", String(128), nullable=False),
    Column("table_name", String(128), nullable=False),
    Column("name_key", String(257), nullable=False),  # lower case; names are compared without case
    Column("location", String(255), nullable=False),  # folder of its files, relative to the workspace
    Column("read_only", Boolean, nullable=False),
    Column("row_ids", Boolean, nullable=False),
    Column("next_row_id", BigInteger, nullable=False),
    Column("next_file_no", BigInteger, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("created_by", CatalogUuid, nullable=False),
    Column("updated_at", UtcTimestamp, nullable=False),
    Column("updated_by", CatalogUuid, nullable=False),
    Column("dropped_at", UtcTimestamp),
    Column("dropped_commit_no", BigInteger),
    Column("locked_by", CatalogUuid),  # the only writer that may commit until `locked_until`
    Column("locked_until", UtcTimestamp),
    Column("cluster_by", Text),  # JSON array of column names; NULL: none
    PrimaryKeyConstraint("tenant_id", "dataset_id"),
    _foreign_key("tenants", "tenant_id"),
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
    _tenant_column(),
    Column("dataset_id", CatalogUuid, nullable=False),
    Column("schema_no", Integer, nullable=False),
    Column("fields", Text, nullable=False),  # core.schema.to_fields, as JSON
    PrimaryKeyConstraint("tenant_id", "dataset_id", "schema_no"),
    _foreign_key("datasets", "tenant_id", "dataset_id"),
)

dataset_versions = Table(
    "dataset_versions",
    metadata,
    _tenant_column(),
    Column("dataset_id", CatalogUuid, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("commit_no", BigInteger, nullable=False),
    Column("schema_no", Integer, nullable=False),
    Column("operation", String(40), nullable=False),
    Column("inserted", BigInteger, nullable=False),
    Column("updated", BigInteger, nullable=False),
    Column("deleted", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),  # rows, files and bytes are totals of the version
    Column("files", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("deleted_rows", BigInteger, nullable=False, server_default="0"),  # rows of its files that vectors delete
    Column("vector_files", BigInteger, nullable=False, server_default="0"),  # files with a deletion vector
    Column("created_at", UtcTimestamp, nullable=False),
    Column("created_by", CatalogUuid, nullable=False),
    Column("author", String(320), nullable=False),  # display name of created_by
    Column("swept_at", UtcTimestamp),  # NULL: the version can be read
    PrimaryKeyConstraint("tenant_id", "dataset_id", "version"),  # of concurrent writers, one inserts base + 1
    _foreign_key("datasets", "tenant_id", "dataset_id"),
    Index("uq_dataset_versions_commit", "tenant_id", "dataset_id", "commit_no", unique=True),
)

data_files = Table(
    "data_files",
    metadata,
    _tenant_column(),
    Column("dataset_id", CatalogUuid, nullable=False),
    Column("file_no", BigInteger, nullable=False),
    Column("path", String(512), nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("checksum", String(80), nullable=False),
    Column("first_row_id", BigInteger),  # not NULL: row i has the id first_row_id + i
    Column("low_row_id", BigInteger),
    Column("high_row_id", BigInteger),
    Column("stats", Text, nullable=False),  # core.dataset.column_stats.to_json
    Column("begin_version", BigInteger, nullable=False),
    Column("end_version", BigInteger),  # NULL: live
    PrimaryKeyConstraint("tenant_id", "dataset_id", "file_no"),
    _foreign_key("datasets", "tenant_id", "dataset_id"),
    Index("ix_data_files_end", "tenant_id", "dataset_id", "end_version"),
    Index("uq_data_files_path", "tenant_id", "path", unique=True),
)

# Rows of data files that versions no longer contain (catalog.deletion_vectors). The vector of a file at a version is the
# union of its rows that the version contains.
deletion_vectors = Table(
    "deletion_vectors",
    metadata,
    _tenant_column(),
    Column("dataset_id", CatalogUuid, nullable=False),
    Column("file_no", BigInteger, nullable=False),
    Column("begin_version", BigInteger, nullable=False),
    Column("end_version", BigInteger),  # NULL: live
    Column("rows", BigInteger, nullable=False),  # positions in the bitmap
    Column("bitmap", LargeBinary, nullable=False),  # core.dataset.deletion_vector
    PrimaryKeyConstraint("tenant_id", "dataset_id", "file_no", "begin_version"),
    _foreign_key("datasets", "tenant_id", "dataset_id"),
    Index("ix_deletion_vectors_end", "tenant_id", "dataset_id", "end_version"),
)

# The range index of live files (catalog.range_index). Rows are deleted when their file ends. Plans of older versions
# also read the files that ended since.
file_ranges = Table(
    "file_ranges",
    metadata,
    _tenant_column(),
    Column("dataset_id", CatalogUuid, nullable=False),
    Column("column_no", SmallInteger, nullable=False),  # position in the schema; -1: the row ids
    Column("coordinate", BigInteger, nullable=False),
    Column("file_no", BigInteger, nullable=False),
    PrimaryKeyConstraint("tenant_id", "dataset_id", "column_no", "coordinate", "file_no"),
    Index("ix_file_ranges_file", "tenant_id", "dataset_id", "file_no"),
    sqlite_with_rowid=False,
)

receipts = Table(
    "receipts",
    metadata,
    _tenant_column(),
    Column("key", String(200), nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("commit_no", BigInteger, nullable=False),
    Column("dataset_commits", Text, nullable=False),  # JSON array of DatasetCommit
    Column("created_at", UtcTimestamp, nullable=False),
    PrimaryKeyConstraint("tenant_id", "key"),
)

leases = Table(
    "leases",
    metadata,
    _tenant_column(),
    Column("lease_id", CatalogUuid, nullable=False),
    Column("holder", String(200), nullable=False),  # host and process, for display
    Column("started_at", UtcTimestamp, nullable=False),
    Column("heartbeat_at", UtcTimestamp, nullable=False),
    Column("ended_at", UtcTimestamp),
    PrimaryKeyConstraint("tenant_id", "lease_id"),
)

# Transactions of clients. The id is also the writer lease of the files.
transactions = Table(
    "transactions",
    metadata,
    _tenant_column(),
    Column("id", CatalogUuid, nullable=False),
    Column("user_id", CatalogUuid, nullable=False),
    Column("state", String(20), nullable=False),
    Column("commit_no", BigInteger, nullable=False),
    Column("auto_commit", Boolean, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("write_set", Text),  # JSON; NULL after the transaction has ended
    Column("owner", String(200), nullable=False),
    Column("operation_process", String(200)),
    Column("receipt", String(200)),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("heartbeat_at", UtcTimestamp, nullable=False),
    Column("expires_at", UtcTimestamp, nullable=False),
    Column("ended_at", UtcTimestamp),
    PrimaryKeyConstraint("tenant_id", "id"),
    Index("ix_transactions_state", "tenant_id", "state"),
)

audit = Table(
    "audit",
    metadata,
    _tenant_column(),
    Column("audit_id", CatalogUuid, nullable=False),
    Column("at", UtcTimestamp, nullable=False),
    Column("user_id", CatalogUuid, nullable=False),
    Column("author", String(320), nullable=False),
    Column("action", String(40), nullable=False),
    Column("commit_no", BigInteger),
    Column("detail", Text, nullable=False),
    PrimaryKeyConstraint("tenant_id", "audit_id"),
    Index("ix_audit_at", "tenant_id", "at"),
)

# Result schemas. Names and descriptions are also stored in Python's lower and upper case: databases fold differently.
gts_schemas = Table(
    "gts_schemas",
    metadata,
    _tenant_column(),
    Column("id", CatalogUuid, nullable=False),
    Column("type_id", text_c(255), nullable=False),
    Column("name", text_c(500), nullable=False),
    Column("name_lower", text_c(1500), nullable=False),
    Column("name_upper", text_c(1500), nullable=False),
    Column("name_key", text_c(1500), nullable=False),  # without surrounding blanks and case; unique
    Column("description", text_c()),
    Column("description_lower", text_c()),
    Column("description_upper", text_c()),
    Column("fields", Json, nullable=False),  # ResultField.as_json
    Column("metadata", Json),
    Column("state", text_c(50), nullable=False, server_default="ACTIVE"),
    Column("state_changed_at", UtcTimestamp, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("created_by", CatalogUuid, nullable=False),
    Column("updated_at", UtcTimestamp, nullable=False),
    Column("updated_by", CatalogUuid, nullable=False),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("deleted_at", UtcTimestamp),
    PrimaryKeyConstraint("id"),
    UniqueConstraint("tenant_id", "id", name="uq_gts_schemas_tenant"),
    Index("ix_gts_schemas_type", "tenant_id", "type_id"),
    Index("ix_gts_schemas_state", "tenant_id", "state", "state_changed_at"),
    Index("ix_gts_schemas_name", "tenant_id", "name"),
    Index("ix_gts_schemas_created", "tenant_id", "created_at", "id"),
    Index("ix_gts_schemas_fields", "fields", postgresql_using="gin").ddl_if(dialect="postgresql"),
)
_has_reserved_name = (gts_schemas.c.deleted_at.is_(None)) & (gts_schemas.c.state != "ARCHIVED")
Index(
    "uq_gts_schemas_name",
    gts_schemas.c.tenant_id,
    gts_schemas.c.name_key,
    unique=True,
    sqlite_where=_has_reserved_name,
    postgresql_where=_has_reserved_name,
)

gts_schema_versions = Table(
    "gts_schema_versions",
    metadata,
    _tenant_column(),
    Column("schema_id", CatalogUuid, nullable=False),
    Column("version", Integer, nullable=False),
    Column("name", text_c(500), nullable=False),
    Column("description", text_c()),
    Column("fields", Json, nullable=False),
    Column("metadata", Json),
    Column("state", text_c(50), nullable=False),
    Column("change", String(40), nullable=False),  # create, update, or the name of a transition
    Column("reason", text_c()),
    Column("changed_at", UtcTimestamp, nullable=False),
    Column("changed_by", CatalogUuid, nullable=False),
    Column("author", String(320), nullable=False),  # display name of changed_by
    PrimaryKeyConstraint("tenant_id", "schema_id", "version"),
    ForeignKeyConstraint(["tenant_id", "schema_id"], ["gts_schemas.tenant_id", "gts_schemas.id"]),
)

# Fields of the newest revisions, to search by: PostgreSQL uses no JSON index under row-level security.
gts_schema_fields = Table(
    "gts_schema_fields",
    metadata,
    _tenant_column(),
    Column("schema_id", CatalogUuid, nullable=False),
    Column("position", Integer, nullable=False),
    Column("name", text_c(128), nullable=False),
    Column("type", text_c(20), nullable=False),
    Column("array", Boolean, nullable=False),
    Column("optional", Boolean, nullable=False),
    PrimaryKeyConstraint("tenant_id", "schema_id", "position"),
    ForeignKeyConstraint(["tenant_id", "schema_id"], ["gts_schemas.tenant_id", "gts_schemas.id"]),
    Index("ix_gts_schema_fields_name", "tenant_id", "name", "schema_id"),
)

gts_queries = Table(
    "gts_queries",
    metadata,
    _tenant_column(),
    Column("id", CatalogUuid, nullable=False),
    Column("name", text_c(500), nullable=False),
    Column("name_lower", text_c(1500), nullable=False),
    Column("name_upper", text_c(1500), nullable=False),
    Column("name_key", text_c(1500), nullable=False),
    Column("description", text_c()),
    Column("description_lower", text_c()),
    Column("description_upper", text_c()),
    Column("sql", text_c(), nullable=False),
    Column("parameters", Json, nullable=False),  # Parameter.as_json
    Column("reads", Json, nullable=False),  # QueryDatasetRef.as_json
    Column("returns_schema_id", CatalogUuid, nullable=False),
    Column("state", text_c(50), nullable=False, server_default="ACTIVE"),
    Column("state_changed_at", UtcTimestamp, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("created_by", CatalogUuid, nullable=False),
    Column("updated_at", UtcTimestamp, nullable=False),
    Column("updated_by", CatalogUuid, nullable=False),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("deleted_at", UtcTimestamp),
    PrimaryKeyConstraint("id"),
    ForeignKeyConstraint(["tenant_id", "returns_schema_id"], ["gts_schemas.tenant_id", "gts_schemas.id"]),
    Index("uq_gts_queries_tenant", "tenant_id", "id", unique=True),
    Index("ix_gts_queries_schema", "tenant_id", "returns_schema_id"),
    Index("ix_gts_queries_created", "tenant_id", "created_at", "id"),
)
_is_live_query = gts_queries.c.deleted_at.is_(None)
Index(
    "uq_gts_queries_name",
    gts_queries.c.tenant_id,
    gts_queries.c.name_key,
    unique=True,
    sqlite_where=_is_live_query,
    postgresql_where=_is_live_query,
)

gts_query_versions = Table(
    "gts_query_versions",
    metadata,
    _tenant_column(),
    Column("query_id", CatalogUuid, nullable=False),
    Column("version", Integer, nullable=False),
    Column("name", text_c(500), nullable=False),
    Column("description", text_c()),
    Column("sql", text_c(), nullable=False),
    Column("parameters", Json, nullable=False),
    Column("reads", Json, nullable=False),
    Column("returns_schema_id", CatalogUuid, nullable=False),
    Column("state", text_c(50), nullable=False),
    Column("change", String(40), nullable=False),  # create, update, or the name of a transition
    Column("reason", text_c()),
    Column("changed_at", UtcTimestamp, nullable=False),
    Column("changed_by", CatalogUuid, nullable=False),
    Column("author", String(320), nullable=False),  # display name of changed_by
    PrimaryKeyConstraint("tenant_id", "query_id", "version"),
    ForeignKeyConstraint(["tenant_id", "query_id"], ["gts_queries.tenant_id", "gts_queries.id"]),
)

pipelines = Table(
    "pipelines",
    metadata,
    _tenant_column(),
    Column("id", CatalogUuid, nullable=False),
    Column("name", text_c(255), nullable=False),
    Column("name_lower", text_c(765), nullable=False),
    Column("name_upper", text_c(765), nullable=False),
    Column("name_key", text_c(765), nullable=False),
    Column("definition", OrderedJson, nullable=False),  # Pipeline.as_json
    Column("version", Integer, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("created_by", CatalogUuid, nullable=False),
    Column("updated_at", UtcTimestamp, nullable=False),
    Column("updated_by", CatalogUuid, nullable=False),
    Column("deleted_at", UtcTimestamp),
    PrimaryKeyConstraint("tenant_id", "id"),
    Index("ix_pipelines_created", "tenant_id", "created_at", "id"),
)
_is_live_pipeline = pipelines.c.deleted_at.is_(None)
Index(
    "uq_pipelines_name",
    pipelines.c.tenant_id,
    pipelines.c.name_key,
    unique=True,
    sqlite_where=_is_live_pipeline,
    postgresql_where=_is_live_pipeline,
)

# Runs. A run outlives its pipeline, so it stores the definition.
pipeline_runs = Table(
    "pipeline_runs",
    metadata,
    _tenant_column(),
    Column("id", CatalogUuid, nullable=False),
    Column("pipeline_id", CatalogUuid),
    Column("name", text_c(255), nullable=False),
    Column("name_lower", text_c(765), nullable=False),
    Column("name_upper", text_c(765), nullable=False),
    Column("definition", OrderedJson, nullable=False),
    Column("state", text_c(20), nullable=False),
    Column("idempotency_key", String(200)),
    Column("request_digest", String(64), nullable=False),  # compared when a key is repeated
    Column("created_at", UtcTimestamp, nullable=False),
    Column("created_by", CatalogUuid, nullable=False),
    Column("author", text_c(320), nullable=False),  # display name of created_by
    Column("role", String(40), nullable=False),  # role of the author; the run executes with it
    Column("worker", String(200), nullable=False),  # host and process, for display; empty while the run is queued
    Column("attempts", Integer, nullable=False, server_default="0"),  # only the newest attempt may end the run
    Column("heartbeat_at", UtcTimestamp, nullable=False),
    Column("started_at", UtcTimestamp),
    Column("ended_at", UtcTimestamp),
    Column("cancel_requested_at", UtcTimestamp),
    Column("commit_no", BigInteger),
    Column("reads", OrderedJson, nullable=False),
    Column("written", OrderedJson, nullable=False),
    Column("results", OrderedJson, nullable=False),
    Column("progress", OrderedJson),
    Column("error", OrderedJson),
    Column("error_kind", String(20)),
    PrimaryKeyConstraint("tenant_id", "id"),
    ForeignKeyConstraint(["tenant_id", "pipeline_id"], ["pipelines.tenant_id", "pipelines.id"]),
    Index("ix_pipeline_runs_created", "tenant_id", "created_at", "id"),
    Index("ix_pipeline_runs_pipeline", "tenant_id", "pipeline_id", "created_at", "id"),
    Index("ix_pipeline_runs_state", "tenant_id", "state", "created_at", "id"),
)
_is_active_key = pipeline_runs.c.idempotency_key.is_not(None) & pipeline_runs.c.state.in_(
    ["queued", "running", "succeeded"]
)
Index(
    "uq_pipeline_runs_key",  # one run per key is active or succeeded
    pipeline_runs.c.tenant_id,
    pipeline_runs.c.idempotency_key,
    unique=True,
    sqlite_where=_is_active_key,
    postgresql_where=_is_active_key,
)

# Runs that any worker may claim, until they end. Workers read it over all tenants, which no other table allows:
# therefore it contains ids, numbers and times only.
run_queue = Table(
    "run_queue",
    metadata,
    _tenant_column(),
    Column("run_id", CatalogUuid, nullable=False),
    Column("round_no", BigInteger, nullable=False),  # lowest first, then by queued_at; a tenant has one run per round
    Column("queued_at", UtcTimestamp, nullable=False),
    Column("claimed_until", UtcTimestamp),  # NULL: waiting. Otherwise a worker has it and extends this time
    PrimaryKeyConstraint("tenant_id", "run_id"),
    ForeignKeyConstraint(["tenant_id", "run_id"], ["pipeline_runs.tenant_id", "pipeline_runs.id"]),
    Index("ix_run_queue_round", "round_no", "queued_at"),
)
