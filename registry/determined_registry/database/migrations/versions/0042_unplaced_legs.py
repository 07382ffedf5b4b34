"""legs that their agent's cluster had no room for rest before they are tried again"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "allocations", sa.Column("rests_until", sa.DateTime(timezone=True), nullable=True)
    )
    op.add_column(
        "allocations",
        sa.Column("unplaced_times", sa.Integer(), server_default="0", nullable=False),
    )


def downgrade() -> None:
    op.drop_column("allocations", "unplaced_times")
    op.drop_column("allocations", "rests_until")
