"""forks of an experiment: found by an index, also when their parent is deleted"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0058"
down_revision = "0057"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_experiments_parent_id",
        "experiments",
        ["parent_id", "id"],
        postgresql_where=sa.text("parent_id IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_experiments_parent_id", "experiments")
