"""Creates and changes users' accounts."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire import limits
from determined_registry.database.tables import user_sessions, user_settings, users
from determined_service.access.throttle import LoginThrottle
from determined_service.access.tokens import token_hash
from determined_service.base import passwords, topics
from determined_service.base.db import Database, hold_name
from determined_service.base.errors import BadRequest, Conflict, Forbidden, NotFound
from determined_service.base.hub import notify
from determined_service.base.settings import Settings

FRESH = datetime.timedelta(minutes=10)
"""For so long after its login a session may change its user's password without the old one."""


async def hash_password(password: str, is_hashed: bool, settings: Settings) -> str:
    """The stored form of a password. ``is_hashed``: the client has hashed the typed password.

    Raises BadRequest for a blank one where other machines reach the service, and for one that is too short
    there. The length of one that the client has hashed is the client's to check.
    """
    sent = password if is_hashed else passwords.as_sent(password)
    if settings.is_reachable and passwords.is_blank(sent):
        raise BadRequest(
            f"a blank password would let everybody in, because other machines reach this service, which "
            f"listens on {settings.host}: give the user a password (it may be blank only where the service "
            f"listens on 127.0.0.1)"
        )
    if settings.is_reachable and not is_hashed and (why := passwords.too_short(password)):
        raise BadRequest(why)
    return await passwords.in_thread(passwords.store, sent)


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof that users change their own password: the old one, or a session that has just begun."""

    token: str
    old: str | None
    """As clients send it."""
    address: str


async def require_proof(db: Database, throttle: LoginThrottle, user_id: int, proof: Proof) -> None:
    """Raises Forbidden: a stolen or forgotten session must not be enough to take an account over.

    Raises TooManyRequests like a login. Clients of Determined cannot send the old password, but log in with
    it: so a session that was begun within :data:`FRESH` stands for it.
    """
    fresh = user_sessions.c.created_at > sa.func.now() - FRESH
    async with db.tx() as conn:
        row = (await conn.execute(sa.select(users).where(users.c.id == user_id))).one()
        found = await conn.execute(
            sa.select(fresh).where(
                user_sessions.c.token_hash == token_hash(proof.token),
                ~user_sessions.c.is_access_token,
            )
        )
        is_fresh = bool(found.scalar_one_or_none())
    if proof.old is None:
        if is_fresh:
            return
        raise Forbidden(
            f"the old password is missing: send it as currentPassword, or log in as {row.username} again and "
            f"change the password within {FRESH.seconds // 60} minutes"
        )
    with throttle.attempt(row.username, proof.address) as attempt:
        if not await passwords.in_thread(passwords.matches, proof.old, row.password_hash):
            raise Forbidden("the old password (currentPassword) is wrong: nothing was changed")
        attempt.succeeded()


async def renew_hash(db: Database, user_id: int, kept: str, sent: str) -> None:
    """Store a password that was just verified in today's format, if ``kept`` is in an older one."""
    if not passwords.is_outdated(kept):
        return
    renewed = await passwords.in_thread(passwords.store, sent)
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


async def change_account(
    conn: AsyncConnection, user_id: int, values: Mapping[str, Any], token: str | None = None
) -> None:
    """Sets columns of the user; with a new password, and for one that becomes remote, ends all of the user's
    sessions but that of ``token``.

    Raises NotFound; Conflict when the new name is taken.
    """
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
    if "password_hash" in values or values.get("remote"):
        others = (user_sessions.c.user_id == user_id) & ~user_sessions.c.is_access_token
        if token is not None:
            others &= user_sessions.c.token_hash != token_hash(token)
        await conn.execute(sa.delete(user_sessions).where(others))
    await notify(conn, topics.user(user_id))


async def _require_free(conn: AsyncConnection, username: str) -> None:
    found = await conn.execute(sa.select(users.c.id).where(users.c.username == username))
    if found.first() is not None:
        raise Conflict(f"there is a user {username!r} already: choose another name")


async def store_settings(
    conn: AsyncConnection, user_id: int, given: Mapping[tuple[str, str], str]
) -> None:
    """Stores settings of the user, by their paths and keys; others stay as they are.

    Raises BadRequest when there would be too many.
    """
    if not given:
        return
    rows = [
        {"user_id": user_id, "storage_path": path, "key": key, "value": value}
        for (path, key), value in given.items()
    ]
    s = user_settings.c
    statement = insert(user_settings).values(rows)
    await hold_name(conn, f"settings/{user_id}")
    await conn.execute(
        statement.on_conflict_do_update(
            index_elements=[s.user_id, s.storage_path, s.key],
            set_={"value": statement.excluded.value},
        )
    )
    own = sa.select(sa.func.count()).where(s.user_id == user_id)
    if int(await conn.scalar(own) or 0) > limits.USER_SETTINGS:
        raise BadRequest(
            f"a user has at most {limits.USER_SETTINGS} settings: nothing was stored; "
            "POST /api/v1/users/setting/reset deletes them all"
        )


async def reset_settings(conn: AsyncConnection, user_id: int) -> None:
    """Deletes the user's settings."""
    await conn.execute(sa.delete(user_settings).where(user_settings.c.user_id == user_id))
