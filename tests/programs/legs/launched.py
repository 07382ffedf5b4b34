"""Legs by way of a launcher, as an agent starts them, against a service that only writes down."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from determined.common.wire.legs import LegSpec
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.held import Held
from determined_deployments.agent.launchers.base import Call, Exit, Job, Launcher
from determined_deployments.agent.launchers.fork_server.forking import Forked
from determined_tasks import context_dir
from determined_tasks.supervision import SUPERVISE
from tests.programs.legs.fake_service import FakeService, archive, spec
from tests.waiting import TIMEOUT_S

Files = dict[str, str | bytes]


def settings_of(service: FakeService, work_dir: Path, **more: Any) -> AgentConfig:
    """An agent's, with a directory for its work."""
    work_dir.mkdir(parents=True, exist_ok=True)
    own = {"agent_id": "agent-1", "slots": 2, "master_url": service.url, "agent_token": "secret"}
    return AgentConfig.model_validate({**own, "work_dir": work_dir, **more})


class LaunchedLegs:
    def __init__(self, launcher: Launcher, service: FakeService) -> None:
        self.launcher = launcher
        self.service = service
        self.config = launcher.config

    def job(self, files: Files, config: dict[str, Any] | None = None, **fields: Any) -> Job:
        packed = archive(files)
        hash_ = hashlib.sha256(repr(files).encode()).hexdigest()
        self.service.model_defs.setdefault(hash_, packed)
        given = {"model_def_hash": hash_, "config": {"name": "test", **(config or {})}, **fields}
        order = spec(**given)
        place = {
            "work_dir": str(self.config.work_dir),
            "master": self.config.master_url,
            "token": "secret",
            "agent_id": self.config.agent_id,
            "compiled_bytes": self.config.compiled_code,
            "grace_seconds": self.config.grace_seconds,
            **self.config.security_of_tasks(),
        }
        leg = LegSpec.from_json(order)
        return Job(
            "leg", leg.allocation_id, Call(SUPERVISE, {"spec": order, "place": place}), leg=leg
        )

    async def start(self, files: Files, *args: Any, **fields: Any) -> Held:
        return Held(self.launcher, await self.launcher.start(self.job(files, *args, **fields)))

    async def end(self, held: Held) -> dict[str, Any]:
        """Waits for the leg's end; the exit that was reported."""
        ended = await asyncio.wait_for(held.ended, TIMEOUT_S)
        assert ended == Exit(code=0)
        await held.clean_up()
        return self.service.exits[held.running.id]

    async def run(self, files: Files, *args: Any, **fields: Any) -> dict[str, Any]:
        return await self.end(await self.start(files, *args, **fields))

    async def until(self, condition: Callable[[], object]) -> None:
        await asyncio.to_thread(self.service.wait, condition)

    async def said(self, text: str) -> None:
        """Returns once the process has printed it."""
        await self.until(lambda: text in self.service.text("stdout"))

    def folder(self, allocation_id: str = "7.abc.1") -> Path:
        return context_dir.allocation_dir(self.config.work_dir, allocation_id)

    def words(self) -> str:
        """The agent's lines in the log."""
        return self.service.text("stdout", "agent") + self.service.text("stderr", "agent")


def lose(held: Held) -> None:
    """Kills the leg's supervisor, unseen by the launcher."""
    assert isinstance(held.running, Forked)
    os.kill(held.running.child.pid, signal.SIGKILL)
