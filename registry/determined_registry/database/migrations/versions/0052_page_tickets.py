"""page tickets: addresses that log a browser in at the service's pages, each good once"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "page_tickets",
        sa.Column("ticket_hash", sa.Text(), primary_key=True),
        sa.Column(
            "session_id",
            sa.Integer(),
            sa.ForeignKey("user_sessions.id", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()
        ),
    )
    op.create_index("ix_page_tickets_session_id", "page_tickets", ["session_id"])


def downgrade() -> None:
    op.drop_table("page_tickets")
