"""Access tokens: made by users who are logged in, for programs that ask in their names.

A token is a row of ``user_sessions``, shown once and kept as a hash. It ends by its time or when it is
revoked; a new password or a logout does not end it, and while its user is deactivated it is worth nothing.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import Tokens
from determined.expconf.durations import seconds
from determined_registry.database.tables import user_sessions
from determined_service.access.sessions import ACCESS, SEEN
from determined_service.access.tokens import new_token, token_hash
from determined_service.base import topics
from determined_service.base.db import hold_name
from determined_service.base.errors import BadRequest, Conflict, NotFound, OverQuota
from determined_service.base.hub import notify

DAY = datetime.timedelta(days=1)
FOR_EVER = datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC)
"""The end of a token that does not expire: Python has no infinite time."""
KEPT = 30 * DAY
"""A token that is good no more is listed so long."""
_s = user_sessions.c
IS_GOOD = sa.and_(_s.revoked_at.is_(None), _s.expires_at > sa.func.now())


def expiry(lifespan: str | None, allowed: Tokens) -> datetime.timedelta | None:
    """How long a new token is good; None: for ever. ``lifespan``: a duration as ``720h``, "-1" for ever, None
    for the cluster's default. Raises BadRequest above the most that is ``allowed``.
    """
    most = allowed.max_lifespan_days
    if not lifespan:
        days = allowed.default_lifespan_days
        wanted = None if days == -1 else days * DAY
    elif lifespan == "-1":
        wanted = None
    else:
        try:
            wanted = datetime.timedelta(seconds=seconds(lifespan))
        except (ValueError, OverflowError) as error:
            raise BadRequest(
                f"lifespan: {lifespan!r} found; it must be a duration such as '720h', or '-1' for ever"
            ) from error
        if not wanted:
            raise BadRequest(f"lifespan: {lifespan!r} found; a token must be good for some time")
    if most != -1 and (wanted is None or wanted > most * DAY):
        given = "for ever" if wanted is None else f"{wanted / DAY:g} days"
        raise BadRequest(
            f"lifespan: {given} found; tokens of this cluster are good for {most} days at most: ask "
            "for that, or ask an administrator to raise security.token.max_lifespan_days in the cluster "
            "configuration"
        )
    return wanted


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A token to be made. ``life`` None: it does not expire. ``workspace_id`` None: it is good for all that
    its user sees."""

    user_id: int
    life: datetime.timedelta | None
    description: str
    read_only: bool
    workspace_id: int | None = None


async def create(conn: AsyncConnection, wanted: TokenRequest, most: int) -> tuple[int, str]:
    """The id and the token, which nobody can read again. Raises OverQuota: the user has ``most`` already."""
    await hold_name(conn, f"access tokens/{wanted.user_id}")
    own = (_s.user_id == wanted.user_id) & _s.is_access_token
    ended = sa.func.least(_s.expires_at, sa.func.coalesce(_s.revoked_at, _s.expires_at))
    await conn.execute(sa.delete(user_sessions).where(own, ended < sa.func.now() - KEPT))
    # Whoever makes and revokes tokens all day long has no more rows than this.
    old = sa.select(_s.id).where(own, ~IS_GOOD).order_by(_s.id.desc()).offset(most)
    await conn.execute(sa.delete(user_sessions).where(_s.id.in_(old)))
    count = await conn.scalar(sa.select(sa.func.count()).where(own, IS_GOOD))
    if (count or 0) >= most:
        raise OverQuota(
            f"there are {count} access tokens of this user, and a user may have {most} "
            "(quotas.access_tokens): revoke some (det token revoke ID), or ask an administrator, "
            "who may raise it in the cluster configuration"
        )
    token = f"{ACCESS}{new_token()}"
    made = await conn.scalar(
        sa.insert(user_sessions)
        .values(
            user_id=wanted.user_id,
            token_hash=token_hash(token),
            expires_at=FOR_EVER if wanted.life is None else sa.func.now() + wanted.life,
            # Before its making, so that its first use is noted.
            seen_at=sa.func.now() - 2 * SEEN,
            is_access_token=True,
            description=wanted.description,
            read_only=wanted.read_only,
            workspace_id=wanted.workspace_id,
        )
        .returning(_s.id)
    )
    assert made is not None
    return made, token


async def change(
    conn: AsyncConnection, token_id: int, description: str | None, *, revoke: bool
) -> None:
    """Describes the token anew, or ends it for good. Raises NotFound; Conflict for one that was revoked."""
    values: dict[str, object] = {} if description is None else {"description": description}
    if revoke:
        values["revoked_at"] = sa.func.now()
    one = (_s.id == token_id) & _s.is_access_token
    row = (
        await conn.execute(sa.select(_s.user_id, _s.revoked_at).where(one).with_for_update())
    ).first()
    if row is None:
        raise NotFound(f"access token {token_id} does not exist")
    if row.revoked_at is not None:
        raise Conflict(f"access token {token_id} was revoked, and stays as it is: make another one")
    if values:
        await conn.execute(sa.update(user_sessions).where(one).values(values))
        await notify(conn, topics.user(row.user_id))
