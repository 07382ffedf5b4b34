"""Replaces Prefect: the flow runs that the keeper makes, in the states that a test sets."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import kept_runs
from determined_service.prefect.gateway import Artifact, RunGone, RunState
from determined_service.prefect.keeper import Keeper


class FakeRuns:
    """``of``: the deployments whose runs a test looks at. ``told``: the states that they were given."""

    def __init__(self, of: str = "") -> None:
        self.of = of
        self.others: set[uuid.UUID] = set()
        self.states: dict[uuid.UUID, str] = {}
        self.keys: dict[str, uuid.UUID] = {}
        self.made: list[str] = []
        self.told: list[tuple[uuid.UUID, str, str, str]] = []
        self.pages: dict[str, str] = {}

    async def create_run(self, deployment: str, *, key: str, name: str, **_: Any) -> uuid.UUID:
        if not deployment.startswith(self.of):
            self.others.add(other := uuid.uuid4())
            return other
        if key not in self.keys:
            self.keys[key] = uuid.uuid4()
            self.made.append(name)
            self.states[self.keys[key]] = "RUNNING"
        return self.keys[key]

    async def read_state(self, run_id: uuid.UUID) -> RunState:
        state = "RUNNING" if run_id in self.others else self.states.get(run_id)
        if state is None:
            raise RunGone(str(run_id))
        return RunState(state, state.title(), None, datetime.datetime.now(datetime.UTC), 1)

    async def set_state(self, run_id: uuid.UUID, type: str, name: str, message: str) -> None:
        self.states[run_id] = type
        self.told.append((run_id, type, name, message))

    async def delete_run(self, run_id: uuid.UUID) -> None:
        self.states.pop(run_id, None)

    async def artifacts(self, run_id: uuid.UUID) -> dict[str, uuid.UUID]:
        return {}

    async def create_artifact(self, run_id: uuid.UUID, artifact: Artifact) -> uuid.UUID:
        self.pages[artifact.called] = str(artifact.data)
        return uuid.uuid4()

    def all_become(self, state: str) -> None:
        self.states = dict.fromkeys(self.states, state)


async def keep(app: FastAPI, runs: FakeRuns) -> None:
    """Has the keeper look at every run that is not settled."""
    async with app.state.db.tx() as conn:
        await conn.execute(sa.update(kept_runs).values(look_at=sa.func.now()))
    await Keeper(app.state.db, runs, app.state.settings).run_pass()
