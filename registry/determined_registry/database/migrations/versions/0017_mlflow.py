"""what MLflow's clients say of experiments and runs"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def _json(text: str) -> sa.TextClause:
    return sa.text(f"'{text}'::jsonb")


def upgrade() -> None:
    op.create_table(
        "mlflow_experiments",
        sa.Column("experiment_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("tags", JSONB(), server_default=_json("{}"), nullable=False),
        sa.PrimaryKeyConstraint("experiment_id", name="pk_mlflow_experiments"),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name="fk_mlflow_experiments_experiment_id_experiments",
            ondelete="CASCADE",
        ),
        sa.UniqueConstraint("name", name="uq_mlflow_experiments_name"),
    )
    op.create_table(
        "mlflow_runs",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("native", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("params", JSONB(), server_default=_json("{}"), nullable=False),
        sa.Column("tags", JSONB(), server_default=_json("{}"), nullable=False),
        sa.Column("inputs", JSONB(), server_default=_json("[]"), nullable=False),
        sa.Column("artifacts", JSONB(), server_default=_json("{}"), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("trial_id", name="pk_mlflow_runs"),
        sa.ForeignKeyConstraint(
            ["trial_id"],
            ["trials.id"],
            name="fk_mlflow_runs_trial_id_trials",
            ondelete="CASCADE",
        ),
    )


def downgrade() -> None:
    op.drop_table("mlflow_runs")
    op.drop_table("mlflow_experiments")
