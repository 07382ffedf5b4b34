"""Templates of configurations."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from determined_registry.database.tables.base import TS, metadata

# Values that configurations of experiments and tasks take from it (docs/reference/configuration.md).
templates = sa.Table(
    "templates",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    # With secrets that it may hold: others than its owner see it masked.
    sa.Column("config", JSONB, nullable=False),
    sa.Column("owner_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column(
        "workspace_id",
        sa.ForeignKey("workspaces.id"),
        nullable=False,
        server_default="1",
        index=True,
    ),
    # The task whose process made it.
    sa.Column("submitted_by", sa.Text),
    sa.Column("updated_at", TS, nullable=False, server_default=sa.text("clock_timestamp()")),
    sa.Index("ix_templates_owner_id", "owner_id"),
)
