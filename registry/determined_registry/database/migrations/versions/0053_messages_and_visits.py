"""the message of the cluster to all its users; when a user looked at which project;
access tokens of one workspace"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("cluster", sa.Column("message", JSONB()))
    op.create_table(
        "project_visits",
        sa.Column(
            "user_id",
            sa.Integer(),
            sa.ForeignKey("users.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column(
            "project_id",
            sa.Integer(),
            sa.ForeignKey("projects.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column(
            "visited_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()
        ),
    )
    op.create_index("ix_project_visits_project_id", "project_visits", ["project_id"])
    op.add_column(
        "user_sessions",
        sa.Column(
            "workspace_id", sa.Integer(), sa.ForeignKey("workspaces.id", ondelete="CASCADE")
        ),
    )
    op.create_index("ix_user_sessions_workspace_id", "user_sessions", ["workspace_id"])


def downgrade() -> None:
    op.drop_column("user_sessions", "workspace_id")
    op.drop_table("project_visits")
    op.drop_column("cluster", "message")
