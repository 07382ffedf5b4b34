"""The model registry."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from determined_registry.database.tables.base import TS, Uuid, json, metadata, now

# Trained models by name: what determined_registry.models changes, for the service and for MLflow's stores.
models = sa.Table(
    "models",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    # Unique in any case (see the index), without "/", and never a number alone.
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("description", sa.Text, nullable=False, server_default=""),
    sa.Column("notes", sa.Text, nullable=False, server_default=""),
    sa.Column("metadata", JSONB, key="user_metadata", nullable=False, server_default=json("{}")),
    # Determined's labels: a list of texts.
    sa.Column("labels", JSONB, nullable=False, server_default=json("[]")),
    # What MLflow calls tags: {key: text}. Apart from labels and metadata.
    sa.Column("tags", JSONB, nullable=False, server_default=json("{}")),
    sa.Column("owner_id", sa.ForeignKey("users.id"), nullable=False),
    # The task whose process made it with its own token; NULL: a user did. Plain text: the task may go.
    sa.Column("submitted_by", sa.Text),
    # Of the request that made it: one that is sent again makes nothing.
    sa.Column("request_id", Uuid),
    sa.Column(
        "workspace_id",
        sa.ForeignKey("workspaces.id"),
        nullable=False,
        server_default="1",
        index=True,
    ),
    # It takes no new versions and changes no more.
    sa.Column("archived", sa.Boolean, nullable=False, server_default=sa.false()),
    # The last number that a version got: numbers begin with 1, and one of a deleted version never returns.
    # Whoever makes a version locks this row.
    sa.Column("last_version", sa.Integer, nullable=False, server_default="0"),
    sa.Column("created_at", TS, nullable=False, server_default=now()),
    # The last change of the model, its versions or its aliases.
    sa.Column("updated_at", TS, nullable=False, server_default=now()),
)
sa.Index("uq_models_lower_name", sa.func.lower(models.c.name), unique=True)

model_versions = sa.Table(
    "model_versions",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("model_id", sa.ForeignKey("models.id", ondelete="CASCADE"), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    # It was COMPLETED when it was registered, and cannot be deleted while this row exists: registering locks
    # the checkpoint FOR SHARE, deleting locks it FOR NO KEY UPDATE and then looks here.
    sa.Column("checkpoint_uuid", sa.ForeignKey("checkpoints.uuid"), nullable=False, index=True),
    # A second name for the version; need not be unique.
    sa.Column("name", sa.Text, nullable=False, server_default=""),
    # One line about the changes of this version (MLflow's description of a version).
    sa.Column("comment", sa.Text, nullable=False, server_default=""),
    sa.Column("notes", sa.Text, nullable=False, server_default=""),
    sa.Column("metadata", JSONB, key="user_metadata", nullable=False, server_default=json("{}")),
    sa.Column("labels", JSONB, nullable=False, server_default=json("[]")),
    sa.Column("tags", JSONB, nullable=False, server_default=json("{}")),
    # What an MLflow client called the version's source, which may be a folder within the checkpoint. NULL:
    # the whole checkpoint.
    sa.Column("source", sa.Text),
    # Of the request that made it: one that is sent again makes nothing.
    sa.Column("request_id", Uuid),
    # Who registered it.
    sa.Column("owner_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("created_at", TS, nullable=False, server_default=now()),
    sa.Column("updated_at", TS, nullable=False, server_default=now()),
    sa.UniqueConstraint("model_id", "version"),
    sa.UniqueConstraint("model_id", "request_id"),
)

# Which version a name such as "champion" stands for now.
model_aliases = sa.Table(
    "model_aliases",
    metadata,
    sa.Column("model_id", sa.ForeignKey("models.id", ondelete="CASCADE"), primary_key=True),
    # Of letters, digits, "_" and "-"; neither "latest", nor a number, nor "v" and a number.
    sa.Column("alias", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("moved_at", TS, nullable=False, server_default=now()),
    sa.ForeignKeyConstraint(
        ["model_id", "version"],
        ["model_versions.model_id", "model_versions.version"],
        ondelete="CASCADE",
    ),
    sa.Index("ix_model_aliases_version", "model_id", "version"),
)

# Every move of an alias, in their order; goes with the model. Written in the transaction that moves it.
model_alias_history = sa.Table(
    "model_alias_history",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("model_id", sa.ForeignKey("models.id", ondelete="CASCADE"), nullable=False),
    sa.Column("alias", sa.Text, nullable=False),
    # Numbers of versions, which may have been deleted since. NULL: it was new, or was deleted.
    sa.Column("from_version", sa.Integer),
    sa.Column("to_version", sa.Integer),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("moved_at", TS, nullable=False, server_default=sa.text("clock_timestamp()")),
    sa.Index("ix_model_alias_history_model_id", "model_id", "alias", "id"),
)
