"""The base of schedulers that say only who is served before whom: :class:`RankingScheduler`."""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

from determined_service.scheduling.free_slots import Fit, PoolSlots, by_pool
from determined_service.scheduling.limits import over_limit, stopped
from determined_service.scheduling.line import QueueLine, Ranks
from determined_service.scheduling.reasons import NoAgent, Unplaced
from determined_service.scheduling.scheduler import Decision, Scheduler, Waiting
from determined_service.scheduling.snapshot import Occupant, Request, Snapshot

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PoolView:
    """One resource pool: its requests as they came, what runs on its agents, and its slots."""

    requests: Sequence[Request]
    running: Sequence[Occupant]
    slots: PoolSlots


def sorted_by(those: Iterable[T], *names: str) -> list[T]:
    """Sorted by these attributes, the first of them before the others.

    One after the other: Python compares numbers, and texts, much faster than tuples of them.
    """
    found = list(those)
    for name in reversed(names):
        found.sort(key=attrgetter(name))
    return found


class RankingScheduler(Scheduler):
    """Ranks the requests of each pool; :class:`~.line.QueueLine` places, stops and explains. ``fit``: which
    of the agents that it fits on a request gets."""

    def __init__(self, fit: Fit = Fit.BEST) -> None:
        self._fit = fit

    def decide(self, snapshot: Snapshot) -> Decision:
        """One pass over the requests of each pool."""
        used = Counter(snapshot.used_by_group)
        slots = by_pool(snapshot, self._fit)
        requests: dict[str, list[Request]] = {}
        for request in snapshot.requests:
            requests.setdefault(request.pool, []).append(request)
        pool_of = {agent.id: agent.pool for agent in snapshot.agents}
        preemptions = over_limit(snapshot, pool_of)
        running: dict[str, list[Occupant]] = {}
        for one in stopped(snapshot.running, preemptions) if preemptions else snapshot.running:
            # One without an agent that may be given work is of no interest.
            pool = pool_of.get(one.agent_id) or next(
                (pool_of[part.agent_id] for part in one.others if part.agent_id in pool_of), None
            )
            if pool is not None:
                running.setdefault(pool, []).append(one)
        placements, waiting, backfilled = [], [], []
        for name, those in sorted(requests.items()):
            if name not in slots:
                ranks = self.rank(PoolView(those, (), PoolSlots(())))
                waiting += [Waiting(one, NoAgent()) for one in ranks.order]
                continue
            mine = PoolView(those, running.get(name, ()), slots[name])
            line = QueueLine(mine.slots, used, mine.running)
            ranks = self.rank(mine)
            line.serve(ranks)
            placements += line.placements
            preemptions += line.preemptions
            waiting += line.waiting()
            backfilled += line.backfilled(ranks)
        # Last, so that nobody seems to wait behind them.
        waiting += [
            Waiting(one.request, Unplaced(one.words, one.until - snapshot.moment))
            for one in snapshot.resting
        ]
        return Decision(
            tuple(placements), tuple(waiting), tuple(preemptions), frozenset(backfilled)
        )

    @abc.abstractmethod
    def rank(self, pool: PoolView) -> Ranks:
        """Who is served before whom, and what may be stopped for whom."""
