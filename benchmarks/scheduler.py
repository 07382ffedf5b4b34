"""What a decision costs with every policy: 1,000 agents with 8 slots each, 4,000 allocations that run, and
1,000 to 100,000 requests that wait. Also the reading of a snapshot from Postgres, and what a submission costs
into a long queue."""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import sqlalchemy as sa

from benchmarks.database import database
from determined_service.__main__ import COLLECT
from determined_service.lifecycle import trial_queue
from determined_service.scheduling.explanation import explain
from determined_service.scheduling.fair_share import FairShare
from determined_service.scheduling.first_in_first_out import FirstInFirstOut
from determined_service.scheduling.forecast import forecast
from determined_service.scheduling.free_slots import Fit
from determined_service.scheduling.pools import PoolSchedulers
from determined_service.scheduling.priority import Priority
from determined_service.scheduling.reading import SnapshotReader
from determined_service.scheduling.round_robin import RoundRobin
from determined_service.scheduling.scheduler import Scheduler, Waiting
from determined_service.scheduling.snapshot import AgentInfo, Occupant, Request, Snapshot
from determined_service.scheduling.wording import in_words
from determined_service.state.change import changing, reader

AGENTS, SLOTS, RUNNING, QUEUED, GROUPS, PASSES = 1_000, 8, 4_000, 10_000, 200, 7
LENGTHS = (1_000, QUEUED, 100_000)
BAR_MS = 50
EXPLAINED = 1
PRIORITIES = (10, 42, 42, 60)

POLICIES: dict[str, Scheduler] = {
    "first in, first out": FirstInFirstOut(),
    "priority": Priority(),
    "priority, preempting": Priority(preemption=True),
    "fair share": FairShare(),
    "round robin": RoundRobin(),
    "priority, worst fit": Priority(fit=Fit.WORST),
}


