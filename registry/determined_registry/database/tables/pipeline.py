"""Pipelines of experiments."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from determined_registry.database.tables.base import TS, json, metadata

# Pipelines of experiments (docs/automate/pipelines.md). Whoever takes a step of one locks its row.
pipelines = sa.Table(
    "pipelines",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("owner_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column(
        "workspace_id",
        sa.ForeignKey("workspaces.id"),
        nullable=False,
        server_default="1",
        index=True,
    ),
    # Where experiments go whose configurations name no project; NULL: into Uncategorized.
    sa.Column("project_id", sa.ForeignKey("projects.id", ondelete="SET NULL"), index=True),
    # The task whose process submitted it.
    sa.Column("submitted_by", sa.Text),
    # determined.common.pipeline.PipelinePlan as JSON, with the secrets in its configurations: for nobody.
    sa.Column("plan", sa.Text, nullable=False),
    # determined_service.pipelines.machine says which there are.
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    # Of a submission that may be sent again.
    sa.Column("idempotency_key", sa.Text),
    # The pipeline that it is a repetition of; a plain number, as that one may be deleted.
    sa.Column("again_of", sa.Integer),
    # The run of a retraining that it is: no user sees it as a pipeline, and it goes with the run.
    sa.Column(
        "retraining_run_id", sa.ForeignKey("retraining_runs.id", ondelete="CASCADE"), unique=True
    ),
    # Why it ran again by itself: its schedule, or what happened.
    sa.Column("cause", sa.Text),
    # When it runs again (determined_service.pipelines.repeating), since when that holds, and the next time;
    # in the past: as soon as the run before has ended. NULL: never.
    sa.Column("schedule", JSONB(none_as_null=True)),
    sa.Column("scheduled_at", TS),
    sa.Column("next_at", TS),
    # The events after which it runs again, and what was seen last of each (determined_service.recurring).
    sa.Column("events", JSONB(none_as_null=True)),
    sa.Column("marks", JSONB, nullable=False, server_default=json("{}")),
    # Counts the changes, and how many of them the page of the run shows.
    sa.Column("changes", sa.Integer, nullable=False, server_default="0"),
    sa.Column("shown", sa.Integer, nullable=False, server_default="0"),
    sa.Column("started_at", TS, nullable=False, server_default=sa.text("clock_timestamp()")),
    sa.Column("ended_at", TS),
    sa.UniqueConstraint("owner_id", "idempotency_key"),
    sa.Index("ix_pipelines_again_of", "again_of", postgresql_where=sa.text("again_of IS NOT NULL")),
    sa.Index("ix_pipelines_unshown", "id", postgresql_where=sa.text("shown < changes")),
)

pipeline_steps = sa.Table(
    "pipeline_steps",
    metadata,
    sa.Column("pipeline_id", sa.ForeignKey("pipelines.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    # What it fans out over, once that is known.
    sa.Column("items", JSONB(none_as_null=True)),
    sa.Column("model_def_hash", sa.ForeignKey("model_definitions.hash")),
    sa.Column("started_at", TS),
    sa.Column("ended_at", TS),
)

# Each try of each experiment of a step; the last try of an item counts.
pipeline_experiments = sa.Table(
    "pipeline_experiments",
    metadata,
    sa.Column("pipeline_id", sa.Integer, primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("item", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    # A plain number: the experiment may be deleted, what it found stays.
    sa.Column("experiment_id", sa.Integer),
    # Of a command.
    sa.Column("task_id", sa.Text),
    # It ran already, for somebody else.
    sa.Column("cached", sa.Boolean, nullable=False, server_default=sa.false()),
    # determined.common.pipeline.Result, written when the experiment counts as completed; of a promotion, when
    # the version is registered.
    sa.Column("result", JSONB(none_as_null=True)),
    sa.ForeignKeyConstraint(
        ["pipeline_id", "step"],
        ["pipeline_steps.pipeline_id", "pipeline_steps.step"],
        ondelete="CASCADE",
    ),
    sa.Index("ix_pipeline_experiments_experiment_id", "experiment_id"),
)
