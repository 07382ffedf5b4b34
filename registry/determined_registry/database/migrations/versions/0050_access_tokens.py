"""access tokens: sessions that no login opens

"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("is_access_token", "read_only"):
        op.add_column(
            "user_sessions",
            sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false()),
        )
    op.add_column(
        "user_sessions", sa.Column("description", sa.Text(), nullable=False, server_default="")
    )
    op.add_column(
        "user_sessions", sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True)
    )


def downgrade() -> None:
    # To the release before they would be logins of full rights.
    op.execute("DELETE FROM user_sessions WHERE is_access_token")
    for name in ("revoked_at", "description", "read_only", "is_access_token"):
        op.drop_column("user_sessions", name)
