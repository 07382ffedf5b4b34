"""the machine of a slot, of agents that stand for several"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("slots", sa.Column("machine", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("slots", "machine")
