"""the message of the cluster to all its users"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0053"
down_revision = "0051"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("cluster", sa.Column("message", JSONB()))


def downgrade() -> None:
    op.drop_column("cluster", "message")
