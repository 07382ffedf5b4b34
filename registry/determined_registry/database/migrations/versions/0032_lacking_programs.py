"""which programs of kinds of tasks an agent's machine lacks, and what installs them"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    empty = sa.text("'{}'::jsonb")
    op.add_column("agents", sa.Column("lacks", JSONB, nullable=False, server_default=empty))


def downgrade() -> None:
    op.drop_column("agents", "lacks")
