"""bytes of files that notebooks keep, and of packages that experiments install, for quotas"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tasks", sa.Column("kept_bytes", sa.BigInteger(), nullable=True))
    op.create_index(
        "ix_tasks_kept_of_owner",
        "tasks",
        ["owner_id"],
        postgresql_where=sa.text("kept_bytes IS NOT NULL"),
    )
    op.add_column(
        "agents",
        sa.Column("package_bytes", JSONB, server_default=sa.text("'{}'::jsonb"), nullable=False),
    )


def downgrade() -> None:
    op.drop_column("agents", "package_bytes")
    op.drop_index("ix_tasks_kept_of_owner", "tasks")
    op.drop_column("tasks", "kept_bytes")
