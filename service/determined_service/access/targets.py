"""The target of a request: a :class:`Target` and its owner.

All owners are looked up here. The trials and checkpoints of an experiment belong to the experiment's owner,
a task's allocations to the task's, and a user belongs to itself. The user never changes, so
:class:`Owners` may remember that a user owns something: a script that reports its metrics with its user's
token costs the database one query, not one for each batch.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire import limits
from determined_service.base.db import Database
from determined_service.base.errors import ApiError, BadRequest, NotFound
from determined_service.base.ids import parse_uuid

REMEMBER_S = 1.0


class Kind(StrEnum):
    """Kinds of targets."""

    CLUSTER = "cluster"
    CONFIGURATION = "cluster configuration"
    SERVICE_LOG = "service's log"
    SESSION = "session"
    ACCESS_TOKEN = "access token"
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
    GROUP = "group"
    ROLE = "role"
    WORKSPACE = "workspace"
    PROJECT = "project"
    SETTING = "setting"
    DEFAULTS = "defaults of a user"


Id = int | str | UUID


@dataclass(frozen=True, slots=True)
class HomeWorkspace:
    """The workspace in which something lies."""

    id: int
    name: str


NOBODY = 0
"""In place of a user's id: of what lies in a workspace and belongs to nobody."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The user that something belongs to, and ``tasks``: those whose processes may change it as well, because
    they made it. ``place``: where the thing lies; None: in no workspace."""

    id: int
    username: str
    tasks: tuple[str, ...] = ()
    place: HomeWorkspace | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Target:
    """One thing, or all things of a kind (``id`` None). ``owner`` is None until it has been looked up, and
    for things without an owner. ``into``: the place of a thing that is to be made."""

    kind: Kind
    id: Id | None = None
    owner: Owner | None = None
    into: HomeWorkspace | None = None

    @property
    def place(self) -> HomeWorkspace | None:
        """The workspace in which it lies or will lie, as far as it has been looked up."""
        return self.into if self.owner is None else self.owner.place

    def __str__(self) -> str:
        if self.kind in (Kind.CLUSTER, Kind.CONFIGURATION, Kind.SERVICE_LOG, Kind.DEFAULTS):
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


_NOBODY = "NULL AS submitter, NULL AS task_id"
_PLACE = "w.id AS workspace_id, w.name AS workspace"
_USER = "u.id AS owner_id, u.username"
_IN_PROJECT = (
    "{0}JOIN projects p ON p.id = e.project_id {0}JOIN workspaces w ON w.id = p.workspace_id"
)
_OF_EXPERIMENT = (
    "{0}JOIN experiments e ON e.id = x.experiment_id {0}JOIN users u ON u.id = e.owner_id "
    + _IN_PROJECT
)
# A trial's tasks lie where its experiment lies.
_OF_TASK = """
JOIN users u ON u.id = k.owner_id LEFT JOIN workspaces w ON w.id = coalesce(k.workspace_id, (
    SELECT p.workspace_id FROM trials t JOIN experiments e ON e.id = t.experiment_id
    JOIN projects p ON p.id = e.project_id
    WHERE t.id = coalesce(k.former_of, (SELECT c.id FROM trials c WHERE c.task_id = k.id))))
