"""Decides who may use which port through the proxy: its process asks, and the rules of all requests apply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire import gate
from determined_registry.database.tables import allocation_ports, allocations
from determined_service.access import visits
from determined_service.access.authenticator import Authenticator
from determined_service.access.principal import Principal
from determined_service.access.rules import Action, authorise
from determined_service.access.targets import OWNED_TASKS, Kind, Target, owner_of
from determined_service.access.visible import is_hidden, seen_by
from determined_service.base import hosts
from determined_service.base.db import Database, seeing
from determined_service.base.errors import ApiError, Forbidden, NotFound
from determined_service.base.pages import of_service
from determined_service.base.settings import Settings
from determined_service.lifecycle import idle
from determined_service.lifecycle.kinds.table import facts_of
from determined_service.proxy.answers import Refusal
from determined_service.proxy.names import Key
from determined_service.proxy.questions import Route
from determined_service.scheduling.queue import Queue
from determined_service.scheduling.wording import in_words
from determined_service.state import states

_TASK = sa.text(f"SELECT {OWNED_TASKS} WHERE k.id = :task_id")
_PORTS = (
    sa.select(allocation_ports)
    .where(allocation_ports.c.task_id == sa.bindparam("task_id"))
    .order_by(allocation_ports.c.name)
)
_LATEST = (
    sa.select(allocations)
    .where(allocations.c.task_id == sa.bindparam("task_id"))
    .order_by(allocations.c.requested_at.desc())
    .limit(1)
)


class Decisions:
    """Answers the questions of one proxy process."""

    def __init__(self, db: Database, auth: Authenticator, queue: Queue, settings: Settings) -> None:
        self._db = db
        self._auth = auth
        self._queue = queue
        self._settings = settings

    async def enter(self, key: Key, ticket: str, login: str | None = None) -> str | Refusal:
        """The cookie for a ticket. ``login``: of a browser at the service's own pages, of whose session the
        ticket must be; None: any session's is good, at the task's own host name."""
        if login is not None:
            try:
                await self._auth.of_pages(login, hosts.FRONT)
            except ApiError as refusal:
                return Refusal(refusal.status, refusal.message)
        async with self._db.tx() as conn:
            cookie = await visits.use_ticket(conn, ticket, key.task_id, key.port, login)
        if cookie is None:
            text = "this way in was used before, or is older than a minute: open the task again"
            return Refusal(401, text, link=self._login(key))
        return cookie

    async def route(self, key: Key, bearer: str, cookies: list[str]) -> Route | Refusal:
        """The route of ``key`` for these credentials, or the reason of a refusal."""
        try:
            subject = await self._auth.principal(bearer) if bearer else None
        except ApiError as refusal:
            return Refusal(refusal.status, refusal.message)
        async with self._db.tx() as conn:
            if subject is None and cookies:
                subject = await visits.find_visitor(
                    conn, cookies, key.task_id, key.port, self._auth.has_roles
                )
            task, ports = await self._found(conn, subject, key)
            port = _chosen(ports, key.port)
            if subject is None and not (port is not None and port.unauthenticated):
                return Refusal(401, self._log_in(key), link=self._login(key))
            if subject is not None:
                try:
                    _admit(subject, key, task, ports)
                except Forbidden as refusal:
                    return Refusal(refusal.status, refusal.message)
                except NotFound as refusal:
                    return Refusal(refusal.status, refusal.message.removeprefix("not found: "))
            assert task is not None
            if port is None:
                return await self._not_there(conn, task)
        if not port.ready:
            return Refusal(502, f"Task {key.task_id} starts: {port.waits_for}.", again=True)
        return Route(
            port.address,
            port.port,
            port.tcp,
            port.keep_prefix,
            port.allocation_id,
            0 if subject is None else subject.user_id,
            self._gate(port) if port.behind else "",
        )

    async def _found(
        self, conn: AsyncConnection, subject: Principal | None, key: Key
    ) -> tuple[sa.Row[Any] | None, Sequence[Any]]:
        """The task and its ports, if the subject sees them."""
        seen = None if subject is None else seen_by(subject)
        if seen is None:
            return await _find(conn, key)
        with seeing(seen):
            async with self._db.tx() as narrowed:
                return await _find(narrowed, key)

    def _gate(self, port: sa.Row[Any]) -> str:
        token = self._settings.agent_token.get_secret_value()
        return gate.key(token, port.allocation_id, port.name).hex()

    async def note_visits(self, task_ids: list[str]) -> None:
        """People were at these tasks a moment ago."""
        async with self._db.tx() as conn:
            await idle.note_visits(conn, task_ids)

    async def _not_there(self, conn: AsyncConnection, task: sa.Row[Any]) -> Refusal:
        """The reason why the task waits, or how it ended."""
        name = f"Task {task.id}"
        facts = (await facts_of(conn, {task.id: task.kind})).get(task.id)
        if facts is None:
            return Refusal(404, f"task {task.id} does not exist")
        if facts.state in states.TERMINAL:
            why = f": {facts.reason}" if facts.reason else ""
            return Refusal(502, f"{name} has ended ({facts.state.lower()}){why}.")
        live = (await conn.execute(_LATEST, {"task_id": task.id})).first()
        if live is None or live.state == states.TERMINATED:
            why = f": {live.reason}" if live is not None and live.reason else ""
            return Refusal(502, f"{name} does not run now{why}.", again=True)
        if live.state == states.REQUESTED:
            return Refusal(502, f"{name} is queued: {await self._why_queued(live)}.", again=True)
        if live.state == states.ASSIGNED:
            return Refusal(
                502,
                f"{name} starts: agent {live.agent_id} prepares it (files, packages, its image).",
                again=True,
            )
        return Refusal(
            404,
            f"{name} runs and serves no port: its configuration names none (environment.proxy_ports).",
        )

    async def _why_queued(self, allocation: sa.Row[Any]) -> str:
        seen = await self._queue.look()
        for one in seen.decision.waiting:
            if one.request.id == allocation.id:
                return in_words(one).rstrip(".")
        return f"it waits for slots in resource pool {allocation.resource_pool}"

    def _log_in(self, key: Key) -> str:
        return (
            f"Task {key.task_id} requires a login: send `Authorization: Bearer <token>`, "
            "or open it in a browser by det"
        )

    def _login(self, key: Key) -> str:
        return f"{of_service(self._settings)}/task-login?task={quote(str(key))}"


async def require_way(conn: AsyncConnection, subject: Principal, key: Key) -> None:
    """Raises NotFound or Forbidden where the subject would be refused at the host name of ``key``."""
    _admit(subject, key, *await _find(conn, key))


async def _find(conn: AsyncConnection, key: Key) -> tuple[sa.Row[Any] | None, Sequence[Any]]:
    """The task, and its ports; None: there is no such task."""
    task = (await conn.execute(_TASK, {"task_id": key.task_id})).first()
    return task, (await conn.execute(_PORTS, {"task_id": key.task_id})).all() if task else []


def _admit(subject: Principal, key: Key, task: sa.Row[Any] | None, ports: Sequence[Any]) -> None:
    """Raise unless the subject may use the port of the task. A port that does not exist (yet) is reported to
    all who may read the task.

    Raises NotFound, Forbidden.
    """
    owner = None if task is None else owner_of(task)
    if task is None or is_hidden(subject, Kind.TASK, owner):
        raise NotFound(f"task {key.task_id} does not exist")
    port = _chosen(ports, key.port)
    if port is None:
        authorise(subject, Action.READ, Target(Kind.TASK, task.id))
        if ports:
            known = ", ".join(port.name for port in ports)
            wanted = f"no port {key.port}" if key.port else "no port with an address of its own"
            raise NotFound(f"Task {task.id} has {wanted}; it has {known}: /proxy/{task.id}:<port>/")
    elif not port.unauthenticated:
        action = Action.READ if port.shared else Action.VISIT
        authorise(subject, action, Target(Kind.TASK, task.id, owner))


def _chosen(ports: Any, name: str) -> Any:
    """The port of the name, or the default one; None: there is none."""
    if name:
        return next((port for port in ports if port.name == name), None)
    return next((port for port in ports if port.is_default), None)
