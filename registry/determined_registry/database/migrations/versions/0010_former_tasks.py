"""a trial has another task after each continuation: trials.task_id is written, tasks.former_of names the trial"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# Back to one task for each trial: all its tasks are the first again, which keeps its start.
_FIRST = "t.experiment_id || '.' || t.request_id"
_ALL = f"""
    SELECT k.id AS task, {_FIRST} AS first
    FROM trials t JOIN tasks k ON k.id = t.task_id OR k.former_of = t.id
"""
_BACK = (
    *(
        f"UPDATE {table} x SET task_id = found.first FROM ({_ALL}) AS found"
        " WHERE x.task_id = found.task AND found.task <> found.first"
        for table in ("allocations", "legs", "task_logs", "checkpoints")
    ),
    f"""
    UPDATE prefect_outbox o SET entity = 'task:' || found.first FROM ({_ALL}) AS found
    WHERE o.entity = 'task:' || found.task AND found.task <> found.first
    """,
    f"""
    UPDATE experiments e SET submitted_by = found.first FROM ({_ALL}) AS found
    WHERE e.submitted_by = found.task AND found.task <> found.first
    """,
    # The last one may know of a run in Prefect that the first has never had.
    f"""
    UPDATE tasks k SET flow_run_id = last.flow_run_id, state = NULL, reason = NULL, end_time = NULL,
                       config = NULL
    FROM trials t JOIN tasks last ON last.id = t.task_id
    WHERE k.id = {_FIRST} AND k.former_of = t.id
    """,
    f"UPDATE trials t SET task_id = {_FIRST} WHERE task_id <> {_FIRST}",
    """
    DELETE FROM tasks k
    WHERE k.kind = 'TRIAL' AND NOT EXISTS (SELECT FROM trials t WHERE t.task_id = k.id)
    """,
    "UPDATE trials SET known = known - 'task' WHERE known ? 'task'",
)
_UNIQUE = "uq_trials_task_id"
_KEY = "fk_trials_task_id_tasks"


def upgrade() -> None:
    op.execute("ALTER TABLE trials ALTER COLUMN task_id DROP EXPRESSION")
    op.add_column("tasks", sa.Column("former_of", sa.Integer(), nullable=True))
    op.create_foreign_key(
        "fk_tasks_former_of_trials", "tasks", "trials", ["former_of"], ["id"], ondelete="CASCADE"
    )
    op.create_index(
        "ix_tasks_former_of",
        "tasks",
        ["former_of"],
        postgresql_where=sa.text("former_of IS NOT NULL"),
    )


def downgrade() -> None:
    for statement in _BACK:
        op.execute(statement)
    op.drop_column("tasks", "former_of")
    # A column cannot become a computed one again.
    op.drop_column("trials", "task_id")
    op.add_column(
        "trials",
        sa.Column(
            "task_id",
            sa.Text(),
            sa.Computed("(((experiment_id)::text || '.'::text) || request_id)", persisted=True),
            nullable=False,
        ),
    )
    op.create_unique_constraint(_UNIQUE, "trials", ["task_id"])
    op.create_foreign_key(_KEY, "trials", "tasks", ["task_id"], ["id"], ondelete="CASCADE")
