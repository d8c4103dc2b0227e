"""One queue of runs for all processes."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from penstock.catalog.database import TURNS_SETTING
from penstock.catalog.migrate import protect

revision = "0007"
down_revision = "0006"

Moment = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("pipeline_runs", _column("tries", sa.Integer, server_default="0"))
    op.add_column("pipeline_runs", sa.Column("error_kind", sa.String(20)))
    op.create_table(
        "run_turns",
        _column("tenant_id", sa.Uuid),
        _column("run_id", sa.Uuid),
        _column("turn", sa.BigInteger),
        _column("queued_at", Moment),
        sa.Column("due_at", Moment),
        sa.PrimaryKeyConstraint("tenant_id", "run_id"),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"], ["pipeline_runs.tenant_id", "pipeline_runs.id"], name="fk_run_turns_pipeline_runs"
        ),
    )
    op.create_index("ix_run_turns_turn", "run_turns", ["turn", "queued_at"])
    if op.get_bind().dialect.name == "postgresql":
        protect(op.get_bind(), ["run_turns"], append_only=[])
        # Who has the next turn is seen over all tenants, as ids. It is taken as one of the tenant, as everything is.
        op.execute(
            f"CREATE POLICY any_turn ON run_turns FOR SELECT USING (current_setting('{TURNS_SETTING}', true) = 'all')"
        )


def _column(name: str, kind: Any, **more: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, **more)
