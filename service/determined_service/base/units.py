"""The parts of an agent that one process can have slots of, :class:`AgentUnit`, for scheduling and refusals.

An agent that names no machines is one unit, which has its name. Of one that stands for several machines each
is a unit, named ``agent/machine``. Where the cluster configuration limits the slots of a pod
(``max_slots_per_pod``), the slots of a machine, or of an agent that names none, are cut into units of that
size, ``agent/machine#1`` and ``agent/#1``. The name of an agent has no slash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from typing import NamedTuple

from determined.common.wire.checks import show
from determined_service.base.refusals import BadRequest

MACHINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
"""A machine's name."""


def require_machines(field: str, names: Iterable[str]) -> None:
    """Raises BadRequest for a name in a message's ``field`` that is not a machine's name."""
    for name in names:
        if not MACHINE.fullmatch(name):
            raise BadRequest(
                f"{field}: {show(name)} is not a machine's name, which has up to 253 letters, digits, dots,"
                " hyphens and underscores"
            )


class AgentUnit(NamedTuple):
    """``slots``: their ids, in the agent's order."""

    name: str
    slots: tuple[int, ...]


def units_of(
    agent_id: str, slots: Iterable[tuple[int, str | None]], most: int | None = None
) -> list[AgentUnit]:
    """The units of an agent, at least one.

    Args:
        agent_id: the agent's name.
        slots: the ids of its slots, open or not, with their machines. Each unit keeps its slots when others
            are disabled.
        most: the slots of a pod at most; None: as many as the machine has.
    """
    machines: dict[str | None, list[int]] = {}
    for slot_id, machine in slots:
        machines.setdefault(machine, []).append(slot_id)
    found = []
    for machine, ids in machines.items():
        name = agent_id if machine is None else f"{agent_id}/{machine}"
        if most is None or len(ids) <= most:
            found.append(AgentUnit(name, tuple(ids)))
            continue
        stem = name if machine is not None else f"{agent_id}/"
        found += [
            AgentUnit(f"{stem}#{1 + at // most}", tuple(ids[at : at + most]))
            for at in range(0, len(ids), most)
        ]
    return found or [AgentUnit(agent_id, ())]


def agent_of(unit: str) -> str:
    """The agent that has the unit of that name."""
    return unit.partition("/")[0]


def names_of(unit: str) -> Set[str]:
    """The names by which somebody may mean the unit: its own, its machine's and its agent's."""
    agent_id, slash, rest = unit.partition("/")
    if not slash:
        return {unit}
    return {unit, agent_id, f"{agent_id}/{rest.partition('#')[0]}".removesuffix("/")}
