"""Assignments of roles to users and groups, in one workspace or everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import (
    group_members,
    groups,
    role_assignments,
    users,
    workspaces,
)
from determined_service.access.permissions import Permission
from determined_service.access.principal import Principal
from determined_service.access.roles import ROLES, Role
from determined_service.access.rules import Action, authorise
from determined_service.access.targets import HomeWorkspace, Kind, Target
from determined_service.base import topics
from determined_service.base.errors import BadRequest, Conflict, NotFound
from determined_service.base.hub import notify

_a = role_assignments.c


@dataclass(frozen=True, slots=True, order=True)
class Assignment:
    """A role of one user or one group. ``workspace_id``: None, everywhere."""

    role: str
    user_id: int | None = None
    group_id: int | None = None
    workspace_id: int | None = None

    @property
    def values(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "user_id": self.user_id,
            "group_id": self.group_id,
            "workspace_id": self.workspace_id,
        }


async def authorise_all(
    conn: AsyncConnection, subject: Principal, wanted: Iterable[Assignment], verb: str
) -> None:
    """Raises Forbidden unless the subject may assign, or take, each role where it is meant to hold.

    A role that holds in the whole cluster is the administrators' to give: some make an administrator. Raises
    NotFound for what does not exist, and BadRequest for such a role in one workspace.
    """
    wanted = list(wanted)
    places = await _places(conn, subject, {one.workspace_id for one in wanted} - {None})
    for one in wanted:
        role = ROLES[one.role]
        place = None if one.workspace_id is None else places[one.workspace_id]
        if role.cluster_wide and place is not None:
            raise BadRequest(
                f"{role.name} holds in the whole cluster: assign it without a workspace"
            )
        action = Action.ADMINISTER if place is None else Action.ASSIGN
        authorise(subject, action, Target(Kind.ROLE, role.name, into=place), verb)


async def assign(conn: AsyncConnection, wanted: Sequence[Assignment]) -> None:
    """All or nothing. Raises NotFound for a user or group that does not exist, Conflict for an assignment
    that is there already."""
    await _require(conn, users, "user", {one.user_id for one in wanted} - {None})
    await _require(conn, groups, "group", {one.group_id for one in wanted} - {None})
    for one in sorted(set(wanted), key=_key):
        made = await conn.execute(
            insert(role_assignments).values(one.values).on_conflict_do_nothing().returning(_a.id)
        )
        if made.first() is None:
            raise Conflict(f"{_whose(one)} has the role {one.role} {_where(one)} already")
    await _announce(conn, wanted)


async def unassign(conn: AsyncConnection, wanted: Sequence[Assignment]) -> None:
    """All or nothing. Raises NotFound for an assignment that is not there."""
    for one in sorted(set(wanted), key=_key):
        same = [
            role_assignments.c[name].is_not_distinct_from(value)
            for name, value in one.values.items()
        ]
        done = await conn.execute(sa.delete(role_assignments).where(*same).returning(_a.id))
        if done.first() is None:
            raise NotFound(f"{_whose(one)} does not have the role {one.role} {_where(one)}")
    await _announce(conn, wanted)


def readable(subject: Principal) -> sa.ColumnElement[bool]:
    """The condition for the assignments that the subject sees: its own, and those in workspaces that it sees;
    administrators, and everybody where no roles hold: all."""
    if subject.rights is None:
        return sa.true()
    own = sa.select(group_members.c.group_id).where(group_members.c.user_id == subject.user_id)
    seen = subject.rights.workspaces(Permission.VIEW_WORKSPACE)
    inside = _a.workspace_id.is_not(None) if seen is None else _a.workspace_id.in_(sorted(seen))
    return sa.or_(_a.user_id == subject.user_id, _a.group_id.in_(own), inside)


def readable_groups(subject: Principal) -> sa.ColumnElement[bool]:
    """The condition for groups that the subject sees: all for who may assign a role somewhere, else its
    own."""
    rights = subject.rights
    if rights is None or rights.allow_somewhere(Permission.ASSIGN_ROLES):
        return sa.true()
    own = sa.select(group_members.c.group_id).where(group_members.c.user_id == subject.user_id)
    return groups.c.id.in_(own)


async def _places(
    conn: AsyncConnection, subject: Principal, ids: set[int | None]
) -> dict[int | None, HomeWorkspace]:
    w = workspaces.c
    rows = await conn.execute(sa.select(w.id, w.name).where(w.id.in_(ids)))
    found: dict[int | None, HomeWorkspace] = {
        row.id: HomeWorkspace(row.id, row.name) for row in rows
    }
    rights = subject.rights
    for one in ids:
        if one not in found or (
            rights is not None and not rights.allow(Permission.VIEW_WORKSPACE, one)
        ):
            raise NotFound(f"workspace {one} does not exist")
    return found


async def _require(conn: AsyncConnection, table: sa.Table, noun: str, ids: set[int | None]) -> None:
    held = sa.select(table.c.id).where(table.c.id.in_(ids)).with_for_update(key_share=True)
    absent = ids - set((await conn.execute(held)).scalars())
    if absent:
        raise NotFound(f"{noun} {min(one for one in absent if one is not None)} does not exist")


async def _announce(conn: AsyncConnection, changed: Iterable[Assignment]) -> None:
    await notify(
        conn,
        *(topics.ROLES if one.user_id is None else topics.user(one.user_id) for one in changed),
    )


def _key(one: Assignment) -> tuple[Any, ...]:
    """The same order in each request, so that two never wait for each other."""
    return one.user_id or 0, one.group_id or 0, one.workspace_id or 0, one.role


def _whose(one: Assignment) -> str:
    return f"group {one.group_id}" if one.user_id is None else f"user {one.user_id}"


def _where(one: Assignment) -> str:
    return "everywhere" if one.workspace_id is None else f"in workspace {one.workspace_id}"


def by_number(role_id: int | None, name: str | None) -> Role:
    """The role of a request, which names it by its number or its name. Raises NotFound."""
    for role in ROLES.values():
        if role.id == role_id or (role_id is None and role.name == name):
            return role
    wanted = repr(name) if role_id is None else str(role_id)
    known = ", ".join(f"{role.name} ({role.id})" for role in ROLES.values())
    raise NotFound(f"there is no role {wanted}; there are {known}")
