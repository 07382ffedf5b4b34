"""What the service's process pays for log lines, and for looking for log policies in them.

CPU of the process, not the clock: it is what one service can take, and other work on the machine does not
change it.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
import uuid
from typing import Any

import sqlalchemy as sa

from benchmarks.database import database
from determined.common.cluster_config import Quotas
from determined_service.base.db import Database
from determined_service.ingest.log_policies import LogWatch
from determined_service.ingest.log_room import LogRoom
from determined_service.ingest.logs import read_lines, write_logs

REQUESTS, LINES, ROUNDS = 20, 1000, 5
TEXT = (
    "[rank=0] epoch 3 step %d: loss 0.48213, accuracy 0.8713, 1843 images/s, 11.2 GiB of memory\n"
)
BUILT_IN = [
    {"name": "CUDA OOM", "pattern": ".*CUDA out of memory.*", "action": None},
    {"name": "ECC Error", "pattern": ".*uncorrectable ECC error encountered.*", "action": None},
]
TEN = BUILT_IN + [
    {"name": f"p{n}", "pattern": f"(?i)error {n}.*(gpu|cuda) [0-9]+ failed$", "action": None}
    for n in range(8)
]


async def _leg(db: Database, policies: list[dict[str, Any]]) -> str:
    """A running leg of an experiment with these policies; its allocation."""
    async with db.tx() as conn:
        found = await conn.execute(
            sa.text(
                "INSERT INTO experiments (state, name, config, owner_id) "
                "VALUES ('ACTIVE', 'n', cast(:config AS jsonb), 1) RETURNING id"
            ),
            {"config": json.dumps({"log_policies": policies})},
        )
        experiment = found.scalar_one()
        await conn.execute(
            sa.text("INSERT INTO tasks (id, kind, owner_id) VALUES (:e || '.r', 'TRIAL', 1)"),
            {"e": str(experiment)},
        )
        found = await conn.execute(
            sa.text(
                "INSERT INTO trials (experiment_id, request_id, task_id, state, hparams, seed) "
                "VALUES (:e, 'r', cast(:e AS text) || '.r', 'ACTIVE', '{}', 1) RETURNING id"
            ),
            {"e": experiment},
        )
        await conn.execute(
            sa.text(
                "INSERT INTO allocations (id, task_id, experiment_id, trial_id, state, "
                "resource_pool, slots) VALUES (:id, :task, :e, :t, 'RUNNING', 'default', 1)"
            ),
            {
                "id": f"{experiment}.r.1",
                "task": f"{experiment}.r",
                "e": experiment,
                "t": found.scalar_one(),
            },
        )
    return f"{experiment}.r.1"


async def _cost(db: Database, policies: list[dict[str, Any]]) -> float:
    """Seconds of CPU for a request of 1000 lines."""
    allocation = await _leg(db, policies)
    watch, room = LogWatch(db), LogRoom(Quotas)
    stream = str(uuid.uuid4())
    bodies = [
        {
            "stream": stream,
            "seq": seq,
            "task_id": allocation.rpartition(".")[0],
            "allocation_id": allocation,
            "lines": [
                {"t": 1795266000.5, "stdtype": "stdout", "log": TEXT % line}
                for line in range(LINES)
            ],
        }
        for seq in range(REQUESTS)
    ]
    began = time.process_time()
    for body in bodies:
        lines = read_lines(body)
        lines.seen = await watch.look(lines.by_allocation)
        async with db.tx() as conn:
            await write_logs(conn, [lines], room)
    await watch.close()
    return (time.process_time() - began) / REQUESTS


async def _measure() -> None:
    cases = {"no policies": [], "the two built-in ones": BUILT_IN, "ten policies": TEN}
    costs: dict[str, list[float]] = {name: [] for name in cases}
    async with database() as db:
        await _cost(db, BUILT_IN)
        for _ in range(ROUNDS):
            for name, policies in cases.items():
                costs[name].append(await _cost(db, policies))
    for name, found in costs.items():
        cost = statistics.median(found)
        print(f"{name}: {1000 * cost:.2f} ms for 1000 lines, {LINES / cost:,.0f} lines per second")


def main() -> None:
    asyncio.run(_measure())


if __name__ == "__main__":
    main()
