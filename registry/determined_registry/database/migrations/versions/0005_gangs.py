"""the containers of one allocation, their rendezvous, and the data that they gather"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "allocation_resources",
        sa.Column("allocation_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("slot_ids", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("posted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["allocation_id"],
            ["allocations.id"],
            name="fk_allocation_resources_allocation_id_allocations",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("allocation_id", "id", name="pk_allocation_resources"),
    )
    op.create_table(
        "allocation_gathers",
        sa.Column("allocation_id", sa.Text(), nullable=False),
        sa.Column("request_uuid", sa.Text(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("num_peers", sa.Integer(), nullable=False),
        sa.Column("data", JSONB(), nullable=False),
        sa.Column(
            "posted_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["allocation_id"],
            ["allocations.id"],
            name="fk_allocation_gathers_allocation_id_allocations",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("allocation_id", "request_uuid", name="pk_allocation_gathers"),
    )


def downgrade() -> None:
    op.drop_table("allocation_gathers")
    op.drop_table("allocation_resources")