"""
OWNED_TASKS = (
    f"k.id, k.kind, {_USER}, k.submitted_by AS submitter, NULL AS task_id, {_PLACE} "
    f"FROM tasks k {_OF_TASK}"
)
"""What follows on SELECT: tasks ``k``, for :func:`owner_of`."""
_OWNED = "JOIN users u ON u.id = {0}.owner_id LEFT JOIN workspaces w ON w.id = {0}.workspace_id"
_FIND: Mapping[Kind, sa.TextClause] = {
    kind: sa.text(f"SELECT {statement}")
    for kind, statement in {
        Kind.USER: f"u.id, {_USER}, {_NOBODY}, NULL AS workspace_id FROM users u WHERE u.id = ANY(:ids)",
        Kind.ACCESS_TOKEN: (
            f"s.id, {_USER}, {_NOBODY}, NULL AS workspace_id FROM user_sessions s "
            "JOIN users u ON u.id = s.user_id WHERE s.id = ANY(:ids) AND s.is_access_token"
        ),
        Kind.EXPERIMENT: (
            f"e.id, {_USER}, e.submitted_by AS submitter, NULL AS task_id, {_PLACE} FROM experiments e "
            f"JOIN users u ON u.id = e.owner_id {_IN_PROJECT.format('')} WHERE e.id = ANY(:ids)"
        ),
        Kind.TRIAL: (
            f"x.id, {_USER}, e.submitted_by AS submitter, NULL AS task_id, {_PLACE} FROM trials x "
            f"{_OF_EXPERIMENT.format('')} WHERE x.id = ANY(:ids)"
        ),
        Kind.TASK: f"{OWNED_TASKS} WHERE k.id = ANY(:ids)",
        Kind.ALLOCATION: (
            f"x.id, {_USER}, {_NOBODY}, {_PLACE} FROM allocations x JOIN tasks k ON k.id = x.task_id "
            f"{_OF_TASK} WHERE x.id = ANY(:ids)"
        ),
        Kind.CHECKPOINT: (
            # A trial that was continued has a new task, not the one that stored the checkpoint.
            f"x.uuid AS id, {_USER}, e.submitted_by AS submitter, "
            f"coalesce(t.task_id, x.task_id) AS task_id, {_PLACE} "
            f"FROM checkpoints x LEFT JOIN trials t ON t.id = x.trial_id {_OF_EXPERIMENT.format('LEFT ')} "
            f"WHERE x.uuid = ANY(:ids)"
        ),
        Kind.PIPELINE: (
            f"x.id, {_USER}, x.submitted_by AS submitter, NULL AS task_id, {_PLACE} "
            f"FROM pipelines x {_OWNED.format('x')} WHERE x.id = ANY(:ids) AND x.retraining_run_id IS NULL"
        ),
        Kind.TEMPLATE: (
            f"x.name AS id, {_USER}, x.submitted_by AS submitter, NULL AS task_id, {_PLACE} "
            f"FROM templates x {_OWNED.format('x')} WHERE x.name = ANY(:ids)"
        ),
        Kind.WORKSPACE: (
            f"w.id, {_USER}, {_NOBODY}, {_PLACE} "
            "FROM workspaces w LEFT JOIN users u ON u.id = w.owner_id WHERE w.id = ANY(:ids)"
        ),
        Kind.PROJECT: (
            f"x.id, {_USER}, {_NOBODY}, {_PLACE} FROM projects x JOIN workspaces w "
            "ON w.id = x.workspace_id LEFT JOIN users u ON u.id = x.owner_id WHERE x.id = ANY(:ids)"
        ),
        # By its name, in any case of letters, or by its number.
        Kind.MODEL: (
            f"given AS id, {_USER}, m.submitted_by AS submitter, NULL AS task_id, {_PLACE} "
            "FROM unnest(cast(:ids AS text[])) AS given JOIN models m ON CASE "
            "WHEN given ~ '^[0-9]{1,9}$' THEN m.id = cast(given AS integer) "
            f"ELSE lower(m.name) = lower(given) END {_OWNED.format('m')}"
        ),
    }.items()
}


async def find_owners(
    conn: AsyncConnection, kind: Kind, ids: Collection[Id]
) -> dict[Id, Owner | None]:
    """The existing things of ``ids``, each with its owner; None: it belongs to nobody."""
    rows = await conn.execute(_FIND[kind], {"ids": list(ids)})
    return {row.id: owner_of(row) for row in rows}


def owner_of(row: sa.Row[Any]) -> Owner | None:
    """The owner that the row of such a statement names; None: it belongs to nobody, and lies nowhere."""
    place = None if row.workspace_id is None else HomeWorkspace(row.workspace_id, row.workspace)
    if row.owner_id is None:
        return None if place is None else Owner(NOBODY, "", place=place)
    tasks = tuple(task for task in (row.submitter, row.task_id) if task is not None)
    return Owner(row.owner_id, row.username, tasks, place)


# A checkpoint's tasks change when its trial is continued; a name may be another model's or template's later.
_CHANGING = (Kind.CHECKPOINT, Kind.MODEL, Kind.TEMPLATE)


class Owners:
    """Look up owners for one process; cache the ``size`` last things whose owner is the asking user (never a
    miss, because the thing may be made later)."""

    def __init__(self, db: Database, size: int = 10_000) -> None:
        self._db = db
        self._size = size
        self._known: OrderedDict[tuple[Kind, Id], tuple[Owner, float]] = OrderedDict()

    async def find(
        self,
        kind: Kind,
        ids: Collection[Id],
        asker: int,
        task: str | None = None,
        *,
        where: bool = False,
    ) -> dict[Id, Owner | None]:
        """Like :func:`find_owners`, for the user ``asker``, or for a process of its ``task``.

        ``where``: the place matters, too, and a thing may be moved: it is where it was a second ago.
        """
        known = {one: self._known_owner(kind, one, where) for one in ids}
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
                self._known[kind, one] = owner, time.monotonic()
        while len(self._known) > self._size:
            self._known.popitem(last=False)
        return found

    def _known_owner(self, kind: Kind, one: Id, where: bool) -> Owner | None:
        owner, since = self._known.get((kind, one), (None, 0.0))
        return None if where and time.monotonic() - since > REMEMBER_S else owner
