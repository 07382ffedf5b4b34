"""The legs on this machine: started, killed, adopted after a restart of the agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
from collections.abc import Collection, Mapping
from typing import Any

from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.fork_server import ForkServer, ForkServerError
from determined_deployments.agent.learning import Learning
from determined_deployments.agent.processes import Child, watch
from determined_deployments.agent.service_client import ServiceClient
from determined_tasks.context_dir import ALLOCATIONS
from determined_tasks.leg import KILL_SIGNAL
from determined_tasks.supervision import LegRecord, lock

logger = logging.getLogger(__name__)

SUPERVISE = "determined_tasks.leg:supervise"
STOP_SECONDS = 10.0


class Legs:
    """The supervisors that run here. ``running`` are the allocations the service is told about.

    A supervisor reports its leg's exit itself; only for one that died without doing so the report comes
    from here.
    """

    def __init__(
        self,
        config: AgentConfig,
        forks: ForkServer,
        service: ServiceClient,
        imported: Collection[str] = (),
    ) -> None:
        self._config = config
        self._forks = forks
        self._service = service
        self._children: dict[str, Child | None] = {}
        self._killed: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._learning = Learning(forks, config.work_dir, self._fetch, imported)
        self._uuids = config.device_uuids()

    async def _fetch(self, model_def_hash: str) -> bytes:
        return await self._service.get_bytes(f"/internal/v1/model_defs/{model_def_hash}")

    @property
    def running(self) -> list[str]:
        return list(self._children)

    def adopt(self) -> None:
        """Finds the supervisors that an earlier agent process left, and clears up after dead ones."""
        root = self._config.work_dir / ALLOCATIONS
        for path in root.iterdir() if root.is_dir() else ():
            record = LegRecord.read(path)
            if record is None:
                with lock(path) as free:
                    if free and not (path / "workdir").exists():  # else it is kept for debugging
                        shutil.rmtree(path, ignore_errors=True)
                continue
            child = Child(record.supervisor.pid, record.supervisor)
            self._children[record.allocation_id] = child
            self._spawn(watch(child))
            self._spawn(self._follow(record.allocation_id, child))

    def launch(self, spec: Mapping[str, Any]) -> None:
        """Starts a leg; an allocation that runs already is left alone."""
        allocation_id = str(spec["allocation_id"])
        if allocation_id not in self._children:
            self._children[allocation_id] = None
            self._spawn(self._launch(allocation_id, spec))

    async def _launch(self, allocation_id: str, spec: Mapping[str, Any]) -> None:
        place = {
            "work_dir": str(self._config.work_dir),
            "master": self._config.master_url,
            "agent_token": self._config.agent_token.get_secret_value(),
            "agent_id": self._config.agent_id,
            "slot_type": self._config.slot_type,
            "slots": len(self._config.slot_list()),
            "device_uuids": self._uuids,
        }
        names, learn_into = self._learning.before_leg(spec)
        order = {"spec": dict(spec), "place": place, "learn_into": learn_into}
        await self._learning.settle(spec)
        try:
            child = await self._forks.fork(names, SUPERVISE, order)
        except ForkServerError:
            logger.warning("%s: the fork server ended, trying again", allocation_id)
            child = await self._forks.fork(names, SUPERVISE, order)
        self._children[allocation_id] = child
        if allocation_id in self._killed:
            child.send_signal(KILL_SIGNAL)
        await self._follow(allocation_id, child)
        self._learning.after_leg(spec)

    async def _follow(self, allocation_id: str, child: Child) -> None:
        status = await child.ended
        path = self._config.work_dir / ALLOCATIONS / allocation_id
        record = LegRecord.read(path)
        # A record of another supervisor: this one came second and left the allocation alone.
        if status != 0 and (record is None or record.supervisor.pid == child.pid):
            await self._report_loss(allocation_id, record, status)
        self._children.pop(allocation_id, None)
        self._killed.discard(allocation_id)

    async def _report_loss(
        self, allocation_id: str, record: LegRecord | None, status: int | None
    ) -> None:
        if status is None and record is None:
            return  # adopted, and it tidied up as it does after its report
        if record is not None:
            await asyncio.to_thread(record.clear_up)
        reason = "the process that supervised the training died"
        logger.warning("%s: %s (%s)", allocation_id, reason, status)
        await self._service.post_until_taken(
            f"/internal/v1/allocations/{allocation_id}/exit",
            {"exit_code": None, "signal": None, "kind": "infrastructure", "reason": reason},
        )
        path = self._config.work_dir / ALLOCATIONS / allocation_id
        shutil.rmtree(path, ignore_errors=True)

    def kill(self, allocation_id: str) -> None:
        """Ends a leg; may be repeated."""
        child = self._children.get(allocation_id)
        if allocation_id not in self._killed:
            self._killed.add(allocation_id)
            if child is not None:
                child.send_signal(KILL_SIGNAL)

    async def settle_kills(self, timeout: float = 0.05) -> None:
        """Gives killed legs a moment to end: asked now, the service would only repeat itself."""
        ending = [
            child.ended
            for allocation_id in self._killed
            if (child := self._children.get(allocation_id)) is not None and child.is_running
        ]
        if ending:
            await asyncio.wait(ending, timeout=timeout)

    async def stop(self) -> None:
        """Ends all legs with the agent; their supervisors report it."""
        children = [child for child in self._children.values() if child is not None]
        for child in children:
            child.send_signal(signal.SIGTERM)
        if children:
            await asyncio.wait([child.ended for child in children], timeout=STOP_SECONDS)
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a leg's task failed", exc_info=task.exception())
