"""A fair share for each experiment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from determined_service.scheduling.free_slots import PoolSlots
from determined_service.scheduling.line import Ranked, Ranks
from determined_service.scheduling.ranking_scheduler import Pool, RankingScheduler
from determined_service.scheduling.shares import Claimant, shares
from determined_service.scheduling.snapshot import Request, Running

ABOVE = 1


@dataclass(slots=True)
class _Group:
    """An experiment, or an allocation that belongs to none: what it has and wants, as it came."""

    allocations: list[tuple[Request | Running, int]] = field(default_factory=list)

    @property
    def came(self) -> tuple[float, float, str]:
        first = self.allocations[0][0]
        return first.position, first.requested, first.id

    def claimant(self, slots: PoolSlots) -> Claimant:
        first = self.allocations[0][0]
        widths = [width for _, width in self.allocations]
        demand = sum(widths)
        constraint = next(
            (one.constraint for one, _ in self.allocations if isinstance(one, Request)), None
        )
        if constraint is not None:
            # No share of slots that it may not use; it keeps what it has.
            held = sum(width for one, width in self.allocations if isinstance(one, Running))
            demand = min(demand, max(held, slots.of(constraint).total()))
        if first.max_slots is not None:
            demand = min(demand, first.max_slots)
        return Claimant(demand, min(widths), first.weight)


class FairShare(RankingScheduler):
    """Each experiment gets slots in proportion to its demand times its weight (:func:`~.shares.shares`).

    An experiment's share belongs to those of its allocations that came first, whether they run or wait.
    What waits within a share is served first, the widest before the others, because it is the hardest to
    fit; for it, what runs above a share is stopped, and if that does not make room, what runs within a
    share and is narrower (it starts again on another agent). What is idle then goes to requests above the
    shares, and is taken back when the shares change.
    """

    def rank(self, pool: Pool) -> Ranks:
        """Within the shares, a level for each width; above them, one."""
        groups = sorted(_groups(pool), key=lambda group: group.came)
        fair = shares(pool.slots.total(), [group.claimant(pool.slots) for group in groups])
        ranked: list[tuple[int, tuple[float, float, str], int, Request]] = []
        stoppable: dict[str, int] = {}
        for group, share in zip(groups, fair, strict=True):
            left = share
            for place, (one, width) in enumerate(group.allocations):
                within = width <= left
                left -= width if within else 0
                level = -width if within else ABOVE
                if isinstance(one, Request):
                    ranked.append((level, group.came, place, one))
                elif one.preemptible:
                    stoppable[one.id] = level
        ranked.sort(key=lambda one: one[:3])
        # They wait aside, or for nobody.
        aside = [one for one in pool.requests if not _takes_part(pool, one)]
        level = min((level for level, *_ in ranked), default=0)
        return Ranks(
            [Ranked(one, level) for one in aside]
            + [Ranked(one, level) for level, *_, one in ranked],
            stoppable,
        )


def _groups(pool: Pool) -> Iterable[_Group]:
    groups: dict[int | str, _Group] = {}
    everything: list[tuple[Request | Running, int]] = [
        # What was stopped for another request comes back, so it goes on counting.
        (one, one.width)
        for one in pool.running
        if one.slot_ids and (not one.stopping or one.stopping_for is not None)
    ]
    everything += [(one, one.slots) for one in pool.requests if _takes_part(pool, one)]
    everything.sort(key=lambda item: (item[0].requested, item[0].id))
    for one, width in everything:
        key = one.id if one.group is None else one.group
        groups.setdefault(key, _Group()).allocations.append((one, width))
    return groups.values()


def _takes_part(pool: Pool, request: Request) -> bool:
    """Whether the request is for slots, and could be met some day."""
    return 0 < request.slots <= pool.slots.of(request.constraint).widest(request.excluded)
