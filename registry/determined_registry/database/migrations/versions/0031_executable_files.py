"""which files of a checkpoint are programs"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    empty = sa.text("'[]'::jsonb")
    op.add_column("checkpoints", sa.Column("executable", JSONB, nullable=False, server_default=empty))


def downgrade() -> None:
    op.drop_column("checkpoints", "executable")
