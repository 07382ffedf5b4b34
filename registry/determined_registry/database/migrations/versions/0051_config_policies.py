"""config policies: what holds for the configurations of a workspace, or of all"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "config_policies",
        sa.Column("id", sa.Integer(), sa.Identity(), primary_key=True),
        sa.Column(
            "workspace_id", sa.Integer(), sa.ForeignKey("workspaces.id", ondelete="CASCADE")
        ),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("content", JSONB(), nullable=False),
        sa.Column("updated_by", sa.Integer(), sa.ForeignKey("users.id"), nullable=False),
        sa.Column(
            "updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()
        ),
    )
    op.create_index(
        "uq_config_policies",
        "config_policies",
        [sa.text("coalesce(workspace_id, 0)"), "workload"],
        unique=True,
    )


def downgrade() -> None:
    op.drop_table("config_policies")
