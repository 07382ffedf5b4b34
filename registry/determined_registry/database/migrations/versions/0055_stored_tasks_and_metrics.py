"""what each user has, counted quickly: launched tasks, bytes of metrics"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0055"
down_revision = "0054"
branch_labels = None
depends_on = None

# As the service counts a report: its metrics, and 100 bytes for the rest of its row.
_SIZES = """
INSERT INTO metric_sizes (trial_id, owner_id, bytes)
SELECT t.id, e.owner_id, m.bytes
FROM (
    SELECT trial_id, sum(pg_column_size(metrics) + coalesce(pg_column_size(batch_metrics), 0) + 100) AS bytes
    FROM metrics GROUP BY trial_id
) m JOIN trials t ON t.id = m.trial_id JOIN experiments e ON e.id = t.experiment_id
"""


def upgrade() -> None:
    op.create_table(
        "metric_sizes",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("trial_id", name="pk_metric_sizes"),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name="fk_metric_sizes_trial_id_trials", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="fk_metric_sizes_owner_id_users"),
    )
    op.create_index("ix_metric_sizes_owner_id", "metric_sizes", ["owner_id"])
    op.execute(_SIZES)
    op.create_index(
        "ix_tasks_launched_of_owner",
        "tasks",
        ["owner_id", "end_time"],
        postgresql_where=sa.text("job_id IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_tasks_launched_of_owner", "tasks")
    op.drop_table("metric_sizes")
