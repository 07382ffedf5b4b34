"""what agents say while they live: slots that drain, and what an accepted leg waits for"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "slots", sa.Column("draining", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    for table in ("allocations", "allocation_resources"):
        op.add_column(table, sa.Column("waits_for", sa.Text(), nullable=True))


def downgrade() -> None:
    for table in ("allocations", "allocation_resources"):
        op.drop_column(table, "waits_for")
    op.drop_column("slots", "draining")
