"""kept_runs: what experiments, pipelines, runs of retrainings and deletions each noted of their flow runs"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, UUID

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

TS = sa.DateTime(timezone=True)
OWNERS = {
    "experiment_id": ("experiments", sa.Integer()),
    "pipeline_id": ("pipelines", sa.Integer()),
    "retraining_run_id": ("retraining_runs", sa.BigInteger()),
    "deletion_id": ("deletions", sa.BigInteger()),
}

# The end of a run that its flow could not say was looked after for ten minutes.
_EXPERIMENTS = """
    INSERT INTO kept_runs (experiment_id, flow_run_id, runs, seen_at, wake, settled)
    SELECT e.id, e.flow_run_id, (e.flow_run_id IS NOT NULL)::int,
           coalesce(s.driver_seen_at, e.start_time),
           EXISTS (SELECT FROM prefect_outbox o WHERE o.entity = 'experiment:' || e.id
                   AND o.kind = 'set_state' AND o.payload ->> 'type' = 'SCHEDULED'),
           e.state IN ('COMPLETED', 'CANCELED', 'ERROR', 'DELETING', 'DELETE_FAILED')
               AND coalesce(e.end_time, e.start_time) < now() - interval '10 minutes'
    FROM experiments e LEFT JOIN searches s ON s.experiment_id = e.id
    WHERE e.flow_run_id IS NOT NULL OR NOT e.unmanaged AND (
        e.state = 'ACTIVE' OR EXISTS (
            SELECT FROM prefect_outbox o
            WHERE o.entity = 'experiment:' || e.id AND o.kind = 'create_experiment_run'))
"""
_OUTBOX = """
    DELETE FROM prefect_outbox
    WHERE kind = 'create_experiment_run' OR starts_with(entity, 'experiment:')
      AND kind = 'set_state' AND payload ->> 'type' = 'SCHEDULED'
"""
_PIPELINES = """
    INSERT INTO kept_runs (pipeline_id, flow_run_id, runs, seen_at, wake, interruptions, interrupted_at,
                           progress, settled)
    SELECT id, flow_run_id, runs, seen_at, wake, revivals, CASE WHEN revivals > 0 THEN seen_at END,
           CASE WHEN revivals > 0 THEN changes::text END, state <> 'RUNNING' AND shown >= changes
    FROM pipelines
"""
_RETRAININGS = """
    INSERT INTO kept_runs (retraining_run_id, flow_run_id, runs, seen_at, settled)
    SELECT id, flow_run_id, attempts, seen_at,
           ended_at IS NOT NULL AND ended_at < now() - interval '10 minutes'
    FROM retraining_runs
    WHERE flow_run_id IS NOT NULL OR state IN ('CHECKING', 'TRAINING', 'EVALUATING', 'PROMOTING')
"""
_DELETIONS = """
    INSERT INTO kept_runs (deletion_id, flow_run_id, earlier_flow_run_ids, runs, seen_at, settled)
    SELECT d.id, k.flow_run_id,
           ARRAY(SELECT one::uuid FROM jsonb_array_elements_text(d.earlier_run_ids) one),
           d.attempts, d.seen_at,
           k.state = 'ERROR' OR k.state IN ('COMPLETED', 'CANCELED') AND d.kind <> 'experiment'
    FROM deletions d JOIN tasks k ON k.id = d.task_id
