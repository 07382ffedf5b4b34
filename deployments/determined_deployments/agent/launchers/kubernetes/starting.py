"""The creation of a leg's objects: whenever the agent dies, no leg runs twice and nothing is left.

First the Job, then the Secret with the supervisor's order, which the Job owns. Until the Secret is there the
pod waits for it and does nothing: an agent that dies in between leaves a Job without a Secret, which the next
one removes. The Job's name follows from the leg's, so that the server refuses a second one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from determined.common.backoff import Backoff
from determined.common.wire.legs import ExitKind
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.base import Exit, Job, LaunchError
from determined_deployments.agent.launchers.kubernetes import ends, manifest
from determined_deployments.agent.launchers.kubernetes.client import (
    CONFLICT,
    CORE,
    FORBIDDEN,
    NOT_FOUND,
    ApiError,
    Client,
    Json,
    Unreachable,
)
from determined_deployments.agent.launchers.kubernetes.features import Features
from determined_deployments.agent.launchers.kubernetes.placed import Placed

logger = logging.getLogger(__name__)

START_SECONDS = 20.0
"""That a start waits for an API server that is away."""
DELETED_SECONDS = 60.0
"""That a start waits for the Job of an earlier start to be gone."""
QUOTA_SECONDS = (2.0, 30.0)
INVALID = (400, 422)
IN_BACKGROUND = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}


class Starter:
    """Makes what a leg needs in the cluster."""

    def __init__(self, client: Client, config: AgentConfig, features: Features) -> None:
        self._client = client
        self._config = config
        self._settings = config.kubernetes
        self._features = features
        self._jobs = f"/apis/batch/v1/namespaces/{self._settings.namespace}/jobs"
        self._secrets = f"{CORE}/namespaces/{self._settings.namespace}/secrets"

    async def orders(self, selector: str) -> set[str]:
        """The names of the Secrets that agents of this name have made."""
        found, _ = await self._client.list(self._secrets, {"labelSelector": selector})
        return {one["metadata"]["name"] for one in found}

    async def start(self, leg: Placed, job: Job) -> bool:
        """Makes the leg's objects, or ends the leg if they can never be. False: the namespace's quota has
        no room, see :meth:`wait_for_quota`. Raises LaunchError."""
        spec = job.leg
        assert spec is not None
        hold = manifest.hold_of(spec, self._settings, self._features)
        try:
            made = manifest.leg_job(
                job,
                self._settings,
                self._config,
                features=self._features,
                machine=leg.machine,
                gang=hold,
            )
        except manifest.PodError as error:
            leg.end(Exit(kind=ExitKind.FAILED_TO_START, reason=str(error)))
            return True
        order = manifest.order(job, self._config)
        # The Secret follows its Job at once, however many wait for their turn.
        await self._client.bucket.take(2)
        try:
            leg.has(await self._make_job(made))
        except Unreachable as error:
            raise LaunchError(f"the API server is away: {error}") from error
        except ApiError as error:
            return self._refused(leg, error)
        await self._make_secrets(leg, job, order)
        return True

    def _refused(self, leg: Placed, error: ApiError) -> bool:
        """What the server says about the Job."""
        words = ends.said(error.words)
        if error.status == FORBIDDEN and ends.NO_QUOTA in words:
            leg.words = words
            return False
        if error.status in INVALID or ends.REFUSED_POD.search(words):
            reason = f"the cluster refuses its Job: {words}"
            leg.end(Exit(kind=ExitKind.FAILED_TO_START, reason=reason))
            return True
        raise LaunchError(f"no Job can be made in namespace {self._settings.namespace!r}: {words}")

    async def wait_for_quota(self, leg: Placed, job: Job) -> None:
        """Tries again until there is room, or the leg's time is over. Then the leg goes back to the queue."""
        backoff = Backoff(*QUOTA_SECONDS)
        deadline = leg.began + self._settings.unplaced_after
        while not leg.ended.done():
            words = leg.words or ""
            if time.monotonic() > deadline:
                leg.end(Exit(kind=ExitKind.UNPLACED, reason=words))
                return
            await asyncio.sleep(backoff.next_delay())
            try:
                if await self.start(leg, job):
                    leg.words = None
                    return
            except LaunchError as error:
                leg.end(Exit(kind=ExitKind.UNPLACED, reason=str(error)))

    async def _make_job(self, made: Json) -> Json:
        """The Job, as the server has it; one of this name that is there already is taken over."""
        name, deadline = made["metadata"]["name"], time.monotonic() + DELETED_SECONDS
        backoff = Backoff(0.2, 2.0)
        while True:
            try:
                return await self._post(self._jobs, made)
            except ApiError as error:
                if error.status != CONFLICT:
                    raise
            try:
                found = await self._client.request(
                    "GET", f"{self._jobs}/{name}", within=START_SECONDS
                )
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise
                continue
            if not ends.is_ending(found):
                # Of a try whose answer was lost, or of another process of this agent.
                return found
            if time.monotonic() > deadline:
                raise LaunchError(f"the Job of an earlier start, {name}, is still being deleted")
            await asyncio.sleep(backoff.next_delay())

    async def _make_secrets(self, leg: Placed, job: Job, order: Json) -> None:
        """Raises LaunchError, without the Job."""
        assert leg.job is not None
        wanted = [manifest.order_secret(leg.identifier, order, leg.job)]
        # The pod looks for it before it starts: so before the order.
        if (registry := manifest.registry_secret(job, leg.identifier, leg.job)) is not None:
            wanted.insert(0, registry)
        try:
            if (group := self._group(leg, job)) is not None:
                await self._post_once(*group)
            for one in wanted:
                await self._post_once(self._secrets, one)
        except (ApiError, Unreachable) as error:
            await self._give_up(leg)
            raise LaunchError(f"its order cannot be stored as a Secret: {error}") from error

    def _group(self, leg: Placed, job: Job) -> tuple[str, Json] | None:
        """The group of a gang's pods, which comes with the Job of its first node."""
        assert leg.job is not None and job.leg is not None
        if job.leg.node != 0:
            return None
        made = manifest.pod_group(job, self._settings, self._config, leg.job)
        if made is None:
            return None
        return f"/apis/{made['apiVersion']}/namespaces/{self._settings.namespace}/podgroups", made

    async def _post_once(self, path: str, body: dict[str, Any]) -> None:
        """What is there already is of a try whose answer was lost."""
        try:
            await self._post(path, body)
        except ApiError as error:
            if error.status != CONFLICT:
                raise

    async def _post(self, path: str, body: dict[str, Any]) -> Json:
        return await self._client.request("POST", path, body=body, within=START_SECONDS, paid=True)

    async def _give_up(self, leg: Placed) -> None:
        try:
            await self.delete(leg.identifier, within=START_SECONDS)
        except (ApiError, Unreachable) as error:
            # It does nothing without its order.
            logger.warning("Job %s is left for the next start: %s", leg.identifier, error)

    async def delete(self, name: str, within: float | None = None) -> None:
        """Removes a Job with all that it owns. Raises ApiError and Unreachable."""
        try:
            await self._client.request(
                "DELETE", f"{self._jobs}/{name}", body=IN_BACKGROUND, within=within
            )
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
