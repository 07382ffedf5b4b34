"""Custom searches on the real cluster: the example's ASHA, from this side and as an experiment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from determined.experimental import Determined
from determined.experimental.client import ExperimentState, TrialState
from tests.local_cluster import LocalCluster
from tests.waiting import until

pytestmark = pytest.mark.timeout(900)

EXAMPLE = Path(__file__).parents[2] / "examples/custom_searcher"
TRIALS = 9

TRAIN = """
import time
import determined as det
info = det.get_cluster_info()
with det.core.init() as core_context:
    epoch = 0
    if info.latest_checkpoint is not None:
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
            epoch = int((path / "epoch").read_text())
    for op in core_context.searcher.operations():
        while epoch < op.length:
            time.sleep(0.1)
            epoch += 1
            metric = info.trial.hparams["x"] * (1 - 0.5 ** epoch)
            core_context.train.report_validation_metrics(epoch, {"accuracy": metric})
            op.report_progress(epoch)
        with core_context.checkpoint.store_path({"steps_completed": epoch}) as (path, uuid):
            (path / "epoch").write_text(str(epoch))
        op.report_completed(metric)
"""

SEARCH = f"""
import logging, pathlib, sys
from asha import ASHA
from determined import searcher

logging.basicConfig(level=logging.INFO, format="%(message)s")
method = ASHA(lambda rng: {{"x": rng.random()}}, {TRIALS}, max_length=9, concurrent=2, seed=11)
"""

RUN_LOCAL = """
runner = searcher.LocalSearchRunner(method, pathlib.Path("state"))
print("ended", runner.run("trials.yaml", "model"), runner.state.experiment_completed, flush=True)
"""

RUN_REMOTE = """
import os
import determined as det
print("process", os.getpid(), flush=True)
with det.core.init() as core_context:
    runner = searcher.RemoteSearchRunner(method, core_context)
    print("ended", runner.run("trials.yaml", "model"), runner.state.experiment_completed)
"""


def expected_samples() -> list[float]:
    """The hyperparameters that ASHA draws for its trials, in the order in which it makes them."""
    rng = random.Random(11)
    found = []
    for _ in range(TRIALS):
        found.append(rng.random())
        rng.getrandbits(128)
    return found


def write_search(folder: Path, run: str) -> Path:
    """The files of a search, with the example's own method and configuration."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "train.py").write_text(TRAIN)
    (folder / "search.py").write_text(SEARCH + run)
    for name in ("asha.py", "trials.yaml", "remote.yaml"):
        (folder / name).write_text((EXAMPLE / name).read_text())
    return folder


class LocalSearch:
    """The process of a local search runner."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.log = folder / "search.log"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "search.py"], cwd=folder, env=cluster.env, stdout=log, stderr=log
            )

    def kill_after(self, events: int) -> None:
        """``kill -9`` once this number of further events have been answered."""
        wanted = self.log.read_text().count("event ") + events
        until(
            f"{events} more events",
            lambda: (
                self.log.read_text().count("event ") >= wanted or self.process.poll() is not None
            ),
            show=self.log.read_text,
        )
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait() == -signal.SIGKILL, self.log.read_text()

    def finish(self) -> int:
        """Waits for its end; the experiment's id."""
        assert self.process.wait(300) == 0, self.log.read_text()
        word, experiment, completed = self.log.read_text().splitlines()[-1].split()
        assert (word, completed) == ("ended", "True")
        return int(experiment)


def login(cluster: LocalCluster) -> Determined:
    """The SDK, in this process: a command costs half a second, and these tests ask often."""
    record = json.loads((cluster.data_dir / "cluster.json").read_text())
    return Determined(record["master_url"], "determined", record["passwords"]["determined"])


def check_trials(cluster: LocalCluster, experiment: int) -> None:
    """The trials that ASHA makes without any disturbance, each trained once as far as it was told."""
    client = login(cluster)
    found = client.get_experiment(experiment)
    assert found.state is ExperimentState.COMPLETED
    trials = sorted(found.list_trials(), key=lambda trial: trial.id)
    assert [(trial.hparams or {})["x"] for trial in trials] == expected_samples()
    assert {trial.state for trial in trials} == {TrialState.COMPLETED}
    steps: dict[int, list[int]] = {trial.id: [] for trial in trials}
    for report in client.iter_trials_metrics(list(steps), "validation"):
        steps[report.trial_id].append(report.steps_completed)
    lengths = [max(done) for done in steps.values()]
    assert set(lengths) <= {1, 3, 9}
    assert lengths.count(9) >= 1
    assert lengths.count(1) <= TRIALS - TRIALS // 3
    for done in steps.values():
        assert done == list(range(1, max(done) + 1))


def kill_flow(cluster: LocalCluster, experiment: int) -> None:
    """``kill -9`` of the process that runs the experiment's flow, found in the agent's records."""

    def record() -> Path | None:
        run_id = cluster.describe(experiment)["flowRunId"]
        found = (cluster.data_dir / "agent" / "flow_runs").glob("*.json")
        return next((path for path in found if run_id and run_id in path.name), None)

    path = until("the flow", record)
    psutil.Process(json.loads(path.read_text())["pid"]).kill()


def test_killed_again_and_again_it_goes_on(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = write_search(tmp_path / "search", RUN_LOCAL)
    for events in (1, 3, 7, 5):
        LocalSearch(cluster, folder).kill_after(events)
    experiment = int((folder / "state" / "experiment_id.txt").read_text())
    kill_flow(cluster, experiment)
    assert LocalSearch(cluster, folder).finish() == experiment
    check_trials(cluster, experiment)
    # Run again after the end it has nothing to do.
    assert LocalSearch(cluster, folder).finish() == experiment


def remote(cluster: LocalCluster, folder: Path) -> int:
    config = (folder / "remote.yaml").read_text().replace("run_remote.py", "search.py")
    (folder / "remote.yaml").write_text(config)
    done = cluster.det("flow", "run", str(folder / "remote.yaml"), str(folder), "--detach")
    return int(done.stdout.split()[-1])


def trials_experiment(client: Determined, after: int) -> int | None:
    """The experiment that the search method made; it makes one only."""
    made = [found.id for found in client.list_experiments() if found.id > after]
    assert len(made) <= 1
    return made[0] if made else None


def test_the_users_asha_runs_as_an_experiment_that_is_paused_and_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    outer = remote(cluster, write_search(tmp_path / "search", RUN_REMOTE))
    client = login(cluster)
    inner = until("the search's experiment", lambda: trials_experiment(client, outer))

    def trials_made() -> int:
        return len(client.get_experiment(inner).list_trials())

    def logs() -> str:
        return "".join(client.get_experiment(outer).logs())

    until("two trials", lambda: trials_made() >= 2)
    client.get_experiment(outer).pause()
    until("the pause", lambda: "preempted after event" in logs())
    client.get_experiment(outer).activate()
    until("its second leg", lambda: logs().count("process ") == 2)
    until("five trials", lambda: trials_made() >= 5)
    pid = logs().split("process ")[-1].split()[0]
    os.kill(int(pid), signal.SIGKILL)
    assert cluster.wait(outer, timeout=300) == "COMPLETED", logs()
    assert f"ended {inner} True" in logs()
    check_trials(cluster, inner)
    (trial,) = cluster.trials(outer)
    assert trial["restarts"] == 1
    assert trials_experiment(client, outer) == inner
