"""What has to end before a request gets its slots: :func:`forecast`.

The scheduler itself is asked, about snapshots in which some of what runs has ended. So the answer holds if
nothing else changes: nobody submits, stops or moves anything, and what ends asks for no slots again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from determined_service.scheduling.scheduler import Scheduler
from determined_service.scheduling.snapshot import Occupant, Request, Snapshot

MAX_SINGLE = 24
"""How many kinds of allocations are tried one by one."""
BUDGET = 300_000
"""Agents, allocations and requests that all decisions together may look at: some 1.5 s."""
NAMED = 5
"""How many allocations an answer names."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """``any_of``: the end of any one of these is enough; else ``all_of`` have to end, the first placed of
    what runs. ``stopping``: these were asked to stop already, and that is enough. The lists name
    :data:`NAMED` allocations at most, ``count`` counts all. Without any: it cannot be told."""

    any_of: tuple[str, ...] = ()
    all_of: tuple[str, ...] = ()
    stopping: tuple[str, ...] = ()
    count: int = 0


def forecast(
    scheduler: Scheduler, snapshot: Snapshot, in_line: Sequence[Request], request: Request
) -> Forecast:
    """What has to end before ``request`` is placed, found by some forty decisions at most, and by fewer where
    each costs much.

    ``in_line``: what waits, in the order of service; what comes after the request is left out.
    """
    agents = tuple(one for one in snapshot.agents if one.pool == request.pool)
    names = {one.id for one in agents}
    mine = [one for one in in_line if one.pool == request.pool]
    before = mine[: mine.index(request) + 1]
    running = tuple(
        one for one in snapshot.running if any(part.agent_id in names for part in one.parts)
    )
    here = Snapshot(tuple(before), agents, snapshot.used_by_group, running)

    tries = BUDGET // (1 + len(before) + len(running) + len(agents))

    def is_placed(ended: Collection[Occupant]) -> bool:
        decision = scheduler.decide(without(here, ended))
        return any(one.id == request.id for one in decision.placements)

    stopping = [one for one in running if one.stopping]
    if stopping and is_placed(stopping):
        return Forecast(stopping=_ids(stopping), count=len(stopping))
    enough = [
        one
        for alike in _alike([one for one in running if not one.stopping])[:tries]
        if is_placed(alike[:1])
        for one in alike
    ]
    if enough:
        return Forecast(any_of=_ids(enough), count=len(enough))
    slots = [one for one in running if one.slot_ids]
    if not slots or tries < len(slots).bit_length() or not is_placed(slots):
        return Forecast()
    few, many = 1, len(slots)
    while few < many:
        middle = (few + many) // 2
        if is_placed(slots[:middle]):
            many = middle
        else:
            few = middle + 1
    return Forecast(all_of=_ids(slots[:many]), count=many)


def without(snapshot: Snapshot, ended: Collection[Occupant]) -> Snapshot:
    """The snapshot once ``ended`` have ended, and want no slots again."""
    gone = {one.id for one in ended}
    freed: dict[str, set[int]] = {}
    tasks: Counter[str] = Counter()
    used = Counter(snapshot.used_by_group)
    for one in ended:
        for agent_id, slot_ids in one.parts:
            freed.setdefault(agent_id, set()).update(slot_ids)
        tasks[one.agent_id] += not one.slot_ids
        if one.group is not None:
            used[one.group] -= one.width
    agents = tuple(
        replace(
            agent,
            used=agent.used - freed[agent.id],
            zero_slot_tasks=agent.zero_slot_tasks - tasks[agent.id],
        )
        if agent.id in freed
        else agent
        for agent in snapshot.agents
    )
    running = tuple(one for one in snapshot.running if one.id not in gone)
    return replace(snapshot, agents=agents, used_by_group=used, running=running)


def _alike(running: Sequence[Occupant]) -> list[list[Occupant]]:
    """``running``, together what frees the same by its end; the first :data:`MAX_SINGLE` kinds of them."""
    found: dict[tuple[object, ...], list[Occupant]] = {}
    for one in running:
        limited = one.group if one.max_slots is not None else None
        kind = (one.agent_id, one.width, one.others and one.id, limited, one.priority)
        found.setdefault(kind, []).append(one)
    return list(found.values())[:MAX_SINGLE]


def _ids(running: Sequence[Occupant]) -> tuple[str, ...]:
    return tuple(one.id for one in running[:NAMED])
