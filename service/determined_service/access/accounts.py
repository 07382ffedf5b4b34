"""Creates and changes users' accounts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import users
from determined_service.base import passwords
from determined_service.base.db import Database
from determined_service.base.errors import Conflict, NotFound


async def hash_password(password: str, is_hashed: bool) -> str:
    """The stored form of a password. ``is_hashed``: the client has hashed the typed password."""
    sent = password if is_hashed else passwords.as_sent(password)
    # In a thread: a deliberately slow function must not hold up everybody else.
    return await asyncio.to_thread(passwords.store, sent)


async def renew_hash(db: Database, user_id: int, kept: str, sent: str) -> None:
    """Store a password that was just verified in today's format, if ``kept`` is in an older one."""
    if not passwords.is_outdated(kept):
        return
    renewed = await asyncio.to_thread(passwords.store, sent)
    # A password that was changed since the row was read stays.
    unchanged = (users.c.id == user_id) & (users.c.password_hash == kept)
    async with db.tx() as conn:
        await conn.execute(sa.update(users).where(unchanged).values(password_hash=renewed))


async def create_account(conn: AsyncConnection, username: str, values: Mapping[str, Any]) -> int:
    """The new user's id. Raises Conflict when the name is taken."""
    await _require_free(conn, username)
    found = await conn.execute(
        sa.insert(users).values({**values, "username": username}).returning(users.c.id)
    )
    return int(found.scalar_one())


async def change_account(conn: AsyncConnection, user_id: int, values: Mapping[str, Any]) -> None:
    """Sets columns of the user. Raises NotFound; Conflict when the new name is taken."""
    found = await conn.execute(sa.select(users.c.username).where(users.c.id == user_id))
    before = found.scalar_one_or_none()
    if before is None:
        raise NotFound(f"user {user_id} does not exist")
    username = values.get("username")
    if username and username != before:
        await _require_free(conn, username)
    await conn.execute(
        sa.update(users)
        .where(users.c.id == user_id)
        .values({**values, "modified_at": sa.func.now()})
    )


async def _require_free(conn: AsyncConnection, username: str) -> None:
    found = await conn.execute(sa.select(users.c.id).where(users.c.username == username))
    if found.first() is not None:
        raise Conflict(f"there is a user {username!r} already: choose another name")
