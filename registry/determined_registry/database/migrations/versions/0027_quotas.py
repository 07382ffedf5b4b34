"""what each user has, counted quickly: open work, bytes of definitions and of logs, sessions"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

TS = sa.DateTime(timezone=True)

_TRIALS = """
UPDATE experiments e SET trials_asked_for = (SELECT count(*) FROM trials t WHERE t.experiment_id = e.id)
WHERE e.state NOT IN ('COMPLETED', 'CANCELED', 'ERROR', 'DELETING', 'DELETE_FAILED')
"""
# Whoever has submitted a definition first counts as the one who stored it.
_OWNERS = """
UPDATE model_definitions m SET size = octet_length(m.archive), owner_id = first.owner_id
FROM (
    SELECT DISTINCT ON (hash) hash, owner_id FROM (
        SELECT model_def_hash, owner_id, start_time FROM experiments
        UNION ALL SELECT model_def_hash, owner_id, start_time FROM tasks
        UNION ALL SELECT model_def_hash, owner_id, created_at FROM retrainings
        UNION ALL SELECT s.model_def_hash, p.owner_id, p.started_at
                  FROM pipeline_steps s JOIN pipelines p ON p.id = s.pipeline_id
    ) AS used (hash, owner_id, since)
    WHERE hash IS NOT NULL ORDER BY hash, since
) AS first
WHERE first.hash = m.hash
"""
# As the service counts a line: what is printed, and 200 bytes for the rest of its row.
_LOGS = """
INSERT INTO log_sizes (task_id, owner_id, bytes)
SELECT k.id, k.owner_id, l.bytes
FROM (SELECT task_id, sum(octet_length(log) + 200) AS bytes FROM task_logs GROUP BY task_id) l
JOIN tasks k ON k.id = l.task_id
"""


def upgrade() -> None:
    op.add_column(
        "experiments",
        sa.Column("trials_asked_for", sa.Integer(), server_default="0", nullable=False),
    )
    op.execute(_TRIALS)
    op.create_index(
        "ix_experiments_open",
        "experiments",
        ["owner_id", "id"],
        postgresql_include=["trials_asked_for"],
        postgresql_where=sa.text(
            "state NOT IN ('COMPLETED', 'CANCELED', 'ERROR', 'DELETING', 'DELETE_FAILED')"
        ),
    )
    op.create_index(
        "ix_tasks_open_of_owner",
        "tasks",
        ["owner_id"],
        postgresql_where=sa.text("state NOT IN ('COMPLETED', 'CANCELED', 'ERROR')"),
    )
    op.add_column(
        "model_definitions", sa.Column("size", sa.BigInteger(), server_default="0", nullable=False)
    )
    op.add_column("model_definitions", sa.Column("owner_id", sa.Integer()))
    op.create_foreign_key(
        "fk_model_definitions_owner_id_users", "model_definitions", "users", ["owner_id"], ["id"]
    )
    op.execute(_OWNERS)
    op.create_index(
        "ix_model_definitions_owner",
        "model_definitions",
        ["owner_id"],
        postgresql_include=["size"],
    )
    op.create_table(
        "log_sizes",
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("is_cut", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", name="pk_log_sizes"),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name="fk_log_sizes_task_id_tasks", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="fk_log_sizes_owner_id_users"),
    )
    op.create_index("ix_log_sizes_owner_id", "log_sizes", ["owner_id"])
    op.execute(_LOGS)
    op.add_column(
        "user_sessions",
        sa.Column("seen_at", TS, server_default=sa.text("now()"), nullable=False),
    )
    op.create_index("ix_user_sessions_user", "user_sessions", ["user_id", "seen_at"])


def downgrade() -> None:
    op.drop_index("ix_user_sessions_user", "user_sessions")
    op.drop_column("user_sessions", "seen_at")
    op.drop_table("log_sizes")
    op.drop_index("ix_model_definitions_owner", "model_definitions")
    op.drop_column("model_definitions", "owner_id")
    op.drop_column("model_definitions", "size")
    op.drop_index("ix_tasks_open_of_owner", "tasks")
    op.drop_index("ix_experiments_open", "experiments")
    op.drop_column("experiments", "trials_asked_for")
