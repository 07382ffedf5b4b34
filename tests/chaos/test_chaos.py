"""A short chaos run, with containers where there is a Docker engine; `make chaos` does longer ones."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests import container_engine
from tests.chaos import faults, oracle
from tests.chaos.run import run
from tests.chaos.world import World, docker

# It ends sooner when every kind of fault was made, unless somebody asks for longer runs.
ASKED = os.environ.get("DET_CHAOS_SECONDS")
SECONDS = float(ASKED or "100")
SEED = int(os.environ.get("DET_CHAOS_SEED", "1"))


def tamper(world: World) -> dict[str, oracle.Verdict]:
    """Breaks one thing after the other, and lets the oracle look at each."""
    found = {}
    statements = {
        "report lost": "DELETE FROM metrics WHERE id = (SELECT max(id) FROM metrics)",
        "event twice": "INSERT INTO search_events SELECT experiment_id, id + 1000, event FROM"
        " search_events WHERE event ->> 'type' = 'trial_closed' LIMIT 1",
        "log line twice": "INSERT INTO task_logs (task_id, allocation_id, timestamp, stdtype, log)"
        " SELECT task_id, allocation_id, timestamp, stdtype, log FROM task_logs"
        " WHERE stdtype = 'stdout' LIMIT 1",
        "other trial": "UPDATE trials SET seed = seed + 1 WHERE id = (SELECT max(id) FROM trials)",
        "slot leaked": "UPDATE allocations SET state = 'RUNNING'"
        " WHERE id = (SELECT max(id) FROM allocations)",
    }
    for name, statement in statements.items():
        with world.database() as conn:
            assert conn.execute(statement).rowcount == 1, name
        found[name] = oracle.judge(world)
    checkpoint = next(path for path in world.storage.iterdir() if not path.name.startswith("."))
    (checkpoint / "step").write_text("-1")
    found["checkpoint corrupted"] = oracle.judge(world)
    if world.engine is not None:
        docker("create", "--name", "left-over", container_engine.machine_image(), "true")
        found["container left"] = oracle.judge(world)
    return found


@pytest.mark.timeout(900)
def test_nothing_is_lost() -> None:
    found: dict[str, oracle.Verdict] = {}

    def look(world: World, verdict: oracle.Verdict) -> None:
        if not verdict.wrong:
            found.update(tamper(world))

    # Not under pytest's own folder: as root, Postgres runs as another user.
    with (
        container_engine.own() as engine,
        tempfile.TemporaryDirectory(prefix="determined-chaos-") as folder,
    ):
        if isinstance(engine, str):
            print(f"without containers: {engine}")
            engine = None
        Path(folder).chmod(0o755)
        report = run(Path(folder), SECONDS, SEED, look, engine, each_once=ASKED is None)
    print(*report.lines(), sep="\n")
    assert not report.verdict.wrong, report.lines()
    assert report.verdict.experiments >= 2
    # Not all kinds on a slow machine, but most.
    assert len(report.faults) > len(faults.kinds(engine is not None)) / 2, report.lines()
    # The oracle works: it names each of the faults made after the run.
    wrong = [len(verdict.wrong) for verdict in found.values()]
    assert wrong == sorted(set(wrong)), {name: verdict.wrong for name, verdict in found.items()}
    assert wrong[0] > 0
