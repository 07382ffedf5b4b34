"""What a scheduler sees, read from the tables: :class:`SnapshotReader`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.expconf.heeding import KUBERNETES
from determined_service.base.spread import Spread
from determined_service.lifecycle.exits import NO_WORDS
from determined_service.scheduling.constraints import constraint_of
from determined_service.scheduling.layout import UnitLayout
from determined_service.scheduling.live_allocations import (
    ExperimentTerms,
    Live,
    LiveAllocation,
    LiveReader,
)
from determined_service.scheduling.pools import PoolSchedulers
from determined_service.scheduling.snapshot import (
    AgentInfo,
    Constraint,
    Occupant,
    Part,
    Request,
    Resting,
    Snapshot,
)
from determined_service.state import presence, states

MOST_CONSTRAINTS = 1000
LEAST_PRIORITY = 99
"""Priorities are 1 to 99."""

_AGENTS = sa.text(
    f"""
    SELECT json_build_array(extract(epoch FROM statement_timestamp())::float8,
        (SELECT coalesce(json_agg(name), '[]') FROM pools WHERE worker_type = '{KUBERNETES}'),
        coalesce(json_agg(json_build_array(g.id, g.resource_pool, g.labels, s.ids, s.closed, s.machines)
            ORDER BY g.id), '[]'))::text
    FROM agents g
    LEFT JOIN (
        SELECT o.agent_id, array_agg(o.slot_id ORDER BY o.slot_id)
                   FILTER (WHERE o.enabled AND NOT o.draining AND m.machine IS NULL) AS ids,
               array_agg(o.slot_id)
                   FILTER (WHERE NOT o.enabled OR o.draining OR m.machine IS NOT NULL) AS closed,
               json_object_agg(o.slot_id, o.machine) FILTER (WHERE o.machine IS NOT NULL) AS machines
        FROM slots o
        LEFT JOIN disabled_machines m ON m.agent_id = o.agent_id AND m.machine = o.machine
        GROUP BY o.agent_id
    ) s ON s.agent_id = g.id
    WHERE g.enabled AND NOT g.draining AND {presence.takes_work()}
    """
)


_Item = Request | Resting | Occupant
"""An allocation, as a scheduler sees it."""


_Opened = tuple[str, tuple[int, ...], str, Mapping[str, str]]
"""A unit of an agent, its slots that may be given out, its pool and its agent's labels."""


class _Pool(NamedTuple):
    """What the cluster's configuration says of a pool."""

    priority: int
    spread: Spread
    is_higher_first: bool

    def rank(self, priority: int | None) -> int:
        """The priority as a scheduler sees it: a lower number is more important. None: the pool's default."""
        given = self.priority if priority is None else priority
        return LEAST_PRIORITY + 1 - given if self.is_higher_first else given


@dataclass(frozen=True, slots=True)
class _Made:
    """What a scheduler sees of each allocation (None: it holds slots of no agent), in the order of ``Live``;
    of which look, and what else than ``Live`` it was made of."""

    number: int
    pools: Mapping[str, _Pool]
    runners: Mapping[str, tuple[int, float]]
    seen: Mapping[str, _Item | None]


