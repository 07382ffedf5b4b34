"""the projects of pipelines, and the usage of tasks that went with their workspace"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "pipelines",
        sa.Column(
            "project_id", sa.Integer(), sa.ForeignKey("projects.id", ondelete="SET NULL"), nullable=True
        ),
    )
    op.create_index("ix_pipelines_project_id", "pipelines", ["project_id"])
    op.alter_column("erased_usage", "experiment_id", nullable=True)


def downgrade() -> None:
    op.execute("DELETE FROM erased_usage WHERE experiment_id IS NULL")
    op.alter_column("erased_usage", "experiment_id", nullable=False)
    op.drop_column("pipelines", "project_id")
