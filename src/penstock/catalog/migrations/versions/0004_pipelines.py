"""Pipelines that are kept, and the record of every run."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import VARCHAR

from penstock.catalog.migrate import protect

revision = "0004"
down_revision = "0003"

Moment = sa.DateTime(timezone=True)
Told = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.create_table(
        "pipelines",
        _column("tenant_id", sa.Uuid),
        _column("id", sa.Uuid),
        *_name(),
        _column("name_key", _words(765)),
        _column("definition", Told),
        _column("version", sa.Integer),
        _column("created_at", Moment),
        _column("created_by", sa.Uuid),
        _column("updated_at", Moment),
        _column("updated_by", sa.Uuid),
        sa.Column("deleted_at", Moment),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
    )
    op.create_index("ix_pipelines_created", "pipelines", ["tenant_id", "created_at", "id"])
    _unique("uq_pipelines_name", "pipelines", "name_key", sa.text("deleted_at IS NULL"))
    op.create_table(
        "pipeline_runs",
        _column("tenant_id", sa.Uuid),
        _column("id", sa.Uuid),
        sa.Column("pipeline_id", sa.Uuid),
        *_name(),
        _column("definition", Told),
        _column("state", _words(20)),
        sa.Column("idempotency_key", sa.String(200)),
        _column("request", sa.String(64)),
        _column("created_at", Moment),
        _column("created_by", sa.Uuid),
        _column("author", _words(320)),
        _column("role", sa.String(40)),
        _column("holder", sa.String(200)),
        _column("heartbeat_at", Moment),
        sa.Column("started_at", Moment),
        sa.Column("ended_at", Moment),
        sa.Column("cancel_requested_at", Moment),
        sa.Column("commit_no", sa.BigInteger),
        _column("reads", Told),
        _column("written", Told),
        _column("results", Told),
        sa.Column("progress", Told),
        sa.Column("error", Told),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
        sa.ForeignKeyConstraint(
            ["tenant_id", "pipeline_id"], ["pipelines.tenant_id", "pipelines.id"], name="fk_pipeline_runs_pipelines"
        ),
    )
    op.create_index("ix_pipeline_runs_created", "pipeline_runs", ["tenant_id", "created_at", "id"])
    op.create_index("ix_pipeline_runs_pipeline", "pipeline_runs", ["tenant_id", "pipeline_id", "created_at", "id"])
    op.create_index("ix_pipeline_runs_state", "pipeline_runs", ["tenant_id", "state", "created_at", "id"])
    counts = sa.text("idempotency_key IS NOT NULL AND state IN ('queued', 'running', 'succeeded')")
    _unique("uq_pipeline_runs_key", "pipeline_runs", "idempotency_key", counts)
    if op.get_bind().dialect.name == "postgresql":
        protect(op.get_bind(), ["pipelines", "pipeline_runs"], append_only=[])


def _column(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def _words(length: int) -> sa.String:
    return sa.String(length).with_variant(VARCHAR(length, collation="C"), "postgresql")


def _name() -> list[sa.Column[Any]]:
    return [_column("name", _words(255)), _column("name_lower", _words(765)), _column("name_upper", _words(765))]


def _unique(index: str, table: str, column: str, while_: sa.TextClause) -> None:
    columns = ["tenant_id", column]
    op.create_index(index, table, columns, unique=True, sqlite_where=while_, postgresql_where=while_)
