"""The more important first."""

from __future__ import annotations

from determined_service.scheduling.free_slots import Fit
from determined_service.scheduling.line import Ranks
from determined_service.scheduling.ranking_scheduler import PoolView, RankingScheduler, sorted_by


class Priority(RankingScheduler):
    """By priority (a lower number first), then by the experiment's place in line, then by arrival.

    With ``preemption``, allocations of lower priority that may be preempted are stopped for a request that
    fits nowhere, the least important and of those the last placed first; and while a request is stuck,
    slots that it cannot use are given to requests of lower priority that may be preempted. Without it,
    nothing runs that is less important than what waits, unless it ran before.
    """

    def __init__(self, preemption: bool = False, fit: Fit = Fit.BEST) -> None:
        super().__init__(fit)
        self._preemption = preemption

    def rank(self, pool: PoolView) -> Ranks:
        """A level for each priority, or one for all without preemption."""
        order = sorted_by(pool.requests, "priority", "position", "requested")
        if not self._preemption:
            return Ranks.even(order)
        return Ranks(
            order,
            [one.priority for one in order],
            {one.id: one.priority for one in pool.running if one.preemptible},
        )
