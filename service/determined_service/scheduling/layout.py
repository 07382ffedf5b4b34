"""The units of the agents that have several, and what runs there: :class:`UnitLayout`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from determined_service.base.units import AgentUnit, names_of, units_of
from determined_service.scheduling.snapshot import Occupant, Part, Request


class UnitLayout:
    """A scheduler sees units (:mod:`determined_service.base.units`) where the tables have agents. Agents that
    are one unit each are left out here, and so is all that runs on them."""

    def __init__(self) -> None:
        self._units: dict[str, list[str]] = {}
        self._unit_of: dict[str, dict[int, str]] = {}
        self._meant: dict[str, set[str]] = {}

    def add(
        self,
        agent_id: str,
        usable: Collection[int],
        closed: Collection[int],
        machines: Mapping[str, str],
        most: int | None,
    ) -> list[AgentUnit]:
        """Lays out an agent; its units, with those of their slots that may be given out.

        Args:
            agent_id: the agent's name.
            usable: the ids of its slots that may be given out.
            closed: those of its other slots.
            machines: by slot, as text; of an agent that names machines.
            most: the slots of a pod at most, if there is a limit.
        """
        ids = sorted([*usable, *closed])
        units = units_of(agent_id, ((one, machines.get(str(one))) for one in ids), most)
        if [one.name for one in units] != [agent_id]:
            self._units[agent_id] = [one.name for one in units]
            self._unit_of[agent_id] = {slot: one.name for one in units for slot in one.slots}
            for one in units:
                for name in names_of(one.name):
                    self._meant.setdefault(name, set()).add(one.name)
        given = frozenset(usable)
        return [AgentUnit(one.name, tuple(filter(given.__contains__, one.slots))) for one in units]

    def running(self, every: Iterable[Occupant]) -> tuple[Occupant, ...]:
        """What runs, by units.

        Allocations without slots are dealt out evenly. Slots that the agent no longer has count for its first
        unit, which gets nothing by their end.
        """
        if not self._units:
            return tuple(every)
        dealt: Counter[str] = Counter()
        return tuple(
            self._moved(one, dealt)
            if one.agent_id in self._units
            or any(part.agent_id in self._units for part in one.others)
            else one
            for one in every
        )

    def _moved(self, one: Occupant, dealt: Counter[str]) -> Occupant:
        held: dict[str, list[int]] = {}
        for agent_id, slot_ids in one.parts:
            units = self._units.get(agent_id)
            if units is None:
                held.setdefault(agent_id, []).extend(slot_ids)
            elif not slot_ids:
                held.setdefault(units[dealt[agent_id] % len(units)], [])
                dealt[agent_id] += 1
            else:
                known = self._unit_of[agent_id]
                for slot in slot_ids:
                    held.setdefault(known.get(slot, units[0]), []).append(slot)
        first, *others = (Part(name, tuple(slots)) for name, slots in held.items())
        return replace(one, agent_id=first[0], slot_ids=first[1], others=tuple(others))

    def requests(self, every: Iterable[Request]) -> tuple[Request, ...]:
        """What waits, with the units that it must not run on."""
        if not self._units:
            return tuple(every)
        return tuple(
            replace(one, excluded=self._expanded(one.excluded)) if one.excluded else one
            for one in every
        )

    def _expanded(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset(unit for name in names for unit in self._meant.get(name, {name}))
