"""Who asks: bearer tokens to a :class:`Principal`.

Three kinds of token: a user's session token, the token of an allocation (a training process; acts
for the experiment's owner, and only while the allocation lives) and the agents' shared secret (acts
for the user ``determined``, as an admin).

The process of an unmanaged trial sends its user's token, and in a cookie which run of the trial it is:
once the script has started again every request of the earlier run gets Conflict.

Verified tokens are remembered for a second or so, because metrics ingest is hot. A remembered
allocation is forgotten as soon as its topic is announced, so an ended one does not pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass
from typing import Annotated

import sqlalchemy as sa
from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.tables import allocations, experiments, user_sessions, users
from determined_service.db import Database
from determined_service.errors import Conflict, Forbidden, Unauthenticated
from determined_service.hub import Hub
from determined_service.settings import Settings

REMEMBER_S = 1.0
REMEMBER_MAX = 4096
AGENT_USER = "determined"

_RUN_COUNT = sa.text(
    """
    SELECT t.run_count FROM trials t JOIN experiments e ON e.id = t.experiment_id
    WHERE t.id = :id AND e.unmanaged
    """
)


@dataclass(frozen=True, slots=True)
class AllocationRef:
    """The allocation whose token was sent."""

    id: str
    task_id: str
    experiment_id: int | None
    trial_id: int | None
    run_id: int


@dataclass(frozen=True, slots=True)
class RunRef:
    """A run of an unmanaged trial; ``str()`` of it is the cookie's value."""

    trial_id: int
    run_id: int

    @classmethod
    def read(cls, text: str) -> RunRef | None:
        """None: that is no run."""
        found = re.fullmatch(r"(\d{1,9})\.(\d{1,9})", text, re.ASCII)
        return None if found is None else cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.trial_id}.{self.run_id}"

    def superseded(self, run_count: int) -> Conflict | None:
        """The refusal of this run if it is not the trial's last one, ``run_count``."""
        if self.run_id >= run_count:
            return None
        return Conflict(
            f"run {self.run_id} of trial {self.trial_id} has ended: "
            f"its script has started again, as run {run_count}"
        )

    def require_last(self, run_count: int) -> None:
        """Raises Conflict when the script has started again: ``run_count`` is the trial's last run."""
        refusal = self.superseded(run_count)
        if refusal is not None:
            raise refusal


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. ``user_id`` and ``username`` are an allocation's owner's, when one asks."""

    kind: str  # "user", "allocation" or "agent"
    user_id: int
    username: str
    admin: bool
    allocation: AllocationRef | None = None
    run: RunRef | None = None  # of an unmanaged trial's process

    def run_of(self, trial_id: int) -> RunRef | None:
        """The run of that unmanaged trial whose process asks, if it says so."""
        return self.run if self.run is not None and self.run.trial_id == trial_id else None

    @property
    def sender(self) -> str | None:
        """The allocation whose process asks; None: a user or an agent."""
        return None if self.allocation is None else self.allocation.id

    def require_trial(self, trial_id: int) -> None:
        """An allocation may speak only for its own trial; raises Forbidden."""
        if self.allocation is not None and self.allocation.trial_id != trial_id:
            raise Forbidden(f"allocation {self.allocation.id} does not belong to trial {trial_id}")

    def require_allocation(self, allocation_id: str) -> None:
        """An allocation may speak only for itself; raises Forbidden."""
        if self.allocation is not None and self.allocation.id != allocation_id:
            raise Forbidden(f"this is the token of allocation {self.allocation.id}")

    def require_admin(self) -> None:
        """Raises Forbidden."""
        if not self.admin:
            raise Forbidden("only an administrator may do this")


def new_token() -> str:
    """A fresh bearer token."""
    return secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    """What the tables keep of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def ended(allocation_id: str) -> Conflict:
    """What every request with an ended allocation's token gets."""
    return Conflict(f"allocation {allocation_id} has ended")


