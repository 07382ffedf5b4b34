"""A short chaos run; `make chaos` does longer ones."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.chaos import oracle
from tests.chaos.run import run
from tests.chaos.world import World

SECONDS = float(os.environ.get("DET_CHAOS_SECONDS", "100"))
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
    return found


@pytest.mark.timeout(900)
def test_nothing_is_lost() -> None:
    found: dict[str, oracle.Verdict] = {}

    def look(world: World, verdict: oracle.Verdict) -> None:
        if not verdict.wrong:
            found.update(tamper(world))

    # Not under pytest's own folder: as root, Postgres runs as another user.
    with tempfile.TemporaryDirectory(prefix="determined-chaos-") as folder:
        report = run(Path(folder), SECONDS, SEED, look)
    print(*report.lines(), sep="\n")
    assert not report.verdict.wrong, report.lines()
    assert report.verdict.experiments >= 2
    # The oracle can tell: each thing that was broken afterwards is one more that it names.
    wrong = [len(verdict.wrong) for verdict in found.values()]
    assert wrong == sorted(set(wrong)), {name: verdict.wrong for name, verdict in found.items()}
    assert wrong[0] > 0
