"""Who stands in line for slots, and on which agents free ones are kept for whom: :class:`PoolStanding`."""

from __future__ import annotations

from dataclasses import dataclass

from determined_service.scheduling.free_slots import PoolSlots
from determined_service.scheduling.snapshot import Request

_NOBODY: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Those:
    """The requests in line that may run on the same agents: the first of them, its place, their number."""

    first: Request
    place: int
    count: int = 0


class PoolStanding:
    """The line of one pool.

    Requests that may run on the same agents are kept together, so that a line of requests without constraints
    costs no more than a counter. Log policies are left out of account: they concern few agents.
    """

    def __init__(self, slots: PoolSlots) -> None:
        self._slots = slots
        self._length = 0
        self._those: dict[frozenset[str], _Those] = {}
        # If all that stand in line may run on every agent: these.
        self._only: _Those | None = None
        self._disjoint: dict[tuple[frozenset[str], frozenset[str]], bool] = {}
        # Agents that stuck requests may run on: of all levels, and of the last level only.
        self._kept = self._kept_last = _NOBODY
        self._level: int | None = None
        # The lowest level of what is stuck, by the agents that it may run on.
        self._stuck: dict[frozenset[str], int] = {}
        self._left: dict[tuple[frozenset[str], frozenset[str]], PoolSlots | None] = {}

    def add(self, request: Request) -> None:
        """The request is last in line."""
        names = self._slots.of(request.constraint).names
        self._length += 1
        those = self._those.get(names)
        if those is None:
            those = self._those[names] = _Those(request, self._length)
            self._only = None if len(self._those) > 1 or names is not self._slots.names else those
        those.count += 1

    def join(self, request: Request) -> tuple[Request, int] | None:
        """:meth:`before`, then :meth:`add`: in one, because most of a long queue come here."""
        if (only := self._only) is not None and request.constraint is None:
            found = only.first, only.count
            self._length += 1
            only.count += 1
            return found
        before = self.before(request)
        self.add(request)
        return before

    def before(self, request: Request) -> tuple[Request, int] | None:
        """Of those in line that may run on one of the request's agents: the first, and how many they are."""
        mine = self._slots.of(request.constraint).names
        if (only := self._only) is not None and request.constraint is None:
            return only.first, only.count
        found = [one for names, one in self._those.items() if not self._apart(names, mine)]
        if not found:
            return None
        first = found[0] if len(found) == 1 else min(found, key=lambda one: one.place)
        return first.first, sum(one.count for one in found)

    def _apart(self, one: frozenset[str], other: frozenset[str]) -> bool:
        if one is other:
            return False
        known = self._disjoint.get((one, other))
        if known is None:
            known = self._disjoint[one, other] = one.isdisjoint(other)
        return known

    def keep(self, request: Request, level: int) -> None:
        """The request is stuck: what comes free on its agents is kept for it."""
        names = self._slots.of(request.constraint).names
        if level != self._level:
            self._level, self._kept_last = level, _NOBODY
        self._kept_last = self._joined(self._kept_last, names)
        self._kept = self._joined(self._kept, names)
        self._stuck.setdefault(names, level)  # no later one is lower

    def _joined(self, one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
        # The object itself, which is quickly compared, where all agents are meant.
        joined = one | other
        return self._slots.names if len(joined) == len(self._slots.names) else joined

    def open_to(self, request: Request, level: int) -> PoolSlots | None:
        """The slots that the request may have now, which has at least the level of those before it.

        Those of its agents, without what is kept for stuck requests; what can be stopped again may have what
        is kept for lower levels. None: there is no such agent.
        """
        mine = self._slots.of(request.constraint)
        kept = self._kept_from(level, request.preemptible)
        if not kept:
            return mine
        if kept is self._slots.names:
            return None
        key = (mine.names, kept)
        if key not in self._left:
            left = mine.names - kept
            whole = len(left) == len(mine.names)
            self._left[key] = mine if whole else self._slots.part(left) if left else None
        return self._left[key]

    def is_closed(self, level: int, preemptible: bool) -> bool:
        """Whether :meth:`open_to` gives None to every request of this level, which is at least that of those
        before it."""
        return self._kept_from(level, preemptible) is self._slots.names

    def _kept_from(self, level: int, preemptible: bool) -> frozenset[str]:
        if not preemptible:
            return self._kept
        return self._kept_last if level == self._level else _NOBODY

    def is_filling(self, agent_id: str, level: int) -> bool:
        """Whether what runs on the agent at this level does so only while something of a lower level is
        stuck that may run there."""
        return any(stuck < level and agent_id in names for names, stuck in self._stuck.items())