class SnapshotReader:
    """Reads snapshots for the loop and for whoever explains what it decides.

    ``schedulers``: whose pools have default priorities. ``agent_timeout_s``: how long an agent may be silent.
    For one process and one database; what has not changed since the last look is not read again.
    """

    def __init__(self, schedulers: PoolSchedulers, agent_timeout_s: float) -> None:
        self.schedulers = schedulers
        self.agent_timeout_s = agent_timeout_s
        self._reader = LiveReader()
        self._made = _Made(0, {}, {}, {})
        self._constraints: dict[str, Constraint | None] = {}
        # Until the first request has rested, as of the last snapshot; None: none rests.
        self.rest_s: float | None = None

    async def live(self, conn: AsyncConnection) -> Live:
        """Every allocation that has not ended."""
        return await self._reader.read(conn)

    async def read(self, conn: AsyncConnection, live: Live | None = None) -> Snapshot:
        """This moment's snapshot, of ``live`` if the caller has read that."""
        if live is None:
            live = await self.live(conn)
        agents = await conn.execute(_AGENTS, {"timeout": self.agent_timeout_s})
        moment, kubernetes, rows = orjson.loads(agents.scalar_one())
        self.schedulers.kubernetes = frozenset(kubernetes)
        return self._snapshot(live, moment, rows)

    def _snapshot(self, live: Live, moment: float, agents: list[Any]) -> Snapshot:
        seen = self._make(live)
        layout, opened = self._laid_out(agents)
        waiting = [one for one in seen.values() if type(one) is Request]
        running = layout.running(one for one in seen.values() if type(one) is Occupant)
        resting: tuple[Resting, ...] = ()
        if len(waiting) + len(running) < len(seen):
            waiting, resting = _apart(seen, moment)
        self.rest_s = min((one.until - moment for one in resting), default=None)
        requests = layout.requests(waiting)
        used_by_group: Counter[int] = Counter()
        used: dict[str, set[int]] = {}
        tasks: Counter[str] = Counter()
        if len(requests) + len(resting) + len(running) < len(seen):
            for key, one in seen.items():
                row = live.rows[key]
                if one is None and row.experiment_id is not None:
                    used_by_group[row.experiment_id] += len(row.slot_ids)
        for one in running:
            if one.group is not None:
                used_by_group[one.group] += one.width
            used.setdefault(one.agent_id, set()).update(one.slot_ids)
            if not one.slot_ids:
                tasks[one.agent_id] += 1
            for agent_id, slot_ids in one.others:
                used.setdefault(agent_id, set()).update(slot_ids)
        nobody = frozenset[int]()
        limits = {
            pool: self.schedulers.max_zero_slot_tasks(pool) for pool in {a[1] for a in agents}
        }
        return Snapshot(
            requests,
            tuple(
                AgentInfo(
                    name, pool, slots, frozenset(used[name]) if name in used else nobody, tasks[name],
                    limits[pool], labels,
                )
                for name, slots, pool, labels in opened
            ),
            used_by_group,
            running,
            resting,
            moment if resting else 0.0,
        )  # fmt: skip

    def _laid_out(self, agents: list[Any]) -> tuple[UnitLayout, list[_Opened]]:
        """The agents by their units."""
        layout = UnitLayout()
        opened: list[_Opened] = []
        for agent_id, pool, labels, ids, closed, machines in agents:
            usable = tuple(ids or ())
            has_pods = pool in self.schedulers.kubernetes
            if machines is None and not has_pods:
                opened.append((agent_id, usable, pool, labels))
                continue
            most = self.schedulers.cluster.max_slots_per_pod(pool) if has_pods else None
            for name, slots in layout.add(agent_id, usable, closed or (), machines or {}, most):
                opened.append((name, slots, pool, labels))
        return layout, opened

    def _make(self, live: Live) -> Mapping[str, _Item | None]:
        """What a scheduler sees of each allocation: of one that is as it was, the same object as before."""
        before = self._made
        runners = self._runners(live)
        pools = {pool: self._pool(pool) for pool in {row.pool for row in live.rows.values()}}
        if (
            live.number
            and live.number == before.number
            and (pools, runners) == (before.pools, before.runners)
        ):
            return before.seen
        is_next = live.number == before.number + 1 and live.changed is not None
        if is_next and runners == before.runners and pools.items() <= before.pools.items():
            assert live.changed is not None
            changed, known = live.changed, before.seen
            seen = {
                key: self._seen(row, live, pools, runners) if key in changed else known[key]
                for key, row in live.rows.items()
            }
        else:
            seen = {key: self._seen(row, live, pools, runners) for key, row in live.rows.items()}
        if live.number > before.number:
            self._made = _Made(live.number, pools, runners, seen)
        return seen

    def _seen(
        self,
        row: LiveAllocation,
        live: Live,
        pools: Mapping[str, _Pool],
        runners: Mapping[str, tuple[int, float]],
    ) -> _Item | None:
        terms = None if row.experiment_id is None else live.terms.get(row.experiment_id)
        terms = terms or ExperimentTerms(row.since, None, 1.0, None, True, None)
        pool = pools[row.pool]
        priority = pool.rank(row.priority)
        position = terms.position
        if (runner := runners.get(row.task_id)) is not None:
            priority, position = min(priority, runner[0]), min(position, runner[1])
        if row.state == states.REQUESTED:
            banned = frozenset[str]() if row.trial_id is None else live.banned.get(row.trial_id)
            request = Request(
                row.id, row.pool, row.slots, row.experiment_id, terms.max_slots, banned or frozenset(),
                priority, terms.weight, position, row.preemptible, row.since,
                self._constraint(terms.placement), Spread.NONE if terms.single_node else pool.spread,
            )  # fmt: skip
            if row.rests_until is None:
                return request
            return Resting(request, row.rests_until, row.unplaced or NO_WORDS)
        if row.agent_id is None:
            return None
        return Occupant(
            row.id, row.agent_id, tuple(row.slot_ids), row.experiment_id, terms.max_slots, priority,
            terms.weight, position, row.preemptible, row.since, row.stopping, row.stopping_for,
            tuple(Part(agent, tuple(slots)) for agent, slots in live.parts.get(row.id, ())[1:]),
        )  # fmt: skip

    def _constraint(self, placement: str | None) -> Constraint | None:
        if placement is None:
            return None
        if placement not in self._constraints:
            if len(self._constraints) >= MOST_CONSTRAINTS:
                self._constraints.clear()
            self._constraints[placement] = constraint_of(orjson.loads(placement))
        return self._constraints[placement]

    def _pool(self, pool: str) -> _Pool:
        config = self.schedulers.config(pool)
        spread = Spread.of(False, config.allow_heterogeneous_fits)
        return _Pool(config.default_priority, spread, self.schedulers.is_higher_first(pool))

    def _runners(self, live: Live) -> dict[str, tuple[int, float]]:
        """The tasks that run custom searches: a search waits for its runner, which therefore has the
        search's priority, if that is better than its own, and the place right before it."""
        found: dict[str, tuple[int, float]] = {}
        runner_of = {key: one for key, one in live.terms.items() if one.runner is not None}
        if not runner_of:
            return found
        for row in live.rows.values():
            terms = None if row.experiment_id is None else runner_of.get(row.experiment_id)
            if terms is None or terms.runner is None:
                continue
            priority = self._pool(row.pool).rank(row.priority)
            place = math.nextafter(terms.position, -math.inf)
            known = found.get(terms.runner, (priority, place))
            found[terms.runner] = (min(known[0], priority), min(known[1], place))
        return found


def _apart(
    seen: Mapping[str, _Item | None], moment: float
) -> tuple[list[Request], tuple[Resting, ...]]:
    """The requests that are to be served, in the order of ``seen``, and those that rest."""
    waiting = [
        one.request if isinstance(one, Resting) else one
        for one in seen.values()
        if isinstance(one, Request) or (isinstance(one, Resting) and one.until <= moment)
    ]
    resting = (one for one in seen.values() if isinstance(one, Resting) and one.until > moment)
    return waiting, tuple(resting)
