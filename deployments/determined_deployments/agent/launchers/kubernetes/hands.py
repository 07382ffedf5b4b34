"""What is done to a leg's Job and pod once they are there."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from signal import Signals

from determined.expconf.pod_spec import TRIAL_CONTAINER
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.kubernetes import ends, pod
from determined_deployments.agent.launchers.kubernetes.client import (
    BATCH,
    CORE,
    NOT_FOUND,
    ApiError,
    Client,
    Json,
    Unreachable,
)
from determined_deployments.agent.launchers.kubernetes.placed import Placed
from determined_tasks.context_dir import allocation_dir

logger = logging.getLogger(__name__)

NOTIFY_SECONDS = 0.5
NOTIFY_FAILURES = 10
"""Tries to reach a supervisor that fail in a row before its pod is ended instead."""
ENDING_FAILURES = 2
"""The same of a pod that ends anyway: its container may be gone already."""
RING_TRIES = 5
LOG_LINES = 20
LOG_BYTES = 8192
LOG_SECONDS = 20.0
KILL_GRACE_SECONDS = 1
"""Not 0: with that the server forgets the pod before its node has ended it."""


class Hands:
    """Every method may be repeated, and does nothing to what is gone."""

    def __init__(self, client: Client, config: AgentConfig) -> None:
        self._client = client
        namespace = self._namespace = config.kubernetes.namespace
        self._jobs = f"{BATCH}/namespaces/{namespace}/jobs"
        self._pods = f"{CORE}/namespaces/{namespace}/pods"

    async def fence(self, leg: Placed) -> bool:
        """Has the Job's pod ended in its own time, and no other made; notes ``leg.order``, if there is one.
        False: there is no such Job any more."""
        change: Json = {"spec": {"parallelism": 0}}
        if leg.order is not None:
            change["metadata"] = {"annotations": {ends.END: ends.end_text(leg.order)}}
        return await self._unless_gone("PATCH", f"{self._jobs}/{leg.identifier}", body=change)

    async def kill_pod(self, name: str, grace: int = KILL_GRACE_SECONDS) -> None:
        await self._unless_gone(
            "DELETE", f"{self._pods}/{name}", query={"gracePeriodSeconds": grace}
        )

    async def release(self, leg: Placed) -> None:
        """Lets a pod that was held back for its gang be placed."""
        if leg.is_suspended:
            path = f"{self._jobs}/{leg.identifier}"
            await self._unless_gone("PATCH", path, body={"spec": {"suspend": False}})
        elif leg.pod is not None:
            path = f"{self._pods}/{leg.pod['metadata']['name']}"
            await self._unless_gone("PATCH", path, body={"spec": {"schedulingGates": []}})

    async def _unless_gone(self, method: str, path: str, **given: Json) -> bool:
        try:
            await self._client.request(method, path, **given)  # type: ignore[arg-type]
        except ApiError as error:
            if error.status == NOT_FOUND:
                return False
            logger.warning("%s %s: %s", method, path, error)
        return True

    async def notify(self, leg: Placed, number: Signals) -> bool:
        """Sends the signal to the supervisor, once it heeds it. False: it does not run, or is not reached."""
        failures = 0
        while not leg.ended.done() and ends.is_running(leg.pod):
            told = await self.try_to_notify(leg, number)
            if told:
                return True
            # A supervisor that is not there yet will come.
            failures = failures + 1 if told is None else 0
            if failures >= (ENDING_FAILURES if ends.is_ending(leg.pod) else NOTIFY_FAILURES):
                return False
            await asyncio.sleep(NOTIFY_SECONDS)
        return False

    async def try_to_notify(self, leg: Placed, number: Signals) -> bool | None:
        """False: no supervisor heeds the signal, yet. None: nothing can be run in its container."""
        command = ["determined_tasks.notify", self._directory(leg), str(int(number))]
        return await self._run(leg, command)

    async def ring(self, leg: Placed) -> bool:
        for _ in range(RING_TRIES):
            rung = await self._run(leg, ["determined_tasks.bell", self._directory(leg)])
            if rung is not None or leg.ended.done() or ends.is_ending(leg.pod):
                break
            # A node learns a moment after its container's start that it has it.
            await asyncio.sleep(NOTIFY_SECONDS)
        return bool(rung)

    async def _run(self, leg: Placed, module: list[str]) -> bool | None:
        """A module of ours in the leg's container, in the supervisor's own interpreter: whether its exit code
        is 0. None: it cannot be run there."""
        if leg.pod is None or ends.node_of(leg.pod) is None:
            return None
        python = "python3"
        for one in leg.pod["spec"]["containers"]:
            if one["name"] == TRIAL_CONTAINER and one.get("command"):
                python = one["command"][0]
        name = leg.pod["metadata"]["name"]
        command = [python, "-m", *module]
        try:
            code, output = await self._client.run(self._namespace, name, TRIAL_CONTAINER, command)
        except (ApiError, Unreachable) as error:
            logger.info("%s is not reached: %s", leg.identifier, error)
            return None
        if output.strip():
            logger.warning("%s: %s: %s", leg.identifier, module[0], ends.said(output))
            return None if code else True
        return code == 0

    @staticmethod
    def _directory(leg: Placed) -> str:
        return str(allocation_dir(Path(pod.WORK_DIR), leg.id))

    async def log_tail(self, leg: Placed) -> str:
        """The last lines of the leg's container, which only say something where no supervisor began."""
        if leg.pod is None:
            return ""
        query = {"container": TRIAL_CONTAINER, "tailLines": LOG_LINES, "limitBytes": LOG_BYTES}
        path = f"{self._pods}/{leg.pod['metadata']['name']}/log"
        try:
            found = await self._client.request("GET", path, query=query, within=LOG_SECONDS)
        except (ApiError, Unreachable):
            return ""
        return str(found.get("text") or "")
