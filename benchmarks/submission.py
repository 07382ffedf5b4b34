"""What it costs to submit an experiment into a queue of 10,000 requests beside one into an empty queue.

All that the route does, from the text of the configuration to the commit: CPU of the service and of Postgres,
statements, and the rows and buffers that Postgres touches for them. In turns, because machines have moods.
(The scheduler's pass after it is `python -m benchmarks scheduler`.)"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import psutil
import sqlalchemy as sa

from benchmarks.database import database
from benchmarks.scheduler import _EMPTY, _FILL, _REFILL, QUEUED
from determined_service.base.db import Database
from determined_service.base.settings import Settings
from determined_service.state.change import changing, reader
from determined_service.submission import submit

TURNS, EACH = 3, 100
CONFIG = """
name: one more
entrypoint: python3 train.py
hyperparameters: {x: 1}
searcher: {name: single, metric: loss, max_length: {batches: 8}}
checkpoint_storage: {type: shared_fs, host_path: /tmp}
"""
_COUNTERS = "blks_hit + blks_read AS buffers, tup_returned AS scanned, tup_fetched AS fetched, "
_COUNTERS += "tup_inserted AS inserted, tup_updated AS updated"


async def _submit(db: Database, settings: Settings) -> None:
    submission = submit.SubmissionRequest(CONFIG)
    prepared = await submit.prepare(submission, settings)
    async with changing(db) as change:
        plan = await submit.plan(change.conn, submission, prepared, settings, 1)
        await submit.store(change, plan, submission, 1, None)


async def _counters(db: Database) -> dict[str, float]:
    async with reader(db).connect() as conn:
        pids = list(await conn.scalars(sa.text("SELECT pid FROM pg_stat_activity")))
        # Backends tell what they did once a second.
        await asyncio.sleep(1.2)
        row = (
            await conn.execute(
                sa.text(
                    f"SELECT {_COUNTERS} FROM pg_stat_database WHERE datname = current_database()"
                )
            )
        ).one()
    times = [psutil.Process(pid).cpu_times() for pid in pids if psutil.pid_exists(pid)]
    found: dict[str, float] = {name: float(value) for name, value in row._mapping.items()}
    found["CPU of Postgres, ms"] = 1000 * sum(one.user + one.system for one in times)
    return found


async def _cost(db: Database, settings: Settings) -> dict[str, float]:
    """Of one submission."""
    count = 0

    def counted(*args: Any) -> None:
        nonlocal count
        count += 1

    await _submit(db, settings)
    before = await _counters(db)
    sa.event.listen(sa.Engine, "before_cursor_execute", counted)
    began = time.process_time()
    for _ in range(EACH):
        await _submit(db, settings)
    cpu = time.process_time() - began
    sa.event.remove(sa.Engine, "before_cursor_execute", counted)
    after = await _counters(db)
    found = {"CPU of the service, ms": 1000 * cpu / EACH, "statements": count / EACH}
    return found | {name: (after[name] - before[name]) / EACH for name in after}


async def _measure() -> None:
    settings = Settings.model_validate({"db_url": "", "agent_token": "x"})
    rows: dict[str, list[dict[str, float]]] = {"long": [], "empty": []}
    async with database() as db:
        async with db.tx() as conn:
            for statement in _FILL:
                await conn.execute(sa.text(statement))
        for _ in range(TURNS):
            rows["long"].append(await _cost(db, settings))
            async with db.tx() as conn:
                before = (await conn.execute(sa.text(_EMPTY))).scalars().all()
            rows["empty"].append(await _cost(db, settings))
            async with db.tx() as conn:
                await conn.execute(sa.text(_EMPTY))
                await conn.execute(_REFILL, {"ids": before})
    print(f"{TURNS} turns of {EACH}; medians (least to most)")
    for name in rows["long"][0]:
        line = f"{name:24}"
        for queue, label in (("long", f"{QUEUED:,} wait"), ("empty", "none waits")):
            values = sorted(turn[name] for turn in rows[queue])
            line += (
                f"  {label}: {statistics.median(values):8.2f} ({values[0]:.2f}-{values[-1]:.2f})"
            )
        print(line)


def main() -> None:
    asyncio.run(_measure())


if __name__ == "__main__":
    main()
