"""The roles: one table, :data:`ROLES`, and what a user's assignments of them give.

Names and numbers are those that Determined's clients know. Roles cannot be changed, and hold only in a
cluster with ``security.authz.type: rbac``; assignments are kept in either mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from determined_registry.database.tables import cluster, group_members, role_assignments, users
from determined_service.access.permissions import CLUSTER_WIDE, Permission, Rights

P = Permission


@dataclass(frozen=True, slots=True)
class Role:
    """A named set of permissions. ``cluster_wide``: it cannot be assigned in a single workspace."""

    id: int
    name: str
    allows: frozenset[Permission]
    says: str
    cluster_wide: bool = False

    def permits(self, permission: Permission, in_one: bool) -> bool:
        """True if an assignment gives it: ``in_one``, one in a single workspace, there."""
        return permission in self.allows and not (in_one and permission in CLUSTER_WIDE)


_LOOKS_AT_MODELS = frozenset({P.VIEW_MODEL_REGISTRY})
_LOOKS = _LOOKS_AT_MODELS | {
    P.VIEW_WORKSPACE,
    P.VIEW_PROJECT,
    P.VIEW_EXPERIMENT_METADATA,
    P.VIEW_EXPERIMENT_ARTIFACTS,
    P.VIEW_NSC,
    P.VIEW_TEMPLATES,
    P.VIEW_WORKSPACE_CONFIG_POLICIES,
}
_WORKS = _LOOKS | {
    P.CREATE_EXPERIMENT,
    P.UPDATE_EXPERIMENT,
    P.UPDATE_EXPERIMENT_METADATA,
    P.DELETE_EXPERIMENT,
    P.CREATE_MODEL_REGISTRY,
    P.EDIT_MODEL_REGISTRY,
    P.DELETE_MODEL_REGISTRY,
    P.DELETE_MODEL_VERSION,
    P.CREATE_TEMPLATES,
    P.UPDATE_TEMPLATES,
    P.DELETE_TEMPLATES,
}
_PROJECTS = frozenset({P.CREATE_PROJECT, P.UPDATE_PROJECT, P.DELETE_PROJECT})
_TASKS = frozenset({P.CREATE_NSC, P.UPDATE_NSC})
_EDITS = _WORKS | _PROJECTS | _TASKS
_RULES = _EDITS | {
    P.UPDATE_WORKSPACE,
    P.DELETE_WORKSPACE,
    P.SET_WORKSPACE_CHECKPOINT_STORAGE_CONFIG,
    P.SET_WORKSPACE_DEFAULT_RESOURCE_POOL,
    P.ASSIGN_ROLES,
    P.DELETE_OTHER_USER_MODEL_REGISTRY,
    P.DELETE_OTHER_USER_MODEL_VERSION,
    P.MODIFY_WORKSPACE_CONFIG_POLICIES,
}

CLUSTER_ADMIN = "ClusterAdmin"
WORKSPACE_ADMIN = "WorkspaceAdmin"

ROLES: Mapping[str, Role] = {
    role.name: role
    for role in (
        Role(4, "Viewer", _LOOKS, "sees everything"),
        Role(5, "Editor", _EDITS, "sees and changes everything, and launches"),
        Role(7, "EditorRestricted", _WORKS | _PROJECTS, "as an Editor, but for tasks"),
        Role(9, "EditorProjectRestricted", _WORKS | _TASKS, "as an Editor, but for projects"),
        Role(
            2,
            WORKSPACE_ADMIN,
            _RULES,
            "as an Editor; also changes and deletes the workspace, and assigns roles in it",
        ),
        Role(
            3,
            "WorkspaceCreator",
            frozenset({P.CREATE_WORKSPACE}),
            "creates workspaces, each as its WorkspaceAdmin",
            cluster_wide=True,
        ),
        Role(6, "ModelRegistryViewer", _LOOKS_AT_MODELS, "sees models"),
        Role(
            10,
            "TokenCreator",
            frozenset({P.CREATE_TOKEN, P.VIEW_TOKEN, P.UPDATE_TOKEN}),
            "creates, sees and revokes access tokens of its own",
            cluster_wide=True,
        ),
        Role(1, CLUSTER_ADMIN, frozenset(P), "is an administrator", cluster_wide=True),
    )
}
"""By name, in the order in which a refusal looks for the one that would do: the least first."""


def least(permission: Permission, in_one: bool) -> Role:
    """The role that a refusal advises; ``in_one``: where it is asked for in a single workspace."""
    return next(
        role
        for role in ROLES.values()
        if role.permits(permission, in_one and not role.cluster_wide)
    )


def assigned_to(user_id: sa.ColumnElement[int]) -> sa.ScalarSelect[Any]:
    """A column of a SELECT from ``users``: what :func:`standing` reads, for each user."""
    a, m = role_assignments.c, group_members.c
    of_groups = sa.select(m.group_id).where(m.user_id == user_id).correlate(users)
    return (
        sa.select(sa.func.jsonb_agg(sa.func.jsonb_build_array(a.role, a.workspace_id)))
        .where(sa.or_(a.user_id == user_id, a.group_id.in_(of_groups)))
        .correlate(users)
        .scalar_subquery()
    )


HAS_ROLES = sa.select(
    sa.func.coalesce(cluster.c.config["security"]["authz"]["type"].astext == "rbac", sa.false())
).scalar_subquery()
"""A column: whether roles hold in the cluster, for work that is not done for a request."""


def roles_column(has_roles: bool) -> sa.Label[Any]:
    """The column ``roles`` of a SELECT from ``users``, for :func:`standing`; without roles, NULL."""
    return (assigned_to(users.c.id) if has_roles else sa.null()).label("roles")


def rights_within(workspace_id: int, admin: bool, rights: Rights | None) -> Rights:
    """What is left in that workspace of what a user, perhaps an administrator, may do."""
    if admin or rights is None:
        allowed = ROLES[WORKSPACE_ADMIN].allows
    else:
        allowed = rights.everywhere | rights.inside.get(workspace_id, frozenset())
    return Rights(frozenset(), {workspace_id: allowed - CLUSTER_WIDE})


def standing(
    admin: bool, roles: Iterable[tuple[str, int | None]] | None, has_roles: bool
) -> tuple[bool, Rights | None]:
    """Whether a user is an administrator, and its rights: None where no roles hold for it.

    ``roles``: pairs of a role's name and the id of a workspace; None: in all of them.
    """
    if admin or not has_roles:
        return admin, None
    found = [(ROLES[name], place) for name, place in roles or () if name in ROLES]
    if any(role.name == CLUSTER_ADMIN and place is None for role, place in found):
        return True, None
    everywhere: set[Permission] = set()
    inside: dict[int, frozenset[Permission]] = {}
    for role, place in found:
        if place is None:
            everywhere |= role.allows
        else:
            inside[place] = inside.get(place, frozenset()) | (role.allows - CLUSTER_WIDE)
    return False, Rights(frozenset(everywhere), inside)
