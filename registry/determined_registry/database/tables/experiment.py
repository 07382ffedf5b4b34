"""Experiments, their code, searches and trials."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from determined_registry.database.tables.base import TS, Uuid, json, metadata, now

model_definitions = sa.Table(
    "model_definitions",
    metadata,
    # SHA-256 hex of the tar.gz: equal directories are stored once.
    sa.Column("hash", sa.Text, primary_key=True),
    sa.Column("archive", sa.LargeBinary, nullable=False),
    sa.Column("created_at", TS, nullable=False, server_default=now()),
    # Of the archive, and who stored it first: it counts for that user's quota as long as anybody needs it.
    sa.Column("size", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("owner_id", sa.ForeignKey("users.id")),
)
sa.Index("ix_model_definitions_owner", model_definitions.c.owner_id, postgresql_include=["size"])

experiments = sa.Table(
    "experiments",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("description", sa.Text, nullable=False, server_default=""),
    sa.Column("notes", sa.Text, nullable=False, server_default=""),
    sa.Column("labels", JSONB, nullable=False, server_default=json("[]")),
    sa.Column("config", JSONB, nullable=False),
    sa.Column("original_config", sa.Text, nullable=False, server_default=""),
    sa.Column("model_def_hash", sa.ForeignKey("model_definitions.hash")),
    sa.Column("owner_id", sa.ForeignKey("users.id"), nullable=False),
    # The task whose process submitted it with its own token, or that came after it in its trial; NULL: a user
    # did. Plain text: the task may go.
    sa.Column("submitted_by", sa.Text),
    sa.Column(
        "job_id", Uuid, nullable=False, server_default=sa.text("gen_random_uuid()"), index=True
    ),
    sa.Column("parent_id", sa.ForeignKey("experiments.id", ondelete="SET NULL")),
    sa.Column(
        "project_id", sa.ForeignKey("projects.id"), nullable=False, server_default="1", index=True
    ),
    sa.Column("resource_pool", sa.Text, nullable=False, server_default="default"),
    # {"home": ..., "reason": ...}: the pool that it was sent to, and why it went on to another by itself.
    # NULL: it did not.
    sa.Column("fallback", JSONB),
    # Its place in the queue, in seconds since 1970. NULL: that of `start_time`.
    sa.Column("queue_position", sa.Float(53)),
    sa.Column("archived", sa.Boolean, nullable=False, server_default=sa.false()),
    # Its processes run outside of the platform and report by themselves.
    sa.Column("unmanaged", sa.Boolean, nullable=False, server_default=sa.false()),
    # The name under which an unmanaged experiment is found again.
    sa.Column("external_id", sa.Text, unique=True),
    sa.Column("progress", sa.Float(53), nullable=False, server_default="0"),
    sa.Column("start_time", TS, nullable=False, server_default=now()),
    sa.Column("end_time", TS),
    # A word that its submitter made up: a request with the same word is answered with this experiment.
    sa.Column("idempotency_key", sa.Text),
    # Trials that it was asked for: those with which its search began, and those that clients have made. Ended
    # ones are among them; those that a search makes later are not.
    sa.Column("trials_asked_for", sa.Integer, nullable=False, server_default="0"),
    # Of the searcher. Lists of thousands would open as many configurations for them.
    sa.Column(
        "searcher_name", sa.Text, sa.Computed("config #>> '{searcher,name}'", persisted=True)
    ),
    sa.Column(
        "larger_is_better",
        sa.Boolean,
        sa.Computed(
            "coalesce(config #>> '{searcher,smaller_is_better}', 'true') = 'false'", persisted=True
        ),
    ),
    sa.UniqueConstraint("owner_id", "idempotency_key"),
)

sa.Index(
    "ix_experiments_completed",
    experiments.c.end_time,
    postgresql_where=experiments.c.state == "COMPLETED",
)
sa.Index(
    "ix_experiments_parent_id",
    experiments.c.parent_id,
    experiments.c.id,
    postgresql_where=experiments.c.parent_id.is_not(None),
)
# Lists count those that are not archived, in some states, of somebody; the view of them reads submitted_by.
sa.Index(
    "ix_experiments_listed",
    experiments.c.archived,
    experiments.c.state,
    experiments.c.id,
    postgresql_include=["owner_id", "project_id", "submitted_by"],
)
# Of an owner, those that have not ended.
sa.Index(
    "ix_experiments_open",
    experiments.c.owner_id,
    experiments.c.id,
    postgresql_include=["trials_asked_for"],
    postgresql_where=sa.text(
        "state NOT IN ('COMPLETED', 'CANCELED', 'ERROR', 'DELETING', 'DELETE_FAILED')"
    ),
)

searches = sa.Table(
    "searches",
    metadata,
    sa.Column(
        "experiment_id",
        sa.ForeignKey("experiments.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    sa.Column("snapshot", JSONB),
    # Id of the last event in the snapshot; -1: no snapshot yet.
    sa.Column("snapshot_event_id", sa.BigInteger, nullable=False, server_default="-1"),
    # Of the operations committed after that event: a driver that replays them compares.
    sa.Column("operations_digest", sa.Text),
    # Id of the last event whose operations are committed; -1: not even the initial operations.
    sa.Column("committed_event_id", sa.BigInteger, nullable=False, server_default="-1"),
    sa.Column("last_event_id", sa.BigInteger, nullable=False, server_default="0"),
    # The flow process that drives the search; a second one that attaches takes over.
    sa.Column("driver", Uuid),
)

search_events = sa.Table(
    "search_events",
    metadata,
    sa.Column(
        "experiment_id",
        sa.ForeignKey("experiments.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("event", JSONB, nullable=False),
    sa.Column("created_at", TS, nullable=False, server_default=now()),
)

trials = sa.Table(
    "trials",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("experiment_id", sa.ForeignKey("experiments.id", ondelete="CASCADE"), nullable=False),
    sa.Column("request_id", sa.Text, nullable=False),
    sa.Column(
        # The one it has now; `tasks.former_of` names those before.
        "task_id",
        sa.Text,
        sa.ForeignKey("tasks.id", ondelete="CASCADE"),
        nullable=False,
        unique=True,
    ),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("hparams", JSONB, nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("end_time", TS),
    # Legs so far (the run_count of its run in Prefect) and how many of them ended in a counted failure.
    sa.Column("run_count", sa.Integer, nullable=False, server_default="0"),
    sa.Column("restarts", sa.Integer, nullable=False, server_default="0"),
    # The current searcher operation: absolute target length, its ordinal, whether it is done.
    sa.Column("op_length", sa.BigInteger),
    sa.Column("op_index", sa.Integer, nullable=False, server_default="0"),
    sa.Column("op_complete", sa.Boolean, nullable=False, server_default=sa.true()),
    # The searcher will give no further operation / told it to stop (reports form).
    sa.Column("closed", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("stop_requested", sa.Boolean, nullable=False, server_default=sa.false()),
    # An ExitReason the trial reported itself (INVALID_HP, USER_REQUESTED_STOP).
    sa.Column("early_exit", sa.Text),
    sa.Column("warm_start_checkpoint", Uuid),
    sa.Column("latest_checkpoint", Uuid),
    sa.Column("steps_completed", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("progress", sa.Float(53), nullable=False, server_default="0"),
    sa.Column("runner_state", sa.Text, nullable=False, server_default=""),
    sa.Column("run_metadata", JSONB, nullable=False, server_default=json("{}")),
    # What answers for the trial since its experiment was continued (service, submission.continuation):
    # {"lengths": {length: metric}, "completed": bool, "exit": ExitReason, "task": {"id", "state", "reason",
    # "end_time"}}; `task` is the task that it had then. NULL: it never was.
    sa.Column("known", JSONB),
    sa.Column("latest_validation_id", sa.BigInteger),
    sa.Column("best_validation_id", sa.BigInteger),
    # The searcher metric of the best validation, as reported; NULL: none yet.
    sa.Column("searcher_metric_value", sa.Float(53)),
    # Of an unmanaged experiment: the name under which it is found again, and its last sign of life.
    sa.Column("external_id", sa.Text),
    sa.Column("seen_at", TS),
    sa.UniqueConstraint("experiment_id", "request_id"),
    sa.UniqueConstraint("experiment_id", "external_id"),
)
# Pages of an experiment's trials; its best one, whether small or large metrics are wanted (NaN is last).
sa.Index("ix_trials_experiment", trials.c.experiment_id, trials.c.id)
sa.Index(
    "ix_trials_least_metric",
    trials.c.experiment_id,
    trials.c.searcher_metric_value,
    trials.c.id,
    postgresql_where=trials.c.searcher_metric_value.is_not(None),
)
sa.Index(
    "ix_trials_greatest_metric",
    trials.c.experiment_id,
    sa.text("(- searcher_metric_value)"),
    trials.c.id,
    postgresql_where=trials.c.searcher_metric_value.is_not(None),
)
# Open trials: the waiting ones, which the reconciler reads again and again.
sa.Index(
    "ix_trials_open",
    trials.c.experiment_id,
    trials.c.id,
    postgresql_where=sa.text("state NOT IN ('COMPLETED', 'CANCELED', 'ERROR')"),
)

# What a trial says that it uses, such as a batch inference the version of a model.
trial_sources = sa.Table(
    "trial_sources",
    metadata,
    sa.Column("trial_id", sa.ForeignKey("trials.id", ondelete="CASCADE"), primary_key=True),
    sa.Column(
        "checkpoint_uuid",
        sa.ForeignKey("checkpoints.uuid", ondelete="CASCADE"),
        primary_key=True,
        index=True,
    ),
    # INFERENCE | FINE_TUNING
    sa.Column("kind", sa.Text, primary_key=True),
    # The version under whose number it was found, which may have been deleted since. NULL: none was named.
    sa.Column("model_id", sa.ForeignKey("models.id", ondelete="SET NULL")),
    sa.Column("model_version", sa.Integer),
)
