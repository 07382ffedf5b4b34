"""Workspaces, their projects, and what people may in them."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from determined_registry.database.tables.base import TS, json, metadata, now

FIRST = 1
UNCATEGORIZED = "Uncategorized"
"""The number and the name of the first workspace, and of its first project."""

# The first, "Uncategorized", is made by the migration and stays; so does its first project.
workspaces = sa.Table(
    "workspaces",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    # Unique in any case of letters (see the index).
    sa.Column("name", sa.Text, nullable=False),
    # NULL: it belongs to nobody, as the first one.
    sa.Column("owner_id", sa.ForeignKey("users.id")),
    # Nothing can be launched in it.
    sa.Column("archived", sa.Boolean, nullable=False, server_default=sa.false()),
    # Nobody may rename, archive or delete it.
    sa.Column("immutable", sa.Boolean, nullable=False, server_default=sa.false()),
    # {"agentUid", "agentGid", "agentUser", "agentGroup"}: the account on agents of what runs in it, in place
    # of its owner's. Of the two, the workspace's counts.
    sa.Column("agent_user_group", JSONB(none_as_null=True)),
    # `checkpoint_storage` as a configuration has it, with secrets; NULL: the cluster's.
    sa.Column("checkpoint_storage", JSONB(none_as_null=True)),
    # NULL: the cluster's.
    sa.Column("default_compute_pool", sa.Text),
    sa.Column("default_aux_pool", sa.Text),
    # DELETING, or DELETE_FAILED with `reason`; NULL: it is in use.
    sa.Column("state", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("created_at", TS, nullable=False, server_default=now()),
)
sa.Index("uq_workspaces_lower_name", sa.func.lower(workspaces.c.name), unique=True)

projects = sa.Table(
    "projects",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("workspace_id", sa.ForeignKey("workspaces.id"), nullable=False),
    # Unique in its workspace, in any case of letters (see the index).
    sa.Column("name", sa.Text, nullable=False),
    # A short word of capitals and digits, by which its runs are named: KEY-12. Unique in the cluster.
    sa.Column("key", sa.Text, unique=True),
    sa.Column("description", sa.Text, nullable=False, server_default=""),
    # [{"name", "contents"}, …] in Markdown.
    sa.Column("notes", JSONB, nullable=False, server_default=json("[]")),
    # NULL: it belongs to nobody, as the first one.
    sa.Column("owner_id", sa.ForeignKey("users.id")),
    sa.Column("archived", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("immutable", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("state", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("created_at", TS, nullable=False, server_default=now()),
)
sa.Index(
    "uq_projects_workspace_id_lower_name",
    projects.c.workspace_id,
    sa.func.lower(projects.c.name),
    unique=True,
)

# Workspaces that a user sees first.
workspace_pins = sa.Table(
    "workspace_pins",
    metadata,
    sa.Column("user_id", sa.ForeignKey("users.id", ondelete="CASCADE"), primary_key=True),
    sa.Column(
        "workspace_id",
        sa.ForeignKey("workspaces.id", ondelete="CASCADE"),
        primary_key=True,
        index=True,
    ),
    sa.Column("pinned_at", TS, nullable=False, server_default=now()),
)

# When a user last looked at a project, as pages report it.
project_visits = sa.Table(
    "project_visits",
    metadata,
    sa.Column("user_id", sa.ForeignKey("users.id", ondelete="CASCADE"), primary_key=True),
    sa.Column(
        "project_id",
        sa.ForeignKey("projects.id", ondelete="CASCADE"),
        primary_key=True,
        index=True,
    ),
    sa.Column("visited_at", TS, nullable=False, server_default=now()),
)

# Pools that only some workspaces may use. A pool without a row is open to all.
pool_bindings = sa.Table(
    "pool_bindings",
    metadata,
    sa.Column("pool", sa.ForeignKey("pools.name", ondelete="CASCADE"), primary_key=True),
    sa.Column(
        "workspace_id",
        sa.ForeignKey("workspaces.id", ondelete="CASCADE"),
        primary_key=True,
        index=True,
    ),
)

# What holds for all configurations of a workspace.
config_policies = sa.Table(
    "config_policies",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    # NULL: of every workspace.
    sa.Column("workspace_id", sa.ForeignKey("workspaces.id", ondelete="CASCADE")),
    # EXPERIMENT or NTSC, as in the API.
    sa.Column("workload", sa.Text, nullable=False),
    # `invariant_config` and `constraints`, as they were set, with secrets.
    sa.Column("content", JSONB, nullable=False),
    sa.Column("updated_by", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("updated_at", TS, nullable=False, server_default=now()),
    # One each; Postgres 15 knows NULLS NOT DISTINCT, this also holds before.
    sa.Index("uq_config_policies", sa.text("coalesce(workspace_id, 0)"), "workload", unique=True),
)

groups = sa.Table(
    "groups",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    # Unique in any case of letters (see the index).
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("created_at", TS, nullable=False, server_default=now()),
)
sa.Index("uq_groups_lower_name", sa.func.lower(groups.c.name), unique=True)

group_members = sa.Table(
    "group_members",
    metadata,
    sa.Column("group_id", sa.ForeignKey("groups.id", ondelete="CASCADE"), primary_key=True),
    sa.Column(
        "user_id", sa.ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True
    ),
)

# Who has which role where; the roles themselves are a table in the code (determined_service.access.roles).
role_assignments = sa.Table(
    "role_assignments",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("role", sa.Text, nullable=False),
    # One of the two.
    sa.Column("user_id", sa.ForeignKey("users.id", ondelete="CASCADE"), index=True),
    sa.Column("group_id", sa.ForeignKey("groups.id", ondelete="CASCADE"), index=True),
    # NULL: in all of them, and in the cluster.
    sa.Column("workspace_id", sa.ForeignKey("workspaces.id", ondelete="CASCADE"), index=True),
    sa.Column("created_at", TS, nullable=False, server_default=now()),
    sa.CheckConstraint("num_nonnulls(user_id, group_id) = 1", name="assignee"),
    # Postgres 15 knows NULLS NOT DISTINCT; this also holds before.
    sa.Index(
        "uq_role_assignments",
        "role",
        sa.text("coalesce(user_id, 0)"),
        sa.text("coalesce(group_id, 0)"),
        sa.text("coalesce(workspace_id, 0)"),
        unique=True,
    ),
)

# Values for what a user's configurations leave open.
user_defaults = sa.Table(
    "user_defaults",
    metadata,
    sa.Column("user_id", sa.ForeignKey("users.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("config", JSONB, nullable=False),
)

# What programs keep for a user, such as the choices of a page.
user_settings = sa.Table(
    "user_settings",
    metadata,
    sa.Column("user_id", sa.ForeignKey("users.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("storage_path", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
