"""pipelines that run again, by hand or on a schedule"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("pipelines", sa.Column("again_of", sa.Integer(), nullable=True))
    op.add_column("pipelines", sa.Column("schedule", JSONB(none_as_null=True), nullable=True))
    when = sa.DateTime(timezone=True)
    op.add_column("pipelines", sa.Column("scheduled_at", when, nullable=True))
    op.add_column("pipelines", sa.Column("next_at", when, nullable=True))
    op.create_index(
        "ix_pipelines_again_of",
        "pipelines",
        ["again_of"],
        postgresql_where=sa.text("again_of IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_pipelines_again_of", "pipelines")
    for name in ("next_at", "scheduled_at", "schedule", "again_of"):
        op.drop_column("pipelines", name)
