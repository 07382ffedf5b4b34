"""pipelines of experiments"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, UUID

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

TS = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "pipelines",
        sa.Column("id", sa.Integer(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("submitted_by", sa.Text(), nullable=True),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("flow_run_id", UUID(as_uuid=True), nullable=True),
        sa.Column("runs", sa.Integer(), server_default="0", nullable=False),
        sa.Column("revivals", sa.Integer(), server_default="0", nullable=False),
        sa.Column("wake", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("seen_at", TS, server_default=sa.text("now()"), nullable=False),
        sa.Column("changes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("shown", sa.Integer(), server_default="0", nullable=False),
        sa.Column("started_at", TS, server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("ended_at", TS, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_pipelines"),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="fk_pipelines_owner_id_users"),
        sa.UniqueConstraint(
            "owner_id", "idempotency_key", name="uq_pipelines_owner_id_idempotency_key"
        ),
    )
    op.create_index(
        "ix_pipelines_open", "pipelines", ["id"], postgresql_where=sa.text("state = 'RUNNING'")
    )
    op.create_index(
        "ix_pipelines_unshown", "pipelines", ["id"], postgresql_where=sa.text("shown < changes")
    )
    op.create_table(
        "pipeline_steps",
        sa.Column("pipeline_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("items", JSONB(), nullable=True),
        sa.Column("model_def_hash", sa.Text(), nullable=True),
        sa.Column("started_at", TS, nullable=True),
        sa.Column("ended_at", TS, nullable=True),
        sa.PrimaryKeyConstraint("pipeline_id", "step", name="pk_pipeline_steps"),
        sa.ForeignKeyConstraint(
            ["pipeline_id"],
            ["pipelines.id"],
            name="fk_pipeline_steps_pipeline_id_pipelines",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["model_def_hash"],
            ["model_definitions.hash"],
            name="fk_pipeline_steps_model_def_hash_model_definitions",
        ),
    )
    op.create_table(
        "pipeline_experiments",
        sa.Column("pipeline_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("item", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("experiment_id", sa.Integer(), nullable=True),
        sa.Column("cached", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("result", JSONB(), nullable=True),
        sa.PrimaryKeyConstraint(
            "pipeline_id", "step", "item", "attempt", name="pk_pipeline_experiments"
        ),
        sa.ForeignKeyConstraint(
            ["pipeline_id", "step"],
            ["pipeline_steps.pipeline_id", "pipeline_steps.step"],
            name="fk_pipeline_experiments_pipeline_id_pipeline_steps",
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "ix_pipeline_experiments_experiment_id", "pipeline_experiments", ["experiment_id"]
    )


def downgrade() -> None:
    op.drop_table("pipeline_experiments")
    op.drop_table("pipeline_steps")
    op.drop_table("pipelines")
