"""What a subject sees: :func:`seen_by`.

In a cluster with roles, what lies in workspaces that a user may not look into does not exist for that user:
in lists, counts and searches, and when it is named, with the words for what does not exist. A request that
reads asks the views of :mod:`determined_registry.database.seen` in place of the tables, so that holds for
every statement. Every other request is refused its target in the same words (:func:`is_hidden`).

A training process sees its own experiment, and those that its task submitted, also when its owner does not
any more: it goes on to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.seen import ALL, Seen
from determined_registry.database.tables import users
from determined_service.access.permissions import Permission, Rights
from determined_service.access.principal import USER, Principal
from determined_service.access.roles import roles_column, standing
from determined_service.access.targets import Kind, Owner

UNLIMITED = frozenset({Kind.CLUSTER, Kind.CONFIGURATION, Kind.SERVICE_LOG, Kind.SESSION, Kind.USER})
"""Kinds that lie in no workspace."""

_PERMISSIONS = {
    "projects": (Permission.VIEW_PROJECT, Permission.VIEW_EXPERIMENT_METADATA),
    "experiments": (Permission.VIEW_EXPERIMENT_METADATA,),
    "artifacts": (Permission.VIEW_EXPERIMENT_ARTIFACTS,),
    "pipelines": (Permission.VIEW_EXPERIMENT_METADATA,),
    "tasks": (Permission.VIEW_NSC,),
    "models": (Permission.VIEW_MODEL_REGISTRY,),
    "templates": (Permission.VIEW_TEMPLATES,),
}

_SEEN_BY: Mapping[Kind, Permission] = {
    Kind.EXPERIMENT: Permission.VIEW_EXPERIMENT_METADATA,
    Kind.TRIAL: Permission.VIEW_EXPERIMENT_METADATA,
    Kind.CHECKPOINT: Permission.VIEW_EXPERIMENT_ARTIFACTS,
    Kind.PIPELINE: Permission.VIEW_EXPERIMENT_METADATA,
    Kind.TASK: Permission.VIEW_NSC,
    Kind.ALLOCATION: Permission.VIEW_NSC,
    Kind.MODEL: Permission.VIEW_MODEL_REGISTRY,
    Kind.TEMPLATE: Permission.VIEW_TEMPLATES,
    Kind.WORKSPACE: Permission.VIEW_WORKSPACE,
    Kind.PROJECT: Permission.VIEW_PROJECT,
}


def seen_by(subject: Principal) -> Seen | None:
    """What the subject sees; None: everything, because no roles hold for it, or they show all."""
    rights = subject.rights
    if rights is None:
        return None
    found = {name: _workspaces(rights, wanted) for name, wanted in _PERMISSIONS.items()}
    # Whoever sees something in a workspace sees that there is one.
    every = {permission for wanted in _PERMISSIONS.values() for permission in wanted}
    found["workspaces"] = _workspaces(rights, (*every, Permission.VIEW_WORKSPACE))
    if set(found.values()) == {ALL}:
        return None
    own = subject.allocation
    return Seen(
        # By a token of one workspace, not even its user's things elsewhere.
        user=str(subject.user_id if subject.workspace_id is None else 0),
        experiment=str((own and own.experiment_id) or 0),
        task="" if own is None else own.task_id,
        **found,
    )


def _workspaces(rights: Rights, wanted: Iterable[Permission]) -> str:
    found: set[int] = set()
    for permission in wanted:
        allowed = rights.workspaces(permission)
        if allowed is None:
            return ALL
        found |= allowed
    return "{" + ",".join(map(str, sorted(found))) + "}"


async def seen_of(conn: AsyncConnection, user_id: int, has_roles: bool) -> Seen | None:
    """What that user sees, in whose name the service does something later; None: everything. Without roles,
    this costs no statement."""
    if not has_roles:
        return None
    wanted = sa.select(users.c.username, users.c.admin, roles_column(has_roles))
    row = (await conn.execute(wanted.where(users.c.id == user_id))).one()
    admin, rights = standing(row.admin, row.roles, has_roles)
    return seen_by(Principal(USER, user_id, row.username, admin, rights=rights))


def is_hidden(subject: Principal, kind: Kind, owner: Owner | None) -> bool:
    """True if the thing of that kind and owner does not exist for the subject: it may not see it, and its
    task has not made it."""
    needed = _SEEN_BY.get(kind)
    if subject.rights is None or needed is None or owner is None or subject.task in owner.tasks:
        return False
    return not subject.rights.allow(needed, None if owner.place is None else owner.place.id)


def visible(
    subject: Principal, kind: Kind, workspace_id: sa.ColumnElement[int]
) -> sa.ColumnElement[bool]:
    """The condition for workspaces and projects in statements of requests that change something; those that
    read ask the views."""
    if subject.rights is None:
        return sa.true()
    seen = subject.rights.workspaces(_SEEN_BY[kind])
    return sa.true() if seen is None else workspace_id.in_(sorted(seen))
