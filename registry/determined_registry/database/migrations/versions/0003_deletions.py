"""deletions from checkpoint storage; the reason why a checkpoint is damaged, and its storage"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, UUID

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "deletions",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("experiment_id", sa.Integer(), nullable=True),
        sa.Column("globs", JSONB(), nullable=True),
        sa.Column("state", sa.Text(), server_default="REQUESTED", nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("flow_run_id", UUID(as_uuid=True), nullable=True),
        sa.Column(
            "earlier_run_ids", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False
        ),
        sa.Column(
            "requested_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "seen_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name="fk_deletions_experiment_id_experiments",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_deletions"),
    )
    op.create_index(
        "ix_deletions_open",
        "deletions",
        ["id"],
        postgresql_where=sa.text("state = 'REQUESTED'"),
    )
    op.add_column("checkpoints", sa.Column("reason", sa.Text(), nullable=True))
    op.add_column("checkpoints", sa.Column("storage", JSONB(), nullable=True))
    op.add_column("checkpoints", sa.Column("deletion_id", sa.BigInteger(), nullable=True))
    op.create_foreign_key(
        "fk_checkpoints_deletion_id_deletions",
        "checkpoints",
        "deletions",
        ["deletion_id"],
        ["id"],
        ondelete="SET NULL",
    )
    op.create_index("ix_checkpoints_deletion_id", "checkpoints", ["deletion_id"])


def downgrade() -> None:
    op.drop_constraint("fk_checkpoints_deletion_id_deletions", "checkpoints")
    op.drop_index("ix_checkpoints_deletion_id", "checkpoints")
    op.drop_column("checkpoints", "deletion_id")
    op.drop_column("checkpoints", "storage")
    op.drop_column("checkpoints", "reason")
    op.drop_table("deletions")
