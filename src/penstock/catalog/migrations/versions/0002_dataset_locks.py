"""A dataset can be held for one writer for a while."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("datasets", sa.Column("held_by", sa.Uuid))
    op.add_column("datasets", sa.Column("held_until", sa.DateTime(timezone=True)))
