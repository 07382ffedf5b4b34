"""The files that trials have installed on this machine; an experiment's are removed when it has ended.

Its sizes, and those of what running tasks have installed, are measured now and then and told to the service,
for its quotas. Nothing else is remembered: the
directories say which experiments there are, and the service says which have ended, so an agent that was
killed leaves nothing to its successor but that question.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from determined_tasks import experiment_dir
from determined_tasks.context_dir import PACKAGES, allocation_dir

MEASURE_S = 120.0
"""Seconds from the end of a measurement to the next: it reads directories for as long as they are large."""

logger = logging.getLogger(__name__)


class ExperimentDirs:
    """The directories of experiments below ``work_dir`` (:mod:`determined_tasks.experiment_dir`)."""

    def __init__(self, work_dir: Path) -> None:
        self._work_dir = work_dir
        self._cluster_id: str | None = None
        self._removal: asyncio.Task[None] | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._measure_at = 0.0
        self._sizes: dict[str, int] | None = None
        self._told: Mapping[str, int] | None = None

    def of_cluster(self, cluster_id: str) -> None:
        """The agent serves this cluster; what another has left is removed."""
        self._cluster_id = cluster_id
        self._told = None
        self._begin([])

    def known(self) -> list[int]:
        """The experiments to ask the service about."""
        if self._cluster_id is None:
            return []
        try:
            return experiment_dir.known(self._work_dir, self._cluster_id)
        except OSError as error:
            logger.warning("cannot list what trials have installed: %s", error)
            return []

    def untold_sizes(self, running: Collection[str] = ()) -> dict[str, int] | None:
        """The bytes of what each experiment has installed, and each of the ``running`` allocations in a place
        of its own, as they were measured last; None: nothing is measured yet, or the service knows it."""
        is_measuring = self._measuring is not None and not self._measuring.done()
        if not is_measuring and time.monotonic() >= self._measure_at:
            self._measuring = asyncio.create_task(self._measure(self.known(), list(running)))
        return None if self._sizes == self._told else self._sizes

    def told(self, sizes: Mapping[str, int] | None) -> None:
        """The service has these, of :meth:`untold_sizes`."""
        if sizes is not None:
            self._told = sizes

    def ended(self, ids: Collection[int]) -> None:
        """These have ended. While a leg still uses a directory, it stays; the service says so again."""
        if ids and (self._removal is None or self._removal.done()):
            self._begin(ids)

    async def stop(self) -> None:
        """Returns when nothing is being removed any more."""
        if self._measuring is not None:
            self._measuring.cancel()
        if self._removal is not None:
            await asyncio.gather(self._removal, return_exceptions=True)

    async def _measure(self, ids: Collection[int], running: Collection[str]) -> None:
        found = {}
        for name in running:
            place = allocation_dir(self._work_dir, name) / PACKAGES
            size = await asyncio.to_thread(experiment_dir.bytes_below, place)
            if size:
                found[name] = size
        for number in ids:
            assert self._cluster_id is not None
            args = self._work_dir, number, self._cluster_id
            found[str(number)] = await asyncio.to_thread(experiment_dir.size, *args)
        self._sizes = found
        self._measure_at = time.monotonic() + MEASURE_S

    def _begin(self, ids: Collection[int]) -> None:
        assert self._cluster_id is not None
        after = self._removal
        self._removal = asyncio.create_task(self._remove(after, self._cluster_id, ids))

    async def _remove(
        self, after: asyncio.Task[None] | None, cluster_id: str, ids: Collection[int]
    ) -> None:
        if after is not None:
            await asyncio.gather(after, return_exceptions=True)
        try:
            if not ids:
                await asyncio.to_thread(experiment_dir.remove_leftovers, self._work_dir, cluster_id)
            for number in ids:
                gone = await asyncio.to_thread(
                    experiment_dir.remove, self._work_dir, number, cluster_id
                )
                if gone:
                    logger.info("experiment %d has ended: removed what it had installed", number)
        except OSError as error:
            logger.warning("cannot remove what trials have installed: %s", error)
