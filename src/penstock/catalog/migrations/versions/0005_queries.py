"""Queries that can be searched, with every version that they had."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, TEXT, VARCHAR

from penstock.catalog.migrate import protect

revision = "0005"
down_revision = "0004"

Moment = sa.DateTime(timezone=True)
Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")

_FILLED = ("name_lower", "name_upper", "reads", "state_changed_at")
_KEPT = ("name", "description", "sql", "parameters", "reads", "returns_schema_id", "state")


def upgrade() -> None:
    postgresql = op.get_bind().dialect.name == "postgresql"
    if postgresql:  # forced, the rules would hide every tenant's rows from this step too
        op.execute("ALTER TABLE gts_queries NO FORCE ROW LEVEL SECURITY")
    for name, kind in (
        ("name_lower", _words(1500)),
        ("name_upper", _words(1500)),
        ("description_lower", _words()),
        ("description_upper", _words()),
        ("reads", Json),
        ("state_changed_at", Moment),
    ):
        op.add_column("gts_queries", sa.Column(name, kind))
    _fill()
    with op.batch_alter_table("gts_queries") as table:
        for name in _FILLED:
            table.alter_column(name, nullable=False)
    op.create_index("uq_gts_queries_tenant", "gts_queries", ["tenant_id", "id"], unique=True)
    op.create_index("ix_gts_queries_created", "gts_queries", ["tenant_id", "created_at", "id"])
    op.create_table(
        "gts_query_versions",
        _column("tenant_id", sa.Uuid),
        _column("query_id", sa.Uuid),
        _column("version", sa.Integer),
        _column("name", _words(500)),
        sa.Column("description", _words()),
        _column("sql", _words()),
        _column("parameters", Json),
        _column("reads", Json),
        _column("returns_schema_id", sa.Uuid),
        _column("state", _words(50)),
        _column("change", sa.String(40)),
        sa.Column("reason", _words()),
        _column("changed_at", Moment),
        _column("changed_by", sa.Uuid),
        _column("author", sa.String(320)),
        sa.PrimaryKeyConstraint("tenant_id", "query_id", "version"),
        sa.ForeignKeyConstraint(
            ["tenant_id", "query_id"],
            ["gts_queries.tenant_id", "gts_queries.id"],
            name="fk_gts_query_versions_gts_queries",
        ),
    )
    kept = ", ".join(_KEPT)
    op.execute(  # who it was by name is in the audit
        f"INSERT INTO gts_query_versions (tenant_id, query_id, version, {kept}, change, changed_at, changed_by, author) "
        f"SELECT tenant_id, id, version, {kept}, 'create', updated_at, updated_by, CAST(updated_by AS VARCHAR(36)) "
        "FROM gts_queries"
    )
    if postgresql:
        op.execute("ALTER TABLE gts_queries FORCE ROW LEVEL SECURITY")
        protect(op.get_bind(), ["gts_query_versions"], append_only=["gts_query_versions"])


def _fill() -> None:
    """Names and descriptions as Python folds them. Which datasets a query reads was not asked when it came."""
    queries = sa.table(
        "gts_queries",
        *(sa.column(name, sa.Text) for name in ("name", "name_lower", "name_upper")),
        *(sa.column(name, sa.Text) for name in ("description", "description_lower", "description_upper")),
        sa.column("id", sa.Uuid),
        sa.column("reads", Json),
        sa.column("state_changed_at", Moment),
        sa.column("updated_at", Moment),
    )
    bind, c = op.get_bind(), queries.c
    bind.execute(sa.update(queries).values(reads=[], state_changed_at=c.updated_at))
    for row in bind.execute(sa.select(c.id, c.name, c.description)).all():
        text = row.description
        folded = {
            "name_lower": row.name.lower(),
            "name_upper": row.name.upper(),
            "description_lower": text and text.lower(),
            "description_upper": text and text.upper(),
        }
        bind.execute(sa.update(queries).where(c.id == row.id).values(folded))


def _column(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def _words(length: int | None = None) -> sa.String:
    plain = sa.Text() if length is None else sa.String(length)
    return plain.with_variant(TEXT(collation="C") if length is None else VARCHAR(length, collation="C"), "postgresql")