def _snapshot(widths: list[int], running_width: int, queued: int = QUEUED) -> Snapshot:
    """What runs has ``running_width`` slots each; what waits wants ``widths``, mixed. Experiments have one of
    four priorities."""
    stream = random.Random(7)
    slots, held = tuple(range(SLOTS)), frozenset(range(RUNNING // AGENTS * running_width))
    agents = tuple(AgentInfo(f"agent-{n:04}", "default", slots, held) for n in range(AGENTS))
    requests = tuple(
        Request(
            str(n),
            "default",
            stream.choice(widths),
            n % GROUPS,
            priority=PRIORITIES[n % len(PRIORITIES)],
            position=float(n % GROUPS),
            requested=float(RUNNING + n),
        )
        for n in range(queued)
    )
    running = tuple(
        Occupant(
            f"running-{n}",
            f"agent-{n % AGENTS:04}",
            tuple(range(n // AGENTS * running_width, (n // AGENTS + 1) * running_width)),
            n % GROUPS,
            priority=PRIORITIES[n % len(PRIORITIES)],
            position=float(n % GROUPS),
            requested=float(n),
        )
        for n in range(RUNNING)
    )
    used = Counter[int]()
    for one in running:
        assert one.group is not None
        used[one.group] += running_width
    return Snapshot(requests, agents, used, running)


def _settled(scheduler: Scheduler, snapshot: Snapshot) -> Snapshot:
    """The snapshot when the first decision's preemptions have been made, as in nearly all passes."""
    stopped = {one.id: one.request_id for one in scheduler.decide(snapshot).preemptions}
    running = tuple(
        replace(one, stopping=True, stopping_for=stopped[one.id]) if one.id in stopped else one
        for one in snapshot.running
    )
    return replace(snapshot, running=running)


def _limited(snapshot: Snapshot) -> Snapshot:
    return replace(
        snapshot, requests=tuple(replace(one, max_slots=64) for one in snapshot.requests)
    )


def _excluded(snapshot: Snapshot) -> Snapshot:
    few = frozenset(agent.id for agent in snapshot.agents[:3])
    return replace(
        snapshot, requests=tuple(replace(one, excluded=few) for one in snapshot.requests)
    )


def _idle(widths: list[int]) -> Snapshot:
    snapshot = _snapshot(widths, 1)
    agents = tuple(replace(agent, used=frozenset()) for agent in snapshot.agents)
    return replace(snapshot, agents=agents, running=(), used_by_group=Counter())


def _cases() -> Iterable[tuple[str, Snapshot]]:
    yield "nothing is free", _snapshot([1], 2)
    yield "nothing is free, requests for 1, 2, 4 or 8", _snapshot([1, 2, 4, 8], 2)
    yield "4,000 slots are free, requests for 1", _snapshot([1], 1)
    yield "4,000 are free, requests for 1, 2, 4 or 8", _snapshot([1, 2, 4, 8], 1)
    yield "nothing runs, requests for 1, 8, 16 or 64 on several agents", _idle([1, 8, 16, 64])
    yield "4,000 are free, requests for 1, 8, 16 or 64", _snapshot([1, 8, 16, 64], 1)
    yield "requests for 1, experiments at max_slots", _limited(_snapshot([1], 1))
    yield "requests for 1, three agents excluded by each", _excluded(_snapshot([1], 1))
    yield "requests for no slots", _snapshot([0], 1)


def _median_ms(run: Callable[[], object], passes: int = PASSES) -> float:
    """CPU time: others on the machine do not count."""
    taken = []
    for _ in range(passes):
        began = time.process_time()
        run()
        taken.append(1000 * (time.process_time() - began))
    return statistics.median(taken)


_FILL = (
    "INSERT INTO pools (name) VALUES ('default') ON CONFLICT DO NOTHING",
    f"""
    INSERT INTO agents (id, resource_pool, host, version, slot_type, session, last_heartbeat)
    SELECT 'agent-' || n, 'default', 'h', '1', 'cuda', gen_random_uuid(), now() + interval '1 h'
    FROM generate_series(0, {AGENTS} - 1) n
    """,
    f"""
    INSERT INTO slots (agent_id, slot_id, device)
    SELECT id, n, '{{}}' FROM agents, generate_series(0, {SLOTS} - 1) n
    """,
    # A configuration as long as many are.
    f"""
    INSERT INTO experiments (state, name, config, owner_id)
    SELECT 'ACTIVE', 'e' || n,
           jsonb_build_object('searcher', '{{"name": "random"}}'::jsonb,
                              'resources', '{{"slots_per_trial": 1, "weight": 1}}'::jsonb,
                              'data', (SELECT jsonb_agg(md5((n * i)::text)) FROM generate_series(1, 200) i)),
           1
    FROM generate_series(1, {GROUPS}) n
    """,
    "INSERT INTO searches (experiment_id) SELECT id FROM experiments",
    f"""
    INSERT INTO tasks (id, kind, owner_id, flow_run_id)
    SELECT 1 + n % {GROUPS} || '.trial-' || n, 'TRIAL', 1, gen_random_uuid()
    FROM generate_series(1, {RUNNING + QUEUED}) n
    """,
    f"""
    INSERT INTO trials (experiment_id, request_id, task_id, state, hparams, seed, op_length, op_complete,
                        run_count)
    SELECT 1 + n % {GROUPS}, 'trial-' || n, 1 + n % {GROUPS} || '.trial-' || n, 'ACTIVE', '{{}}', n, 8,
           false, 3
    FROM generate_series(1, {RUNNING + QUEUED}) n
    """,
    # Two legs that ended, and one that runs on two slots or waits.
    f"""
    INSERT INTO allocations (id, task_id, experiment_id, trial_id, run_id, state, resource_pool,
                             slots, agent_id, slot_ids, assigned_at, started_at)
    SELECT t.task_id || '.' || run, t.task_id, t.experiment_id, t.id, run,
           CASE WHEN run < 3 THEN 'TERMINATED' WHEN t.id <= {RUNNING} THEN 'RUNNING' ELSE 'REQUESTED' END,
           'default', CASE WHEN t.id <= {RUNNING} THEN 2 ELSE 1 END,
           CASE WHEN run < 3 OR t.id <= {RUNNING} THEN 'agent-' || (t.id % {AGENTS}) END,
           CASE WHEN t.id <= {RUNNING} AND run = 3
                THEN jsonb_build_array(2 * (t.id / {AGENTS} % 4), 2 * (t.id / {AGENTS} % 4) + 1)
                ELSE '[]' END,
           CASE WHEN run < 3 OR t.id <= {RUNNING} THEN now() END,
           CASE WHEN run < 3 OR t.id <= {RUNNING} THEN now() END
    FROM trials t, generate_series(1, 3) run
    """,
    "ANALYZE",
)
_EMPTY = "UPDATE allocations SET state = 'TERMINATED' WHERE state <> 'TERMINATED' RETURNING id"
_REFILL = sa.text(
    "UPDATE allocations SET state = 'REQUESTED' WHERE id = ANY(:ids) AND agent_id IS NULL"
)
TURNS = 3
_TOUCH = sa.text(
    """
    UPDATE allocations SET pid = 1
    WHERE id IN (SELECT id FROM allocations WHERE state <> 'TERMINATED' LIMIT 20)
    """
)


def _as_the_service() -> None:
    """Collects garbage as seldom as the service does."""
    gc.set_threshold(*COLLECT)
    gc.freeze()


async def _from_tables() -> None:
    read, explained = [], []
    snapshots = SnapshotReader(PoolSchedulers(), 60.0)
    async with database() as db:
        async with db.tx() as conn:
            for statement in _FILL:
                await conn.execute(sa.text(statement))
        for _ in range(PASSES):
            async with reader(db).connect() as conn:
                await conn.execute(_TOUCH)
                began = time.process_time()
                snapshot = await snapshots.read(conn)
                read.append(1000 * (time.process_time() - began))
                began = time.perf_counter()
                answer = await explain(conn, EXPLAINED, snapshots)
                explained.append(1000 * (time.perf_counter() - began))

        async def submit() -> float:
            """Milliseconds for one more request, of one of the trials that have ended."""
            taken = []
            for trial in range(1, 60):
                began = time.perf_counter()
                async with changing(db) as change:
                    await trial_queue.request(change, [trial])
                taken.append(1000 * (time.perf_counter() - began))
            return statistics.median(taken)

        async def emptied() -> float:
            """:func:`submit` while nothing else is live, in turns with the long queue: disks have moods."""
            async with db.tx() as conn:
                before = (await conn.execute(sa.text(_EMPTY))).scalars().all()
            taken = await submit()
            async with db.tx() as conn:
                await conn.execute(sa.text(_EMPTY))
                await conn.execute(_REFILL, {"ids": before})
            return taken

        full, empty = zip(*[(await submit(), await emptied()) for _ in range(TURNS)], strict=True)
    assert (len(snapshot.requests), len(snapshot.agents)) == (QUEUED, AGENTS)
    # Beside the experiment itself, whose driver is quiet.
    trials = [one for one in answer["waiting"] if one["trialId"] is not None]
    assert len(trials) == QUEUED // GROUPS
    print(
        f"{read[0]:6.1f} ms of CPU  the snapshot read whole from Postgres; "
        f"{statistics.median(read[1:]):.1f} ms as changes, of 20 allocations"
    )
    print(
        f"{statistics.median(explained):6.1f} ms  the explanation of an experiment with {QUEUED // GROUPS} "
        "trials that wait"
    )
    print(
        f"{statistics.median(full):6.2f} ms  a request put into a queue of {QUEUED:,}; "
        f"{statistics.median(empty):.2f} ms into an empty one; in {TURNS} turns"
    )


def _forecasts() -> None:
    snapshot = _snapshot([1, 2, 4, 8], 2)
    for name, scheduler in POLICIES.items():
        waiting = scheduler.decide(snapshot).waiting
        line = [one.request for one in waiting]
        for place in (0, len(line) - 1):
            began = time.process_time()
            forecast(scheduler, snapshot, line, line[place])
            taken = 1000 * (time.process_time() - began)
            print(f"{taken:6.0f} ms  a forecast for number {place + 1:,} in line, {name}")


def main() -> None:
    _as_the_service()
    print(
        f"{AGENTS:,} agents of {SLOTS} slots, {RUNNING:,} run; CPU, medians of {PASSES}; bar: {BAR_MS} ms"
    )
    waiting: tuple[Waiting, ...] = ()
    for name, snapshot in _cases():
        print(f"{QUEUED:,} wait: {name}")
        for policy, scheduler in POLICIES.items():
            decision = scheduler.decide(snapshot)
            waiting = waiting or decision.waiting
            first = _median_ms(partial(scheduler.decide, snapshot))
            line = f"{first:6.1f} ms  {policy}: {len(decision.placements):,} placed"
            if decision.preemptions:
                again = _median_ms(partial(scheduler.decide, _settled(scheduler, snapshot)))
                line += f", {len(decision.preemptions):,} preempted; {again:.1f} ms once they stop"
            print(line, flush=True)
    for length in LENGTHS:
        snapshot = _snapshot([1, 2, 4, 8], 2, length)
        for policy, scheduler in POLICIES.items():
            taken = _median_ms(partial(scheduler.decide, snapshot), 3)
            print(
                f"{taken:6.1f} ms  {length:,} wait, 1, 2, 4 or 8 slots each: {policy}", flush=True
            )
    words = _median_ms(lambda: [in_words(one) for one in waiting])
    print(f"{words:6.1f} ms  {len(waiting):,} reasons in words")
    _forecasts()
    asyncio.run(_from_tables())


if __name__ == "__main__":
    main()
