"""The reports of trials."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from determined_registry.database.tables.base import TS, Uuid, metadata, now

metrics = sa.Table(
    "metrics",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("trial_id", sa.ForeignKey("trials.id", ondelete="CASCADE"), nullable=False),
    sa.Column("run_id", sa.Integer, nullable=False),
    sa.Column("group_name", sa.Text, nullable=False),
    sa.Column("steps_completed", sa.BigInteger, nullable=False),
    sa.Column("end_time", TS, nullable=False),
    sa.Column("metrics", JSONB, nullable=False),
    sa.Column("batch_metrics", JSONB),
    # A later leg began again at or before this step: kept, but no longer part of the trial's curve.
    sa.Column("archived", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Index("ix_metrics_trial", "trial_id", "group_name", "steps_completed"),
)

# How much a trial has reported, counted with its summaries: for quotas.
metric_sizes = sa.Table(
    "metric_sizes",
    metadata,
    sa.Column("trial_id", sa.ForeignKey("trials.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("owner_id", sa.ForeignKey("users.id"), nullable=False, index=True),
    sa.Column("bytes", sa.BigInteger, nullable=False),
)

# Summary of one metric of a trial, so that its reports need not be read. A separate table, not a column of
# trials: each report updates it, and must not wait for (or hold up) a state change.
metric_summaries = sa.Table(
    "metric_summaries",
    metadata,
    sa.Column("trial_id", sa.ForeignKey("trials.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("group_name", sa.Text, primary_key=True),
    sa.Column("metric", sa.Text, primary_key=True),
    # number | boolean | string | date | object | array | null; "string" when types are mixed.
    sa.Column("type", sa.Text, nullable=False),
    # Reports that hold the metric, with any value.
    sa.Column("count", sa.BigInteger, nullable=False),
    # Over the finite numbers among them; NULL: none yet.
    sa.Column("finite_count", sa.BigInteger, nullable=False),
    sa.Column("sum", sa.Float(53)),
    sa.Column("min", sa.Float(53)),
    sa.Column("max", sa.Float(53)),
    sa.Column("last", JSONB),
    sa.Column("last_steps", sa.BigInteger, nullable=False),
    # Of what MLflow's clients log, whose times decide between points of one step. NULL: the last to arrive is
    # the last.
    sa.Column("last_time", sa.DateTime(timezone=True)),
)

# A sender of numbered batches (metrics or logs): the last number stored, so that a batch which is
# sent again after a lost answer is not stored twice.
report_streams = sa.Table(
    "report_streams",
    metadata,
    sa.Column("stream_id", Uuid, primary_key=True),
    sa.Column("last_seq", sa.BigInteger, nullable=False),
    sa.Column("updated_at", TS, nullable=False, server_default=now()),
)
