"""Tokens to principals.

Verified tokens are remembered for a second or so, because metrics ingest is hot, together with the rights of
their users. A remembered allocation or session is forgotten as soon as its topic is announced, so an ended
one does not pass, and neither does the right of a role that was taken.

The process of an unmanaged trial sends its user's token, and a cookie that names its run of the trial. Once
the script has started again, every request of the earlier run gets Conflict.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hmac
import time
from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire import serving
from determined_registry.database.tables import allocations, tasks, user_sessions, users
from determined_service.access.principal import (
    AGENT,
    ALLOCATION,
    SERVING,
    USER,
    AllocationRef,
    Principal,
    RunRef,
    ended,
)
from determined_service.access.roles import rights_within, roles_column, standing
from determined_service.access.sessions import ACCESS, PAGES, SEEN, begin_of, note_use
from determined_service.access.tokens import new_token, token_hash
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.errors import Unauthenticated
from determined_service.base.hub import Hub
from determined_service.base.settings import Settings

REMEMBER_S = 1.0
REMEMBER_MAX = 4096
AGENT_USER = "determined"
PASS = "pass."
"""With this begins what :meth:`Authenticator.lend` makes; no token that is kept begins so."""

_RUN_COUNT = sa.text(
    """
    SELECT t.run_count FROM trials t JOIN experiments e ON e.id = t.experiment_id
    WHERE t.id = :id AND e.unmanaged
    """
)


async def find_principal(conn: AsyncConnection, token: str, has_roles: bool) -> Principal:
    """Looks ``token`` up among allocations and sessions, with its user's rights where the cluster has roles.

    Raises Unauthenticated, or Conflict when the allocation has ended.
    """
    wanted = token_hash(token)
    row = (
        await conn.execute(
            sa.select(
                allocations.c.id,
                allocations.c.task_id,
                allocations.c.experiment_id,
                allocations.c.trial_id,
                allocations.c.run_id,
                allocations.c.state,
                users.c.id.label("user_id"),
                users.c.username,
                users.c.active,
                users.c.admin,
                roles_column(has_roles),
            )
            .select_from(
                allocations.join(tasks, tasks.c.id == allocations.c.task_id).join(
                    users, users.c.id == tasks.c.owner_id
                )
            )
            .where(allocations.c.token_hash == wanted)
        )
    ).first()
    if row is not None:
        if row.state == "TERMINATED":
            raise ended(row.id)
        ref = AllocationRef(row.id, row.task_id, row.experiment_id, row.trial_id, row.run_id)
        _, rights = standing(row.admin, row.roles, has_roles)
        return Principal(
            ALLOCATION, row.user_id, row.username, False, ref, active=row.active, rights=rights
        )
    found = (
        await conn.execute(
            sa.select(
                users.c.id,
                users.c.username,
                users.c.admin,
                (user_sessions.c.seen_at < sa.func.now() - SEEN).label("seen_long_ago"),
                user_sessions.c.is_access_token,
                user_sessions.c.read_only,
                user_sessions.c.workspace_id,
                roles_column(has_roles),
            )
            .join(user_sessions, user_sessions.c.user_id == users.c.id)
            .where(
                user_sessions.c.token_hash == wanted,
                user_sessions.c.expires_at > sa.func.now(),
                user_sessions.c.revoked_at.is_(None),
                users.c.active,
            )
        )
    ).first()
    if found is None:
        kind = (
            "access token is not valid, was revoked"
            if token.startswith(ACCESS)
            else "token is not valid"
        )
        raise Unauthenticated(f"the {kind} or has expired: log in again")
    if found.seen_long_ago:
        await note_use(conn, wanted)
    admin, rights = standing(found.admin, found.roles, has_roles)
    if found.workspace_id is not None:
        if not has_roles:
            raise Unauthenticated(
                "this access token is good for one workspace, and the cluster has no roles any more that "
                "keep it there: log in, or make another token"
            )
        admin, rights = False, rights_within(found.workspace_id, admin, rights)
    return Principal(
        USER,
        found.id,
        found.username,
        admin,
        by_access_token=found.is_access_token,
        read_only=found.read_only,
        workspace_id=found.workspace_id,
        rights=rights,
    )


@dataclass(slots=True)
class _Remembered:
    principal: Principal
    until: float
    changed: asyncio.Event
    unsubscribe: contextlib.ExitStack


class Authenticator:
    """Verifies tokens for one process; the module's docstring lists its caches."""

    def __init__(self, db: Database, hub: Hub, settings: Settings) -> None:
        self._db = db
        self._hub = hub
        self._settings = settings
        self._agent_token = settings.agent_token.get_secret_value()
        self._agent: Principal | None = None
        self._known: dict[str, _Remembered] = {}
        self._passes: dict[str, tuple[Principal, str]] = {}

    @property
    def has_roles(self) -> bool:
        """True if roles hold in this cluster, by its configuration in force."""
        return self._settings.cluster.has_roles

    @contextlib.contextmanager
    def lend(self, principal: Principal, session: str = "") -> Iterator[str]:
        """A token that means ``principal`` as long as the block lasts, and in this process only.

        For a program of ours that answers the request in the subject's name: it never sees the subject's
        token, and this one is worthless after the request. ``session``: see :meth:`session_of`.
        """
        token = f"{PASS}{new_token()}"
        self._passes[token] = principal, session
        try:
            yield token
        finally:
            del self._passes[token]

    def session_of(self, token: str) -> str:
        """The token of the session behind a request with ``token``: of a lent one, what it was lent for."""
        _, session = self._passes.get(token, (None, token))
        return session

    def is_agent(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._agent_token.encode())

    def is_platform(self, token: str) -> bool:
        """True if an agent, a supervisor or a run sends it."""
        return self.is_agent(token) or serving.read(self._agent_token, token) is not None

    async def principal(self, token: str) -> Principal:
        """Raises Unauthenticated, or Conflict for an ended allocation."""
        if token.startswith(PAGES):
            raise Unauthenticated("this token is a browser's, for its cookie alone: log in")
        return await self._find(token)

    async def of_pages(self, token: str, label: str) -> Principal:
        """The user of a browser's cookie at the pages ``label``. Raises Unauthenticated."""
        if not token.startswith(begin_of(label)):
            raise Unauthenticated(
                "this cookie is of an earlier release, or of other pages: log in again"
            )
        return await self._find(token)

    async def _find(self, token: str) -> Principal:
        if token.startswith(PASS):
            lent = self._passes.get(token)
            if lent is None:
                raise Unauthenticated("the request that this pass was made for has ended")
            return lent[0]
        if token.startswith(serving.PREFIX):
            return await self._serving(token)
        known = self._known.get(token)
        if known is not None:
            if time.monotonic() < known.until and not known.changed.is_set():
                return known.principal
            self.forget(token)
        if self.is_agent(token):
            return await self.agent()
        async with self._db.tx() as conn:
            found = await find_principal(conn, token, self.has_roles)
            if found.allocation is not None:
                self._remember(token, found)
                # Again, now that the topic is subscribed: an end that committed between the first
                # look and the subscription would go unheard.
                found = await find_principal(conn, token, self.has_roles)
        if found.allocation is None:
            self._remember(token, found)
        return found

    def _remember(self, token: str, principal: Principal) -> None:
        if len(self._known) >= REMEMBER_MAX:
            for old in list(self._known):
                self.forget(old)
        self.forget(token)
        stack = contextlib.ExitStack()
        ref = principal.allocation
        awaited = [topics.user(principal.user_id), topics.ROLES, topics.CLUSTER]
        if ref is not None:
            awaited.append(topics.allocation(ref.id))
        changed = stack.enter_context(self._hub.subscribe(awaited))
        self._known[token] = _Remembered(principal, time.monotonic() + REMEMBER_S, changed, stack)

    def forget(self, token: str) -> None:
        """The next request with ``token`` is looked up anew."""
        known = self._known.pop(token, None)
        if known is not None:
            known.unsubscribe.close()

    async def in_run(self, principal: Principal, run: RunRef) -> Principal:
        """The same one, as the process of that run. Raises Conflict when a later run has begun."""
        async with self._db.tx() as conn:
            run_count = (await conn.execute(_RUN_COUNT, {"id": run.trial_id})).scalar_one_or_none()
        if run_count is None:
            return principal
        run.require_last(run_count)
        return dataclasses.replace(principal, run=run)

    async def _serving(self, token: str) -> Principal:
        """The supervisor or run behind a signed token, which costs no look at the database."""
        served = serving.read(self._agent_token, token)
        if served is None:
            raise Unauthenticated(
                "this token of a supervisor or a run was not signed with the cluster's agent_token, or the"
                " agent_token has changed since"
            )
        agent = await self.agent()
        return Principal(SERVING, agent.user_id, agent.username, False, serves=served)

    async def agent(self) -> Principal:
        """The principal behind the agents' shared secret."""
        if self._agent is None:
            async with self._db.tx() as conn:
                user_id = (
                    await conn.execute(sa.select(users.c.id).where(users.c.username == AGENT_USER))
                ).scalar_one()
            self._agent = Principal(AGENT, user_id, AGENT_USER, True)
        return self._agent