async def find_principal(conn: AsyncConnection, token: str) -> Principal:
    """Looks ``token`` up among allocations and sessions; Unauthenticated, or Conflict when ended."""
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
            )
            .select_from(
                allocations.outerjoin(
                    experiments, experiments.c.id == allocations.c.experiment_id
                ).outerjoin(users, users.c.id == experiments.c.owner_id)
            )
            .where(allocations.c.token_hash == wanted)
        )
    ).first()
    if row is not None:
        if row.state == "TERMINATED":
            raise ended(row.id)
        ref = AllocationRef(row.id, row.task_id, row.experiment_id, row.trial_id, row.run_id)
        return Principal("allocation", row.user_id, row.username, False, ref)
    found = (
        await conn.execute(
            sa.select(users.c.id, users.c.username, users.c.admin)
            .join(user_sessions, user_sessions.c.user_id == users.c.id)
            .where(
                user_sessions.c.token_hash == wanted,
                user_sessions.c.expires_at > sa.func.now(),
                users.c.active,
            )
        )
    ).first()
    if found is None:
        raise Unauthenticated("the token is not valid (any more): log in again")
    return Principal("user", found.id, found.username, found.admin)


@dataclass(slots=True)
class _Remembered:
    principal: Principal
    until: float
    changed: asyncio.Event
    unsubscribe: contextlib.ExitStack


class Authenticator:
    """Verifies tokens for one process; see the module's docstring for what it remembers."""

    def __init__(self, db: Database, hub: Hub, settings: Settings) -> None:
        self._db = db
        self._hub = hub
        self._agent_token = settings.agent_token.get_secret_value().encode()
        self._agent: Principal | None = None
        self._known: dict[str, _Remembered] = {}

    def is_agent(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._agent_token)

    async def principal(self, token: str) -> Principal:
        """Raises Unauthenticated, or Conflict for an ended allocation."""
        known = self._known.get(token)
        if known is not None:
            if time.monotonic() < known.until and not known.changed.is_set():
                return known.principal
            self.forget(token)
        if self.is_agent(token):
            return await self.agent()
        async with self._db.tx() as conn:
            found = await find_principal(conn, token)
            if found.allocation is not None:
                self._remember(token, found)
                # Again, now that the topic is subscribed: an end that committed between the first
                # look and the subscription would go unheard.
                found = await find_principal(conn, token)
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
        topics = () if ref is None else (f"allocation:{ref.id}",)
        changed = stack.enter_context(self._hub.subscribe(topics))
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

    async def agent(self) -> Principal:
        """The principal behind the agents' shared secret."""
        if self._agent is None:
            async with self._db.tx() as conn:
                user_id = (
                    await conn.execute(sa.select(users.c.id).where(users.c.username == AGENT_USER))
                ).scalar_one()
            self._agent = Principal("agent", user_id, AGENT_USER, True)
        return self._agent


RUN_COOKIE = "determined-run"
"""What the process of an unmanaged trial says of its run. Our client sends it by itself; Determined's sends
back what the answer to its first sign of life set. It gives no rights: it can only take them away."""

# Determined's harness sends its allocation's token under the second name.
TOKEN_HEADERS = ("Authorization", "Grpc-Metadata-x-allocation-token")

_bearer = HTTPBearer(auto_error=False, description="A token from `POST /api/v1/auth/login`.")


def bearer_token(request: Request) -> str:
    """The token sent. A header only: a cookie would let any web page act for the user."""
    for header in TOKEN_HEADERS:
        scheme, _, token = request.headers.get(header, "").partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            return token.strip()
    raise Unauthenticated("not logged in: send `Authorization: Bearer <token>`")


async def allocation_or_user(
    request: Request, _: Annotated[object, Security(_bearer)] = None
) -> Principal:
    """Any valid token; ``principal.allocation`` is set when a training process asks, ``principal.run`` when
    one outside of the cluster does."""
    auth: Authenticator = request.app.state.auth
    found = await auth.principal(bearer_token(request))
    run = RunRef.read(request.cookies.get(RUN_COOKIE, ""))
    if run is not None and found.allocation is None:
        return await auth.in_run(found, run)
    return found


async def current_user(
    principal: Annotated[Principal, Depends(allocation_or_user)],
) -> Principal:
    """Who acts as a user: a user, an agent, or a training process for its experiment's owner."""
    return principal


async def agent_auth(request: Request, _: Annotated[object, Security(_bearer)] = None) -> Principal:
    """Agents and flows only."""
    auth: Authenticator = request.app.state.auth
    if not auth.is_agent(bearer_token(request)):
        raise Unauthenticated("this address is for agents: send the cluster's agent token")
    return await auth.agent()


CurrentUser = Annotated[Principal, Depends(current_user)]
AllocationOrUser = Annotated[Principal, Depends(allocation_or_user)]
AgentAuth = Annotated[Principal, Depends(agent_auth)]
