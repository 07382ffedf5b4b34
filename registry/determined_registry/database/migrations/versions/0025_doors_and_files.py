"""Ways into tasks that run, and the files that tasks leave behind for their owners."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

TS = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "allocation_doors",
        sa.Column("allocation_id", sa.Text(), nullable=False),
        sa.Column("node", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("requested_at", TS, server_default=sa.text("now()"), nullable=False),
        sa.Column("is_open", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("problem", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("allocation_id", "node", name="pk_allocation_doors"),
        sa.ForeignKeyConstraint(
            ["allocation_id"],
            ["allocations.id"],
            name="fk_allocation_doors_allocation_id_allocations",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_allocation_doors_agent_id", "allocation_doors", ["agent_id"])
    op.create_table(
        "task_files",
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("created_at", TS, server_default=sa.text("now()"), nullable=False),
        sa.Column("size", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("ready", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("remarks", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.PrimaryKeyConstraint("task_id", name="pk_task_files"),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name="fk_task_files_task_id_tasks", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_task_files_created_at", "task_files", ["created_at"])
    op.create_table(
        "task_file_pieces",
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "number", name="pk_task_file_pieces"),
        sa.ForeignKeyConstraint(
            ["task_id"],
            ["task_files.task_id"],
            name="fk_task_file_pieces_task_id_task_files",
            ondelete="CASCADE",
        ),
    )


def downgrade() -> None:
    op.drop_table("task_file_pieces")
    op.drop_table("task_files")
    op.drop_table("allocation_doors")
