"""which agents have ended or hung up"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("agents", sa.Column("away", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("agents", "away")
