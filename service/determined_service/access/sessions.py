"""Sessions: a login opens one, a logout closes it.

A user has a limited number at a time (``quotas.sessions`` of the cluster configuration). Scripts log in again
and again, so one more is never refused: the session that has been unused for the longest time ends instead.
"""

from __future__ import annotations

import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import user_sessions
from determined_service.access.tokens import new_token, token_hash
from determined_service.base.db import hold_name

SESSION_LIFE = datetime.timedelta(days=7)
PAGES = "pages."
"""With this begins the token of a browser's session, which is good for pages alone and never as a Bearer. A
browser sends its cookie to every port of the host name, whichever program listens there."""
PAGES_LIFE = datetime.timedelta(hours=12)
ACCESS = "access."
"""With this begins an access token, so that programs that look for secrets in files know it."""
SEEN = datetime.timedelta(hours=1)
"""The precision of a session's last use: storing it with each request would be expensive."""

_s = user_sessions.c
_UNUSED = sa.text(
    """
    DELETE FROM user_sessions WHERE id IN (
        SELECT id FROM user_sessions
        WHERE user_id = :user_id AND token_hash <> :token_hash AND NOT is_access_token
        ORDER BY seen_at DESC, id DESC OFFSET :others)
    """
)


def begin_of(label: str) -> str:
    """How the tokens of sessions of the pages ``label`` (one of ``hosts.PAGES``) begin."""
    return f"{PAGES}{label}."


async def open_pages(conn: AsyncConnection, user_id: int, most: int, *, label: str) -> str:
    """The token of a new session of a browser, good for the pages ``label`` alone: see :data:`PAGES`."""
    token = f"{begin_of(label)}{new_token()}"
    return await open_session(conn, user_id, most, token, PAGES_LIFE)


async def open_session(
    conn: AsyncConnection,
    user_id: int,
    most: int,
    token: str | None = None,
    life: datetime.timedelta = SESSION_LIFE,
) -> str:
    """The token of a new session, one of ``most``; sessions that have expired are swept up."""
    token = token or new_token()
    await hold_name(conn, f"sessions/{user_id}")
    await conn.execute(
        sa.delete(user_sessions).where(_s.expires_at < sa.func.now(), ~_s.is_access_token)
    )
    await conn.execute(
        sa.insert(user_sessions).values(
            user_id=user_id,
            token_hash=token_hash(token),
            expires_at=sa.func.now() + life,
        )
    )
    given = {"user_id": user_id, "token_hash": token_hash(token), "others": most - 1}
    await conn.execute(_UNUSED, given)
    return token


async def note_use(conn: AsyncConnection, hash_: str) -> None:
    """The session's token was sent just now."""
    await conn.execute(
        sa.update(user_sessions)
        .where(_s.token_hash == hash_, _s.seen_at < sa.func.now() - SEEN)
        .values(seen_at=sa.func.now())
    )


async def close_session(conn: AsyncConnection, token: str) -> None:
    """Ends the session of this token; other sessions of the user go on, and so does an access token."""
    await conn.execute(
        sa.delete(user_sessions).where(_s.token_hash == token_hash(token), ~_s.is_access_token)
    )
