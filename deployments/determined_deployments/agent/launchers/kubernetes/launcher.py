"""The launcher whose legs are Jobs of a Kubernetes cluster.

Our scheduler decides what may run, Kubernetes where. A leg's supervisor is the main process of a pod, and
reports for itself. This launcher makes the Job and its order (:mod:`starting`), follows both by watches
(:mod:`cluster`), says how they ended and what they wait for (:mod:`ends`), and ends them (:mod:`hands`).
Experiments' flow runs are forks of the agent, as everywhere.

The Job is the record, also of an end that nobody has reported yet: only clean_up() deletes it. A leg that the
agent ends before has a Job with the parallelism 0, so that Kubernetes ends the pod and no controller makes
another; an annotation says how it was ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from signal import Signals
from typing import Any, Self

from determined.common.wire.agents import ContainerRights, Slot
from determined.common.wire.legs import LegSpec
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.base import Call, Exit, Job, Kind, Running, Unusable
from determined_deployments.agent.launchers.fork_server.forking import ForkingLauncher
from determined_deployments.agent.launchers.kubernetes import account, ends, labels, manifest, pod
from determined_deployments.agent.launchers.kubernetes.client import Client, Json, Unconfigured
from determined_deployments.agent.launchers.kubernetes.cluster import Cluster, NoRights
from determined_deployments.agent.launchers.kubernetes.hands import Hands
from determined_deployments.agent.launchers.kubernetes.placed import Placed
from determined_deployments.agent.launchers.kubernetes.starting import Starter

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
"""Between two looks at legs that wait, and at slots."""
SETTLE_SECONDS = 1.5
"""After which a leg whose pod is gone has ended: until then its last state or an event may say why."""
SECOND_SECONDS = 5.0
"""That a second pod of a Job may have, whose start the service refuses: a controller that has not heard yet
makes another for each that is removed, many in a second."""
HOLD_SECONDS = 15.0
"""That a gang is held back for nodes that are another agent's."""


def end_observer() -> None:
    """Has Prefect's observer of Jobs end, if there is one: the process would wait for its thread for ever."""
    observer = sys.modules.get("prefect_kubernetes.observer")
    stop = getattr(observer, "_stop_flag", None)
    if stop is not None:
        stop.set()