"""
_DELETION_TASKS = "UPDATE tasks SET flow_run_id = NULL WHERE kind = 'CHECKPOINT_GC'"

_BACK = (
    "UPDATE experiments e SET flow_run_id = r.flow_run_id FROM kept_runs r WHERE r.experiment_id = e.id",
    """
    UPDATE searches s SET driver_seen_at = r.seen_at
    FROM kept_runs r WHERE r.experiment_id = s.experiment_id AND s.driver IS NOT NULL
    """,
    """
    INSERT INTO prefect_outbox (entity, kind, payload)
    SELECT 'experiment:' || e.id, 'create_experiment_run',
           jsonb_build_object('name', e.name || ' #' || e.id)
    FROM kept_runs r JOIN experiments e ON e.id = r.experiment_id
    WHERE r.flow_run_id IS NULL AND NOT r.settled
    """,
    """
    INSERT INTO prefect_outbox (entity, kind, payload)
    SELECT 'experiment:' || experiment_id, 'set_state', jsonb_build_object(
        'type', 'SCHEDULED', 'name', 'Scheduled', 'message', 'the experiment was continued')
    FROM kept_runs WHERE experiment_id IS NOT NULL AND flow_run_id IS NOT NULL AND wake
    """,
    """
    UPDATE pipelines p SET flow_run_id = r.flow_run_id, runs = r.runs, revivals = r.interruptions,
        wake = r.wake, seen_at = r.seen_at
    FROM kept_runs r WHERE r.pipeline_id = p.id
    """,
    """
    UPDATE retraining_runs t SET flow_run_id = r.flow_run_id, attempts = r.runs, seen_at = r.seen_at
    FROM kept_runs r WHERE r.retraining_run_id = t.id
    """,
    """
    UPDATE deletions d
    SET attempts = r.runs, seen_at = r.seen_at, earlier_run_ids = to_jsonb(r.earlier_flow_run_ids)
    FROM kept_runs r WHERE r.deletion_id = d.id
    """,
    """
    UPDATE tasks k SET flow_run_id = r.flow_run_id
    FROM kept_runs r JOIN deletions d ON d.id = r.deletion_id WHERE k.id = d.task_id
    """,
)


def upgrade() -> None:
    op.create_table(
        "kept_runs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        *(sa.Column(name, type_, nullable=True) for name, (_, type_) in OWNERS.items()),
        sa.Column("flow_run_id", UUID(as_uuid=True), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column(
            "earlier_flow_run_ids",
            sa.ARRAY(UUID(as_uuid=True)),
            server_default=sa.text("'{}'::uuid[]"),
            nullable=False,
        ),
        sa.Column("runs", sa.Integer(), server_default="0", nullable=False),
        sa.Column("seen_at", TS, server_default=sa.text("now()"), nullable=False),
        sa.Column("wake", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("interruptions", sa.Integer(), server_default="0", nullable=False),
        sa.Column("interrupted_at", TS, nullable=True),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("look_at", TS, server_default=sa.text("now()"), nullable=False),
        sa.Column("settled", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_kept_runs"),
        *(
            sa.ForeignKeyConstraint(
                [name], [f"{table}.id"], name=f"fk_kept_runs_{name}_{table}", ondelete="CASCADE"
            )
            for name, (table, _) in OWNERS.items()
        ),
        *(sa.UniqueConstraint(name, name=f"uq_kept_runs_{name}") for name in OWNERS),
        sa.CheckConstraint(f"num_nonnulls({', '.join(OWNERS)}) = 1", name="ck_kept_runs_owner"),
    )
    for statement in (_EXPERIMENTS, _OUTBOX, _PIPELINES, _RETRAININGS, _DELETIONS, _DELETION_TASKS):
        op.execute(statement)
    op.create_index("ix_kept_runs_flow_run_id", "kept_runs", ["flow_run_id"])
    op.create_index(
        "ix_kept_runs_open", "kept_runs", ["id"], postgresql_where=sa.text("NOT settled")
    )
    op.drop_index("ix_pipelines_open", "pipelines")
    op.drop_column("experiments", "flow_run_id")
    op.drop_column("searches", "driver_seen_at")
    for column in ("flow_run_id", "runs", "revivals", "wake", "seen_at"):
        op.drop_column("pipelines", column)
    for column in ("flow_run_id", "attempts", "seen_at"):
        op.drop_column("retraining_runs", column)
    for column in ("attempts", "earlier_run_ids", "seen_at"):
        op.drop_column("deletions", column)


def downgrade() -> None:
    for table in ("experiments", "pipelines", "retraining_runs"):
        op.add_column(table, sa.Column("flow_run_id", UUID(as_uuid=True), nullable=True))
    op.add_column("searches", sa.Column("driver_seen_at", TS, nullable=True))
    for table, column in (
        ("pipelines", "runs"),
        ("pipelines", "revivals"),
        ("retraining_runs", "attempts"),
        ("deletions", "attempts"),
    ):
        op.add_column(table, sa.Column(column, sa.Integer(), server_default="0", nullable=False))
    op.add_column(
        "pipelines", sa.Column("wake", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    for table in ("pipelines", "retraining_runs", "deletions"):
        op.add_column(
            table, sa.Column("seen_at", TS, server_default=sa.text("now()"), nullable=False)
        )
    op.add_column(
        "deletions",
        sa.Column(
            "earlier_run_ids", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False
        ),
    )
    for statement in _BACK:
        op.execute(statement)
    op.create_index(
        "ix_pipelines_open", "pipelines", ["id"], postgresql_where=sa.text("state = 'RUNNING'")
    )
    op.drop_table("kept_runs")
