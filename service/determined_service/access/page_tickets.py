"""Tickets: addresses that log a browser in at the service's pages (or at MLflow's), each good once.

A ticket ends after a minute, and with the session that it was made from. What it opens is a separate session
of the same user, which the pages' cookie names (:mod:`~determined_service.access.browser`).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import page_tickets, user_sessions, users
from determined_service.access.sessions import open_pages
from determined_service.access.tokens import new_token, token_hash
from determined_service.base import hosts

TICKET_LIFE = datetime.timedelta(minutes=1)

_t, _s, _u = page_tickets.c, user_sessions.c, users.c
_MAKE = sa.text(
    """
    INSERT INTO page_tickets (ticket_hash, session_id)
    SELECT :ticket, s.id FROM user_sessions s
    WHERE s.token_hash = :session AND s.expires_at > now() AND NOT s.is_access_token
    RETURNING session_id
    """
)


@dataclass(frozen=True)
class Holder:
    """The user whom a ticket logs in."""

    user_id: int
    username: str


async def new_ticket(conn: AsyncConnection, session: str, pages: str) -> str | None:
    """A ticket of the session with the token ``session``; None: it has ended, or is an access token.

    ``pages``: the name of what the ticket opens; it opens nothing else.
    """
    await conn.execute(sa.delete(page_tickets).where(_t.created_at < sa.func.now() - TICKET_LIFE))
    ticket = new_token()
    given = {"ticket": _hash(ticket, pages), "session": token_hash(session)}
    return None if (await conn.execute(_MAKE, given)).first() is None else ticket


async def holder_of(conn: AsyncConnection, ticket: str, pages: str) -> Holder | None:
    """Whom the ticket logs in; None: it was used, is older than a minute, or is not for ``pages``."""
    row = (
        await conn.execute(
            sa.select(_u.id, _u.username)
            .join(user_sessions, _s.user_id == _u.id)
            .join(page_tickets, _t.session_id == _s.id)
            .where(
                _t.ticket_hash == _hash(ticket, pages),
                _t.created_at > sa.func.now() - TICKET_LIFE,
                _s.expires_at > sa.func.now(),
                _u.active,
            )
        )
    ).first()
    return None if row is None else Holder(row.id, row.username)


async def use_ticket(
    conn: AsyncConnection, ticket: str, pages: str, most: int
) -> tuple[str, Holder] | None:
    """The token of a new session of pages, one of ``most``, and whose it is. The ticket is worth nothing from
    then on. None: see :func:`holder_of`."""
    holder = await holder_of(conn, ticket, pages)
    used = sa.delete(page_tickets).where(_t.ticket_hash == _hash(ticket, pages))
    # Of two requests with one ticket the second waits here, and then finds it used.
    if (await conn.execute(used.returning(_t.session_id))).first() is None or holder is None:
        return None
    label = pages.partition(" ")[0]
    return await open_pages(conn, holder.user_id, most, label=label), holder


def of_mlflow(state: str) -> str:
    """The ``pages`` of a ticket for MLflow's, in the browser that has the cookie of which ``state`` is the
    hash."""
    return f"{hosts.MLFLOW} {state}"


def _hash(ticket: str, pages: str) -> str:
    return token_hash(f"{pages} {ticket}")
