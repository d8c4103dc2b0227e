"""Transactions of clients, that last over many calls."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from penstock.catalog.migrate import protect

revision = "0006"
down_revision = "0005"

Moment = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "transactions",
        _column("tenant_id", sa.Uuid),
        _column("id", sa.Uuid),
        _column("user_id", sa.Uuid),
        _column("state", sa.String(20)),
        _column("commit_no", sa.BigInteger),
        _column("auto_commit", sa.Boolean),
        _column("seq", sa.BigInteger),
        sa.Column("work", sa.Text),
        _column("owner", sa.String(200)),
        sa.Column("operating", sa.String(200)),
        sa.Column("receipt", sa.String(200)),
        _column("created_at", Moment),
        _column("beaten_at", Moment),
        _column("expires_at", Moment),
        sa.Column("ended_at", Moment),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
    )
    op.create_index("ix_transactions_state", "transactions", ["tenant_id", "state"])
    if op.get_bind().dialect.name == "postgresql":
        protect(op.get_bind(), ["transactions"], append_only=[])


def _column(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)
