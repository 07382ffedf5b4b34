"""What ACTIVE experiments cost a service that has nothing to do: 10, 100 and 1,000 of four trials each.

CPU, so a busy machine matters little: of a pass of the reconciler and of the scheduler in this process; and
of a service and its Postgres in each second. A quarter of the trials run, the others wait for slots. Without
Prefect, whose passes cost what it answers. The service's figure holds a probe that looks at its loop every
5 ms (``benchmarks.stalls``): what matters is how it grows.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.database import postgres
from benchmarks.large_experiment import cpu_s, postgres_of
from benchmarks.reconciler import fill
from benchmarks.stalls import Service
from determined_registry.database import migrate
from determined_service.base.db import Database
from determined_service.base.settings import Settings
from determined_service.bootstrap import bootstrap
from determined_service.loops.reconciler import Reconciler
from determined_service.scheduling.placement import schedule_once
from determined_service.scheduling.pools import PoolSchedulers
from determined_service.scheduling.reading import SnapshotReader

EXPERIMENTS, TRIALS_EACH, PASSES, SECONDS = (10, 100, 1000), 4, 5, 20.0


async def _pass(do: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds of this process's processor time, the median."""
    taken = []
    for _ in range(PASSES):
        began = time.process_time()
        await do()
        taken.append(1000 * (time.process_time() - began))
    return statistics.median(taken)


async def _passes(url: str, experiments: int) -> tuple[float, float]:
    db = Database(url)
    try:
        await bootstrap(db, Settings.model_validate({"db_url": url, "agent_token": "x"}))
        trials = experiments * TRIALS_EACH
        await fill(db, experiments, trials, max(trials // 16, 1))
        reconciler = Reconciler(db, None, agent_timeout_s=1e6)
        snapshots = SnapshotReader(PoolSchedulers(), 1e6)
        return (
            await _pass(reconciler.run_pass),
            await _pass(lambda: schedule_once(db, snapshots)),
        )
    finally:
        await db.close()


def _idle(url: str) -> tuple[float, float]:
    """Milliseconds of the service's and of Postgres' processor time in each second."""
    with tempfile.TemporaryDirectory(prefix="det-bench-service-") as folder:
        endless = {"agent_timeout_s": 1e6, "start_timeout_s": 1e6}
        service = Service(url, Path(folder), data_dir=folder, **endless)
        try:
            service.start()
            time.sleep(SECONDS / 2)
            before = service.cpu_s(), _of_postgres(url)
            time.sleep(SECONDS)
            after = service.cpu_s(), _of_postgres(url)
        finally:
            service.kill()
    return 1000 * (after[0] - before[0]) / SECONDS, 1000 * (after[1] - before[1]) / SECONDS


def _of_postgres(url: str) -> float:
    return sum(cpu_s(one) for one in postgres_of(url))


def main() -> None:
    for experiments in EXPERIMENTS:
        with postgres() as url:
            migrate.upgrade(url)
            reconciling, scheduling = asyncio.run(_passes(url, experiments))
            service, database = _idle(url)
        print(
            f"{experiments:5} experiments, {experiments * TRIALS_EACH:5} trials: a pass of the reconciler"
            f" {reconciling:.0f} ms, of the scheduler {scheduling:.0f} ms; each second the service"
            f" {service:.1f} ms, Postgres {database:.1f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
