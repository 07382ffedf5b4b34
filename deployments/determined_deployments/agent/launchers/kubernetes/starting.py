"""The creation of a leg's objects: whenever the agent dies, no leg runs twice and nothing is left.

First the Secret with the supervisor's order, then the Job, then the Secret becomes the Job's own, with which
it goes. An agent that dies after the first leaves a Secret without a Job, which the next one removes; after
the second, a leg that runs, which the next one adopts. (The other way round a pod would look for its Secret
before it is there, and look again half a second later.) The Job's name follows from the leg's, so that the
server refuses a second one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any

from determined.common.backoff import Backoff
from determined.common.wire.legs import ExitKind
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.base import Exit, Job, LaunchError
from determined_deployments.agent.launchers.kubernetes import ends, manifest, names
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
from determined_deployments.agent.launchers.kubernetes.cluster import RIGHTS
from determined_deployments.agent.launchers.kubernetes.features import Features
from determined_deployments.agent.launchers.kubernetes.placed import Placed

logger = logging.getLogger(__name__)

START_SECONDS = 20.0
"""That a start waits for an API server that is away."""
DELETED_SECONDS = 60.0
"""That a start waits for the Job of an earlier start to be gone."""
AGAIN_SECONDS = (2.0, 30.0)
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

    async def settle_secrets(self, selector: str, jobs: Iterable[Json]) -> None:
        """Has each Job own its Secrets, and removes those without a Job: an agent before this one died."""
        owners: dict[str, Json] = {}
        for job in jobs:
            name = job["metadata"]["name"]
            owners |= dict.fromkeys((names.order(name), names.registry(name)), job)
        found, _ = await self._client.list(self._secrets, {"labelSelector": selector})
        for metadata in (one["metadata"] for one in found):
            owner = owners.get(metadata["name"])
            if owner is None:
                logger.warning("removing Secret %s, whose leg has not begun", metadata["name"])
                await self._delete(f"{self._secrets}/{metadata['name']}")
            elif not metadata.get("ownerReferences"):
                await self._own(metadata["name"], owner)

    async def start(self, leg: Placed, job: Job) -> bool:
        """Makes the leg's objects, or ends the leg if they can never be. False: the cluster does not take
        them now, see :meth:`wait_for_room`. Raises LaunchError."""
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
        # All of a leg at once, however many wait for their turn.
        await self._client.bucket.take(2)
        try:
            await self._make_secrets(leg, made, job)
            leg.has(await self._make_job(made))
            await self._make_group(leg, job)
        except (Unreachable, ApiError, LaunchError) as error:
            await self._give_up(leg)
            if isinstance(error, ApiError):
                return self._refused(leg, error)
            raise LaunchError(f"Job {leg.identifier} cannot be made: {error}") from error
        return True

    async def own_secrets(self, leg: Placed) -> None:
        """Has the leg's Job own its Secrets."""
        assert leg.job is not None
        while leg.secrets:
            await self._own(leg.secrets[0], leg.job)
            del leg.secrets[0]

    async def _own(self, name: str, job: Json) -> None:
        change = {"metadata": {"ownerReferences": [manifest.reference(job)]}}
        try:
            await self._client.request("PATCH", f"{self._secrets}/{name}", body=change)
        except ApiError as error:
            if error.status != NOT_FOUND:
                logger.warning("Secret %s does not go with its Job: %s", name, error)

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
        leg.words = self._why_none(error.status, words)
        return False

    def _why_none(self, status: int, words: str) -> str:
        """Why no Job can be made, which somebody can change. ``words``: the server's."""
        namespace = self._settings.namespace
        if status == NOT_FOUND and "namespaces" in words:
            return (
                f"namespace {namespace!r} does not exist ({words}): an administrator of the cluster makes it"
                f" (kubectl create namespace {namespace}), or names another one in the settings of the agent"
                " (kubernetes.namespace)"
            )
        if status == FORBIDDEN and "is being terminated" in words:
            return f"namespace {namespace!r} is being deleted ({words})"
        why = f"no Job can be made in namespace {namespace!r}: {words}"
        return f"{why}; {RIGHTS}" if status == FORBIDDEN else why

    async def wait_for_room(self, leg: Placed, job: Job) -> None:
        """Tries again until there is room, or the leg's time is over. Then the leg goes back to the queue."""
        backoff = Backoff(*AGAIN_SECONDS)
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

    async def _make_secrets(self, leg: Placed, made: Json, job: Job) -> None:
        name = made["metadata"]["name"]
        # The Job has no uid yet.
        future = {"metadata": {**made["metadata"], "uid": ""}}
        wanted = [
            manifest.order_secret(name, manifest.order(job, self._config), future),
            manifest.registry_secret(job, name, future),
        ]
        for one in wanted:
            if one is not None:
                one["metadata"].pop("ownerReferences")
                leg.secrets.append(one["metadata"]["name"])
                await self._post_once(self._secrets, one)

    async def _make_group(self, leg: Placed, job: Job) -> None:
        """The group of a gang's pods, which comes with the Job of its first node."""
        assert leg.job is not None and job.leg is not None
        if job.leg.node != 0:
            return
        made = manifest.pod_group(job, self._settings, self._config, leg.job)
        if made is not None:
            namespace = self._settings.namespace
            await self._post_once(
                f"/apis/{made['apiVersion']}/namespaces/{namespace}/podgroups", made
            )

    async def _post_once(self, path: str, body: dict[str, Any]) -> None:
        """What is there already is of an earlier try, of the same leg."""
        try:
            await self._post(path, body)
        except ApiError as error:
            if error.status != CONFLICT:
                raise

    async def _post(self, path: str, body: dict[str, Any]) -> Json:
        return await self._client.request("POST", path, body=body, within=START_SECONDS, paid=True)

    async def _give_up(self, leg: Placed) -> None:
        """Removes what a start has made that did not come to its end. Tries once."""
        try:
            await self.remove(leg, within=0.0)
        except (ApiError, Unreachable) as error:
            logger.warning("Job %s is left for the next start: %s", leg.identifier, error)

    async def remove(self, leg: Placed, within: float | None = None) -> None:
        """Removes a leg's Job, and with it its Secrets. Raises ApiError and Unreachable."""
        await self.delete(leg.identifier, within)
        while leg.secrets:
            await self._delete(f"{self._secrets}/{leg.secrets[0]}", within)
            del leg.secrets[0]

    async def delete(self, name: str, within: float | None = None) -> None:
        """Removes a Job with all that it owns. Raises ApiError and Unreachable."""
        await self._delete(f"{self._jobs}/{name}", within)

    async def _delete(self, path: str, within: float | None = None) -> None:
        try:
            await self._client.request("DELETE", path, body=IN_BACKGROUND, within=within)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
