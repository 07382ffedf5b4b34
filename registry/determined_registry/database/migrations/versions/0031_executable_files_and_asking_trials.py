"""which files of a checkpoint are programs, and which trials ask for their operations"""

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
    no = sa.false()
    op.add_column("trials", sa.Column("asks", sa.Boolean, nullable=False, server_default=no))


def downgrade() -> None:
    op.drop_column("trials", "asks")
    op.drop_column("checkpoints", "executable")
