"""what agents give containers, so that a submission that none gives enough is refused"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("agents", sa.Column("container_rights", JSONB, nullable=True))


def downgrade() -> None:
    op.drop_column("agents", "container_rights")
