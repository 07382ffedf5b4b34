"""The legs on this machine: started, killed, adopted after a restart of the agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from determined.common.wire import paths
from determined.common.wire.legs import Exited, ExitKind, LegSpec, of_leg_id
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.held import Held
from determined_deployments.agent.launchers.base import (
    Call,
    Exit,
    Job,
    Launcher,
    LaunchError,
    Running,
)
from determined_deployments.agent.service_client import ServiceClient

# Not from `leg`: a starting agent would import all that a supervisor needs.
from determined_tasks.limits import Limits
from determined_tasks.supervision import KILL_SIGNAL, SUPERVISE

logger = logging.getLogger(__name__)

SUPERVISOR_DIED = "the process that supervised the training died"
"""The reason of an end of which the launcher knows nothing more."""
STOP_SECONDS = 10.0
LAUNCH_AGAIN_SECONDS = 1.0
"""After a start that failed: the service, told that the leg does not run, orders it again."""


class Legs:
    """The supervisors that run here. ``running`` are the legs that the service is told about, by name.

    A supervisor reports its leg's exit itself; when a supervisor died before that, the report comes
    from here.
    """

    def __init__(
        self,
        config: AgentConfig,
        launcher: Launcher,
        service: ServiceClient,
        limits: Limits | None = None,
    ) -> None:
        self._config = config
        self._launcher = launcher
        self._service = service
        self._limits = asdict(limits) if limits is not None else None
        self._legs: dict[str, Held | None] = {}
        self._left: dict[str, str] = {}
        """Why the machines of legs went away that have ended since the service was told last."""
        self._killed: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> list[str]:
        return list(self._legs)

    def waiting(self) -> dict[str, str]:
        """Of the legs that do not run yet, those that wait for something, and for what."""
        return self._asked(self._launcher.waits_for)

    def leaving(self) -> dict[str, str]:
        """The legs whose machine goes away, and why."""
        return {**self._left, **self._asked(self._launcher.leaving)}

    def machines(self) -> dict[str, str]:
        """The machine of each leg whose machine is chosen by the agent's cluster."""
        return self._asked(self._launcher.machine_of)

    def told(self, leaving: Mapping[str, str]) -> None:
        """The service knows what :meth:`leaving` said."""
        for leg_id in leaving:
            self._left.pop(leg_id, None)

    def _asked(self, ask: Callable[[Running], str | None]) -> dict[str, str]:
        told = {
            leg_id: ask(leg.running)
            for leg_id, leg in self._legs.items()
            if leg is not None and not leg.ended.done()
        }
        return {leg_id: words for leg_id, words in told.items() if words is not None}

    def adopt(self, found: Iterable[Running]) -> None:
        """Takes over the supervisors that an earlier agent process left."""
        for running in found:
            leg = self._legs[running.id] = Held(self._launcher, running)
            self._spawn(self._follow(running.id, leg))

    def launch(self, spec: LegSpec) -> None:
        """Starts a leg; an allocation that runs already is left alone."""
        if spec.name not in self._legs:
            self._legs[spec.name] = None
            self._spawn(self._launch(spec))

    async def _launch(self, spec: LegSpec) -> None:
        leg_id, slots = spec.name, self._launcher.slots()
        place = {
            "work_dir": str(self._launcher.work_dir("leg", leg_id)),
            "master": self._config.master_url,
            # A service of the release before gives none.
            "token": spec.supervisor_token or self._config.agent_token.get_secret_value(),
            "agent_id": self._config.agent_id,
            "slot_type": self._config.slot_type,
            "slots": len(slots),
            "device_uuids": {slot.id: slot.device.uuid for slot in slots if slot.device.uuid},
            "limits": self._limits,
            "compiled_bytes": self._config.compiled_code,
            "grace_seconds": self._launcher.grace_seconds,
            **self._config.security_of_tasks(),
        }
        call = Call(SUPERVISE, {"spec": spec.to_json(), "place": place})
        try:
            running = await self._launcher.start(Job("leg", leg_id, call, leg=spec))
        except LaunchError as error:
            logger.error("%s was not started: %s", leg_id, error)
            await asyncio.sleep(LAUNCH_AGAIN_SECONDS)
            self._forget(leg_id)
            return
        leg = self._legs[leg_id] = Held(self._launcher, running)
        if leg_id in self._killed:
            await leg.signal(KILL_SIGNAL)
        await self._follow(leg_id, leg)

    async def _follow(self, leg_id: str, leg: Held) -> None:
        ended = await asyncio.shield(leg.ended)
        if (why := self._launcher.leaving(leg.running)) is not None:
            # Its supervisor may have been faster, which knows of a signal only.
            self._left[leg_id] = why
            self._launcher.changed.set()
        if not ended.in_order:
            await self._report_loss(leg_id, ended)
        await leg.clean_up()
        self._forget(leg_id)

    def _forget(self, leg_id: str) -> None:
        self._legs.pop(leg_id, None)
        self._killed.discard(leg_id)

    async def _report_loss(self, leg_id: str, ended: Exit) -> None:
        logger.warning("%s: %s (%s)", leg_id, SUPERVISOR_DIED, ended)
        allocation_id, node = of_leg_id(leg_id)
        report = Exited(
            kind=ended.kind,
            reason=ended.reason or SUPERVISOR_DIED,
            agent_id=self._config.agent_id,
            node=node,
        )
        if ended.kind not in (ExitKind.INFRASTRUCTURE, ExitKind.UNPLACED):
            # Else code and signal are the supervisor's own, which say nothing about the training process.
            code = ended.number if ended.signal is None else None
            report = replace(report, exit_code=code, signal=ended.signal)
        await self._service.post_until_taken(paths.EXIT.format(allocation_id=allocation_id), report)

    def kill(self, leg_id: str) -> None:
        """Ends a leg; may be repeated."""
        leg = self._legs.get(leg_id)
        if leg_id not in self._killed:
            self._killed.add(leg_id)
            if leg is not None:
                self._spawn(leg.signal(KILL_SIGNAL))

    def ring(self, leg_id: str) -> None:
        """Has the leg's supervisor ask the service for its door; may be repeated."""
        leg = self._legs.get(leg_id)
        if leg is not None:
            self._spawn(self._ring(leg_id, leg))

    async def _ring(self, leg_id: str, leg: Held) -> None:
        if not await self._launcher.ring(leg.running):
            logger.info("%s has no supervisor that opens doors", leg_id)

    async def settle_kills(self, timeout: float = 0.05) -> None:
        """Gives killed legs a moment to end: until then the service would only repeat its orders."""
        ending = [
            leg.ended
            for leg_id in self._killed
            if (leg := self._legs.get(leg_id)) is not None and not leg.ended.done()
        ]
        if ending:
            await asyncio.wait(ending, timeout=timeout)

    async def stop(self) -> None:
        """Ends all legs with the agent; their supervisors report it, within the launcher's
        ``grace_seconds``."""
        legs = [leg for leg in self._legs.values() if leg is not None]
        await asyncio.gather(*(leg.signal(signal.SIGTERM) for leg in legs))
        if legs:
            await asyncio.wait(
                [leg.ended for leg in legs], timeout=self._launcher.grace_seconds or STOP_SECONDS
            )
        await self.leave()

    async def leave(self) -> None:
        """Looks after the legs no more. They go on."""
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
