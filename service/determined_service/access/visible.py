"""What a subject sees: :func:`visible`, the condition that every SELECT for a reader carries.

In a cluster with roles, what lies in workspaces that a user may not look into does not exist for that user:
in lists, counts and searches, and when it is named, with the words for what does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from determined_registry.database.tables import experiments, projects, trials
from determined_service.access.permissions import Permission
from determined_service.access.principal import Principal
from determined_service.access.targets import Kind, Owner

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


def seen_workspaces(subject: Principal, kind: Kind) -> list[int] | None:
    """The ids of the workspaces whose things of that kind the subject sees; None: of all."""
    if subject.rights is None:
        return None
    found = subject.rights.workspaces(_SEEN_BY[kind])
    return None if found is None else sorted(found)


def visible(
    subject: Principal, kind: Kind, place: sa.ColumnElement[int | None]
) -> sa.ColumnElement[bool]:
    """The condition for rows of that kind, ``place`` being a column: of experiments and trials
    ``experiments.project_id`` or ``trials.experiment_id``, of a workspace its ``id``, of anything else its
    ``workspace_id``.
    """
    seen = seen_workspaces(subject, kind)
    if seen is None:
        return sa.true()
    name = getattr(place, "key", None)
    inside = sa.select(projects.c.id).where(projects.c.workspace_id.in_(seen))
    if name == "project_id":
        return place.in_(inside)
    if name == "experiment_id":
        return place.in_(sa.select(experiments.c.id).where(experiments.c.project_id.in_(inside)))
    if name == "trial_id":
        return place.in_(
            sa.select(trials.c.id)
            .join(experiments, experiments.c.id == trials.c.experiment_id)
            .where(experiments.c.project_id.in_(inside))
        )
    return place.in_(seen)


def is_hidden(subject: Principal, kind: Kind, owner: Owner | None) -> bool:
    """True if the thing of that kind and owner does not exist for the subject: it may not see it, and its
    task has not made it."""
    needed = _SEEN_BY.get(kind)
    if subject.rights is None or needed is None or owner is None or subject.task in owner.tasks:
        return False
    return not subject.rights.allow(needed, None if owner.place is None else owner.place.id)
