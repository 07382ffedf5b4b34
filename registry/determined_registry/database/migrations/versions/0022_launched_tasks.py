"""commands, notebooks, shells, TensorBoards and generic tasks"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, UUID

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_NEW = ("COMMAND", "NOTEBOOK", "SHELL", "TENSORBOARD", "GENERIC")

_COLUMNS = (
    "idle_since",
    "idle_timeout_s",
    "forked_from",
    "parent_id",
    "data",
    "submitted_by",
    "model_def_hash",
    "job_id",
)


def upgrade() -> None:
    op.add_column("tasks", sa.Column("job_id", UUID(as_uuid=True), nullable=True))
    op.add_column("tasks", sa.Column("model_def_hash", sa.Text(), nullable=True))
    op.add_column("tasks", sa.Column("submitted_by", sa.Text(), nullable=True))
    op.add_column("tasks", sa.Column("data", JSONB(), nullable=True))
    op.add_column("tasks", sa.Column("parent_id", sa.Text(), nullable=True))
    op.add_column("tasks", sa.Column("forked_from", sa.Text(), nullable=True))
    op.add_column("tasks", sa.Column("idle_timeout_s", sa.Float(53), nullable=True))
    op.add_column("tasks", sa.Column("idle_since", sa.DateTime(timezone=True), nullable=True))
    op.create_foreign_key(
        "fk_tasks_model_def_hash_model_definitions",
        "tasks",
        "model_definitions",
        ["model_def_hash"],
        ["hash"],
    )
    op.create_foreign_key(
        "fk_tasks_parent_id_tasks", "tasks", "tasks", ["parent_id"], ["id"], ondelete="SET NULL"
    )
    op.create_index(
        "ix_tasks_job_id", "tasks", ["job_id"], postgresql_where=sa.text("job_id IS NOT NULL")
    )
    op.create_index(
        "ix_tasks_parent_id",
        "tasks",
        ["parent_id"],
        postgresql_where=sa.text("parent_id IS NOT NULL"),
    )


def downgrade() -> None:
    # An older service has never heard of these kinds.
    kinds = ", ".join(f"'{kind}'" for kind in _NEW)
    op.execute(
        "DELETE FROM prefect_outbox o USING tasks k "
        f"WHERE o.entity = 'task:' || k.id AND k.kind IN ({kinds})"
    )
    op.execute(
        f"DELETE FROM task_logs l USING tasks k WHERE l.task_id = k.id AND k.kind IN ({kinds})"
    )
    op.execute(f"DELETE FROM tasks WHERE kind IN ({kinds})")
    op.drop_index("ix_tasks_parent_id", "tasks")
    op.drop_index("ix_tasks_job_id", "tasks")
    op.drop_constraint("fk_tasks_parent_id_tasks", "tasks")
    op.drop_constraint("fk_tasks_model_def_hash_model_definitions", "tasks")
    for name in _COLUMNS:
        op.drop_column("tasks", name)
