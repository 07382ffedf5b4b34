"""tasks: the columns that trials and deletions share; legs and allocations belong to a task"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, UUID

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TS = sa.DateTime(timezone=True)

_TRIALS = """
    INSERT INTO tasks (id, kind, owner_id, flow_run_id, start_time)
    SELECT t.task_id, 'TRIAL', e.owner_id, t.flow_run_id, t.start_time
    FROM trials t JOIN experiments e ON e.id = t.experiment_id
"""
# Nobody was noted for a deletion of checkpoints that a user has named: the cluster did it.
_DELETIONS = """
    INSERT INTO tasks
        (id, kind, owner_id, flow_run_id, start_time, name, state, reason, end_time)
    SELECT d.task_id, 'CHECKPOINT_GC',
           coalesce(e.owner_id, (SELECT id FROM users ORDER BY username <> 'determined', id LIMIT 1)),
           d.flow_run_id, d.requested_at, {name},
           CASE d.state WHEN 'REQUESTED' THEN 'ACTIVE' WHEN 'DONE' THEN 'COMPLETED' ELSE 'ERROR' END,
           d.reason, d.ended_at
    FROM deletions d LEFT JOIN experiments e ON e.id = d.experiment_id
"""
_NAME = (
    "'Checkpoint deletion' || coalesce(' of experiment ' || d.experiment_id, '') || ' #' || d.id"
)
_OUTBOX = """
    UPDATE prefect_outbox o SET entity = 'task:' || t.task_id
    FROM trials t WHERE o.entity = 'trial:' || t.id
"""
_OUTBOX_BACK = """
    UPDATE prefect_outbox o SET entity = 'trial:' || t.id
    FROM trials t WHERE o.entity = 'task:' || t.task_id
"""
_TRIALS_BACK = """
    UPDATE trials t SET flow_run_id = k.flow_run_id, start_time = k.start_time
    FROM tasks k WHERE k.id = t.task_id
"""
_DELETIONS_BACK = """
    UPDATE deletions d
    SET state = CASE k.state WHEN 'ACTIVE' THEN 'REQUESTED' WHEN 'COMPLETED' THEN 'DONE'
                ELSE 'FAILED' END,
        reason = k.reason, flow_run_id = k.flow_run_id, requested_at = k.start_time,
        ended_at = k.end_time
    FROM tasks k WHERE k.id = d.task_id
"""


def upgrade() -> None:
    op.create_table(
        "tasks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("flow_run_id", UUID(as_uuid=True), nullable=True),
        sa.Column("start_time", TS, server_default=sa.text("now()"), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("project_id", sa.Integer(), nullable=True),
        sa.Column("config", JSONB(), nullable=True),
        sa.Column("state", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("end_time", TS, nullable=True),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="fk_tasks_owner_id_users"),
        sa.PrimaryKeyConstraint("id", name="pk_tasks"),
    )
    _add_task_id("trials", "(((experiment_id)::text || '.'::text) || request_id)")
    _add_task_id("deletions", "('checkpoint-gc.'::text || (id)::text)")
    op.execute(_TRIALS)
    op.execute(_DELETIONS.format(name=_NAME))
    op.execute(_OUTBOX)

    op.add_column("legs", sa.Column("task_id", sa.Text(), nullable=True))
    op.execute("UPDATE legs l SET task_id = t.task_id FROM trials t WHERE t.id = l.trial_id")
    op.drop_constraint("pk_legs", "legs")
    op.drop_column("legs", "trial_id")
    op.alter_column("legs", "task_id", nullable=False)
    op.create_primary_key("pk_legs", "legs", ["task_id", "run_id"])

    op.drop_column("trials", "flow_run_id")
    op.drop_column("trials", "start_time")
    op.drop_index("ix_deletions_open", "deletions")
    for name in ("state", "reason", "flow_run_id", "requested_at", "ended_at"):
        op.drop_column("deletions", name)

    for table in ("trials", "deletions", "allocations", "legs"):
        op.create_foreign_key(
            f"fk_{table}_task_id_tasks", table, "tasks", ["task_id"], ["id"], ondelete="CASCADE"
        )
    op.create_index(
        "ix_tasks_open",
        "tasks",
        ["kind"],
        postgresql_where=sa.text("state NOT IN ('COMPLETED', 'CANCELED', 'ERROR')"),
    )
    op.create_index("ix_tasks_start_time", "tasks", ["start_time"])
    op.create_index(
        "ix_deletions_of_experiments",
        "deletions",
        ["id"],
        postgresql_where=sa.text("kind = 'experiment'"),
    )


def _add_task_id(table: str, expression: str) -> None:
    op.add_column(
        table,
        sa.Column("task_id", sa.Text(), sa.Computed(expression, persisted=True), nullable=False),
    )
    op.create_unique_constraint(f"uq_{table}_task_id", table, ["task_id"])


def downgrade() -> None:
    op.add_column("trials", sa.Column("flow_run_id", UUID(as_uuid=True), nullable=True))
    start_time = sa.Column("start_time", TS, server_default=sa.text("now()"), nullable=False)
    op.add_column("trials", start_time)
    op.execute(_TRIALS_BACK)

    state = sa.Column("state", sa.Text(), server_default="REQUESTED", nullable=False)
    op.add_column("deletions", state)
    op.add_column("deletions", sa.Column("reason", sa.Text(), nullable=True))
    op.add_column("deletions", sa.Column("flow_run_id", UUID(as_uuid=True), nullable=True))
    requested_at = sa.Column("requested_at", TS, server_default=sa.text("now()"), nullable=False)
    op.add_column("deletions", requested_at)
    op.add_column("deletions", sa.Column("ended_at", TS, nullable=True))
    op.execute(_DELETIONS_BACK)
    op.drop_index("ix_deletions_of_experiments", "deletions")
    op.create_index(
        "ix_deletions_open",
        "deletions",
        ["id"],
        postgresql_where=sa.text("state = 'REQUESTED'"),
    )

    # Tasks of other kinds did not exist.
    op.execute("DELETE FROM allocations WHERE trial_id IS NULL")
    op.add_column("legs", sa.Column("trial_id", sa.Integer(), nullable=True))
    op.execute("UPDATE legs l SET trial_id = t.id FROM trials t WHERE t.task_id = l.task_id")
    op.execute("DELETE FROM legs WHERE trial_id IS NULL")
    op.drop_constraint("fk_legs_task_id_tasks", "legs")
    op.drop_constraint("pk_legs", "legs")
    op.drop_column("legs", "task_id")
    op.create_primary_key("pk_legs", "legs", ["trial_id", "run_id"])
    op.create_foreign_key(
        "fk_legs_trial_id_trials", "legs", "trials", ["trial_id"], ["id"], ondelete="CASCADE"
    )

    op.execute(_OUTBOX_BACK)
    op.drop_constraint("fk_allocations_task_id_tasks", "allocations")
    op.drop_column("trials", "task_id")
    op.drop_column("deletions", "task_id")
    op.drop_table("tasks")
