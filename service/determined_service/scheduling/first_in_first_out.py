"""First in, first out."""

from __future__ import annotations

from determined_service.scheduling.line import Ranks
from determined_service.scheduling.ranking_scheduler import PoolView, RankingScheduler, sorted_by


class FirstInFirstOut(RankingScheduler):
    """By the experiment's place in line, then by arrival; priority and weight are not heeded.

    A request that does not fit yet holds back the later ones of its pool (a wide one would starve
    otherwise), except where waiting cannot help.
    """

    def rank(self, pool: PoolView) -> Ranks:
        """One level for all."""
        return Ranks.even(sorted_by(pool.requests, "position", "requested"))
