"""Which scheduler serves which pool: :func:`scheduler_of` and :class:`PoolSchedulers`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from determined.common.cluster_config import ClusterConfig, SchedulerConfig
from determined_service.scheduling.fair_share import FairShare
from determined_service.scheduling.first_in_first_out import FirstInFirstOut
from determined_service.scheduling.free_slots import Fit
from determined_service.scheduling.priority import Priority
from determined_service.scheduling.round_robin import RoundRobin
from determined_service.scheduling.scheduler import Decision, Scheduler
from determined_service.scheduling.snapshot import MAX_ZERO_SLOT_TASKS, Snapshot

MANY = 500
"""Of so many allocations a decision takes some milliseconds."""

_PLAIN: dict[str, Callable[[Fit], Scheduler]] = {
    "fair_share": FairShare,
    "round_robin": RoundRobin,
    "first_in_first_out": FirstInFirstOut,
}


def scheduler_of(config: SchedulerConfig) -> Scheduler:
    """The scheduler that a ``scheduler`` section asks for."""
    fit = Fit(config.fitting_policy)
    if config.type == "priority":
        return Priority(config.preemption, fit)
    return _PLAIN[config.type](fit)


class PoolSchedulers(Scheduler):
    """Decides each pool by its own scheduler, as the cluster's configuration says.

    ``cluster`` gives the configuration that is in force, which may change between two decisions.
    """

    def __init__(self, cluster: Callable[[], ClusterConfig] = ClusterConfig) -> None:
        self._cluster = cluster
        # Pools with Kubernetes agents, as of the last snapshot.
        self.kubernetes: frozenset[str] = frozenset()

    @property
    def cluster(self) -> ClusterConfig:
        """The configuration in force."""
        return self._cluster()

    def config(self, pool: str) -> SchedulerConfig:
        """The ``scheduler`` section that holds for the pool."""
        return self._cluster().scheduler_of(pool, kubernetes=pool in self.kubernetes)

    def is_higher_first(self, pool: str) -> bool:
        """Whether a higher priority is more important, as on Kubernetes; else a lower one is."""
        return pool in self.kubernetes or self._cluster().manager_of(pool).type == "kubernetes"

    def default_priority(self, pool: str) -> int:
        """The priority of what sets none."""
        return self.config(pool).default_priority

    def max_zero_slot_tasks(self, pool: str) -> int:
        """How many allocations without slots each agent of the pool may run."""
        found = self._cluster().pool(pool)
        return MAX_ZERO_SLOT_TASKS if found is None else found.max_aux_containers_per_agent

    async def decide_beside(self, snapshot: Snapshot) -> Decision:
        """As :meth:`decide`, which for a long queue takes so long that requests would wait: then in another
        thread."""
        if len(snapshot.requests) + len(snapshot.running) < MANY:
            return self.decide(snapshot)
        return await asyncio.to_thread(self.decide, snapshot)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Each scheduler decides the pools that it serves."""
        pools = {one.pool for one in snapshot.requests} | {one.pool for one in snapshot.agents}
        pools |= {one.request.pool for one in snapshot.resting}
        # Pools of equal sections are decided in one go.
        served: list[tuple[SchedulerConfig, set[str]]] = []
        for pool in sorted(pools):
            config = self.config(pool)
            mine = next((mine for known, mine in served if known == config), None)
            if mine is None:
                served.append((config, {pool}))
            else:
                mine.add(pool)
        if len(served) == 1:
            return scheduler_of(served[0][0]).decide(snapshot)
        found = [
            scheduler_of(config).decide(
                replace(
                    snapshot,
                    requests=tuple(one for one in snapshot.requests if one.pool in mine),
                    agents=tuple(one for one in snapshot.agents if one.pool in mine),
                    resting=tuple(one for one in snapshot.resting if one.request.pool in mine),
                )
            )
            for config, mine in served
        ]
        return Decision(
            tuple(one for each in found for one in each.placements),
            tuple(one for each in found for one in each.waiting),
            tuple(one for each in found for one in each.preemptions),
            frozenset[str]().union(*(each.backfilled for each in found)),
        )
