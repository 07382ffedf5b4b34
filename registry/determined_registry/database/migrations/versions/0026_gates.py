"""ports of tasks on other machines are behind gates, which only the proxy passes"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "allocation_ports",
        sa.Column("behind", sa.Integer(), server_default="0", nullable=False),
    )


def downgrade() -> None:
    op.drop_column("allocation_ports", "behind")
