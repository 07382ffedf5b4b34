"""who used which slots when: of deleted experiments too, and found by time"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "erased_usage",
        sa.Column("allocation_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("experiment_id", sa.Integer(), nullable=False),
        sa.Column("labels", JSONB(), nullable=False),
        sa.Column("resource_pool", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("agents", JSONB(), nullable=False),
        sa.Column("began", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("allocation_id", name="pk_erased_usage"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_erased_usage_user_id_users"),
    )
    op.create_index("ix_erased_usage_began", "erased_usage", ["began", "allocation_id"])
    op.create_index("ix_allocations_assigned_at", "allocations", ["assigned_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_allocations_assigned_at", "allocations")
    op.drop_table("erased_usage")
