"""allocations on several agents: how many, and what is known of each of their nodes"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "allocations", sa.Column("nodes", sa.Integer(), server_default="1", nullable=False)
    )
    for column in (
        sa.Column("node", sa.Integer(), server_default="0", nullable=False),
        sa.Column("state", sa.Text(), server_default="ASSIGNED", nullable=False),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("exit_kind", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("exit_signal", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
    ):
        op.add_column("allocation_resources", column)


def downgrade() -> None:
    for name in (
        "reason",
        "exit_signal",
        "exit_code",
        "exit_kind",
        "ended_at",
        "started_at",
        "pid",
        "state",
        "node",
    ):
        op.drop_column("allocation_resources", name)
    op.drop_column("allocations", "nodes")
