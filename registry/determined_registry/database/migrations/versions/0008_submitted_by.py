"""experiments: the task whose process submitted it"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("experiments", sa.Column("submitted_by", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("experiments", "submitted_by")
