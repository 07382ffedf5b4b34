"""Groups of users: they get roles together. Whoever changes one holds its row, so that no change is lost."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import group_members, groups, users
from determined_service.base import topics
from determined_service.base.db import hold_name
from determined_service.base.errors import BadRequest, Conflict, NotFound
from determined_service.base.hub import notify

_g, _m = groups.c, group_members.c
_NAMES = "names of groups"


async def create(conn: AsyncConnection, name: str, members: Collection[int]) -> int:
    """The id of the new group. Raises BadRequest, NotFound, and Conflict when the name is taken."""
    await _require_free(conn, name)
    made = await conn.execute(sa.insert(groups).values(name=name).returning(_g.id))
    group_id = int(made.scalar_one())
    await _add(conn, group_id, members)
    await notify(conn, topics.ROLES)
    return group_id


async def change(
    conn: AsyncConnection,
    group_id: int,
    name: str | None,
    added: Collection[int],
    removed: Collection[int],
) -> None:
    """Renames a group, adds and removes members, all or nothing. Members who are in it already, or are not,
    make no difference.

    Raises BadRequest, NotFound, and Conflict when the name is taken.
    """
    both = sorted(set(added) & set(removed))
    if both:
        raise BadRequest(f"addUsers and removeUsers both hold user {both[0]}: give it once")
    if name is not None:
        await _require_free(conn, name, group_id)
    await _hold(conn, [group_id])
    if name is not None:
        await conn.execute(sa.update(groups).where(_g.id == group_id).values(name=name))
    await _add(conn, group_id, added)
    await _remove(conn, [group_id], removed)
    await notify(conn, topics.ROLES)


async def move(
    conn: AsyncConnection,
    members: Collection[int],
    into: Collection[int],
    out_of: Collection[int],
) -> None:
    """Adds users to groups, and removes them from others, all or nothing. Raises BadRequest, NotFound."""
    both = sorted(set(into) & set(out_of))
    if both:
        raise BadRequest(f"addGroups and removeGroups both hold group {both[0]}: give it once")
    await _hold(conn, {*into, *out_of})
    for group_id in sorted(into):
        await _add(conn, group_id, members)
    await _remove(conn, out_of, members)
    await notify(conn, topics.ROLES)


async def delete(conn: AsyncConnection, group_id: int) -> None:
    """Deletes the group, and takes its roles from its members. Raises NotFound."""
    done = await conn.execute(sa.delete(groups).where(_g.id == group_id).returning(_g.id))
    if done.first() is None:
        raise missing([group_id])
    await notify(conn, topics.ROLES)


def missing(ids: Collection[int]) -> NotFound:
    """The refusal when no such groups exist."""
    if len(ids) == 1:
        return NotFound(f"group {next(iter(ids))} does not exist")
    return NotFound(f"no such groups: {', '.join(map(str, sorted(ids)))}")


async def _hold(conn: AsyncConnection, ids: Collection[int]) -> None:
    held = sa.select(_g.id).where(_g.id.in_(ids)).order_by(_g.id).with_for_update()
    found = set((await conn.execute(held)).scalars())
    if absent := set(ids) - found:
        raise missing(absent)


async def _require_free(conn: AsyncConnection, name: str, own: int | None = None) -> None:
    if not name.strip() or name != name.strip():
        raise BadRequest(f"name {name!r}: a group's name begins and ends with a visible character")
    await hold_name(conn, _NAMES)
    same = sa.select(_g.id, _g.name).where(sa.func.lower(_g.name) == sa.func.lower(name))
    found = (await conn.execute(same)).first()
    if found is not None and found.id != own:
        raise Conflict(f"there is a group {found.name!r} already: choose another name")


async def _add(conn: AsyncConnection, group_id: int, members: Collection[int]) -> None:
    if not members:
        return
    known = sa.select(users.c.id).where(users.c.id.in_(members)).with_for_update(key_share=True)
    if absent := set(members) - set((await conn.execute(known)).scalars()):
        raise NotFound(f"no such users: {', '.join(map(str, sorted(absent)))}")
    rows = [{"group_id": group_id, "user_id": one} for one in sorted(set(members))]
    await conn.execute(insert(group_members).values(rows).on_conflict_do_nothing())


async def _remove(conn: AsyncConnection, ids: Collection[int], members: Collection[int]) -> None:
    if ids and members:
        await conn.execute(
            sa.delete(group_members).where(_m.group_id.in_(ids), _m.user_id.in_(members))
        )
