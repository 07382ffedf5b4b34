"""pipelines evaluate, run commands, and run again after events; a retraining's run is a pipeline

The runs of retrainings that are open end with words, as their flow is that of the release before: the champion
stays, and their experiments go on by themselves. One that waits for an approval ends as one that a later run
has replaced; its version stays registered.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, UUID

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None

_OPEN = "('CHECKING', 'TRAINING', 'EVALUATING', 'PROMOTING')"
_CHECK = "ALTER TABLE kept_runs ADD CONSTRAINT ck_kept_runs_owner CHECK (num_nonnulls({}) = 1)"


def upgrade() -> None:
    op.add_column("pipeline_experiments", sa.Column("task_id", sa.Text(), nullable=True))
    op.add_column("pipelines", sa.Column("cause", sa.Text(), nullable=True))
    op.add_column("pipelines", sa.Column("events", JSONB(none_as_null=True), nullable=True))
    marks = sa.Column("marks", JSONB(), nullable=False, server_default=sa.text("'{}'::jsonb"))
    op.add_column("pipelines", marks)
    op.add_column("pipelines", sa.Column("retraining_run_id", sa.BigInteger(), nullable=True))
    op.create_foreign_key(
        "fk_pipelines_retraining_run_id_retraining_runs",
        "pipelines",
        "retraining_runs",
        ["retraining_run_id"],
        ["id"],
        ondelete="CASCADE",
    )
    op.create_unique_constraint(
        "uq_pipelines_retraining_run_id", "pipelines", ["retraining_run_id"]
    )
    _end_open_runs()
    run = sa.Column("flow_run_id", UUID(as_uuid=True), nullable=True)
    op.add_column("retraining_runs", run)
    op.execute(
        "UPDATE retraining_runs r SET flow_run_id = k.flow_run_id FROM kept_runs k "
        "WHERE k.retraining_run_id = r.id"
    )
    op.execute("DELETE FROM kept_runs WHERE retraining_run_id IS NOT NULL")
    # With the column goes the check that there is one owner.
    op.drop_column("kept_runs", "retraining_run_id")
    op.execute(_CHECK.format("experiment_id, pipeline_id, deletion_id"))


def _end_open_runs() -> None:
    op.execute(
        f"""
        UPDATE retraining_runs SET state = 'FAILED', failed_step = state, ended_at = clock_timestamp(),
            reason = 'the cluster was upgraded while this run was open, and the champion stays'
                || coalesce('; experiment ' || CASE state
                    WHEN 'CHECKING' THEN check_experiment WHEN 'TRAINING' THEN training_experiment
                    WHEN 'EVALUATING' THEN evaluation_experiment END
                    || ' goes on by itself', '')
                || ': run it again (`det retrain run`)'
        WHERE state IN {_OPEN}
        """
    )
    op.execute(
        """
        UPDATE retraining_runs SET state = 'KEPT', ended_at = clock_timestamp(),
            reason = coalesce(reason || '; ', '')
                || 'the cluster was upgraded before anybody approved: run it again (`det retrain run`)'
        WHERE state = 'WAITING_FOR_APPROVAL'
        """
    )


def downgrade() -> None:
    op.execute("ALTER TABLE kept_runs DROP CONSTRAINT ck_kept_runs_owner")
    op.add_column("kept_runs", sa.Column("retraining_run_id", sa.BigInteger(), nullable=True))
    op.create_foreign_key(
        "fk_kept_runs_retraining_run_id_retraining_runs",
        "kept_runs",
        "retraining_runs",
        ["retraining_run_id"],
        ["id"],
        ondelete="CASCADE",
    )
    op.create_unique_constraint(
        "uq_kept_runs_retraining_run_id", "kept_runs", ["retraining_run_id"]
    )
    _end_open_runs()
    op.execute(
        "UPDATE kept_runs k SET retraining_run_id = p.retraining_run_id, pipeline_id = NULL "
        "FROM pipelines p WHERE p.id = k.pipeline_id AND p.retraining_run_id IS NOT NULL"
    )
    op.execute("DELETE FROM pipelines WHERE retraining_run_id IS NOT NULL")
    op.execute(_CHECK.format("experiment_id, pipeline_id, retraining_run_id, deletion_id"))
    op.drop_column("retraining_runs", "flow_run_id")
    for name in ("retraining_run_id", "marks", "events", "cause"):
        op.drop_column("pipelines", name)
    op.drop_column("pipeline_experiments", "task_id")
