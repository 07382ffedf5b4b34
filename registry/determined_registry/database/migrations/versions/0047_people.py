"""workspaces, projects, groups, and who has which role where

What there is belongs to the workspace "Uncategorized" and its project of that name, which have the number 1, as
rows and clients have said before.
"""

from __future__ import annotations

import datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None


def _id() -> sa.Column[int]:
    return sa.Column("id", sa.Integer(), sa.Identity(), primary_key=True)


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false())


def _created() -> sa.Column[datetime.datetime]:
    return sa.Column(
        "created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")
    )


def upgrade() -> None:
    op.create_table(
        "workspaces",
        _id(),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner_id", sa.Integer(), sa.ForeignKey("users.id"), nullable=True),
        _flag("archived"),
        _flag("immutable"),
        sa.Column("agent_user_group", JSONB(none_as_null=True), nullable=True),
        sa.Column("checkpoint_storage", JSONB(none_as_null=True), nullable=True),
        sa.Column("default_compute_pool", sa.Text(), nullable=True),
        sa.Column("default_aux_pool", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        _created(),
    )
    op.create_index("uq_workspaces_lower_name", "workspaces", [sa.text("lower(name)")], unique=True)
    op.create_table(
        "projects",
        _id(),
        sa.Column("workspace_id", sa.Integer(), sa.ForeignKey("workspaces.id"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=True, unique=True),
        sa.Column("description", sa.Text(), nullable=False, server_default=""),
        sa.Column("notes", JSONB(), nullable=False, server_default=sa.text("'[]'::jsonb")),
        sa.Column("owner_id", sa.Integer(), sa.ForeignKey("users.id"), nullable=True),
        _flag("archived"),
        _flag("immutable"),
        sa.Column("state", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        _created(),
    )
    op.create_index(
        "uq_projects_workspace_id_lower_name",
        "projects",
        ["workspace_id", sa.text("lower(name)")],
        unique=True,
    )
    # Their numbers are 1, as they are the first.
    op.execute("INSERT INTO workspaces (name, immutable) VALUES ('Uncategorized', true)")
    op.execute(
        "INSERT INTO projects (workspace_id, name, immutable) "
        "SELECT id, name, true FROM workspaces"
    )
    _belong()
    op.create_table(
        "workspace_pins",
        _reference("user_id", "users.id", primary_key=True),
        _reference("workspace_id", "workspaces.id", primary_key=True),
        sa.Column(
            "pinned_at",
            sa.DateTime(timezone=True),
            nullable=False,
            server_default=sa.text("now()"),
        ),
    )
    op.create_index("ix_workspace_pins_workspace_id", "workspace_pins", ["workspace_id"])
    op.create_table(
        "pool_bindings",
        sa.Column(
            "pool",
            sa.Text(),
            sa.ForeignKey("pools.name", ondelete="CASCADE"),
            primary_key=True,
        ),
        _reference("workspace_id", "workspaces.id", primary_key=True),
    )
    op.create_index("ix_pool_bindings_workspace_id", "pool_bindings", ["workspace_id"])
    op.create_table("groups", _id(), sa.Column("name", sa.Text(), nullable=False), _created())
    op.create_index("uq_groups_lower_name", "groups", [sa.text("lower(name)")], unique=True)
    op.create_table(
        "group_members",
        _reference("group_id", "groups.id", primary_key=True),
        _reference("user_id", "users.id", primary_key=True),
    )
    op.create_index("ix_group_members_user_id", "group_members", ["user_id"])
    op.create_table(
        "role_assignments",
        _id(),
        sa.Column("role", sa.Text(), nullable=False),
        _reference("user_id", "users.id"),
        _reference("group_id", "groups.id"),
        _reference("workspace_id", "workspaces.id"),
        _created(),
        sa.CheckConstraint(
            "num_nonnulls(user_id, group_id) = 1", name="ck_role_assignments_assignee"
        ),
    )
    for name in ("user_id", "group_id", "workspace_id"):
        op.create_index(f"ix_role_assignments_{name}", "role_assignments", [name])
    op.create_index(
        "uq_role_assignments",
        "role_assignments",
        [
            "role",
            sa.text("coalesce(user_id, 0)"),
            sa.text("coalesce(group_id, 0)"),
            sa.text("coalesce(workspace_id, 0)"),
        ],
        unique=True,
    )


def _reference(name: str, to: str, *, primary_key: bool = False) -> sa.Column[int]:
    return sa.Column(
        name,
        sa.Integer(),
        sa.ForeignKey(to, ondelete="CASCADE"),
        primary_key=primary_key,
        nullable=not primary_key,
    )


_BELONG = (
    ("experiments", "project_id", "projects"),
    ("models", "workspace_id", "workspaces"),
    ("templates", "workspace_id", "workspaces"),
    ("pipelines", "workspace_id", "workspaces"),
    ("tasks", "project_id", "projects"),
    ("tasks", "workspace_id", "workspaces"),
)


def _belong() -> None:
    """What there is gets its place, with a foreign key."""
    for table in ("templates", "pipelines"):
        op.add_column(
            table, sa.Column("workspace_id", sa.Integer(), nullable=False, server_default="1")
        )
    op.add_column("tasks", sa.Column("workspace_id", sa.Integer(), nullable=True))
    op.execute("UPDATE tasks SET workspace_id = 1 WHERE job_id IS NOT NULL")
    for table, column, to in _BELONG:
        op.create_foreign_key(f"fk_{table}_{column}_{to}", table, to, [column], ["id"])
        # Tasks of trials have neither: no entry is written for them.
        where = sa.text(f"{column} IS NOT NULL") if table == "tasks" else None
        op.create_index(f"ix_{table}_{column}", table, [column], postgresql_where=where)


def downgrade() -> None:
    for name in ("role_assignments", "group_members", "groups", "pool_bindings", "workspace_pins"):
        op.drop_table(name)
    for table, column, to in _BELONG:
        op.drop_index(f"ix_{table}_{column}", table)
        op.drop_constraint(f"fk_{table}_{column}_{to}", table, type_="foreignkey")
    # Numbers that the release before does not know would be in nobody's list there.
    op.execute("UPDATE experiments SET project_id = 1")
    op.execute("UPDATE tasks SET project_id = 1 WHERE project_id IS NOT NULL")
    op.execute("UPDATE models SET workspace_id = 1")
    for table in ("templates", "pipelines", "tasks"):
        op.drop_column(table, "workspace_id")
    op.drop_table("projects")
    op.drop_table("workspaces")
