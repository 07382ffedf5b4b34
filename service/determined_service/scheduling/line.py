"""The requests of one pool, served one after the other: :class:`Line`.

Every scheduler ranks: it says in which order the requests are served, and gives each request and each
allocation that may be stopped a **level**, a number that is lower for what is more important. The line does
the rest, so that there is one rule for fitting, holding back, filling up and stopping:

- A request takes the agent that it fits best.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from determined_service.scheduling.free_slots import PoolSlots, Ranking
from determined_service.scheduling.reasons import (
    AgentsBusy,
    Behind,
    ExcludedEverywhere,
    Fragmented,
    GroupAtLimit,
    Reason,
    SlotsComing,
    TooFewFree,
    TooWide,
)
from determined_service.scheduling.scheduler import Placement, Preemption, Waiting
from determined_service.scheduling.snapshot import MAX_ZERO_SLOT_TASKS, Request, Running


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


@dataclass(slots=True)
class _Claim:
    """Slots of an agent that a request waits for: ``free`` of them are free, ``coming`` are not yet.

    ``early``: the request has not been served yet, and gives way to those before it.
    """

    request: Request
    level: int
    agent_id: str
    free: int
    coming: int
    early: bool = False


@dataclass(frozen=True, slots=True)
class _Holder:
    """``number``: a larger one was placed later."""

    holder: Running | _Claim
    level: int
    number: int
    slots: int


class Line:
    """See the module. ``used``: slots held by each group, changed by what is placed."""

    def __init__(self, slots: PoolSlots, used: Counter[int], running: Iterable[Running]) -> None:
        self._slots = slots
        self._used = used
        # With what stands in line: nobody of the same group takes what its max_slots leaves to those.
        self._planned = Counter(used)
        self._running = [one for one in running if one.agent_id in slots]
        self.placements: list[Placement] = []
        self.preemptions: list[Preemption] = []
        self._waiting: list[Waiting] = []
        # Those that wait for slots which others hold, the first of them, and the level of the last that is
        # stuck.
        self._in_line = 0
        self._first: Request | None = None
        self._stuck: int | None = None
        self._claims: dict[str, _Claim] = {}
        # Slots that come free because earlier decisions asked for them: by request, then by agent.
        self._asked: dict[str, Counter[str]] = {}
        # Slots that come free and that nobody has claimed, by agent.
        self._coming: Counter[str] = Counter()
        self._stoppable = _Stoppable(slots, self._open, ())

    def serve(self, ranks: Ranks) -> None:
        """Serves everything; the outcome is in ``placements``, ``preemptions`` and :meth:`waiting`."""
        self._stoppable = _Stoppable(
            self._slots,
            self._open,
            (
                (one, ranks.stoppable[one.id], self._enabled(one))
                for one in self._running
                if one.id in ranks.stoppable and not one.stopping
            ),
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

    def _settled(self, request: Request, reason: Reason) -> Reason:
        # What was served later may have taken slots, of the agents or of the group.
        slots, excluded = self._slots, request.excluded
        match reason:
            case GroupAtLimit():
                return _exceeded(request, self._used) or reason
            case TooFewFree() | Fragmented():
                return self._too_little(request)
            case Behind(ahead, first):
                return Behind(ahead, first, slots.free(excluded), slots.total(excluded))
            case _:
                return reason

    def _serve(self, request: Request, level: int) -> Placement | Reason:
        slots, excluded, wanted = self._slots, request.excluded, request.slots
        own = self._claims.get(request.id)
        if own is not None:
            self._release(own)
        if excluded and not slots.agents(excluded):
            return ExcludedEverywhere(slots.agents())
        if wanted == 0:
            agent_id = slots.least_busy(excluded)
            if agent_id is None:
                return AgentsBusy(slots.agents(excluded), MAX_ZERO_SLOT_TASKS)
            slots.add_task(agent_id)
            return Placement(request.id, agent_id, ())
        if wanted > (widest := slots.widest(excluded)):
            return TooWide(widest)
        if (limit := _exceeded(request, self._used)) is not None:
            return limit
        if self._stuck is not None and not (level > self._stuck and request.preemptible):
            return self._behind(request)
        if _exceeded(request, self._planned) is not None:
            return self._behind(request)
        agent_id = slots.best_fit(wanted, excluded) or self._given_way(request)
        if agent_id is not None:
            return self._place(request, agent_id)
        claim = self._claim(request, level, own)
        if claim is None and self._stop(request, level):
            agent_id = slots.best_fit(wanted, excluded)
            if agent_id is not None:  # Only claims of less important requests were in the way.
                return self._place(request, agent_id)
            claim = self._claims[request.id]
        if claim is not None:
            self._stand(request)
            return SlotsComing(claim.agent_id, claim.free, claim.coming)
        self._stuck = level
        if self._first is not None:
            return self._behind(request)
        self._stand(request)
        return self._too_little(request)

    def _too_little(self, request: Request) -> Reason:
        slots, excluded = self._slots, request.excluded
        free, total = slots.free(excluded), slots.total(excluded)
        if free < request.slots:
            return TooFewFree(free, total)
        return Fragmented(free, total, slots.most_free(excluded))

    def _place(self, request: Request, agent_id: str) -> Placement:
        if request.group is not None:
            self._used[request.group] += request.slots
            self._planned[request.group] += request.slots
        taken = self._slots.take(agent_id, request.slots)
        self._stoppable.changed(agent_id)
        return Placement(request.id, agent_id, taken)

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

    def _enabled(self, one: Running) -> int:
        """How many of its slots others may use after it: not those that were disabled."""
        return len(set(one.slot_ids).intersection(self._slots.agent(one.agent_id).slots))

    def _open(self, agent_id: str) -> int:
        """Slots of the agent that nobody has, or will not have for long, and that nobody has claimed."""
        return self._slots.open_of(agent_id) + self._coming[agent_id]

    def _claim_again(self, ranks: Ranks) -> None:
        """Gives requests the slots that earlier decisions have asked others to free for them."""
        theirs = self._asked
        for one in self._running:
            if one.stopping:
                slots = self._enabled(one)
                self._coming[one.agent_id] += slots
                if one.stopping_for is not None:
                    theirs.setdefault(one.stopping_for, Counter())[one.agent_id] += slots
        for ranked in ranks.order if theirs else ():
            for agent_id, own in theirs.get(ranked.request.id, Counter()).most_common(1):
                enough = self._open(agent_id) >= ranked.request.slots
                if own and enough and agent_id not in ranked.request.excluded:
                    claim = self._take(ranked.request, ranked.level, agent_id, own)
                    claim.early = True
                    self._stoppable.claimed(claim)

    def _given_way(self, request: Request) -> str | None:
        """An agent on which the request fits if those served later do not keep free slots; they no longer
        do."""
        kept: dict[str, list[_Claim]] = {}
        for claim in self._claims.values():
            if claim.early and claim.free and claim.agent_id not in request.excluded:
                kept.setdefault(claim.agent_id, []).append(claim)
        for agent_id, claims in sorted(kept.items()):
            if self._slots.open_of(agent_id) + sum(one.free for one in claims) >= request.slots:
                for claim in claims:
                    self._release(claim)
                return agent_id
        return None

    def _claim(self, request: Request, level: int, earlier: _Claim | None) -> _Claim | None:
        """Claims slots that come free, as ``earlier``, or of the first agent by name that has enough.

        The first by name, because that choice stays the same when later requests have claimed
        what they wait for.
        """
        if earlier is not None and self._open(earlier.agent_id) >= request.slots:
            own = min(earlier.coming, self._coming[earlier.agent_id])
            return self._take(request, level, earlier.agent_id, own)
        for one in sorted(self._coming):
            enough = self._coming[one] and self._open(one) >= request.slots
            if enough and one not in request.excluded:
                return self._take(request, level, one)
        return None

    def _take(self, request: Request, level: int, agent_id: str, own: int = 0) -> _Claim:
        """Claims what the request needs of an agent, with all of the ``own`` slots that are freed for it."""
        missing = max(0, request.slots - own)
        free = min(missing, self._slots.open_of(agent_id))
        claim = _Claim(request, level, agent_id, free, own + missing - free)
        self._coming[agent_id] -= claim.coming
        self._slots.keep(agent_id, claim.free)
        self._claims[request.id] = claim
        self._stoppable.changed(agent_id)
        return claim

    def _release(self, claim: _Claim) -> None:
        del self._claims[claim.request.id]
        self._coming[claim.agent_id] += claim.coming
        self._slots.keep(claim.agent_id, -claim.free)
        self._stoppable.remove(claim.agent_id, claim.request.id)

    def _stop(self, request: Request, level: int) -> bool:
        """Asks allocations of higher levels to stop for the request; False when that would not help."""
        found = self._stoppable.find(request, level)
        if found is None:
            return False
        agent_id, victims = found
        freed = 0
        asked = self._asked.get(request.id, Counter())[agent_id]
        for victim in victims:
            if isinstance(victim, _Claim):
                self._release(victim)
            else:
                self.preemptions.append(Preemption(victim.id, request.id))
                freed += self._stoppable.remove(agent_id, victim.id)
        self._coming[agent_id] += freed
        if self._slots.open_of(agent_id) < request.slots:
            self._take(request, level, agent_id, min(freed + asked, self._coming[agent_id]))
        return True


class _Stoppable:
    """What may be asked to stop, or to give up slots that it waits for, by agent and level.

    ``opened`` tells how many slots of an agent nobody has or has claimed. A ranking for each level finds an
    agent without a look at each: its number is what would be open if all of that level and above stopped.
    """

    def __init__(
        self,
        slots: PoolSlots,
        opened: Callable[[str], int],
        running: Iterable[tuple[Running, int, int]],
    ) -> None:
        self._slots = slots
        self._opened = opened
        self._held: dict[str, dict[str, _Holder]] = {}
        self._rankings: dict[int, Ranking | None] = {}
        for number, (one, level, held) in enumerate(running):
            if held:
                self._add(one.agent_id, _Holder(one, 2 * level, number, held))

    def claimed(self, claim: _Claim) -> None:
        """The claim of a request that has not been served yet gives way to all that are served before it."""
        held = claim.free + claim.coming
        self._add(claim.agent_id, _Holder(claim, 2 * claim.level + 1, 0, held))

    def changed(self, agent_id: str) -> None:
        """What is open on the agent has changed."""
        for level, ranking in self._rankings.items():
            if ranking is not None:
                ranking.put(agent_id, self._number(agent_id, level))

    def remove(self, agent_id: str, name: str) -> int:
        """Forgets an allocation or claim, if it is known; the slots that it had."""
        found = self._held.get(agent_id, {}).pop(name, None)
        self.changed(agent_id)
        return 0 if found is None else found.slots

    def find(self, request: Request, level: int) -> tuple[str, list[Running | _Claim]] | None:
        """An agent, and what has to stop there for the request. None: nothing that may stop would do."""
        for one in sorted(self._rankings, reverse=True):
            if one <= 2 * level:
                return None
            agent_id = self._ranking(one).least(request.slots, request.excluded)
            if agent_id is not None:
                return agent_id, self._victims(agent_id, one, request.slots)
        return None

    def _victims(self, agent_id: str, level: int, wanted: int) -> list[Running | _Claim]:
        missing = wanted - self._opened(agent_id)
        able = [one for one in self._held[agent_id].values() if one.level >= level]
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
        name = holder.holder.id if isinstance(holder.holder, Running) else holder.holder.request.id
        self._held.setdefault(agent_id, {})[name] = holder
        self._rankings.setdefault(holder.level, None)
        self.changed(agent_id)

    def _ranking(self, level: int) -> Ranking:
        ranking = self._rankings[level]
        if ranking is None:
            ranking = self._rankings[level] = Ranking()
            for agent_id in self._slots.ids():
                ranking.put(agent_id, self._number(agent_id, level))
        return ranking

    def _number(self, agent_id: str, level: int) -> int:
        held = self._held.get(agent_id, {}).values()
        return self._opened(agent_id) + sum(one.slots for one in held if one.level >= level)


def _exceeded(request: Request, used: Mapping[int, int]) -> GroupAtLimit | None:
    if request.max_slots is None or request.group is None:
        return None
    held = used.get(request.group, 0)
    if held + request.slots <= request.max_slots:
        return None
    return GroupAtLimit(held, request.max_slots)
