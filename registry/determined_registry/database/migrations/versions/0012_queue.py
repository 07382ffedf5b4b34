"""allocations: for whom it was stopped, its old place in line, no priority of its own; the place of a job"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("allocations", sa.Column("stopping_for", sa.Text(), nullable=True))
    op.add_column(
        "allocations", sa.Column("in_line_since", sa.DateTime(timezone=True), nullable=True)
    )
    op.alter_column("allocations", "priority", nullable=True, server_default=None)
    # Those of experiments that set none had Determined's default, whatever their pool says.
    op.execute(
        "UPDATE allocations a SET priority = NULL FROM experiments e"
        " WHERE e.id = a.experiment_id AND a.state <> 'TERMINATED'"
        " AND e.config #>> '{resources,priority}' IS NULL"
    )
    op.add_column("experiments", sa.Column("queue_position", sa.Float(53), nullable=True))
    op.create_index("ix_experiments_job_id", "experiments", ["job_id"])


def downgrade() -> None:
    op.drop_index("ix_experiments_job_id", "experiments")
    op.drop_column("experiments", "queue_position")
    op.execute("UPDATE allocations SET priority = 42 WHERE priority IS NULL")
    op.alter_column("allocations", "priority", nullable=False, server_default="42")
    op.drop_column("allocations", "in_line_since")
    op.drop_column("allocations", "stopping_for")
