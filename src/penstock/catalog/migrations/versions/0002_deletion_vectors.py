"""Add deletion vectors, their totals of each version, and the cluster key of a dataset."""

import sqlalchemy as sa
from alembic import op

from penstock.catalog.migrate import enable_row_security

revision = "0002_deletion_vectors"
down_revision = "0001_initial"


def upgrade() -> None:
    op.create_table(
        "deletion_vectors",
        sa.Column("tenant_id", sa.Uuid, nullable=False),
        sa.Column("dataset_id", sa.Uuid, nullable=False),
        sa.Column("file_no", sa.BigInteger, nullable=False),
        sa.Column("begin_version", sa.BigInteger, nullable=False),
        sa.Column("end_version", sa.BigInteger),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("bitmap", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "dataset_id", "file_no", "begin_version"),
        sa.ForeignKeyConstraint(
            ["tenant_id", "dataset_id"],
            ["datasets.tenant_id", "datasets.dataset_id"],
            name="fk_deletion_vectors_datasets",
        ),
    )
    op.create_index("ix_deletion_vectors_end", "deletion_vectors", ["tenant_id", "dataset_id", "end_version"])
    for name in ("deleted_rows", "vector_files"):
        op.add_column("dataset_versions", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("datasets", sa.Column("cluster_by", sa.Text))
    if op.get_bind().dialect.name == "postgresql":
        enable_row_security(op.get_bind(), ["deletion_vectors"])
