"""submissions that may be sent again; models that are trained again, and what became of each time"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, UUID

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

TS = sa.DateTime(timezone=True)
_KEY = "uq_experiments_owner_id_idempotency_key"


def upgrade() -> None:
    # What an older service left to be told: the link to the plot stands on the run's page now.
    op.execute("UPDATE prefect_outbox SET kind = 'show_page' WHERE kind = 'link_plot'")
    op.add_column("experiments", sa.Column("idempotency_key", sa.Text(), nullable=True))
    op.create_unique_constraint(_KEY, "experiments", ["owner_id", "idempotency_key"])
    op.create_table(
        "retrainings",
        sa.Column("id", sa.Integer(), sa.Identity(always=False), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("plan", JSONB(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("model_def_hash", sa.Text(), nullable=True),
        sa.Column("paused", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("next_at", TS, nullable=True),
        sa.Column("created_at", TS, server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_retrainings"),
        sa.ForeignKeyConstraint(
            ["model_id"],
            ["models.id"],
            name="fk_retrainings_model_id_models",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="fk_retrainings_owner_id_users"),
        sa.ForeignKeyConstraint(
            ["model_def_hash"],
            ["model_definitions.hash"],
            name="fk_retrainings_model_def_hash_model_definitions",
        ),
        sa.UniqueConstraint("model_id", name="uq_retrainings_model_id"),
    )
    op.create_table(
        "retraining_runs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("retraining_id", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("due_at", TS, nullable=True),
        sa.Column("forced", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("data_version", sa.Text(), nullable=True),
        sa.Column("check_experiment", sa.Integer(), nullable=True),
        sa.Column("training_experiment", sa.Integer(), nullable=True),
        sa.Column("evaluation_experiment", sa.Integer(), nullable=True),
        sa.Column("evaluations", sa.Integer(), server_default="0", nullable=False),
        sa.Column("challenger", UUID(as_uuid=True), nullable=True),
        sa.Column("champion_version", sa.Integer(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("decision", JSONB(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("failed_step", sa.Text(), nullable=True),
        sa.Column("flow_run_id", UUID(as_uuid=True), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("seen_at", TS, server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", TS, server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("ended_at", TS, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_retraining_runs"),
        sa.ForeignKeyConstraint(
            ["retraining_id"],
            ["retrainings.id"],
            name="fk_retraining_runs_retraining_id_retrainings",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_retraining_runs_retraining_id", "retraining_runs", ["retraining_id", "id"])
    op.create_index(
        "uq_retraining_runs_open",
        "retraining_runs",
        ["retraining_id"],
        unique=True,
        postgresql_where=sa.text("state IN ('CHECKING', 'TRAINING', 'EVALUATING', 'PROMOTING')"),
    )


def downgrade() -> None:
    # An older service cannot tell these; they change nothing but pages in Prefect.
    op.execute("DELETE FROM prefect_outbox WHERE kind IN ('show_page', 'name_run')")
    op.drop_table("retraining_runs")
    op.drop_table("retrainings")
    op.drop_constraint(_KEY, "experiments")
    op.drop_column("experiments", "idempotency_key")
