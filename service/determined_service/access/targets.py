"""The target of a request: a :class:`Target` and its owner.

All owners are looked up here. The trials and checkpoints of an experiment belong to the experiment's owner,
a task's allocations to the task's, and a user belongs to itself. The user never changes, so
:class:`Owners` may remember that a user owns something: a script that reports its metrics with its user's
token costs the database one query, not one for each batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire import limits
from determined_service.base.db import Database
from determined_service.base.errors import ApiError, BadRequest, NotFound
from determined_service.base.ids import parse_uuid


class Kind(StrEnum):
    """Kinds of targets."""

    CLUSTER = "cluster"
    CONFIGURATION = "cluster configuration"
    SERVICE_LOG = "service's log"
    SESSION = "session"
    USER = "user"
    EXPERIMENT = "experiment"
    TRIAL = "trial"
    TASK = "task"
    ALLOCATION = "allocation"
    CHECKPOINT = "checkpoint"
    MODEL = "model"
    PIPELINE = "pipeline"
    TEMPLATE = "template"
    DELETION = "deletion"
    WORKSPACE = "workspace"
    PROJECT = "project"


Id = int | str | UUID


@dataclass(frozen=True, slots=True)
class Owner:
    """The user that something belongs to, and ``tasks``: those whose processes may change it as well, because
    they made it."""

    id: int
    username: str
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """One thing, or all things of a kind (``id`` None). ``owner`` is None until it has been looked up, and
    for things without an owner."""

    kind: Kind
    id: Id | None = None
    owner: Owner | None = None

    def __str__(self) -> str:
        if self.kind in (Kind.CLUSTER, Kind.CONFIGURATION, Kind.SERVICE_LOG):
            return f"the {self.kind}"
        return f"{self.kind}s" if self.id is None else f"{self.kind} {self.id}"


def read_id(kind: Kind, text: str) -> Id:
    """The id that a path names. Raises BadRequest, or NotFound for a malformed UUID or name."""
    if kind == Kind.CHECKPOINT:
        return parse_uuid(text, kind)
    if kind in (Kind.TASK, Kind.ALLOCATION):
        return text
    if kind in (Kind.MODEL, Kind.TEMPLATE):
        if len(text) > max(limits.MODEL_NAME_CHARS, limits.TEMPLATE_NAME_CHARS):
            raise NotFound(f"there is no {kind} with a name of {len(text)} characters")
        return text
    if not text.isdecimal() or len(text) > 18:
        raise BadRequest(f"the id of this {kind} must be a whole number, not {text!r}")
    return int(text)


def missing(kind: Kind, ids: Collection[Id]) -> ApiError:
    """The refusal when no such things exist."""
    if len(ids) == 1:
        return NotFound(f"{kind} {next(iter(ids))} does not exist")
    return NotFound(f"no such {kind}: {', '.join(sorted(map(str, ids)))}")


_OWNER = "u.id AS owner_id, u.username, NULL AS submitter, NULL AS task_id FROM"
_SUBMITTED = "u.id AS owner_id, u.username, e.submitted_by AS submitter, NULL AS task_id FROM"
_OF_EXPERIMENT = "JOIN experiments e ON e.id = x.experiment_id JOIN users u ON u.id = e.owner_id"
_OF_TASK = "JOIN users u ON u.id = k.owner_id"
_PERHAPS = _OF_EXPERIMENT.replace("JOIN", "LEFT JOIN")
_FIND: Mapping[Kind, sa.TextClause] = {
    kind: sa.text(f"SELECT {statement}")
    for kind, statement in {
        Kind.USER: f"u.id, {_OWNER} users u WHERE u.id = ANY(:ids)",
        Kind.EXPERIMENT: (
            f"e.id, {_SUBMITTED} experiments e JOIN users u ON u.id = e.owner_id WHERE e.id = ANY(:ids)"
        ),
        Kind.TRIAL: f"x.id, {_SUBMITTED} trials x {_OF_EXPERIMENT} WHERE x.id = ANY(:ids)",
        Kind.TASK: (
            f"k.id, u.id AS owner_id, u.username, k.submitted_by AS submitter, NULL AS task_id "
            f"FROM tasks k {_OF_TASK} WHERE k.id = ANY(:ids)"
        ),
        Kind.ALLOCATION: (
            f"x.id, {_OWNER} allocations x JOIN tasks k ON k.id = x.task_id {_OF_TASK} "
            f"WHERE x.id = ANY(:ids)"
        ),
        Kind.CHECKPOINT: (
            # A trial that was continued has a new task, not the one that stored the checkpoint.
            f"x.uuid AS id, u.id AS owner_id, u.username, e.submitted_by AS submitter, "
            f"coalesce(t.task_id, x.task_id) AS task_id "
            f"FROM checkpoints x LEFT JOIN trials t ON t.id = x.trial_id {_PERHAPS} "
            f"WHERE x.uuid = ANY(:ids)"
        ),
        Kind.PIPELINE: (
            "x.id, u.id AS owner_id, u.username, x.submitted_by AS submitter, NULL AS task_id "
            "FROM pipelines x JOIN users u ON u.id = x.owner_id "
            "WHERE x.id = ANY(:ids) AND x.retraining_run_id IS NULL"
        ),
        Kind.TEMPLATE: (
            "x.name AS id, u.id AS owner_id, u.username, x.submitted_by AS submitter, NULL AS task_id "
            "FROM templates x JOIN users u ON u.id = x.owner_id WHERE x.name = ANY(:ids)"
        ),
        Kind.WORKSPACE: (
            "x.id, u.id AS owner_id, u.username, NULL AS submitter, NULL AS task_id "
            "FROM workspaces x LEFT JOIN users u ON u.id = x.owner_id WHERE x.id = ANY(:ids)"
        ),
        Kind.PROJECT: (
            "x.id, u.id AS owner_id, u.username, NULL AS submitter, NULL AS task_id "
            "FROM projects x LEFT JOIN users u ON u.id = x.owner_id WHERE x.id = ANY(:ids)"
        ),
        # By its name, in any case of letters, or by its number.
        Kind.MODEL: (
            "given AS id, u.id AS owner_id, u.username, m.submitted_by AS submitter, NULL AS task_id "
            "FROM unnest(cast(:ids AS text[])) AS given JOIN models m ON CASE "
            "WHEN given ~ '^[0-9]{1,9}$' THEN m.id = cast(given AS integer) "
            "ELSE lower(m.name) = lower(given) END JOIN users u ON u.id = m.owner_id"
        ),
    }.items()
}


async def find_owners(
    conn: AsyncConnection, kind: Kind, ids: Collection[Id]
) -> dict[Id, Owner | None]:
    """The existing things of ``ids``, each with its owner; None: it belongs to nobody."""
    rows = await conn.execute(_FIND[kind], {"ids": list(ids)})
    return {
        row.id: None
        if row.owner_id is None
        else Owner(
            row.owner_id,
            row.username,
            tuple(task for task in (row.submitter, row.task_id) if task is not None),
        )
        for row in rows
    }


# A checkpoint's tasks change when its trial is continued; a name may be another model's or template's later.
_CHANGING = (Kind.CHECKPOINT, Kind.MODEL, Kind.TEMPLATE)


class Owners:
    """Look up owners for one process; cache the ``size`` last things whose owner is the asking user (never a
    miss, because the thing may be made later)."""

    def __init__(self, db: Database, size: int = 10_000) -> None:
        self._db = db
        self._size = size
        self._known: OrderedDict[tuple[Kind, Id], Owner] = OrderedDict()

    async def find(
        self, kind: Kind, ids: Collection[Id], asker: int, task: str | None = None
    ) -> dict[Id, Owner | None]:
        """Like :func:`find_owners`, for the user ``asker``, or for a process of its ``task``."""
        known = {one: self._known.get((kind, one)) for one in ids}
        # A task may have come in the place of one that is remembered: its trial was continued.
        if all(
            owner is not None and owner.id == asker and (task is None or task in owner.tasks)
            for owner in known.values()
        ):
            return known
        async with self._db.tx() as conn:
            found = await find_owners(conn, kind, ids)
        for one, owner in found.items():
            if owner is not None and owner.id == asker and kind not in _CHANGING:
                self._known[kind, one] = owner
        while len(self._known) > self._size:
            self._known.popitem(last=False)
        return found
