from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from determined_deployments.agent.agent import AgentRunner
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.fork_server import plans
from tests.programs.legs.fake_service import FakeService, archive
from tests.waiting import TIMEOUT_S


class FakeControl(FakeService):
    """Also hands out work: repeats the orders in ``launch`` and ``kill`` until they are done."""

    def __init__(self) -> None:
        super().__init__()
        self.launch: dict[str, dict[str, Any]] = {}
        self.kill: set[str] = set()
        self.kill_at_register: list[str] = []
        self.session: str | None = None
        self.registrations: list[dict[str, Any]] = []
        self.polls: list[dict[str, Any]] = []
        self.prefect_poll_seq = 0
        self.answers["register"] = self._register
        self.answers["work"] = self._work
        self.states: list[dict[str, Any]] = []
        self.answers["state"] = self._state
        self.signed_off: list[str] = []
        self.answers["sign-off"] = self._sign_off
        self.model_defs["d1"] = archive({"train.py": "print('trained')"})

    def _register(self, body: dict[str, Any]) -> tuple[int, Any]:
        with self.changed:
            self.session = body["session"]
            self.registrations.append(body)
            self.changed.notify_all()
        return 200, {"cluster_id": "c", "heartbeat_s": 5.0, "kill": self.kill_at_register}

    def _state(self, body: dict[str, Any]) -> tuple[int, Any]:
        with self.changed:
            self.states.append(body)
            self.changed.notify_all()
        return 200, {}

    def _sign_off(self, body: dict[str, Any]) -> tuple[int, Any]:
        with self.changed:
            self.signed_off.append(body["session"])
            self.changed.notify_all()
        return 200, {}

    def _work(self, body: dict[str, Any]) -> tuple[int, Any]:
        with self.changed:
            self.polls.append(body)
            if body["session"] != self.session:
                return 409, {"error": {"error": "register first"}}
            self.changed.notify_all()
            self.changed.wait_for(lambda: self._due(body["running"]), 0.3)
            launch, kill = self._due(body["running"]) or ([], [])
        return 200, {"launch": launch, "kill": kill, "prefect_poll_seq": self.prefect_poll_seq}

    def _due(self, running: list[str]) -> tuple[list[Any], list[str]] | None:
        ended = {
            id_ if end.get("node") is None else f"{id_}.n{end['node']}"
            for id_, end in self.exits.items()
        }
        launch = [
            spec for id_, spec in self.launch.items() if id_ not in running and id_ not in ended
        ]
        kill = [id_ for id_ in running if id_ in self.kill or id_ in ended]
        return (launch, kill) if launch or kill else None

    def start(self, spec: dict[str, Any]) -> None:
        with self.changed:
            self.launch[spec["allocation_id"]] = spec
            self.changed.notify_all()

    def end(self, allocation_id: str) -> None:
        with self.changed:
            self.kill.add(allocation_id)
            self.changed.notify_all()

    async def until(self, condition: Any) -> None:
        """Waits without blocking the agent's event loop."""
        await asyncio.to_thread(self.wait, condition)


@pytest.fixture
def control() -> Iterator[FakeControl]:
    service = FakeControl()
    yield service
    service.close()


@pytest.fixture
def config(control: FakeControl, tmp_path: Path) -> AgentConfig:
    return AgentConfig.model_validate(
        {
            "agent_id": "agent-1",
            "slots": 2,
            "master_url": control.url,
            "agent_token": "secret",
            "work_dir": tmp_path / "agent",
        }
    )


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import takes seconds, and nothing here is about it."""
    monkeypatch.setattr(plans, "TRIAL_OPTIONAL", [])


@contextlib.asynccontextmanager
async def running(config: AgentConfig) -> AsyncIterator[AgentRunner]:
    """An agent in this process."""
    agent = AgentRunner(config)
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        agent.stop()
        await asyncio.wait_for(task, TIMEOUT_S)
