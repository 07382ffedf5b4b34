"""Checkpoints, their storage, and their deletions."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from determined_registry.database.tables.base import TS, Uuid, json, metadata, now

# What a run of the flow `checkpoint-gc` removes from checkpoint storage: a task of kind CHECKPOINT_GC, whose
# row has its state, its start and end.
deletions = sa.Table(
    "deletions",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column(
        "task_id",
        sa.Text,
        # As Postgres words it, which Alembic compares.
        sa.Computed("('checkpoint-gc.'::text || (id)::text)", persisted=True),
        sa.ForeignKey("tasks.id", ondelete="CASCADE"),
        nullable=False,
        unique=True,
    ),
    # "policy": checkpoints that the experiment's policy drops, and leftovers of killed processes;
    # "checkpoints": those named by a user; "tensorboard": an experiment's TensorBoard files; "experiment":
    # everything, and then its rows.
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("experiment_id", sa.ForeignKey("experiments.id", ondelete="CASCADE")),
    # Of kind "checkpoints": only the files that match. NULL: the whole checkpoints.
    sa.Column("globs", JSONB(none_as_null=True)),
)
# Whose rows are still to be erased.
sa.Index(
    "ix_deletions_of_experiments", deletions.c.id, postgresql_where=deletions.c.kind == "experiment"
)

# The places where checkpoints are: a number for each configuration of a storage.
storages = sa.Table(
    "storages",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    # SHA-256 of the checkpoint_storage section without what says how many checkpoints are kept. No secret
    # is here a second time.
    sa.Column("digest", sa.Text, nullable=False, unique=True),
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("uuid", Uuid, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("task_id", sa.Text),
    sa.Column("allocation_id", sa.Text),
    sa.Column("experiment_id", sa.ForeignKey("experiments.id", ondelete="CASCADE"), index=True),
    sa.Column("trial_id", sa.ForeignKey("trials.id", ondelete="CASCADE"), index=True),
    sa.Column("report_time", TS, nullable=False, server_default=now()),
    sa.Column("steps_completed", sa.BigInteger, nullable=False, server_default="0"),
    # {relative path: bytes}; directories end in "/" and have size 0.
    sa.Column("resources", JSONB, nullable=False, server_default=json("{}")),
    # Bytes in all.
    sa.Column("size", sa.BigInteger, nullable=False, server_default="0"),
    # {relative path: "sha256:<hex>"}
    sa.Column("checksums", JSONB, nullable=False, server_default=json("{}")),
    # The relative paths of the files that their owner may execute.
    sa.Column("executable", JSONB, nullable=False, server_default=json("[]")),
    sa.Column("metadata", JSONB, key="user_metadata", nullable=False, server_default=json("{}")),
    # Why it is in state ERROR: which file is missing or differs.
    sa.Column("reason", sa.Text),
    # A checkpoint_storage section, when it is not the experiment's.
    sa.Column("storage", JSONB(none_as_null=True)),
    sa.Column("storage_id", sa.ForeignKey("storages.id")),
    # Its files are about to be deleted: nothing may start from it any more.
    sa.Column("deletion_id", sa.ForeignKey("deletions.id", ondelete="SET NULL"), index=True),
)
