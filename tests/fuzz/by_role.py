"""Guests with roles: a Viewer and an Editor of one workspace, and a user without any, in mode ``rbac``.

Each asks for the things of that workspace and of another one. No answer may hold a mark of a workspace that
its guest does not see, and no row may change that its guest may not change.
"""

from __future__ import annotations

import asyncio
import random
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import httpx
from fastapi import FastAPI

from determined_service.access.sessions import open_session
from determined_service.base.db import Database
from tests.fuzz.guests import Service, differences, rows_of
from tests.fuzz.health import Watch
from tests.fuzz.run import AT_ONCE, PATIENCE_S, RENEW_AFTER, Report, check_log, send
from tests.fuzz.traffic import Traffic
from tests.integration.roles import give, user_id
from tests.integration.service_api import test_scope
from tests.integration.service_api.test_scope import fill
from tests.integration.service_api.test_who_may import Mine
from tests.integration.service_api.world import World

VIEWER, EDITOR, NEWCOMER = "Viewer", "Editor", "without a role"
ROLES = (VIEWER, EDITOR, NEWCOMER)
USERS = {VIEWER: "the-viewer", EDITOR: "the-editor", NEWCOMER: "the-newcomer"}


@dataclass(frozen=True)
class InScope(Mine):
    """Things of one workspace, as requests name them."""

    scope: test_scope.Mine | None = None

    @property
    def path(self) -> dict[str, Any]:
        assert self.scope is not None
        return {**super().path, **self.scope.path}


def _named(scope: test_scope.Mine) -> InScope:
    return InScope(
        scope.leg,
        scope.checkpoint,
        scope.user_id,
        scope.word,
        scope.tasks,
        1,
        scope.workspace_id,
        scope.project_id,
        scope,
    )


class People:
    """The guests, and two workspaces: ``inside``, where they have their roles, and ``outside``."""

    def __init__(self, service: Service, db: Database) -> None:
        state = types.SimpleNamespace(db=db)
        self.db = db
        self.world = World(cast(FastAPI, types.SimpleNamespace(state=state)), service.url)
        self.tokens: dict[str, str] = {}
        self.inside: test_scope.Mine
        self.outside: test_scope.Mine
        self._marks: dict[str, list[str]] = {name: [] for name in ROLES}
        self._names: Iterator[str] = (
            f"zq{letter}{n:04d}qz" for n in range(10_000) for letter in "ab"
        )

    async def renew(self) -> None:
        """New workspaces, roles and logins: earlier requests may have ended them."""
        self.inside, self.outside = [await fill(self.world, next(self._names)) for _ in range(2)]
        await self.world.close()
        for role, username in USERS.items():
            if role != NEWCOMER:
                await give(self.world.app, username, role, self.inside.workspace_id)
            await self.log_in(role)
            self._marks[role] += self.outside.marks
            if role == NEWCOMER:
                self._marks[role] += self.inside.marks

    async def log_in(self, role: str) -> None:
        own = await user_id(self.world.app, USERS[role])
        async with self.db.tx() as conn:
            self.tokens[role] = await open_session(conn, own, 1)

    def marks(self, role: str) -> list[str]:
        """What no answer to this guest may hold."""
        return self._marks[role]

    async def rows(self, role: str) -> dict[str, list[str]]:
        """What requests of this guest may not change."""
        found = await rows_of(self.db, self.outside.user_id)
        if role != EDITOR:
            kept = await rows_of(self.db, self.inside.user_id)
            found |= {f"{name} inside": rows for name, rows in kept.items()}
        return found


async def attack_by_role(service: Service, count: int, seed: int) -> Report:
    """Sends ``count`` requests, an equal number for each guest."""
    report = Report()
    begun = time.monotonic()
    db = Database(service.db_url)
    try:
        people = People(service, db)
        with Watch(service.host, service.port) as watch:
            async with httpx.AsyncClient(base_url=service.url, timeout=PATIENCE_S) as client:
                openapi = (await client.get("/openapi.json")).json()
                for place, role in enumerate(ROLES):
                    traffic = Traffic(openapi, random.Random(f"{seed} {role}"))
                    left = count // len(ROLES) + (place < count % len(ROLES))
                    while left > 0:
                        await people.renew()
                        before = await people.rows(role)
                        size = min(left, RENEW_AFTER)
                        await _burst(client, people, role, traffic, size, report)
                        report.changed += differences(before, await people.rows(role))
                        left -= size
    finally:
        await db.close()
    report.seconds = time.monotonic() - begun
    report.health, report.idle = watch.found, watch.idle
    check_log(service, report)
    return report


async def _burst(
    client: httpx.AsyncClient,
    people: People,
    role: str,
    traffic: Traffic,
    count: int,
    report: Report,
) -> None:
    left = count
    things = [_named(people.inside), _named(people.outside)]

    async def one_after_the_other() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            request = traffic.next(traffic.draw.choice(things))
            await send(client, people.tokens[role], role, request, report, people.marks(role))
            if "/logout" in request.url or "/password" in request.url:
                await people.log_in(role)

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))
