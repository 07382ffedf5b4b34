"""What a decision of the scheduler costs: 1,000 agents with 8 slots each, 4,000 allocations that run,
10,000 requests that wait. The pass alone, and with the reading of its snapshot from Postgres."""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import sqlalchemy as sa

from benchmarks.database import database
from determined_service.__main__ import COLLECT
from determined_service.scheduling.explanation import explain
from determined_service.scheduling.placement import SCHEDULER, read_snapshot, waiting_requests
from determined_service.scheduling.scheduler import Waiting
from determined_service.scheduling.snapshot import Agent, Request, Snapshot
from determined_service.scheduling.wording import in_words

AGENTS, SLOTS, RUNNING, QUEUED, GROUPS, PASSES = 1_000, 8, 4_000, 10_000, 200, 9
BAR_MS = 50
EXPLAINED = 1


def _snapshot(widths: list[int], running_width: int) -> Snapshot:
    """What runs has ``running_width`` slots each; what waits wants ``widths``, mixed."""
    stream = random.Random(7)
    slots, held = tuple(range(SLOTS)), frozenset(range(RUNNING // AGENTS * running_width))
    agents = tuple(Agent(f"agent-{n:04}", "default", slots, held) for n in range(AGENTS))
    requests = tuple(
        Request(str(n), "default", stream.choice(widths), n % GROUPS) for n in range(QUEUED)
    )
    return Snapshot(requests, agents)


def _limited(snapshot: Snapshot) -> Snapshot:
    return replace(
        snapshot, requests=tuple(replace(one, max_slots=16) for one in snapshot.requests)
    )


def _excluded(snapshot: Snapshot) -> Snapshot:
    few = frozenset(agent.id for agent in snapshot.agents[:3])
    return replace(
        snapshot, requests=tuple(replace(one, excluded=few) for one in snapshot.requests)
    )


def _cases() -> Iterable[tuple[str, Snapshot]]:
    yield "nothing is free", _snapshot([1], 2)
    yield "4,000 slots are free, requests for 1", _snapshot([1], 1)
    mixed = _snapshot([1, 2, 4, 8], 1)
    yield "4,000 are free, requests for 1, 2, 4 or 8", mixed
    yield "requests for 1, experiments at max_slots", _limited(_snapshot([1], 1))
    yield "requests for 1, three agents excluded by each", _excluded(_snapshot([1], 1))
    yield "requests for no slots", _snapshot([0], 1)


def _median_ms(run: Callable[[], object]) -> float:
    """CPU time: others on the machine do not count."""
    taken = []
    for _ in range(PASSES):
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
    INSERT INTO experiments (state, name, config, owner_id, flow_run_id)
    SELECT 'ACTIVE', 'e' || n,
           jsonb_build_object('searcher', '{{"name": "random"}}'::jsonb,
                              'resources', '{{"slots_per_trial": 1, "weight": 1}}'::jsonb,
                              'data', (SELECT jsonb_agg(md5((n * i)::text)) FROM generate_series(1, 200) i)),
           1, gen_random_uuid()
    FROM generate_series(1, {GROUPS}) n
    """,
    "INSERT INTO searches (experiment_id, driver_seen_at) SELECT id, now() FROM experiments",
    f"""
    INSERT INTO trials (experiment_id, request_id, state, hparams, seed, op_length, op_complete,
                        flow_run_id, run_count)
    SELECT 1 + n % {GROUPS}, gen_random_uuid(), 'ACTIVE', '{{}}', n, 8, false, gen_random_uuid(), 3
    FROM generate_series(1, {RUNNING + QUEUED}) n
    """,
    # Two legs that ended, and one that runs on two slots or waits.
    f"""
    INSERT INTO allocations (id, task_id, experiment_id, trial_id, run_id, state, resource_pool,
                             slots, agent_id, slot_ids, assigned_at, started_at)
    SELECT t.id || '.' || run, t.id, t.experiment_id, t.id, run,
           CASE WHEN run < 3 THEN 'TERMINATED' WHEN t.id <= {RUNNING} THEN 'RUNNING' ELSE 'REQUESTED' END,
           'default', CASE WHEN t.id <= {RUNNING} THEN 2 ELSE 1 END,
           CASE WHEN run < 3 OR t.id <= {RUNNING} THEN 'agent-' || (t.id % {AGENTS}) END,
           CASE WHEN t.id <= {RUNNING} AND run = 3
                THEN jsonb_build_array(2 * (t.id / {AGENTS} % 4), 2 * (t.id / {AGENTS} % 4) + 1)
                ELSE '[]' END,
           now(), now()
    FROM trials t, generate_series(1, 3) run
    """,
    "ANALYZE",
)


def _as_the_service() -> None:
    """Collects garbage as seldom as the service does."""
    gc.set_threshold(*COLLECT)
    gc.freeze()


async def _from_tables() -> tuple[float, float]:
    """Milliseconds that reading the snapshot takes, and one experiment's explanation."""
    read, explained = [], []
    async with database() as db:
        async with db.tx() as conn:
            for statement in _FILL:
                await conn.execute(sa.text(statement))
        for _ in range(PASSES):
            async with db.tx() as conn:
                began = time.perf_counter()
                snapshot = await read_snapshot(conn, await waiting_requests(conn), 60.0)
                read.append(1000 * (time.perf_counter() - began))
                began = time.perf_counter()
                answer = await explain(conn, EXPLAINED, 60.0)
                explained.append(1000 * (time.perf_counter() - began))
    assert (len(snapshot.requests), len(snapshot.agents)) == (QUEUED, AGENTS)
    assert len(answer["waiting"]) == QUEUED // GROUPS
    return statistics.median(read), statistics.median(explained)


def main() -> None:
    _as_the_service()
    print(
        f"{AGENTS:,} agents of {SLOTS} slots, {RUNNING:,} run, {QUEUED:,} wait; medians of {PASSES}"
    )
    waiting: tuple[Waiting, ...] = ()
    for name, snapshot in _cases():
        taken = _median_ms(partial(SCHEDULER.decide, snapshot))
        decision = SCHEDULER.decide(snapshot)
        waiting = waiting or decision.waiting
        print(f"{taken:6.1f} ms  {name} ({len(decision.placements):,} placed); bar: {BAR_MS} ms")
    words = _median_ms(lambda: [in_words(one) for one in waiting])
    print(f"{words:6.1f} ms  {len(waiting):,} reasons in words")
    read, explained = asyncio.run(_from_tables())
    print(f"{read:6.1f} ms  the snapshot read from Postgres")
    print(
        f"{explained:6.1f} ms  the explanation of an experiment with {QUEUED // GROUPS} trials that wait"
    )


if __name__ == "__main__":
    main()
