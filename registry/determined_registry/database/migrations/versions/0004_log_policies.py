"""log policies: their matches in the logs of legs; the known results of continued trials"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "log_policy_matches",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=True),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("line", sa.Text(), nullable=False),
        sa.Column(
            "matched_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["trial_id"],
            ["trials.id"],
            name="fk_log_policy_matches_trial_id_trials",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_log_policy_matches"),
        sa.UniqueConstraint("trial_id", "run_id", "name", name="uq_log_policy_matches_trial_id_run_id_name"),
    )
    op.add_column("trials", sa.Column("known", JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("trials", "known")
    op.drop_table("log_policy_matches")
