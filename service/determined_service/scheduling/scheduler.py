"""What a scheduler is and what it answers: :class:`Scheduler`."""

from __future__ import annotations

import abc
from collections import Counter
from dataclasses import dataclass

from determined_service.base.records import record
from determined_service.scheduling.reasons import Reason
from determined_service.scheduling.snapshot import Part, Request, Snapshot


@record
class Placement:
    """The allocation ``id`` gets ``slot_ids`` of ``agent_id``; a gang gets ``others`` besides."""

    id: str
    agent_id: str
    slot_ids: tuple[int, ...]
    others: tuple[Part, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """What it gets, by agent."""
        return (Part(self.agent_id, self.slot_ids), *self.others)


@record
class Waiting:
    """A request that gets nothing now, and why."""

    request: Request
    reason: Reason


@record
class Preemption:
    """The running allocation ``id`` is to save a checkpoint and end, so that ``request_id`` gets its
    slots; its own id: its group is above its ``max_slots``."""

    id: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Decision:
    """``placements`` and ``preemptions`` to make now, and everything else in the order in which it is
    to be served. ``backfilled``: allocations that run only because something more important cannot use their
    slots yet."""

    placements: tuple[Placement, ...]
    waiting: tuple[Waiting, ...]
    preemptions: tuple[Preemption, ...] = ()
    backfilled: frozenset[str] = frozenset()

    def ahead_by_job(self) -> dict[int | str, int]:
        """Of each group that waits (of a request without one: by its id), how many others of its pool have a
        request in line before its first one."""
        found: dict[int | str, int] = {}
        in_pool: Counter[str] = Counter()
        for one in self.waiting:
            job = one.request.id if one.request.group is None else one.request.group
            if job not in found:
                found[job] = in_pool[one.request.pool]
                in_pool[one.request.pool] += 1
        return found


class Scheduler(abc.ABC):
    """Decides which of the requests that wait get which slots, and says why the others wait.

    The scheduling loop calls :meth:`decide` whenever requests, slots or agents have changed, and
    carries the placements out; a request that was withdrawn meanwhile is left out. A reader who
    asks why a request waits, or for its place in the queue, calls :meth:`decide` on a snapshot of
    its own and changes nothing. So what users are told is what the decision was made from.

    Every scheduler keeps these promises; ``SchedulerContract`` in the tests checks them:

    1. **A pure function.** Equal snapshots give equal decisions. No I/O, clock or random numbers;
       nothing is remembered between two calls; the snapshot is not changed.
    2. **Nothing is lost.** Each request is either placed once or waits once, with one reason. What rests
       waits last, with :class:`~.reasons.Unplaced`, and changes nothing of the rest of the decision.
    3. **Placements can be made as they are.** One agent of the request's pool that is not excluded, or
       several if none is wide enough, as :class:`~determined_service.base.spread.Spread` says, all at once;
       as many slots as wanted, enabled, free and given once; no group above its ``max_slots``; on an agent at
       most ``max_zero_slot_tasks`` allocations without slots. What is preempted runs, may be
       preempted, was not before, and holds enabled slots of an agent for which the request then waits
       (:class:`~.reasons.SlotsComing`); or its group holds more than its ``max_slots`` (:mod:`~.limits`).
    4. **Reasons are true.** Each holds, with its numbers, for the snapshot after the placements.
       A request waits although it fits only as :class:`~.reasons.Behind` another one that
       does not fit yet and that could run on one of the pool's agents.
    5. **Settled.** A second decision, after the placements and preemptions were made, makes none and gives
       the same reasons (for which of the agents that free slots a request waits may differ). While something
       is stopping for a request that has found room elsewhere, it takes some decisions more.
    6. **Order.** ``waiting`` is the order of service within each pool, so that places in the queue
       can be counted in it.
    7. **Cost.** Near linear in requests and agents (``benchmarks/scheduler.py``): the loop decides
       at every change. :mod:`~.free_slots` finds an agent without looking at each.

    A pool is decided by itself: what waits in one never holds back another.
    """

    @abc.abstractmethod
    def decide(self, snapshot: Snapshot) -> Decision:
        """The placements to make now, and the reason of each request that waits."""
