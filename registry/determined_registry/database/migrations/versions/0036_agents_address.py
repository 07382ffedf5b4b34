"""where the ports of an agent's tasks are reached, as the agent says"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("agents", sa.Column("address", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("agents", "address")
