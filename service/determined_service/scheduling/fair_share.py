"""A fair share for each experiment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter

from determined_service.scheduling.free_slots import PoolSlots
from determined_service.scheduling.line import Ranks
from determined_service.scheduling.ranking_scheduler import PoolView, RankingScheduler, sorted_by
from determined_service.scheduling.shares import Claimant, shares
from determined_service.scheduling.snapshot import Occupant, Request

ABOVE = 1


@dataclass(slots=True)
class _Group:
    """An experiment, or an allocation that belongs to none: what it has and wants, as it came, and how wide
    each is."""

    allocations: list[Request | Occupant] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)

    @property
    def came(self) -> tuple[float, float, str]:
        first = self.allocations[0]
        return first.position, first.requested, first.id

    def claimant(self, slots: PoolSlots) -> Claimant:
        first = self.allocations[0]
        demand = sum(self.widths)
        constraint = next(
            (one.constraint for one in self.allocations if isinstance(one, Request)), None
        )
        if constraint is not None:
            # No share of slots that it may not use; it keeps what it has.
            held = sum(one.width for one in self.allocations if isinstance(one, Occupant))
            demand = min(demand, max(held, slots.of(constraint).total()))
        if first.max_slots is not None:
            demand = min(demand, first.max_slots)
        return Claimant(demand, min(self.widths), first.weight)


class FairShare(RankingScheduler):
    """Each experiment gets slots in proportion to its demand times its weight (:func:`~.shares.shares`).

    An experiment's share belongs to those of its allocations that came first, whether they run or wait.
    What waits within a share is served first, the widest before the others, because it is the hardest to
    fit; for it, what runs above a share is stopped, and if that does not make room, what runs within a
    share and is narrower (it starts again on another agent). What is idle then goes to requests above the
    shares, and is taken back when the shares change.
    """

    def rank(self, pool: PoolView) -> Ranks:
        """Within the shares, a level for each width; above them, one."""
        widest = pool.slots.widest()
        mine: list[Request] = []
        aside: list[Request] = []  # They wait for nobody, or for what may never be.
        for one in pool.requests:
            most = widest
            if one.excluded or one.constraint is not None:
                most = pool.slots.of(one.constraint).widest(one.excluded)
            fits = one.slots <= most or pool.slots.of(one.constraint).could_hold(one)
            (mine if one.slots and fits else aside).append(one)
        groups = sorted(_groups(pool.running, mine), key=attrgetter("came"))
        fair = shares(pool.slots.total(), [group.claimant(pool.slots) for group in groups])
        within: list[tuple[int, Request]] = []
        above: list[Request] = []
        stoppable: dict[str, int] = {}
        for group, left in zip(groups, fair, strict=True):
            for allocation, width in zip(group.allocations, group.widths, strict=True):
                level = -width if width <= left else ABOVE
                if level < ABOVE:
                    left -= width
                if isinstance(allocation, Occupant):
                    if allocation.preemptible:
                        stoppable[allocation.id] = level
                elif level < ABOVE:
                    within.append((level, allocation))
                else:
                    above.append(allocation)
        # Within a level in the order of the groups, and of what each has and wants.
        within.sort(key=itemgetter(0))
        levels = [level for level, _ in within] + [ABOVE] * len(above)
        return Ranks(
            [*aside, *(one for _, one in within), *above],
            [min(levels, default=0)] * len(aside) + levels,
            stoppable,
        )


def _groups(running: Iterable[Occupant], requests: Iterable[Request]) -> Iterable[_Group]:
    groups: dict[int | str, _Group] = {}
    everything: list[Request | Occupant] = [
        # What was stopped for another request comes back, so it goes on counting.
        one
        for one in running
        if one.slot_ids and (not one.stopping or one.stopping_for is not None)
    ]
    everything += requests
    for one in sorted_by(everything, "requested", "id"):
        key = one.id if one.group is None else one.group
        group = groups.get(key)
        if group is None:
            group = groups[key] = _Group()
        group.allocations.append(one)
        group.widths.append(one.slots if isinstance(one, Request) else one.width)
    return groups.values()
