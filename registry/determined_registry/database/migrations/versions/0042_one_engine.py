"""pipelines evaluate, run commands, and run again after events"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0042"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("pipeline_experiments", sa.Column("task_id", sa.Text(), nullable=True))
    op.add_column("pipelines", sa.Column("cause", sa.Text(), nullable=True))
    op.add_column("pipelines", sa.Column("events", JSONB(none_as_null=True), nullable=True))
    marks = sa.Column("marks", JSONB(), nullable=False, server_default=sa.text("'{}'::jsonb"))
    op.add_column("pipelines", marks)


def downgrade() -> None:
    for name in ("marks", "events", "cause"):
        op.drop_column("pipelines", name)
    op.drop_column("pipeline_experiments", "task_id")
