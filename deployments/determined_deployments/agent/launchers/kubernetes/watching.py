"""The state of many objects of a cluster by one list and one watch of each kind, not a request each."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from determined.common.backoff import Backoff
from determined_deployments.agent.launchers.kubernetes.client import (
    FORBIDDEN,
    GONE,
    NOT_FOUND,
    RETRY_SECONDS,
    ApiError,
    Client,
    Json,
    Unreachable,
)

logger = logging.getLogger(__name__)

FORBIDDEN_SECONDS = 30.0
SHORTEST_SECONDS = 1.0
"""A watch that the server ends sooner is not asked for again at once."""

Keep = Callable[[Json], Json | None]
Tell = Callable[[str, Json], None]


def whole(found: Json) -> Json | None:
    """All of an object but the notes of who has set which field, which are half of it."""
    found["metadata"].pop("managedFields", None)
    return found


class Watched:
    """The objects of one kind, by their uids. ``tell`` hears ADDED, MODIFIED and DELETED with the object.

    ``keep`` says what is kept of an object; None: the object is none of ours. After a gap that the server
    cannot fill (410) the objects are listed again, and what is missing from that list counts as deleted.
    """

    def __init__(
        self, client: Client, path: str, query: Mapping[str, Any], tell: Tell, keep: Keep = whole
    ) -> None:
        self._client = client
        self._path = path
        self._query = dict(query)
        self._tell = tell
        self._keep = keep
        self._version: str | None = None
        self.objects: dict[str, Json] = {}
        self.synced = asyncio.Event()
        """Set after the first list."""
        self.refused: str | None = None
        """The server's words while it does not let this agent see these objects."""

    async def run(self) -> None:
        """Never returns."""
        backoff = Backoff(*RETRY_SECONDS)
        while True:
            began = time.monotonic()
            try:
                if self._version is None:
                    await self._list()
                await self._follow()
                backoff.reset()
            except Unreachable as error:
                self._client.outage.failed(error)
            except ApiError as error:
                self._version = None
                if error.status in (FORBIDDEN, NOT_FOUND):
                    await self._wait_for_rights(error)
                    continue
                if error.status != GONE:
                    logger.warning("watching %s: %s", self._path, error)
            if time.monotonic() - began < SHORTEST_SECONDS:
                await asyncio.sleep(backoff.next_delay())

    async def _wait_for_rights(self, error: ApiError) -> None:
        if self.refused is None:
            logger.warning("cannot watch %s: %s", self._path, error)
        self.refused = error.words
        self.synced.set()
        await asyncio.sleep(FORBIDDEN_SECONDS)

    async def _list(self) -> None:
        found, version = await self._client.list(self._path, self._query)
        self.refused = None
        listed = set()
        for one in found:
            listed.add(one["metadata"]["uid"])
            known = one["metadata"]["uid"] in self.objects
            self._take("MODIFIED" if known else "ADDED", one)
        for uid in self.objects.keys() - listed:
            self._tell("DELETED", self.objects.pop(uid))
        self._version = version
        self.synced.set()

    async def _follow(self) -> None:
        assert self._version is not None
        async for kind, found in self._client.watch(self._path, self._query, self._version):
            if kind != "BOOKMARK":
                self._take(kind, found)
            self._version = str(found["metadata"]["resourceVersion"])

    def _take(self, kind: str, found: Json) -> None:
        kept = self._keep(found)
        uid = found["metadata"]["uid"]
        if kept is None:
            # Such as a pod that ended, where only those that run are of interest.
            if (before := self.objects.pop(uid, None)) is not None:
                self._tell("DELETED", before)
            return
        if kind == "DELETED":
            self.objects.pop(uid, None)
        else:
            self.objects[uid] = kept
        self._tell(kind, kept)
