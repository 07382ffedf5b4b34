"""the cluster configuration in force; resource pools that have left it"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("cluster", sa.Column("config", JSONB(), nullable=True))
    op.add_column(
        "pools", sa.Column("removed", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column(
        "pools",
        sa.Column("prefect_paused", sa.Boolean(), nullable=False, server_default=sa.false()),
    )


def downgrade() -> None:
    op.drop_column("pools", "prefect_paused")
    op.drop_column("pools", "removed")
    op.drop_column("cluster", "config")