class KubernetesLauncher(ForkingLauncher):
    """One agent stands for one resource pool: a namespace and a node selector."""

    worker_type = "determined-kubernetes"
    worker = "determined_deployments.agent.launchers.kubernetes.worker:DeterminedKubernetesWorker"
    limits_legs = True
    keeps_legs = True

    def __init__(self, config: AgentConfig, fetch: Callable[[str], Awaitable[bytes]]) -> None:
        super().__init__(config, fetch)
        settings = self._settings = config.kubernetes
        kubeconfig = str(settings.kubeconfig) if settings.kubeconfig else None
        self._client = Client(kubeconfig, settings.context, settings.requests_per_second)
        self._cluster = Cluster(self._client, config, self._has_changed)
        self._hands = Hands(self._client, config)
        self._legs: dict[str, Placed] = {}
        """By the names of their Jobs."""
        self._slots: list[Slot] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._block = contextlib.AsyncExitStack()

    @classmethod
    def leg_zygote(cls) -> None:
        return None

    def rights(self) -> ContainerRights:
        return account.told_rights(self.config)

    def work_dir(self, kind: Kind, id_: str) -> Path:
        return Path(pod.WORK_DIR) if kind == "leg" else super().work_dir(kind, id_)

    def slots(self) -> list[Slot]:
        return self._slots

    async def __aenter__(self) -> Self:
        try:
            await self._block.enter_async_context(self._client)
            self._block.push_async_callback(self._end_tasks)
            features = await self._client.features()
            self._starter = Starter(self._client, self.config, features)
            for watched in self._cluster.watches:
                self._spawn(watched.run())
            await self._cluster.synced()
            await super().__aenter__()
            self._block.push_async_exit(super().__aexit__)
        except (Unconfigured, NoRights) as error:
            await self._block.aclose()
            raise Unusable(f"launcher kubernetes: {error}") from error
        except BaseException:
            await self._block.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        end_observer()
        await self._block.aclose()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("something about a leg's pod failed", exc_info=task.exception())

    def _do(self, leg: Placed, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begins ``work`` on the leg unless the same is being done already."""
        if name in leg.busy:
            return
        leg.busy.add(name)

        async def run() -> None:
            try:
                await work()
            finally:
                leg.busy.discard(name)

        self._spawn(run())

    # Taking over.

    async def adopt(self) -> list[Running]:
        found = await super().adopt()
        jobs = list(self._cluster.jobs.objects.values())
        await self._starter.settle_secrets(labels.selector(self.config.agent_id), jobs)
        for job in jobs:
            leg = await self._adopted(job)
            if leg is not None:
                self._legs[leg.identifier] = leg
                found.append(leg)
        self._recount()
        for leg in list(self._legs.values()):
            self._look(leg)
        self._spawn(self._tick())
        return found

    async def _adopted(self, job: Json) -> Placed | None:
        """None: nobody can say what it is. Then it is removed."""
        name = job["metadata"]["name"]
        try:
            leg = Placed.adopted(job)
        except (KeyError, ValueError) as error:
            logger.warning("removing Job %s, whose leg is unknown: %r", name, error)
            await self._starter.delete(name)
            return None
        for one in self._cluster.pods_of(leg.uid):
            leg.saw(one)
        self._cluster.hold_slots(leg.machine, leg.slot_ids)
        return leg

    # Starting.

    async def start_leg(self, job: Job, program: Call) -> Running:
        spec = job.leg or _spec_of(job)
        job = replace(job, leg=spec)
        name = manifest.name_of(spec, self.config)
        leg = Placed.of(job, spec, name)
        if name in self._legs:
            leg.is_second = True
            leg.end(Exit(code=0))
            return leg
        self._legs[name] = leg
        try:
            if not await self._starter.start(leg, job):
                logger.info("%s waits: %s", leg.id, leg.words)
                self._do(leg, "room", lambda: self._wait_for_room(leg, job))
        except BaseException:
            self._legs.pop(name, None)
            raise
        self._is_made(leg)
        return leg

    async def _wait_for_room(self, leg: Placed, job: Job) -> None:
        self.changed.set()
        await self._starter.wait_for_room(leg, job)
        self._is_made(leg)

    def _is_made(self, leg: Placed) -> None:
        """The watches may have told of its pod before its uid was known here."""
        if leg.uid and not leg.ended.done():
            self._do(leg, "own", lambda: self._starter.own_secrets(leg))
            for one in self._cluster.pods_of(leg.uid):
                leg.saw(one)
            self._look(leg)

    # What the watches tell.

    def _has_changed(self, name: str, uid: str, found: Json | None) -> None:
        leg = self._legs.get(name)
        if leg is None or not leg.uid or (uid and uid != leg.uid):
            return
        if (job := self._cluster.jobs.objects.get(leg.uid)) is not None:
            leg.job, leg.is_listed = job, True
        second = found is not None and not leg.saw(found) and not ends.is_ending(found)
        self._look(leg)
        if found is not None and second:
            pod_name = found["metadata"]["name"]
            self._do(leg, f"second {pod_name}", lambda: self._end_second(leg, pod_name))

    async def _end_second(self, leg: Placed, name: str) -> None:
        logger.warning("%s: %s is a second pod of its Job, removing it", leg.id, name)
        if ends.is_ending(leg.pod) and not leg.is_fenced:
            # Else its controller would make a third; that ends this one itself, once it has heard.
            await self._fence(leg)
            await asyncio.sleep(SECOND_SECONDS)
        await self._hands.kill_pod(name)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for leg in list(self._legs.values()):
                if not leg.has_started or leg.gone_since is not None:
                    self._look(leg)
            if self._cluster.recount:
                self._recount()

    def _recount(self) -> None:
        busy = {number for leg in self._legs.values() if leg.takes_slots for number in leg.slot_ids}
        slots = self._cluster.slots(busy)
        if slots != self._slots:
            self._slots = slots
            self.changed.set()

    def _look(self, leg: Placed) -> None:
        """Draws the conclusions from what is known of the leg now."""
        if leg.ended.done() or not leg.uid:
            return
        sight = self._cluster.sight(leg)
        if (node := ends.node_of(leg.pod)) != leg.node:
            leg.node = node
            self.changed.set()
        if leg.order is None and ends.is_ending(leg.pod):
            # Somebody else ends it: the Job's controller would make another pod, also of one that has ended.
            if not leg.is_fenced:
                self._do(leg, "fence", lambda: self._fence(leg))
            # Events that say why may come after the news of the pod.
            if leg.has_started and (why := ends.why_gone(sight)) != leg.leaving:
                leg.leaving = why
                self.changed.set()
        ended = ends.end(sight)
        if ended is not None:
            self._has_ended(leg, ended, ends.has_started(leg.pod) and not sight.pod_gone)
            return
        leg.gone_since = None
        if leg.order is None:
            self._look_at_wait(leg, ends.waits(sight))

    def _has_ended(self, leg: Placed, ended: Exit, is_sure: bool) -> None:
        now = time.monotonic()
        if not ended.in_order and not is_sure:
            leg.gone_since = leg.gone_since or now
            if not leg.is_fenced:
                self._do(leg, "fence", lambda: self._fence(leg))
            if now - leg.gone_since < SETTLE_SECONDS:
                return
        node_is_lost = self._cluster.sight(leg).node is not None
        if ended.in_order or leg.order is not None or not is_sure or node_is_lost:
            leg.end(ended)
        else:
            self._do(leg, "log", lambda: self._end_with_log(leg, ended))

    async def _end_with_log(self, leg: Placed, ended: Exit) -> None:
        leg.end(ends.with_log(ended, await self._hands.log_tail(leg)))

    def _look_at_wait(self, leg: Placed, wait: ends.Wait | None) -> None:
        if leg.is_held and self._settings.queueing is None:
            self._look_at_gang(leg)
            wait = ends.Wait("the other nodes of its gang are not there yet")
        now = time.monotonic()
        leg.stuck_since = None if wait is None else leg.stuck_since or now
        words = None if wait is None else wait.words
        if words != leg.words:
            leg.words = words
            self.changed.set()
        if wait is None or leg.stuck_since is None:
            return
        limit = self._settings.unplaced_after
        if wait.at_once or now - leg.stuck_since > limit:
            words = wait.words or "Kubernetes has not started its pod"
            late = "" if wait.at_once else f" (not placed within {limit:.0f} s)"
            self._withdraw(leg, Exit(kind=wait.kind, reason=f"{words}{late}"))

    def _withdraw(self, leg: Placed, end: Exit) -> None:
        """Ends a leg that does not run, and with it the other nodes of its gang: all of them run or none."""
        for other in self._of_allocation(leg):
            told = end
            if other is not leg:
                told = replace(end, reason=f"another node of its gang: {end.reason}")
            self._order(other, told)

    def _of_allocation(self, leg: Placed) -> list[Placed]:
        return [
            one
            for one in self._legs.values()
            if one.allocation == leg.allocation and not one.ended.done() and not one.is_second
        ]

    def _look_at_gang(self, leg: Placed) -> None:
        """Lets the pods of a gang go when all are there, or when those that lack are not this agent's."""
        legs = self._of_allocation(leg)
        held = [one for one in legs if one.is_held]
        complete = leg.nodes > 0 and len(legs) >= leg.nodes and len(held) == len(legs)
        if complete or time.monotonic() - leg.began > HOLD_SECONDS:
            for one in held:
                self._do(one, "release", lambda one=one: self._hands.release(one))  # type: ignore[misc]

    # The agent's verbs.

    @property
    def grace_seconds(self) -> float | None:
        return float(self._settings.termination_grace)

    def waits_for(self, running: Running) -> str | None:
        return running.words if isinstance(running, Placed) else super().waits_for(running)

    def leaving(self, running: Running) -> str | None:
        return running.leaving if isinstance(running, Placed) else super().leaving(running)

    def machine_of(self, running: Running) -> str | None:
        return running.node if isinstance(running, Placed) else super().machine_of(running)

    async def wait(self, running: Running) -> Exit:
        if not isinstance(running, Placed):
            return await super().wait(running)
        return await asyncio.shield(running.ended)

    def _order(self, leg: Placed, end: Exit) -> None:
        """Ends the leg; what its supervisor says by its own exit code counts more than ``end``."""
        if leg.ended.done():
            return
        if not leg.uid:
            leg.end(end)  # no Job is made yet
            return
        leg.order = end
        self._do(leg, f"order {end}", lambda: self._fence(leg))

    async def signal(self, running: Running, number: Signals) -> None:
        if not isinstance(running, Placed):
            await super().signal(running, number)
        elif not running.ended.done():
            leg = running
            if number == signal.SIGKILL:
                self._do(leg, "kill", lambda: self._kill(leg, Exit(signal=number)))
            elif number == signal.SIGTERM:
                self._order(leg, Exit(signal=number, reason="ended together with its agent"))
            else:
                self._do(leg, "notify", lambda: self._notify(leg, number))

    async def _kill(self, leg: Placed, end: Exit) -> None:
        if not leg.uid:
            leg.end(end)
            return
        leg.order = end
        # First: else the pod would be replaced.
        await self._fence(leg)
        if leg.pod is not None and not leg.ended.done():
            await self._hands.kill_pod(leg.pod["metadata"]["name"])

    async def _fence(self, leg: Placed) -> None:
        if not await self._hands.fence(leg):
            leg.is_listed = True  # it was, and is no more
            self._look(leg)

    async def _notify(self, leg: Placed, number: Signals) -> None:
        # Its pod may run already, before the watch has said so.
        if not leg.has_started and not await self._hands.try_to_notify(leg, number):
            self._order(leg, Exit(signal=number, reason=ends.NEVER_RAN))
            # Its pod may have begun meanwhile.
            await asyncio.wait([leg.ended], timeout=SETTLE_SECONDS)
        if leg.ended.done() or await self._hands.notify(leg, number) or leg.ended.done():
            return
        if ends.is_running(leg.pod):
            logger.warning("%s: its supervisor is not reached, ending its pod", leg.id)
            await self._kill(leg, Exit(signal=signal.SIGKILL, reason="as asked for"))

    async def ring(self, running: Running) -> bool:
        if not isinstance(running, Placed):
            return await super().ring(running)
        if running.ended.done():
            return False
        return await self._hands.ring(running)

    async def clean_up(self, running: Running) -> None:
        if not isinstance(running, Placed):
            await super().clean_up(running)
        elif not running.is_second:
            await self._remove(running)

    async def _remove(self, leg: Placed) -> None:
        sight = self._cluster.sight(leg)
        if leg.uid:
            await self._starter.remove(leg)
        if leg.pod is not None and sight.node is not None and not sight.pod_gone:
            # No node says any more that it has ended.
            await self._hands.kill_pod(leg.pod["metadata"]["name"], grace=0)
        if self._legs.get(leg.identifier) is leg:
            del self._legs[leg.identifier]
        self._cluster.recount = True


def _spec_of(job: Job) -> LegSpec:
    """Of a leg whose program is not the service's order."""
    return LegSpec(job.id, job.id, "", "", "", leg_id=job.id)
