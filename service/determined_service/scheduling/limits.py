"""What runs above its group's ``max_slots``, because that was lowered: :func:`over_limit`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import replace

from determined_service.scheduling.scheduler import Preemption
from determined_service.scheduling.snapshot import Occupant, Snapshot


def over_limit(snapshot: Snapshot, agents: Container[str]) -> list[Preemption]:
    """Of each group that holds more than its ``max_slots``, what is to be stopped on ``agents``: the last
    placed first, and no more than needed."""
    limits = {one.group: one.max_slots for one in snapshot.running if one.max_slots is not None}
    if not limits:
        return []
    stopping: Counter[int] = Counter()
    for one in snapshot.running:
        if one.stopping and one.group is not None:
            stopping[one.group] += one.width
    above = {
        group: snapshot.used_by_group.get(group, 0) - stopping[group] - limit
        for group, limit in limits.items()
        if group is not None and limit is not None
    }
    found = []
    for one in reversed(snapshot.running):
        if one.group is None or above.get(one.group, 0) <= 0 or not one.width:
            continue
        here = any(part.agent_id in agents for part in one.parts)
        if one.preemptible and not one.stopping and here:
            above[one.group] -= one.width
            found.append(Preemption(one.id, one.id))
    return found


def stopped(running: Sequence[Occupant], preemptions: Sequence[Preemption]) -> tuple[Occupant, ...]:
    """``running`` when the preemptions have been made."""
    for_whom = {one.id: one.request_id for one in preemptions}
    return tuple(
        replace(one, stopping=True, stopping_for=for_whom[one.id]) if one.id in for_whom else one
        for one in running
    )
