"""The requests of one pool, served one after the other: :class:`Line`.

Every scheduler ranks: it says in which order the requests are served, and gives each request and each
allocation that may be stopped a **level**, a number that is lower for what is more important. The line does
the rest, so that there is one rule for fitting, holding back, filling up and stopping:

- A request takes an agent that it fits on, as the pool's fitting policy says. One that is wider than every
  agent is a gang: it takes several agents as a whole (:mod:`determined_service.base.spread`), all or none,
  and what follows holds for all of them together.
- If it fits on none, it waits for slots that come free anyway on one agent (what holds them was asked to
  stop); else allocations of a higher level are asked to stop for it, the highest level first and of that
  the last placed, on one agent, and no more of them than needed. Slots that it waits for are its own:
  nobody of the same or a higher level gets them.
- If that is not possible either, it is **stuck**. A later request is served all the same if it has a higher
  level and may be preempted, because it can be stopped when the stuck one gets its chance. Every other one
  waits behind it.

A request that no agent can ever run, or whose group has all the slots it may have, waits aside and holds
nobody back. A request for no slots waits for nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from determined_service.scheduling.free_slots import Places, PoolSlots
from determined_service.scheduling.reasons import (
    AgentsBusy,
    Behind,
    ExcludedEverywhere,
    Fragmented,
    GroupAtLimit,
    NotWhole,
    Reason,
    SlotsComing,
    TooFewFree,
    TooWide,
)
from determined_service.scheduling.scheduler import Placement, Preemption, Waiting
from determined_service.scheduling.snapshot import Part, Request, Running
from determined_service.scheduling.stoppable import Claim, Stoppable


@dataclass(frozen=True, slots=True)
class Ranked:
    """A request and its level."""

    request: Request
    level: int = 0


@dataclass(frozen=True, slots=True)
class Ranks:
    """``order``: the requests of a pool as they are served, none with a lower level than the one before.
    ``stoppable``: the levels of the running allocations that may be asked to stop, by their ids."""

    order: Sequence[Ranked]
    stoppable: Mapping[str, int] = field(default_factory=dict)


class Line:
    """See the module. ``used``: slots held by each group, changed by what is placed."""

    def __init__(self, slots: PoolSlots, used: Counter[int], running: Iterable[Running]) -> None:
        self._slots = slots
        self._used = used
        # With what stands in line: nobody of the same group takes what its max_slots leaves to those.
        self._planned = Counter(used)
        self._running = [one for one in running if one.agent_id in slots or one.others]
        self.placements: list[Placement] = []
        self.preemptions: list[Preemption] = []
        self._waiting: list[Waiting] = []
        # Those that wait for slots which others hold, the first of them, and the levels of the first and
        # the last that is stuck.
        self._in_line = 0
        self._first: Request | None = None
        self._first_stuck: int | None = None
        self._stuck: int | None = None
        # By request; of a gang one for each agent.
        self._claims: dict[str, list[Claim]] = {}
        # Slots that come free because earlier decisions asked for them: by request, then by agent.
        self._asked: dict[str, Counter[str]] = {}
        # Slots that come free and that nobody has claimed, by agent; none is 0.
        self._coming: Counter[str] = Counter()
        # Early claims that keep free slots, by agent, then by request.
        self._keeping: dict[str, dict[str, Claim]] = {}
        self._stoppable = Stoppable(slots, self._open, ())

    def serve(self, ranks: Ranks) -> None:
        """Serves everything; the outcome is in ``placements``, ``preemptions`` and :meth:`waiting`."""
        self._stoppable = Stoppable(
            self._slots,
            self._open,
            self._held(ranks.stoppable),
        )
        self._claim_again(ranks)
        for one in ranks.order:
            found = self._serve(one.request, one.level)
            if isinstance(found, Placement):
                self.placements.append(found)
            else:
                self._waiting.append(Waiting(one.request, found))

    def waiting(self) -> list[Waiting]:
        """What waits, in the order of service, with the numbers after all placements."""
        return [
            Waiting(one.request, self._settled(one.request, one.reason)) for one in self._waiting
        ]

    def backfilled(self, ranks: Ranks) -> list[str]:
        """What runs although something more important is stuck, which cannot use its slots yet."""
        if self._first_stuck is None:
            return []
        level = self._first_stuck
        return [
            one.id
            for one in self._running
            if not one.stopping and ranks.stoppable.get(one.id, level) > level
        ]

    def _settled(self, request: Request, reason: Reason) -> Reason:
        # What was served later may have taken slots, of the agents or of the group.
        slots, excluded = self._slots, request.excluded
        match reason:
            case GroupAtLimit():
                return _exceeded(request, self._used) or reason
            case TooFewFree() | Fragmented() | NotWhole():
                return self._too_little(request)
            case Behind(ahead, first):
                return Behind(ahead, first, slots.free(excluded), slots.total(excluded))
            case _:
                return reason

    def _serve(self, request: Request, level: int) -> Placement | Reason:
        slots, excluded, wanted = self._slots, request.excluded, request.slots
        own = self._claims.get(request.id, ())
        if own:
            self._release(request.id)
        if excluded and not slots.agents(excluded):
            return ExcludedEverywhere(slots.agents())
        if wanted == 0:
            agent_id = slots.least_busy(excluded)
            if agent_id is None:
                return AgentsBusy(slots.agents(excluded), slots.zero_slot_limit)
            slots.add_task(agent_id)
            return Placement(request.id, agent_id, ())
        widest = slots.widest(excluded)
        gang = wanted > widest
        if gang and not slots.could_hold(request):
            return TooWide(widest)
        if (limit := _exceeded(request, self._used)) is not None:
            return limit
        if self._stuck is not None and not (level > self._stuck and request.preemptible):
            return self._behind(request)
        if _exceeded(request, self._planned) is not None:
            return self._behind(request)
        places = self._fitting(request, gang)
        if places is None and self._keeping:
            places = self._given_way(request, gang)
        if places is not None:
            return self._place(request, places)
        self._claim(request, level, gang, own)
        if request.id not in self._claims and self._stop(request, level, gang):
            places = self._fitting(request, gang)
            if places is not None:  # Only claims of less important requests were in the way.
                return self._place(request, places)
        claims = self._claims.get(request.id)
        if claims is not None:
            self._stand(request)
            free, coming = sum(one.free for one in claims), sum(one.coming for one in claims)
            others = tuple(one.agent_id for one in claims[1:])
            return SlotsComing(claims[0].agent_id, free, coming, others)
        self._stuck = level
        if self._first_stuck is None:
            self._first_stuck = level
        if self._first is not None:
            return self._behind(request)
        self._stand(request)
        return self._too_little(request)

    def _too_little(self, request: Request) -> Reason:
        slots, excluded = self._slots, request.excluded
        free, total = slots.free(excluded), slots.total(excluded)
        if free < request.slots:
            return TooFewFree(free, total)
        if request.slots > slots.widest(excluded):
            return NotWhole(free, total, slots.most_whole(request))
        return Fragmented(free, total, slots.most_free(excluded))

    def _fitting(self, request: Request, gang: bool) -> Places | None:
        if gang:
            return self._slots.whole(request)
        agent_id = self._slots.fitting(request.slots, request.excluded)
        return None if agent_id is None else ((agent_id, request.slots),)

    def _place(self, request: Request, places: Places) -> Placement:
        if request.group is not None:
            self._used[request.group] += request.slots
            self._planned[request.group] += request.slots
        parts = []
        for agent_id, slots in places:
            taken = self._slots.take(agent_id, slots)
            self._stoppable.changed(agent_id)
            if len(places) == 1:
                return Placement(request.id, agent_id, taken)
            parts.append(Part(agent_id, taken))
        return Placement(request.id, *parts[0], tuple(parts[1:]))

    def _stand(self, request: Request) -> None:
        self._in_line += 1
        if request.group is not None:
            self._planned[request.group] += request.slots
        if self._first is None:
            self._first = request

    def _behind(self, request: Request) -> Reason:
        assert self._first is not None
        ahead = self._in_line
        self._stand(request)
        free, total = self._slots.free(request.excluded), self._slots.total(request.excluded)
        return Behind(ahead, self._first, free, total)

    # Slots that come free

    def _held(self, levels: Mapping[str, int]) -> Iterator[tuple[Running, int, str, int]]:
        """What may be stopped: its level, and how many slots of which agent others may use after it."""
        for one in self._running:
            level = levels.get(one.id)
            if level is None or one.stopping:
                continue
            if one.others:
                for agent_id, slots in self._enabled(one):
                    yield one, level, agent_id, slots
            else:
                yield one, level, one.agent_id, self._usable(one.agent_id, one.slot_ids)

    def _enabled(self, one: Running) -> list[tuple[str, int]]:
        """How many of its slots others may use after it, by agent."""
        return [
            (agent_id, self._usable(agent_id, slot_ids))
            for agent_id, slot_ids in one.parts
            if agent_id in self._slots
        ]

    def _usable(self, agent_id: str, slot_ids: Iterable[int]) -> int:
        """How many of them were not disabled."""
        return len(set(slot_ids).intersection(self._slots.agent(agent_id).slots))

    def _open(self, agent_id: str) -> int:
        """Slots of the agent that nobody has, or will not have for long, and that nobody has claimed."""
        return self._slots.open_of(agent_id) + self._coming[agent_id]

    def _claim_again(self, ranks: Ranks) -> None:
        """Gives requests the slots that earlier decisions have asked others to free for them."""
        theirs = self._asked
        for one in self._running:
            if one.stopping:
                for agent_id, slots in self._enabled(one):
                    self._comes(agent_id, slots)
                    if one.stopping_for is not None:
                        theirs.setdefault(one.stopping_for, Counter())[agent_id] += slots
        for ranked in ranks.order if theirs else ():
            request = ranked.request
            mine = theirs.get(request.id)
            if not mine:
                continue
            for agent_id, slots in self._asked_for(request, mine) or ():
                claim = self._take(request, ranked.level, agent_id, slots, mine[agent_id])
                claim.early = True
                if claim.free:
                    self._keeping.setdefault(agent_id, {})[request.id] = claim
                self._stoppable.claimed(claim)

    def _asked_for(self, request: Request, mine: Counter[str]) -> Places | None:
        """Where the request goes on waiting; ``mine``: slots that others were asked to free for it."""
        if request.slots > self._slots.widest(request.excluded):
            places = self._slots.whole(request, self._open, lambda one: -mine[one])
            return places if any(mine[agent_id] for agent_id, _ in places or ()) else None
        for agent_id, own in mine.most_common():
            enough = self._open(agent_id) >= request.slots
            if own and enough and agent_id not in request.excluded:
                return ((agent_id, request.slots),)
        return None

    def _given_way(self, request: Request, gang: bool) -> Places | None:
        """Where the request fits if those served later do not keep free slots; they no longer do."""

        def opened(agent_id: str) -> int:
            kept = self._keeping.get(agent_id, {}).values()
            return self._slots.open_of(agent_id) + sum(one.free for one in kept)

        places: Places | None = None
        if gang:
            places = self._slots.whole(request, opened)
        else:
            for agent_id in sorted(self._keeping):
                if opened(agent_id) >= request.slots and agent_id not in request.excluded:
                    places = ((agent_id, request.slots),)
                    break
        for agent_id, _ in places or ():
            for name in list(self._keeping.get(agent_id, ())):
                self._release(name)
        return places

    def _claim(self, request: Request, level: int, gang: bool, earlier: Sequence[Claim]) -> None:
        """Claims slots that come free, as ``earlier``, or of the first agent by name that has enough.

        The first by name, because that choice stays the same when later requests have claimed
        what they wait for.
        """
        places: Places = ()
        if gang and self._coming:
            names = {one.agent_id for one in earlier}
            places = self._slots.whole(request, self._open, lambda one: one not in names) or ()
        elif not gang:
            agents = (*(one.agent_id for one in earlier), *sorted(self._coming))
            for one in agents:
                if self._open(one) >= request.slots and one not in request.excluded:
                    places = ((one, request.slots),)
                    break
        coming = {one.agent_id: one.coming for one in earlier}
        for agent_id, slots in places:
            own = min(coming.get(agent_id, 0), self._coming[agent_id])
            self._take(request, level, agent_id, slots, own)

    def _comes(self, agent_id: str, slots: int) -> None:
        """So many slots more of the agent come free and are claimed by nobody; fewer when negative."""
        self._coming[agent_id] += slots
        if not self._coming[agent_id]:
            del self._coming[agent_id]

    def _take(self, request: Request, level: int, agent_id: str, slots: int, own: int = 0) -> Claim:
        """Claims ``slots`` of an agent, with all of the ``own`` slots that are freed for the request."""
        missing = max(0, slots - own)
        free = min(missing, self._slots.open_of(agent_id))
        claim = Claim(request, level, agent_id, free, own + missing - free)
        self._comes(agent_id, -claim.coming)
        self._slots.keep(agent_id, claim.free)
        self._claims.setdefault(request.id, []).append(claim)
        self._stoppable.changed(agent_id)
        return claim

    def _release(self, request_id: str) -> None:
        """The request no longer claims anything."""
        for claim in self._claims.pop(request_id):
            self._comes(claim.agent_id, claim.coming)
            self._slots.keep(claim.agent_id, -claim.free)
            keeping = self._keeping.get(claim.agent_id, {})
            if keeping.pop(request_id, None) is not None and not keeping:
                del self._keeping[claim.agent_id]
            self._stoppable.remove(claim.agent_id, request_id)

    def _stop(self, request: Request, level: int, gang: bool) -> bool:
        """Asks allocations of higher levels to stop for the request; False when that would not help."""
        found = self._stoppable.find(request, level, gang)
        if found is None:
            return False
        places, lowest = found
        freed = Counter(self._asked.get(request.id, {}))
        for agent_id, slots in places:
            wanted = self._slots.width(agent_id) if gang else slots
            for victim in self._stoppable.victims(agent_id, lowest, wanted):
                if isinstance(victim, Claim):
                    self._release(victim.request.id)
                    continue
                self.preemptions.append(Preemption(victim.id, request.id))
                for part, _ in self._enabled(victim):
                    held = self._stoppable.remove(part, victim.id)
                    self._comes(part, held)
                    freed[part] += held
        if any(
            self._slots.open_of(agent_id) < (self._slots.width(agent_id) if gang else slots)
            for agent_id, slots in places
        ):
            for agent_id, slots in places:
                own = min(freed[agent_id], self._coming[agent_id])
                self._take(request, level, agent_id, slots, own)
        return True


def _exceeded(request: Request, used: Mapping[int, int]) -> GroupAtLimit | None:
    if request.max_slots is None or request.group is None:
        return None
    held = used.get(request.group, 0)
    if held + request.slots <= request.max_slots:
        return None
    return GroupAtLimit(held, request.max_slots)
