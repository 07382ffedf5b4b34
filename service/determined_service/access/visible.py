"""What a subject sees: :func:`seen_by`.

In a cluster with roles, what lies in workspaces that a user may not look into does not exist for that user:
in lists, counts and searches, and when it is named, with the words for what does not exist. A request that
reads asks the views of :mod:`determined_registry.database.seen` in place of the tables, so that holds for
every statement. Every other request looks its target up there first (:class:`.targets.Owners`).
"""

from __future__ import annotations

from collections.abc import Iterable

from determined_registry.database.seen import ALL, Seen
from determined_service.access.permissions import Permission, Rights
from determined_service.access.principal import Principal
from determined_service.access.targets import Kind

UNLIMITED = frozenset({Kind.CLUSTER, Kind.CONFIGURATION, Kind.SERVICE_LOG, Kind.SESSION, Kind.USER})
"""Kinds that lie in no workspace."""

_PERMISSIONS = {
    "projects": (Permission.VIEW_PROJECT, Permission.VIEW_EXPERIMENT_METADATA),
    "experiments": (Permission.VIEW_EXPERIMENT_METADATA,),
    "artifacts": (Permission.VIEW_EXPERIMENT_ARTIFACTS,),
    "tasks": (Permission.VIEW_NSC,),
    "models": (Permission.VIEW_MODEL_REGISTRY,),
    "templates": (Permission.VIEW_TEMPLATES,),
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
    return Seen(user=str(subject.user_id), **found)


def _workspaces(rights: Rights, wanted: Iterable[Permission]) -> str:
    found: set[int] = set()
    for permission in wanted:
        allowed = rights.workspaces(permission)
        if allowed is None:
            return ALL
        found |= allowed
    return "{" + ",".join(map(str, sorted(found))) + "}"
