"""the machine on which an agent's cluster has placed a leg"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0057"
down_revision = "0056"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("allocations", sa.Column("machine", sa.Text()))
    op.add_column("allocation_resources", sa.Column("machine", sa.Text()))


def downgrade() -> None:
    op.drop_column("allocation_resources", "machine")
    op.drop_column("allocations", "machine")
