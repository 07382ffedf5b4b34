"""labels of agents, and experiments that went to a fallback pool"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "agents", sa.Column("labels", JSONB(), nullable=False, server_default=sa.text("'{}'"))
    )
    op.add_column("experiments", sa.Column("fallback", JSONB()))


def downgrade() -> None:
    op.drop_column("experiments", "fallback")
    op.drop_column("agents", "labels")
