"""Groups of users."""

# Parameters are named as in the API.
# ruff: noqa: N815
from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from pydantic import BaseModel, Field

from determined.common.wire import limits
from determined_registry.database.tables import group_members, groups
from determined_service.access import groups as keeping
from determined_service.access.assignments import readable_groups
from determined_service.access.dependencies import GroupReader, may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Id, ManyIds, Name
from determined_service.views.paging import fetch_page
from determined_service.views.people import groups_json
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Users", "/api/v1")

_g, _m = groups.c, group_members.c
GroupName = Annotated[Name, Field(min_length=1, max_length=limits.GROUP_NAME_CHARS)]
Creator = Annotated[Principal, may(Action.CREATE, Kind.GROUP)]
Changer = Annotated[Principal, may(Action.CHANGE, Kind.GROUP)]


class NewGroup(BaseModel):
    """A new group, and the ids of its first members."""

    name: GroupName
    addUsers: ManyIds = []


class GroupChange(BaseModel):
    """Changes of a group; what is left out stays as it is."""

    name: GroupName | None = None
    addUsers: ManyIds = []
    removeUsers: ManyIds = []


class GroupSearch(BaseModel):
    """Of which groups: ``name``, in any case of letters, and ``userId``, a member. 0 for ``limit``: 100."""

    name: Name | None = None
    userId: Id | None = None
    offset: Id = 0
    limit: Id = 0


class Memberships(BaseModel):
    """The groups that users join and leave."""

    userIds: ManyIds
    addGroups: ManyIds = []
    removeGroups: ManyIds = []


@router.post("/groups")
async def create_group(given: NewGroup, user: Creator, db: Db) -> dict[str, Any]:
    """Creates a group. 409 when there is one of that name, in any case of letters."""
    async with db.tx() as conn:
        group_id = await keeping.create(conn, given.name, given.addUsers)
        return {"group": (await groups_json(conn, [group_id]))[0]}


@router.post("/groups/search")
async def list_groups(given: GroupSearch, user: GroupReader, db: Db) -> dict[str, Any]:
    """Groups by name. In a cluster with roles: one's own, unless one may assign roles."""
    count = sa.func.count(_m.user_id).label("members")
    statement = (
        sa.select(_g.id, _g.name, count)
        .outerjoin(group_members, _m.group_id == _g.id)
        .where(readable_groups(user))
        .group_by(_g.id, _g.name)
        .order_by(sa.func.lower(_g.name))
    )
    if given.name:
        statement = statement.where(sa.func.lower(_g.name) == sa.func.lower(given.name))
    if given.userId is not None:
        of_user = sa.select(_m.group_id).where(_m.user_id == given.userId)
        statement = statement.where(_g.id.in_(of_user))
    async with db.tx() as conn:
        rows, pages = await fetch_page(conn, statement, given.offset, given.limit)
    found = [
        {"group": {"groupId": row.id, "name": row.name}, "numMembers": row.members} for row in rows
    ]
    return {"groups": found, "pagination": pages}


@router.get("/groups/{group_id}")
async def read_group(group_id: Id, user: GroupReader, db: Db) -> dict[str, Any]:
    """One group with its members."""
    async with db.tx() as conn:
        return {"group": await one_group(conn, user, group_id)}


async def one_group(conn: Any, user: Principal, group_id: int) -> dict[str, Any]:
    """The group's JSON. Raises NotFound, also when the user may not see it."""
    seen = sa.select(_g.id).where(_g.id == group_id, readable_groups(user))
    if (await conn.execute(seen)).first() is None:
        raise keeping.missing([group_id])
    return (await groups_json(conn, [group_id]))[0]


@router.put("/groups/{group_id}")
async def change_group(group_id: Id, given: GroupChange, user: Changer, db: Db) -> dict[str, Any]:
    """Renames a group, adds and removes members: all of it, or nothing."""
    async with db.tx() as conn:
        await keeping.change(conn, group_id, given.name, given.addUsers, given.removeUsers)
        return {"group": (await groups_json(conn, [group_id]))[0]}


@router.delete("/groups/{group_id}")
async def delete_group(
    group_id: Id, user: Annotated[Principal, may(Action.DELETE, Kind.GROUP)], db: Db
) -> dict[str, Any]:
    """Deletes a group. Its members stay, and lose the roles that they had by it."""
    async with db.tx() as conn:
        await keeping.delete(conn, group_id)
    return {}


@router.patch("/users/assignments")
async def move_users(given: Memberships, user: Changer, db: Db) -> dict[str, Any]:
    """Adds users to groups and removes them from others: all of it, or nothing."""
    async with db.tx() as conn:
        await keeping.move(conn, given.userIds, given.addGroups, given.removeGroups)
    return {}
