"""Short chaos runs, with pods and, where a Docker engine runs, with containers. `make chaos`: longer ones."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import container_engine
from tests.chaos import faults, oracle
from tests.chaos.nodes import NAMESPACE, OURS, Nodes
from tests.chaos.run import run
from tests.chaos.world import CONTAINERS, PODS, World, docker
from tests.kubernetes.standin.running import running

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
    if world.nodes is not None:
        secret = {"metadata": {"name": "s", "namespace": NAMESPACE, "labels": {f"{OURS}-x": "1"}}}
        world.nodes.do(lambda cluster: cluster.store.create("secrets", secret))
        found["Secret left"] = oracle.judge(world)
    return found


def with_containers(held: contextlib.ExitStack) -> dict[str, Any]:
    engine = held.enter_context(container_engine.own())
    if isinstance(engine, str):
        print(f"without containers: {engine}")
        return {"each_of": faults.kinds([])}
    return {"engine": engine, "each_of": faults.kinds([CONTAINERS])}


def with_pods(held: contextlib.ExitStack) -> dict[str, Any]:
    nodes = Nodes(held.enter_context(running()))
    return {"nodes": nodes, "each_of": faults.kinds([PODS], ["pods", "nodes", "API"])}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("others", [with_containers, with_pods])
def test_nothing_is_lost(others: Callable[[contextlib.ExitStack], dict[str, Any]]) -> None:
    found: dict[str, oracle.Verdict] = {}

    def look(world: World, verdict: oracle.Verdict) -> None:
        if not verdict.wrong:
            found.update(tamper(world))

    # Not under pytest's own folder: as root, Postgres runs as another user.
    with (
        contextlib.ExitStack() as held,
        tempfile.TemporaryDirectory(prefix="determined-chaos-") as folder,
    ):
        given = others(held)
        wanted = given["each_of"]
        if ASKED is not None:
            del given["each_of"]
        Path(folder).chmod(0o755)
        report = run(Path(folder), SECONDS, SEED, look, **given)
    print(*report.lines(), sep="\n")
    assert not report.verdict.wrong, report.lines()
    assert report.verdict.experiments >= 2
    # Not all kinds on a slow machine, but most.
    assert len({*report.faults} & wanted) > len(wanted) / 2, report.lines()
    # The oracle works: it names each of the faults made after the run.
    wrong = [len(verdict.wrong) for verdict in found.values()]
    assert wrong == sorted(set(wrong)), {name: verdict.wrong for name, verdict in found.items()}
    assert wrong[0] > 0
