"""Sessions: a login opens one, a logout closes it."""

from __future__ import annotations

import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import user_sessions
from determined_service.access.tokens import new_token, token_hash

SESSION_LIFE = datetime.timedelta(days=7)
PAGES = "pages."
"""With this begins the token of a browser's session, which is good for pages alone and never as a Bearer. A
browser sends its cookie to every port of the host name, whoever listens there."""
PAGES_LIFE = datetime.timedelta(hours=12)


async def open_pages(conn: AsyncConnection, user_id: int) -> str:
    """The token of a new session of a browser: see :data:`PAGES`."""
    return await open_session(conn, user_id, f"{PAGES}{new_token()}", PAGES_LIFE)


async def open_session(
    conn: AsyncConnection,
    user_id: int,
    token: str | None = None,
    life: datetime.timedelta = SESSION_LIFE,
) -> str:
    """The token of a new session; sessions that have expired are swept up."""
    token = token or new_token()
    await conn.execute(sa.delete(user_sessions).where(user_sessions.c.expires_at < sa.func.now()))
    await conn.execute(
        sa.insert(user_sessions).values(
            user_id=user_id,
            token_hash=token_hash(token),
            expires_at=sa.func.now() + life,
        )
    )
    return token


async def close_session(conn: AsyncConnection, token: str) -> None:
    """Ends the session of this token; other sessions of the user go on."""
    await conn.execute(
        sa.delete(user_sessions).where(user_sessions.c.token_hash == token_hash(token))
    )
