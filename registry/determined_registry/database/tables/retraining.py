"""Models that are trained again."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from determined_registry.database.tables.base import TS, Uuid, json, metadata, now

# What trains a model again (docs/automate/retraining.md); one for each model, and it goes with the model.
retrainings = sa.Table(
    "retrainings",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("model_id", sa.ForeignKey("models.id", ondelete="CASCADE"), nullable=False),
    # In whose name its experiments run, and who moves the alias.
    sa.Column("owner_id", sa.ForeignKey("users.id"), nullable=False),
    # Rule, evaluation, schedule and so on, as determined_service.retraining.plans checks it.
    sa.Column("plan", JSONB, nullable=False),
    # The experiment configuration as JSON text, with its secrets: it is shown to nobody.
    sa.Column("config", sa.Text, nullable=False),
    sa.Column("model_def_hash", sa.ForeignKey("model_definitions.hash")),
    sa.Column("paused", sa.Boolean, nullable=False, server_default=sa.false()),
    # When the schedule wants the next run; in the past: as soon as the run before has ended. NULL: never.
    sa.Column("next_at", TS),
    # What was seen last of each event of the plan (determined_service.retraining.events): {its text: {…}}
    sa.Column("marks", JSONB, nullable=False, server_default=json("{}")),
    sa.Column("created_at", TS, nullable=False, server_default=now()),
    sa.UniqueConstraint("model_id"),
)

# How a model does where it is used, as its users report it; the newest of each name stay.
live_metrics = sa.Table(
    "live_metrics",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("retraining_id", sa.ForeignKey("retrainings.id", ondelete="CASCADE"), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("value", sa.Float(53), nullable=False),
    # The version that was used: the champion of then, unless the report said another. NULL: there was none.
    sa.Column("version", sa.Integer),
    sa.Column("reported_at", TS, nullable=False, server_default=now()),
    sa.Index("ix_live_metrics_name", "retraining_id", "name", "id"),
)

# Each time that a model was trained again, or rolled back. A run is a pipeline; its row is written in each
# transaction that changes that (determined_service.pipelines.of_retraining).
retraining_runs = sa.Table(
    "retraining_runs",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("retraining_id", sa.ForeignKey("retrainings.id", ondelete="CASCADE"), nullable=False),
    # determined_service.pipelines.of_retraining says which there are.
    sa.Column("state", sa.Text, nullable=False),
    # "schedule", what happened, or who asked for it.
    sa.Column("cause", sa.Text, nullable=False),
    # Of a scheduled run, the time that the schedule meant; it began later when the cluster was away.
    sa.Column("due_at", TS),
    # It trains although the data has not changed.
    sa.Column("forced", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("data_version", sa.Text),
    # Plain numbers: the experiments may be deleted, the history stays.
    sa.Column("check_experiment", sa.Integer),
    sa.Column("training_experiment", sa.Integer),
    sa.Column("evaluation_experiment", sa.Integer),
    # How often it was evaluated: again when somebody moved the alias meanwhile.
    sa.Column("evaluations", sa.Integer, nullable=False, server_default="0"),
    # The checkpoint that was trained, and the version that it became.
    sa.Column("challenger", Uuid),
    # The version that it is compared with. NULL: there was no champion.
    sa.Column("champion_version", sa.Integer),
    sa.Column("version", sa.Integer),
    # {"promote": bool, "reason": text, "scores": …}: written before it is acted on.
    sa.Column("decision", JSONB(none_as_null=True)),
    sa.Column("reason", sa.Text),
    sa.Column("failed_step", sa.Text),
    # The run in Prefect by which somebody began it there: one that is run again begins nothing.
    sa.Column("begun_by", Uuid, unique=True),
    # The run in Prefect of one that began before runs were pipelines.
    sa.Column("flow_run_id", Uuid),
    sa.Column("started_at", TS, nullable=False, server_default=sa.text("clock_timestamp()")),
    sa.Column("ended_at", TS),
    sa.Index("ix_retraining_runs_retraining_id", "retraining_id", "id"),
    # Two runs of one model are never open at the same time.
    sa.Index(
        "uq_retraining_runs_open",
        "retraining_id",
        unique=True,
        postgresql_where=sa.text("state IN ('CHECKING', 'TRAINING', 'EVALUATING', 'PROMOTING')"),
    ),
)
