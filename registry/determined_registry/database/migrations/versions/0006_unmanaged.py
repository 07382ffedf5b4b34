"""unmanaged experiments: external ids, and when a trial's process was last heard of"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("experiments", sa.Column("external_id", sa.Text(), nullable=True))
    op.create_unique_constraint("uq_experiments_external_id", "experiments", ["external_id"])
    op.add_column("trials", sa.Column("external_id", sa.Text(), nullable=True))
    op.add_column("trials", sa.Column("seen_at", sa.DateTime(timezone=True), nullable=True))
    op.create_unique_constraint(
        "uq_trials_experiment_id_external_id", "trials", ["experiment_id", "external_id"]
    )


def downgrade() -> None:
    op.drop_constraint("uq_trials_experiment_id_external_id", "trials")
    op.drop_column("trials", "seen_at")
    op.drop_column("trials", "external_id")
    op.drop_constraint("uq_experiments_external_id", "experiments")
    op.drop_column("experiments", "external_id")
