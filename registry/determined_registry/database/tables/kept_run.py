"""Flow runs in Prefect that the service keeps alive."""

from __future__ import annotations

import sqlalchemy as sa

from determined_registry.database.tables.base import TS, Uuid, metadata, now

# A run for each experiment, pipeline and deletion that wants one
# (determined_service.prefect.keeper). Its owner is the one column of the three that is not NULL: columns with
# foreign keys, and not a kind and a number, so that the row goes with its owner.
kept_runs = sa.Table(
    "kept_runs",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("experiment_id", sa.ForeignKey("experiments.id", ondelete="CASCADE"), unique=True),
    sa.Column("pipeline_id", sa.ForeignKey("pipelines.id", ondelete="CASCADE"), unique=True),
    sa.Column("deletion_id", sa.ForeignKey("deletions.id", ondelete="CASCADE"), unique=True),
    # The run in Prefect. NULL: it is still to be made.
    sa.Column("flow_run_id", Uuid),
    # Why it could not be made so far, in Prefect's words.
    sa.Column("last_error", sa.Text),
    # Runs that this one has replaced, and how many the service has made.
    sa.Column(
        "earlier_flow_run_ids",
        sa.ARRAY(Uuid),
        nullable=False,
        server_default=sa.text("'{}'::uuid[]"),
    ),
    sa.Column("runs", sa.Integer, nullable=False, server_default="0"),
    # When its flow spoke last; until it has spoken, since when it could have.
    sa.Column("seen_at", TS, nullable=False, server_default=now()),
    # Its owner goes on after an end: the run is started again, also one that was cancelled.
    sa.Column("wake", sa.Boolean, nullable=False, server_default=sa.false()),
    # How often in a row its flow was interrupted, when last, and how far the owner was then.
    sa.Column("interruptions", sa.Integer, nullable=False, server_default="0"),
    sa.Column("interrupted_at", TS),
    sa.Column("progress", sa.Text),
    # When the run is looked at next; never again once it is settled: it and its owner have ended alike.
    sa.Column("look_at", TS, nullable=False, server_default=now()),
    sa.Column("settled", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.CheckConstraint("num_nonnulls(experiment_id, pipeline_id, deletion_id) = 1", name="owner"),
    sa.Index("ix_kept_runs_flow_run_id", "flow_run_id"),
    sa.Index("ix_kept_runs_open", "id", postgresql_where=sa.text("NOT settled")),
)
