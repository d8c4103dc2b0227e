"""Schemas of what queries return, their past, and the queries that refer to them."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, TEXT, VARCHAR

from penstock.catalog.migrate import protect

revision = "0003"
down_revision = "0002"

Moment = sa.DateTime(timezone=True)
Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "gts_schemas",
        _column("tenant_id", sa.Uuid),
        _column("id", sa.Uuid),
        _column("type_id", _words(255)),
        _column("name", _words(500)),
        _column("name_lower", _words(1500)),
        _column("name_upper", _words(1500)),
        _column("name_key", _words(1500)),
        sa.Column("description", _words()),
        sa.Column("description_lower", _words()),
        sa.Column("description_upper", _words()),
        _column("fields", Json),
        sa.Column("metadata", Json),
        _column("state", _words(50), server_default="ACTIVE"),
        _column("state_changed_at", Moment),
        *_authors(),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant_id", "id", name="uq_gts_schemas_tenant"),
    )
    op.create_index("ix_gts_schemas_type", "gts_schemas", ["tenant_id", "type_id"])
    op.create_index("ix_gts_schemas_state", "gts_schemas", ["tenant_id", "state", "state_changed_at"])
    op.create_index("ix_gts_schemas_name", "gts_schemas", ["tenant_id", "name"])
    op.create_index("ix_gts_schemas_created", "gts_schemas", ["tenant_id", "created_at", "id"])
    _unique_name("gts_schemas", sa.text("deleted_at IS NULL AND state != 'ARCHIVED'"))
    op.create_table(
        "gts_schema_versions",
        _column("tenant_id", sa.Uuid),
        _column("schema_id", sa.Uuid),
        _column("version", sa.Integer),
        _column("name", _words(500)),
        sa.Column("description", _words()),
        _column("fields", Json),
        sa.Column("metadata", Json),
        _column("state", _words(50)),
        _column("change", sa.String(40)),
        sa.Column("reason", _words()),
        _column("changed_at", Moment),
        _column("changed_by", sa.Uuid),
        _column("author", sa.String(320)),
        sa.PrimaryKeyConstraint("tenant_id", "schema_id", "version"),
        _of_schema("gts_schema_versions", "schema_id"),
    )
    op.create_table(
        "gts_schema_fields",
        _column("tenant_id", sa.Uuid),
        _column("schema_id", sa.Uuid),
        _column("position", sa.Integer),
        _column("name", _words(128)),
        _column("type", _words(20)),
        _column("array", sa.Boolean),
        _column("optional", sa.Boolean),
        sa.PrimaryKeyConstraint("tenant_id", "schema_id", "position"),
        _of_schema("gts_schema_fields", "schema_id"),
    )
    op.create_index("ix_gts_schema_fields_name", "gts_schema_fields", ["tenant_id", "name", "schema_id"])
    op.create_table(
        "gts_queries",
        _column("tenant_id", sa.Uuid),
        _column("id", sa.Uuid),
        _column("name", _words(500)),
        _column("name_key", _words(1500)),
        sa.Column("description", _words()),
        _column("sql", _words()),
        _column("parameters", Json),
        _column("returns_schema_id", sa.Uuid),
        _column("state", _words(50), server_default="ACTIVE"),
        *_authors(),
        sa.PrimaryKeyConstraint("id"),
        _of_schema("gts_queries", "returns_schema_id"),
    )
    op.create_index("ix_gts_queries_schema", "gts_queries", ["tenant_id", "returns_schema_id"])
    _unique_name("gts_queries", sa.text("deleted_at IS NULL"))
    if op.get_bind().dialect.name == "postgresql":
        op.create_index("ix_gts_schemas_fields", "gts_schemas", ["fields"], postgresql_using="gin")
        tables = ["gts_schemas", "gts_schema_versions", "gts_schema_fields", "gts_queries"]
        protect(op.get_bind(), tables, append_only=["gts_schema_versions"])


def _column(name: str, kind: Any, server_default: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, server_default=server_default)


def _words(length: int | None = None) -> sa.String:
    plain = sa.Text() if length is None else sa.String(length)
    return plain.with_variant(TEXT(collation="C") if length is None else VARCHAR(length, collation="C"), "postgresql")


def _authors() -> list[sa.Column[Any]]:
    return [
        _column("created_at", Moment),
        _column("created_by", sa.Uuid),
        _column("updated_at", Moment),
        _column("updated_by", sa.Uuid),
        _column("version", sa.Integer, server_default="1"),
        sa.Column("deleted_at", Moment),
    ]


def _of_schema(table: str, column: str) -> sa.ForeignKeyConstraint:
    name = f"fk_{table}_gts_schemas"
    return sa.ForeignKeyConstraint(["tenant_id", column], ["gts_schemas.tenant_id", "gts_schemas.id"], name=name)


def _unique_name(table: str, while_: sa.TextClause) -> None:
    columns = ["tenant_id", "name_key"]
    op.create_index(f"uq_{table}_name", table, columns, unique=True, sqlite_where=while_, postgresql_where=while_)
