"""A snapshot that is read as changes equals a snapshot that is read whole."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.base.db import Database
from determined_service.scheduling.live_allocations import Live, LiveReader
from determined_service.scheduling.pools import PoolSchedulers
from determined_service.scheduling.reading import SnapshotReader
from determined_service.scheduling.snapshot import Snapshot
from determined_service.state.change import reader
from tests.waiting import until_async

GROUPS, TRIALS, STEPS = 4, 12, 400
FILL = f"""
INSERT INTO pools (name) VALUES ('default') ON CONFLICT DO NOTHING;
INSERT INTO agents (id, resource_pool, host, version, slot_type, session, last_heartbeat)
SELECT 'a' || n, 'default', 'h', '1', 'cpu', gen_random_uuid(), now() + interval '1 h'
FROM generate_series(1, 3) n;
INSERT INTO slots (agent_id, slot_id, device) SELECT id, n, '{{}}' FROM agents, generate_series(0, 3) n;
INSERT INTO experiments (state, name, config, owner_id)
SELECT 'ACTIVE', 'e', jsonb_build_object('searcher', jsonb_build_object(
           'name', CASE WHEN n = 1 THEN 'custom' ELSE 'random' END), 'resources', '{{}}'::jsonb), 1
FROM generate_series(1, {GROUPS}) n;
INSERT INTO tasks (id, kind, owner_id, flow_run_id)
SELECT 't' || n, 'TRIAL', 1, gen_random_uuid() FROM generate_series(1, {TRIALS}) n;
UPDATE experiments SET submitted_by = 't2' WHERE id = 1;
INSERT INTO trials (experiment_id, request_id, task_id, state, hparams, seed, op_length, op_complete)
SELECT 1 + n % {GROUPS}, 'r' || n, 't' || n, 'ACTIVE', '{{}}', n, 8, false
FROM generate_series(1, {TRIALS}) n;
"""
# What happens to a trial's allocation, an experiment, a trial's log. {n}: a small random number.
CHANGES = (
    """
    INSERT INTO allocations (id, task_id, experiment_id, trial_id, run_id, state, resource_pool, slots)
    SELECT task_id || '.' || run_count + 1, task_id, experiment_id, id, run_count + 1, 'REQUESTED',
           'default', {n}
    FROM trials t WHERE id = {trial} AND NOT EXISTS (
        SELECT FROM allocations a WHERE a.trial_id = t.id AND a.run_id > t.run_count);
    UPDATE trials SET run_count = run_count + 1 WHERE id = {trial}
    """,
    """
    UPDATE allocations SET state = 'RUNNING', agent_id = 'a1', slot_ids = '[{n}]',
           assigned_at = clock_timestamp()
    WHERE trial_id = {trial} AND state = 'REQUESTED'
    """,
    """
    WITH gang AS (
        UPDATE allocations SET state = 'ASSIGNED', agent_id = 'a2', slot_ids = '[0]', nodes = 2,
               assigned_at = clock_timestamp()
        WHERE trial_id = {trial} AND state = 'REQUESTED' RETURNING id
    )
    INSERT INTO allocation_resources (allocation_id, id, agent_id, slot_ids, node)
    SELECT id, 'a' || 2 + node, 'a' || 2 + node, '[{n}]', node FROM gang, generate_series(0, 1) node
    """,
    "UPDATE allocations SET state = 'TERMINATED' WHERE trial_id = {trial}",
    "UPDATE allocations SET preempt_requested_at = now(), stopping_for = 't1.1' WHERE trial_id = {trial}",
    "UPDATE allocations SET priority = {n} WHERE trial_id = {trial}",
    "UPDATE allocations SET in_line_since = now() - interval '{n} h' WHERE trial_id = {trial}",
    "DELETE FROM allocations WHERE trial_id = {trial} AND state <> 'REQUESTED'",
    "UPDATE experiments SET queue_position = {n} WHERE id = {group}",
    """
    UPDATE experiments SET config = jsonb_set(config, '{{resources}}',
        '{{"max_slots": {n}, "weight": {n}, "placement": {{"agents": ["a{n}"]}}}}') WHERE id = {group}
    """,
    """
    INSERT INTO log_policy_matches (trial_id, run_id, name, action, agent_id, line)
    VALUES ({trial}, {n}, 'p', 'exclude_node', 'a{n}', 'l') ON CONFLICT DO NOTHING
    """,
    "SAVEPOINT here; UPDATE allocations SET priority = {n} WHERE trial_id = {trial}; RELEASE here",
    "SAVEPOINT here; DELETE FROM allocations WHERE trial_id = {trial}; ROLLBACK TO here",
)


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute(FILL)
    made = Database(database_url)
    yield made
    await made.close()


def snapshots() -> SnapshotReader:
    return SnapshotReader(PoolSchedulers(), 60.0)


async def look(db: Database, kept: SnapshotReader) -> Snapshot:
    async with reader(db).connect() as conn:
        return await kept.read(conn)


async def test_over_a_random_history_with_transactions_that_end_late(
    db: Database, database_url: str
) -> None:
    stream, kept = random.Random(7), snapshots()
    seen: list[Snapshot] = []
    with psycopg.connect(database_url) as one, psycopg.connect(database_url) as other:
        # Each has its own trials and experiments, so that none waits for the other.
        for _ in range(STEPS):
            half = stream.choice((0, 1))
            conn = (one, other)[half]
            statement = stream.choice([*CHANGES, *CHANGES[:1] * 3]).format(
                trial=1 + 2 * stream.randrange(TRIALS // 2) + half,
                group=1 + 2 * stream.randrange(GROUPS // 2) + half,
                n=stream.randrange(1, 4),
            )
            conn.execute(statement)
            end = stream.choice(("commit", "commit", "rollback", ""))
            if end:
                getattr(conn, end)()
            if stream.random() < 0.7:
                seen.append(await look(db, kept))
                assert seen[-1] == await look(db, snapshots())
    assert any(one.requests for one in seen)
    assert any(one.running for one in seen)
    assert any(request.excluded for one in seen for request in one.requests)
    assert any(held.others for one in seen for held in one.running)


async def fill(conn: AsyncConnection, trial: int) -> None:
    for statement in CHANGES[0].format(trial=trial, n=1).split(";"):
        await conn.execute(sa.text(statement))


async def test_only_changed_rows_are_read_again(db: Database) -> None:
    kept = LiveReader()
    async with reader(db).connect() as conn:
        for trial in range(1, TRIALS):
            await fill(conn, trial)
        await kept.read(conn)

        async def is_all() -> bool:
            await conn.execute(sa.text("UPDATE allocations SET priority = 3 WHERE trial_id = 5"))
            return (await kept.read(conn)).changed == {"t5.1"}

        # Wait until no older transaction runs on the server, neither in another database nor of Postgres
        # itself.
        await until_async("only the change is read", is_all)


async def test_rolled_back_values_are_not_kept(db: Database) -> None:
    kept = snapshots()
    before = await look(db, kept)
    async with db.engine.connect() as conn:
        await fill(conn, 1)
        assert len((await kept.read(conn)).requests) == len(before.requests) + 1
        await conn.rollback()
    assert await look(db, kept) == before


async def test_unknown_values_are_read(db: Database) -> None:
    async with reader(db).connect() as conn:
        await fill(conn, 1)
    kept = snapshots()
    assert len((await look(db, kept)).requests) == 1
    await look(db, kept)
    kept._reader._live = Live()
    assert await look(db, kept) == await look(db, snapshots())
