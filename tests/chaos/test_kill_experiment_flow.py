"""`kill -9` of the flow that drives a search, again and again: the same trials, each done once.

``DET_CHAOS_TRIALS=200`` for a longer search than the usual one.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from determined.common.api import Session
from determined_searchers import simulate
from tests.local_cluster import LocalCluster

TRIALS = int(os.environ.get("DET_CHAOS_TRIALS", "16"))
KILL_EVERY_S = 1.2
# On a fast machine the search would have ended before.
KILL_EVERY_TRIALS = 3
# On a slow machine a search would otherwise spend its time restarting.
KILLS = max(4, TRIALS // 4)

SCRIPT = """
import determined as det
info = det.get_cluster_info()
a = info.trial.hparams["a"]
with det.core.init() as core_context:
    for op in core_context.searcher.operations():
        core_context.train.report_validation_metrics(op.length, {"x": a / op.length})
        with core_context.checkpoint.store_path({"steps_completed": op.length}) as (path, uuid):
            (path / "nothing").touch()
        op.report_completed(a / op.length)
"""

CONFIG = """
name: survivor
entrypoint: python3 script.py
hyperparameters:
  a: {{type: double, minval: 0, maxval: 1}}
searcher: {{metric: x, max_trials: {trials}, max_concurrent_trials: 2, {searcher}}}
reproducibility: {{experiment_seed: 5}}
max_restarts: 0
"""
SEARCHES = {
    "random": "name: random, max_length: {batches: 1}",
    "asha": "name: async_halving, num_rungs: 3, divisor: 3, max_length: {batches: 9}",
}


def flow_process(cluster: LocalCluster, run_id: str | None) -> psutil.Process | None:
    """The process that runs an experiment's flow, by the agent's record of it."""
    for path in (cluster.data_dir / "agent" / "flow_runs").glob("*.json"):
        if run_id and run_id in path.name:
            try:
                return psutil.Process(json.loads(path.read_text())["pid"])
            except (psutil.NoSuchProcess, FileNotFoundError, ValueError):
                return None
    return None


class Killer:
    """Kills the flow whenever it has driven the search for a while.

    ``latencies``: seconds from each kill until another process drove.
    """

    def __init__(self, cluster: LocalCluster, session: Session, experiment_id: int) -> None:
        self.cluster = cluster
        self.session = session
        self.experiment_id = experiment_id
        self.latencies: list[float] = []

    def run(self, seconds: float) -> str:
        """Until the experiment has ended; its state."""
        deadline = time.monotonic() + seconds
        known = driver = None
        killed_at = attached_at = 0.0
        trials = 0
        while time.monotonic() < deadline:
            now = self._read()
            if now["state"] in ("COMPLETED", "CANCELED", "ERROR"):
                return str(now["state"])
            if now["driver"] != known:
                known, attached_at = now["driver"], time.monotonic()
                trials = now["trials"]
                if driver is not None:
                    self.latencies.append(attached_at - killed_at)
            process = flow_process(self.cluster, now["flow_run_id"])
            ripe = (
                time.monotonic() - attached_at > KILL_EVERY_S
                or now["trials"] >= trials + KILL_EVERY_TRIALS
            )
            if len(self.latencies) < KILLS and process and ripe and known not in (None, driver):
                process.kill()
                driver, killed_at = known, time.monotonic()
            time.sleep(0.05)
        raise AssertionError(f"still {now['state']} after {seconds} s")

    def _read(self) -> dict[str, Any]:
        path = f"/api/v1/experiments/{self.experiment_id}"
        experiment = self.session.get(path)["experiment"]
        driver = self.session.get(f"/internal/v1/experiments/{self.experiment_id}/search")["driver"]
        return {
            "state": experiment["state"].removeprefix("STATE_"),
            "flow_run_id": experiment["flowRunId"],
            "driver": driver,
            "trials": experiment["numTrials"],
        }


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SEARCHES)
def test_a_killed_search_goes_on(cluster: LocalCluster, tmp_path: Path, name: str) -> None:
    config = CONFIG.format(trials=TRIALS, searcher=SEARCHES[name])
    experiment = cluster.submit(tmp_path, config, script_py=SCRIPT)
    record = json.loads((cluster.data_dir / "cluster.json").read_text())
    with Session(record["master_url"], record["agent_token"]) as agent:
        killer = Killer(cluster, agent, experiment)
        assert killer.run(seconds=800) == "COMPLETED"
    assert len(killer.latencies) >= 2
    found = cluster.trials(experiment)
    expected = simulate(cluster.describe(experiment)["config"]).trials
    assert [(t["requestId"], t["hparams"], t["seed"]) for t in found] == [
        (t.request_id, t.hparams, t.seed) for t in expected
    ]
    assert len(found) == TRIALS
    assert {(trial["state"], trial["restarts"]) for trial in found} == {("COMPLETED", 0)}
    # Every length was trained once: no operation was lost or carried out twice.
    for trial in found:
        lengths = cluster.reported(trial["id"], "validation")
        assert lengths == sorted(set(lengths))
    print(
        f"{len(killer.latencies)} kills, driven again after",
        *map("{:.2f} s".format, killer.latencies),
    )
