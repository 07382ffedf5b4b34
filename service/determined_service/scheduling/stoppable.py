"""What may be stopped for a request: :class:`Stoppable`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from determined_service.base.records import record
from determined_service.scheduling.free_slots import Places, PoolSlots, Ranking
from determined_service.scheduling.snapshot import Occupant, Request


@dataclass(slots=True)
class Claim:
    """Slots of an agent that a request waits for: ``free`` of them are free, ``coming`` are not yet.

    ``early``: the request has not been served yet, and gives way to those before it.
    """

    request: Request
    level: int
    agent_id: str
    free: int
    coming: int
    early: bool = False


@record
class _Holder:
    """``number``: a larger one was placed later."""

    holder: Occupant | Claim
    level: int
    number: int
    slots: int


class Stoppable:
    """What may be asked to stop, or to give up slots that it waits for, by agent and level.

    ``opened`` tells how many slots of an agent nobody has or has claimed. A ranking for each level finds an
    agent without a look at each: its number is what would be open if all of that level and above stopped.
    """

    def __init__(
        self,
        opened: Callable[[str], int],
        running: Iterable[tuple[Occupant, int, str, int]],
    ) -> None:
        """``running``: with their levels, an agent, and how many slots of it they hold."""
        self._opened = opened
        self._held: dict[str, dict[str, _Holder]] = {}
        self._known: set[int] = set()  # the levels of what may be stopped
        self._levels: list[int] = []  # the same, the highest first
        # By level and the agents that are asked about.
        self._rankings: dict[tuple[int, PoolSlots], Ranking] = {}
        # Agents whose number in the ranking is out of date: most are never asked for again.
        self._stale: dict[tuple[int, PoolSlots], set[str]] = {}
        for number, (one, level, agent_id, held) in enumerate(running):
            if held:
                self._add(agent_id, _Holder(one, 2 * level, number, held))

    def claimed(self, claim: Claim) -> None:
        """The claim of a request that has not been served yet gives way to all that are served before it."""
        held = claim.free + claim.coming
        self._add(claim.agent_id, _Holder(claim, 2 * claim.level + 1, 0, held))

    def changed(self, agent_id: str) -> None:
        """What is open on the agent has changed."""
        for stale in self._stale.values():
            stale.add(agent_id)

    def remove(self, agent_id: str, name: str) -> int:
        """Forgets an allocation or claim, if it is known; the slots that it had."""
        found = self._held.get(agent_id, {}).pop(name, None)
        self.changed(agent_id)
        return 0 if found is None else found.slots

    def find(
        self, request: Request, level: int, slots: PoolSlots, gang: bool
    ) -> tuple[Places, int] | None:
        """Where in ``slots`` there is room for the request, all of it, if :meth:`victims` down to which
        level stop. None: nothing that may stop would do."""
        if gang:
            return self._find_whole(request, level, slots)
        for one in self._levels:
            if one <= 2 * level:
                return None
            agent_id = self._ranking(one, slots).least(request.slots, request.excluded)
            if agent_id is not None:
                return ((agent_id, request.slots),), one
        return None

    def _find_whole(
        self, request: Request, level: int, slots: PoolSlots
    ) -> tuple[Places, int] | None:
        """As :meth:`find`. The more may stop, the more agents can be had, so the level is found by halves."""
        levels = [one for one in reversed(self._levels) if one > 2 * level]
        found = None
        low, high = 0, len(levels)
        while low < high:
            # First all that may stop: mostly nothing would do.
            middle = low if found is None else (low + high) // 2
            one = levels[middle]
            number = self._ranking(one, slots)
            ready: dict[int, set[str]] = {}
            for at in slots.ids():
                if number[at] >= (width := slots.width(at)):
                    ready.setdefault(width, set()).add(at)
            opened = {at: self._opened(at) for those in ready.values() for at in those}
            places = slots.whole(request, ready, opened)
            if places is not None:
                found, low = (places, one), middle + 1
            elif found is None:
                return None
            else:
                high = middle
        return found

    def victims(self, agent_id: str, level: int, wanted: int) -> list[Occupant | Claim]:
        """What has to stop so that ``wanted`` slots of the agent are open, of ``level`` and above."""
        missing = wanted - self._opened(agent_id)
        able = [one for one in self._held.get(agent_id, {}).values() if one.level >= level]
        able.sort(key=lambda one: (one.level, one.number), reverse=True)
        chosen: list[_Holder] = []
        for one in able:
            if missing <= 0:
                break
            chosen.append(one)
            missing -= one.slots
        # A wide one that was chosen last may make narrower ones before it needless.
        for one in sorted(chosen, key=lambda one: (one.level, one.number)):
            if missing + one.slots <= 0:
                chosen.remove(one)
                missing += one.slots
        return [one.holder for one in chosen]

    def _add(self, agent_id: str, holder: _Holder) -> None:
        name = holder.holder.id if isinstance(holder.holder, Occupant) else holder.holder.request.id
        self._held.setdefault(agent_id, {})[name] = holder
        if holder.level not in self._known:
            self._known.add(holder.level)
            self._levels = sorted(self._known, reverse=True)
        self.changed(agent_id)

    def _ranking(self, level: int, slots: PoolSlots) -> Ranking:
        key = (level, slots)
        ranking = self._rankings.get(key)
        if ranking is None:
            ranking = Ranking({one: self._number(one, level) for one in slots.ids()})
            self._rankings[key] = ranking
            self._stale[key] = set()
        stale = self._stale[key]
        if stale:
            # Sorted, because equal snapshots must give equal decisions.
            for agent_id in sorted(stale):
                if agent_id in slots:
                    ranking.put(agent_id, self._number(agent_id, level))
            stale.clear()
        return ranking

    def _number(self, agent_id: str, level: int) -> int:
        number = self._opened(agent_id)
        held = self._held.get(agent_id)
        if held:
            for one in held.values():
                if one.level >= level:
                    number += one.slots
        return number
