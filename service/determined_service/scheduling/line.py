"""The requests of one pool, served one after the other: :class:`QueueLine`.

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
- If that is not possible either, it is **stuck**, and what is free on the agents that it may run on is kept
  for it (:mod:`~.standing`). A later request is served all the same if it has a higher level and may be
  preempted, because it can be stopped when the stuck one gets its chance. Every other one gets only what is
  free on other agents, or waits behind it.

A request that no agent can ever run, or whose group has all the slots it may have, waits aside and holds
nobody back. A request for no slots waits for nobody.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from determined_service.base.spread import Spread
from determined_service.scheduling.free_slots import ByWidth, Places, PoolSlots
from determined_service.scheduling.reasons import (
    AgentsBusy,
    Behind,
    ExcludedEverywhere,
    Fragmented,
    GroupAtLimit,
    NoneAdmitted,
    NotWhole,
    Reason,
    SlotsComing,
    TooFewFree,
    TooWide,
)
from determined_service.scheduling.scheduler import Placement, Preemption, Waiting
from determined_service.scheduling.snapshot import Constraint, Occupant, Part, Request
from determined_service.scheduling.standing import PoolStanding
from determined_service.scheduling.stoppable import Claim, Stoppable


@dataclass(frozen=True, slots=True)
class Ranks:
    """``order``: the requests of a pool as they are served, and ``levels``: those of each, none lower
    than the one before. ``stoppable``: the levels of the running allocations that may be asked to stop, by
    their ids."""

    order: Sequence[Request]
    levels: Sequence[int]
    stoppable: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def even(cls, order: Sequence[Request]) -> Self:
        """All of one level: nothing is stopped for another."""
        return cls(order, [0] * len(order))


class QueueLine:
    """See the module. ``used``: slots held by each group, changed by what is placed."""

    def __init__(self, slots: PoolSlots, used: Counter[int], running: Iterable[Occupant]) -> None:
        self._slots = slots
        self._used = used
        # With what stands in line: nobody of the same group takes what its max_slots leaves to those.
        self._planned = Counter(used)
        self._running = [one for one in running if one.agent_id in slots or one.others]
        self.placements: list[Placement] = []
        self.preemptions: list[Preemption] = []
        # With the reason; the first ahead and how many are: what :meth:`_behind` says. Most are behind
        # others, and their reason is made once, at the end.
        self._waiting: list[tuple[Request, Reason | tuple[Request, int]]] = []
        # The groups that a ``max_slots`` limits: what stands in line is counted for these.
        self._limited: frozenset[int] = frozenset()
        # Those that wait for slots which others hold.
        self._line = PoolStanding(slots)
        # By request; of a gang one for each agent.
        self._claims: dict[str, list[Claim]] = {}
        # Slots that come free because earlier decisions asked for them: by request, then by agent.
        self._asked: dict[str, Counter[str]] = {}
        # Slots that come free and that nobody has claimed, by agent; none is 0.
        self._coming: Counter[str] = Counter()
        # Early claims that keep free slots, by agent, then by request.
        self._keeping: dict[str, dict[str, Claim]] = {}
        # Nobody gives way to a request for so many slots: what they keep and what is open beside it only
        # becomes less while requests are served.
        self._no_way = sys.maxsize
        # Requests of so many slots that are wider than every agent and that nobody gives way to: as above.
        self._no_way_whole: set[tuple[int, Spread]] = set()
        # The agents whose slots are all open, once a gang has asked.
        self._whole: dict[int, set[str]] | None = None
        self._stoppable = Stoppable(self._open, ())

    def serve(self, ranks: Ranks) -> None:
        """Serves everything; the outcome is in ``placements``, ``preemptions`` and :meth:`waiting`."""
        self._stoppable = Stoppable(self._open, self._held(ranks.stoppable))
        self._limited = frozenset(
            one.group for one in ranks.order if one.max_slots is not None and one.group is not None
        )
        self._claim_again(ranks)
        for request, level in zip(ranks.order, ranks.levels, strict=True):
            if self._is_behind(request, level):
                self._waiting.append((request, self._behind(request)))
                continue
            found = self._serve(request, level)
            if isinstance(found, Placement):
                self.placements.append(found)
            else:
                self._waiting.append((request, found))

    def waiting(self) -> list[Waiting]:
        """What waits, in the order of service, with the numbers after all placements."""
        seen: dict[tuple[Constraint | None, frozenset[str]], tuple[int, int]] = {}
        found = []
        for request, reason in self._waiting:
            if isinstance(reason, tuple):
                first, ahead = reason
                key = request.constraint, request.excluded
                if key not in seen:
                    slots = self._slots.of(request.constraint)
                    seen[key] = slots.free(request.excluded), slots.total(request.excluded)
                found.append(Waiting(request, Behind(ahead, first, *seen[key])))
            else:
                found.append(Waiting(request, self._settled(request, reason)))
        return found

    def backfilled(self, ranks: Ranks) -> list[str]:
        """What runs although something more important is stuck, which cannot use its slots yet."""
        filling = self._line.is_filling
        found = []
        for one in self._running:
            level = ranks.stoppable.get(one.id)
            if level is None or one.stopping:
                continue
            if filling(one.agent_id, level) or any(filling(at, level) for at, _ in one.others):
                found.append(one.id)
        return found

    def _settled(self, request: Request, reason: Reason) -> Reason:
        # What was served later may have taken slots, of the agents or of the group.
        match reason:
            case GroupAtLimit():
                return _exceeded(request, self._used) or reason
            case TooFewFree() | Fragmented() | NotWhole():
                return self._too_little(request)
            case _:
                return reason

    def _is_behind(self, request: Request, level: int) -> bool:
        """Whether it is seen at once that the request waits behind a stuck one, as of a long queue nearly all
        do: :meth:`_serve` would say the same."""
        return (
            request.constraint is None
            and self._line.is_closed(level, request.preemptible)
            and request.slots > 0
            and not request.excluded
            and self._slots.could_hold(request)
            and request.id not in self._claims
            and request.group not in self._limited
        )

    def _serve(self, request: Request, level: int) -> Placement | Reason | tuple[Request, int]:
        excluded, wanted = request.excluded, request.slots
        slots = self._slots.of(request.constraint)
        own = self._claims.get(request.id, ())
        if own:
            self._release(request.id)
        if not slots.names:
            return NoneAdmitted(self._slots.agents(), tuple(self._slots.labels()))
        if excluded and not slots.agents(excluded):
            return ExcludedEverywhere(slots.agents())
        if wanted == 0:
            agent_id = slots.least_busy(excluded)
            if agent_id is None:
                return AgentsBusy(slots.agents(excluded), slots.zero_slot_limit)
            self._slots.add_task(agent_id)
            return Placement(request.id, agent_id, ())
        widest = slots.widest(excluded)
        gang = wanted > widest
        if gang and not slots.could_hold(request):
            return TooWide(widest)
        if (limit := _exceeded(request, self._used)) is not None:
            return limit
        mine = self._line.open_to(request, level)
        if mine is None or _exceeded(request, self._planned) is not None:
            return self._behind(request)
        places = _fitting(request, mine, gang) or self._given_way(request, mine, gang)
        if places is not None:
            return self._place(request, places)
        self._claim(request, level, own, mine, gang)
        if request.id not in self._claims and self._stop(request, level, mine, gang):
            places = _fitting(request, mine, gang)
            if places is not None:  # Only claims of less important requests were in the way.
                return self._place(request, places)
        claims = self._claims.get(request.id)
        if claims is not None:
            self._stand(request)
            first = claims[0]
            if len(claims) == 1:
                return SlotsComing(first.agent_id, first.free, first.coming)
            free, coming = sum(one.free for one in claims), sum(one.coming for one in claims)
            others = tuple(one.agent_id for one in claims[1:])
            return SlotsComing(first.agent_id, free, coming, others)
        self._line.keep(request, level)
        if self._line.before(request) is not None:
            return self._behind(request)
        self._stand(request)
        return self._too_little(request)

    def _too_little(self, request: Request) -> Reason:
        slots, excluded = self._slots.of(request.constraint), request.excluded
        free, total = slots.free(excluded), slots.total(excluded)
        if free < request.slots:
            return TooFewFree(free, total)
        if request.slots > slots.widest(excluded):
            return NotWhole(free, total, slots.most_whole(request))
        return Fragmented(free, total, slots.most_free(excluded))

    def _place(self, request: Request, places: Places) -> Placement:
        group = request.group
        if group is not None and group in self._limited:
            self._used[group] += request.slots
            self._planned[group] += request.slots
        parts = []
        for agent_id, slots in places:
            taken = self._slots.take(agent_id, slots)
            self._changed(agent_id)
            if len(places) == 1:
                return Placement(request.id, agent_id, taken)
            parts.append(Part(agent_id, taken))
        return Placement(request.id, *parts[0], tuple(parts[1:]))

    def _stand(self, request: Request) -> None:
        self._line.add(request)
        self._plan(request)

    def _plan(self, request: Request) -> None:
        group = request.group
        if group is not None and group in self._limited:
            self._planned[group] += request.slots

    def _behind(self, request: Request) -> tuple[Request, int]:
        """The first of those ahead of the request, which is the last in line, and how many they are."""
        before = self._line.join(request)
        assert before is not None
        self._plan(request)
        return before

    # Slots that come free

    def _held(self, levels: Mapping[str, int]) -> Iterator[tuple[Occupant, int, str, int]]:
        """What may be stopped: its level, and how many slots of which agent others may use after it."""
        agent = self._slots.agent
        for one in self._running:
            level = levels.get(one.id)
            if level is None or one.stopping:
                continue
            if one.others:
                for agent_id, slots in self._enabled(one):
                    yield one, level, agent_id, slots
            else:
                enabled = len(set(one.slot_ids).intersection(agent(one.agent_id).slots))
                yield one, level, one.agent_id, enabled

    def _enabled(self, one: Occupant) -> list[tuple[str, int]]:
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
        return self._slots.open_of(agent_id) + self._coming.get(agent_id, 0)

    def _open_agents(self) -> ByWidth:
        """The agents of which every slot is open."""
        if self._whole is None:
            self._whole = {}
            for one in self._slots.ids():
                width = self._slots.width(one)
                those = self._whole.setdefault(width, set())
                if self._open(one) >= width:
                    those.add(one)
        return self._whole

    def _changed(self, agent_id: str) -> None:
        """What is open on the agent has changed."""
        self._stoppable.changed(agent_id)
        if self._whole is not None:
            width = self._slots.width(agent_id)
            if self._open(agent_id) >= width:
                self._whole[width].add(agent_id)
            else:
                self._whole[width].discard(agent_id)

    def _claim_again(self, ranks: Ranks) -> None:
        """Gives requests the slots that earlier decisions have asked others to free for them."""
        theirs = self._asked
        for one in self._running:
            if one.stopping:
                for agent_id, slots in self._enabled(one):
                    self._comes(agent_id, slots)
                    if one.stopping_for is not None:
                        theirs.setdefault(one.stopping_for, Counter())[agent_id] += slots
        if not theirs:
            return
        for request, level in zip(ranks.order, ranks.levels, strict=True):
            mine = theirs.get(request.id)
            if mine is None:
                continue
            for agent_id, slots in self._asked_for(request, mine) or ():
                claim = self._take(request, level, agent_id, slots, mine[agent_id])
                claim.early = True
                if claim.free:
                    self._keeping.setdefault(agent_id, {})[request.id] = claim
                self._stoppable.claimed(claim)

    def _asked_for(self, request: Request, asked: Counter[str]) -> Places | None:
        """Where the request goes on waiting; ``asked``: slots that others were asked to free for it."""
        mine, excluded = self._slots.of(request.constraint), request.excluded
        if request.slots > mine.widest(excluded):
            places = mine.whole(request, self._open_agents(), asked)
            return places if any(asked[agent_id] for agent_id, _ in places or ()) else None
        # Those with the most first.
        for agent_id, own in asked.most_common():
            enough = self._open(agent_id) >= request.slots
            if own and enough and agent_id in mine and agent_id not in excluded:
                return ((agent_id, request.slots),)
        return None

    def _given_way(self, request: Request, mine: PoolSlots, gang: bool) -> Places | None:
        """Where in ``mine`` the request fits if those served later do not keep free slots; they no longer
        do."""
        if not self._keeping or (not gang and request.slots >= self._no_way):
            return None
        wanted = (request.slots, request.spread)
        everywhere = mine is self._slots and not request.excluded
        if gang and everywhere and wanted in self._no_way_whole:
            return None
        places: Places | None = None
        if gang:
            ready = {width: set(those) for width, those in self._slots.idle().items()}
            for one in self._keeping:
                width = self._slots.width(one)
                if self._without_early(one) >= width:
                    ready[width].add(one)
            places = mine.whole(request, ready)
        else:
            for agent_id in sorted(self._keeping):
                if agent_id not in mine or agent_id in request.excluded:
                    continue
                if self._without_early(agent_id) >= request.slots:
                    places = ((agent_id, request.slots),)
                    break
        for agent_id, _ in places or ():
            for name in list(self._keeping.get(agent_id, ())):
                self._release(name)
        if places is None and everywhere:
            if gang:
                self._no_way_whole.add(wanted)
            else:
                self._no_way = request.slots
        return places

    def _without_early(self, agent_id: str) -> int:
        """The agent's open slots if nobody served later kept any."""
        could = self._slots.open_of(agent_id)
        for claim in self._keeping.get(agent_id, {}).values():
            could += claim.free
        return could

    def _claim(
        self,
        request: Request,
        level: int,
        earlier: Sequence[Claim],
        mine: PoolSlots,
        gang: bool,
    ) -> None:
        """Claims slots of ``mine`` that come free, as ``earlier``, or of the first agent by name that has
        enough.

        The first by name, because that choice stays the same when later requests have claimed
        what they wait for.
        """
        if not self._coming:
            return
        coming = {one.agent_id: one.coming for one in earlier}
        places: Places = ()
        if gang:
            places = mine.whole(request, self._open_agents(), dict.fromkeys(coming, 1)) or ()
        else:
            for one in (*coming, *sorted(self._coming)):
                enough = self._open(one) >= request.slots
                if enough and one in mine and one not in request.excluded:
                    places = ((one, request.slots),)
                    break
        for agent_id, slots in places:
            own = min(coming.get(agent_id, 0), self._coming[agent_id])
            self._take(request, level, agent_id, slots, own)

    def _comes(self, agent_id: str, slots: int) -> None:
        """So many slots more of the agent come free and are claimed by nobody; fewer when negative."""
        self._coming[agent_id] += slots
        if not self._coming[agent_id]:
            del self._coming[agent_id]
        if self._whole is not None:
            self._changed(agent_id)

    def _take(self, request: Request, level: int, agent_id: str, slots: int, own: int = 0) -> Claim:
        """Claims ``slots`` of an agent, with all of the ``own`` slots that are freed for the request."""
        missing = max(0, slots - own)
        free = min(missing, self._slots.open_of(agent_id))
        claim = Claim(request, level, agent_id, free, own + missing - free)
        self._comes(agent_id, -claim.coming)
        self._slots.keep(agent_id, claim.free)
        self._claims.setdefault(request.id, []).append(claim)
        self._changed(agent_id)
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
            self._changed(claim.agent_id)

    def _stop(self, request: Request, level: int, mine: PoolSlots, gang: bool) -> bool:
        """Asks allocations of higher levels on agents of ``mine`` to stop for the request; False when that
        would not help."""
        found = self._stoppable.find(request, level, mine, gang)
        if found is None:
            return False
        places, lowest = found
        freed = dict(self._asked.get(request.id, ()))
        # Of a gang's agents all slots must be open, also where it uses a part only.
        wanted = {one: self._slots.width(one) if gang else slots for one, slots in places}
        for agent_id in wanted:
            for victim in self._stoppable.victims(agent_id, lowest, wanted[agent_id]):
                if isinstance(victim, Claim):
                    self._release(victim.request.id)
                    continue
                self.preemptions.append(Preemption(victim.id, request.id))
                for part in (agent_id,) if not victim.others else [one[0] for one in victim.parts]:
                    held = self._stoppable.remove(part, victim.id)
                    if held:
                        self._comes(part, held)
                        freed[part] = freed.get(part, 0) + held
        if any(self._slots.open_of(one) < slots for one, slots in wanted.items()):
            for agent_id, claimed in places:
                own = min(freed.get(agent_id, 0), self._coming[agent_id])
                self._take(request, level, agent_id, claimed, own)
        return True


def _fitting(request: Request, mine: PoolSlots, gang: bool) -> Places | None:
    if gang:
        return mine.whole(request)
    agent_id = mine.fitting(request.slots, request.excluded)
    return None if agent_id is None else ((agent_id, request.slots),)


def _exceeded(request: Request, used: Mapping[int, int]) -> GroupAtLimit | None:
    if request.max_slots is None or request.group is None:
        return None
    held = used.get(request.group, 0)
    if held + request.slots <= request.max_slots:
        return None
    return GroupAtLimit(held, request.max_slots)
