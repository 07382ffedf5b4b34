"""Experiments take turns."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter, itemgetter

from determined_service.scheduling.line import Ranks
from determined_service.scheduling.ranking_scheduler import PoolView, RankingScheduler
from determined_service.scheduling.snapshot import Occupant, Request


class RoundRobin(RankingScheduler):
    """The first allocation of every experiment is served before the second of any, and so on.

    What runs counts. In a turn the experiment that is first in line is served first. A request without an
    experiment is always a first one. Nothing is stopped.
    """

    def rank(self, pool: PoolView) -> Ranks:
        """By the number of the experiment's allocations that came before."""
        turns: Counter[int] = Counter()
        ranked: list[tuple[int, Request]] = []
        everything: list[Request | Occupant] = [*pool.running, *pool.requests]
        everything.sort(key=attrgetter("requested"))
        for one in everything:
            wide = one.width if isinstance(one, Occupant) else one.slots
            turn = 0
            if wide and one.group is not None:
                turn = turns[one.group]
                turns[one.group] += 1
            if isinstance(one, Request):
                ranked.append((turn, one))
        # Numbers alone are compared much faster than tuples of them.
        ranked.sort(key=lambda one: one[1].position)
        ranked.sort(key=itemgetter(0))
        return Ranks.even([request for _, request in ranked])
