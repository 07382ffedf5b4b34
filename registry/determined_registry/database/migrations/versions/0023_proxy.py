"""The proxy to tasks: ports of live allocations, and the logins of browsers at tasks' host names."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

TS = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "allocation_ports",
        sa.Column("allocation_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("tcp", sa.Boolean(), nullable=False),
        sa.Column("unauthenticated", sa.Boolean(), nullable=False),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("keep_prefix", sa.Boolean(), nullable=False),
        sa.Column("ready", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("waits_for", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("allocation_id", "name", name="pk_allocation_ports"),
        sa.ForeignKeyConstraint(
            ["allocation_id"],
            ["allocations.id"],
            name="fk_allocation_ports_allocation_id_allocations",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name="fk_allocation_ports_task_id_tasks", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_allocation_ports_task_id", "allocation_ports", ["task_id"])
    op.create_table(
        "task_visits",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("port_name", sa.Text(), nullable=False),
        sa.Column("ticket_hash", sa.Text(), nullable=True),
        sa.Column("cookie_hash", sa.Text(), nullable=True),
        sa.Column("created_at", TS, server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_task_visits"),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["user_sessions.id"],
            name="fk_task_visits_session_id_user_sessions",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name="fk_task_visits_task_id_tasks", ondelete="CASCADE"
        ),
        sa.UniqueConstraint("ticket_hash", name="uq_task_visits_ticket_hash"),
        sa.UniqueConstraint("cookie_hash", name="uq_task_visits_cookie_hash"),
    )
    for column in ("session_id", "task_id"):
        op.create_index(f"ix_task_visits_{column}", "task_visits", [column])


def downgrade() -> None:
    op.drop_table("task_visits")
    op.drop_table("allocation_ports")
