"""Logins of browsers at the host names of tasks.

A ticket in an address, good once and for a minute, becomes a cookie that only one host name's pages send.
Both stand for one port of one task, and end with the session of the user who got the ticket; the cookie after
:data:`VISIT_LIFE` at the latest: a browser sends it to every port of that host name, whichever program
listens there.
"""

from __future__ import annotations

import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import task_visits, tasks, user_sessions, users
from determined_service.access.principal import USER, Principal
from determined_service.access.roles import roles_column, standing
from determined_service.access.sessions import PAGES_LIFE
from determined_service.access.tokens import new_token, token_hash

TICKET_LIFE = datetime.timedelta(minutes=1)
VISIT_LIFE = PAGES_LIFE
KEPT = datetime.timedelta(days=1)
"""A visit that is over is kept so long, and a task's that has ended: its page says so."""

_v, _s, _u = task_visits.c, user_sessions.c, users.c
_MAKE = sa.text(
    """
    INSERT INTO task_visits (session_id, task_id, port_name, ticket_hash)
    SELECT s.id, :task_id, :port, :ticket FROM user_sessions s
    WHERE s.token_hash = :session AND s.revoked_at IS NULL
    RETURNING id
    """
)


async def new_ticket(conn: AsyncConnection, session: str, task_id: str, port: str) -> str | None:
    """A ticket of the session with the token ``session``; None: no such session exists.

    ``port``: the port's name; empty: the task's default one.
    """
    long_ago = sa.func.now() - KEPT
    # The page of an ended task says so for a day, and then asks for a login, whose answer says it, too.
    over = sa.select(tasks.c.id).where(tasks.c.id == _v.task_id, tasks.c.end_time < long_ago)
    old = sa.delete(task_visits).where(sa.or_(_v.created_at < long_ago, over.exists()))
    await conn.execute(old)
    ticket = new_token()
    given = {"task_id": task_id, "port": port, "ticket": token_hash(ticket)}
    made = await conn.execute(_MAKE, given | {"session": token_hash(session)})
    return None if made.first() is None else ticket


async def use_ticket(
    conn: AsyncConnection, ticket: str, task_id: str, port: str, session: str | None = None
) -> str | None:
    """The cookie for a ticket, which is worth nothing from then on; None: it was, or is another port's, or of
    another session than the one with the token ``session``, if that is given."""
    cookie = new_token()
    of_session = sa.select(_s.id).where(_s.token_hash == token_hash(session or ""))
    done = await conn.execute(
        sa.update(task_visits)
        .values(ticket_hash=None, cookie_hash=token_hash(cookie))
        .where(
            _v.ticket_hash == token_hash(ticket),
            _v.task_id == task_id,
            _v.port_name == port,
            _v.created_at > sa.func.now() - TICKET_LIFE,
            sa.true() if session is None else _v.session_id.in_(of_session),
        )
        .returning(_v.id)
    )
    return None if done.first() is None else cookie


async def find_visitor(
    conn: AsyncConnection, cookies: list[str], task_id: str, port: str, has_roles: bool
) -> Principal | None:
    """The user whose session one of the cookies stands for, at this port of this task; with its rights, where
    the cluster ``has_roles``."""
    row = (
        await conn.execute(
            sa.select(_u.id, _u.username, _u.admin, roles_column(has_roles))
            .join(user_sessions, _s.user_id == _u.id)
            .join(task_visits, _v.session_id == _s.id)
            .where(
                _v.cookie_hash.in_([token_hash(cookie) for cookie in cookies]),
                _v.task_id == task_id,
                _v.port_name == port,
                _v.created_at > sa.func.now() - VISIT_LIFE,
                _s.expires_at > sa.func.now(),
                _s.revoked_at.is_(None),
                _u.active,
            )
            .limit(1)
        )
    ).first()
    if row is None:
        return None
    admin, rights = standing(row.admin, row.roles, has_roles)
    return Principal(USER, row.id, row.username, admin, rights=rights)
