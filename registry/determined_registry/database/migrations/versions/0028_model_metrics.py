"""metrics that MLflow's clients say of logged models"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "mlflow_model_metrics",
        sa.Column("checkpoint_uuid", sa.Uuid(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("moment", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("dataset_name", sa.Text(), nullable=True),
        sa.Column("dataset_digest", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint(
            "checkpoint_uuid", "trial_id", "key", "moment", "step", name="pk_mlflow_model_metrics"
        ),
        sa.ForeignKeyConstraint(
            ["checkpoint_uuid"],
            ["checkpoints.uuid"],
            name="fk_mlflow_model_metrics_checkpoint_uuid_checkpoints",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["trial_id"],
            ["trials.id"],
            name="fk_mlflow_model_metrics_trial_id_trials",
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "ix_mlflow_model_metrics_trial_id", "mlflow_model_metrics", ["trial_id"], unique=False
    )


def downgrade() -> None:
    op.drop_table("mlflow_model_metrics")
