"""which start of a leg counts, and why its machine goes away"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("allocations", sa.Column("leaving", sa.Text(), nullable=True))
    op.add_column("allocations", sa.Column("start_id", sa.Text(), nullable=True))
    op.add_column("allocation_resources", sa.Column("start_id", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("allocation_resources", "start_id")
    op.drop_column("allocations", "start_id")
    op.drop_column("allocations", "leaving")
