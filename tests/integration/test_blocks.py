"""The blocks in flows in separate processes, on the real cluster."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.integration.prefect_server import Prefect
from tests.local_cluster import LocalCluster
from tests.waiting import TIMEOUT_S, until

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("flow_with_blocks.py")


class Flow:
    """The process of a flow, and its output."""

    def __init__(self, cluster: LocalCluster, log: Path, *args: str) -> None:
        exports = cluster.det("prefect", "env").stdout.splitlines()
        words = [shlex.split(line)[1].partition("=") for line in exports]
        env = {**cluster.env, **{name: value for name, _, value in words}}
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, *args], env=env, stdout=file, stderr=subprocess.STDOUT
            )

    def found(self, what: str, count: int = 1) -> list[str]:
        """The text behind ``what`` in the lines that begin so, once there are ``count``."""

        def lines() -> list[str] | None:
            text = self.log.read_text()
            found = [x[len(what) + 1 :] for x in text.splitlines() if x.startswith(f"{what} ")]
            return found if len(found) >= count or self.process.poll() is not None else None

        found = until(f"{count} lines {what!r}", lines, show=self.log.read_text)
        assert len(found) >= count, self.log.read_text()
        return found

    def end(self) -> int:
        return self.process.wait(TIMEOUT_S)


def test_a_task_that_is_tried_again_submits_once(cluster: LocalCluster, tmp_path: Path) -> None:
    flow = Flow(cluster, tmp_path / "log", str(SCRIPT), "retried")
    first, again, other = flow.found("experiment", 3)
    for experiment_id in {first, again, other}:
        cluster.det("experiment", "kill", experiment_id)
    assert first == again
    # An equal call is another experiment.
    assert other != first
    assert flow.found("command") == ["ERROR 3 hello"]
    assert flow.end() == 0, flow.log.read_text()


def test_a_flow_that_was_killed_finds_its_experiment_and_one_that_is_cancelled_kills_it(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    flow = Flow(cluster, tmp_path / "first", str(SCRIPT), "killed")
    (run_id,), (experiment_id,) = flow.found("flow run"), flow.found("experiment")
    assert flow.end() == -signal.SIGKILL
    flow = Flow(cluster, tmp_path / "second", str(SCRIPT), "killed", run_id)
    assert flow.found("experiment") == [experiment_id]
    flow.found("waits for")
    state = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
    Prefect(cluster).call(f"/flow_runs/{run_id}/set_state", state)
    # The steps of a worker that cancels a run.
    os.kill(flow.process.pid, signal.SIGTERM)
    assert cluster.wait(int(experiment_id)) == "CANCELED"
    flow.end()


def test_the_example_trains_scores_and_promotes(cluster: LocalCluster, tmp_path: Path) -> None:
    flow = Flow(cluster, tmp_path / "log", str(ROOT / "examples/prefect_flow/flow.py"))
    assert flow.end() == 0, flow.log.read_text()
    described = cluster.json("model", "describe", "digits-flow", "--version", "champion")
    assert described["modelVersion"]["comment"] == "by a flow"
    # The cluster's Prefect has the flow, whose page so shows it.
    wanted = {"flows": {"name": {"any_": ["train-and-promote"]}}}
    assert [run["state_type"] for run in Prefect(cluster).call("/flow_runs/filter", wanted)] == [
        "COMPLETED"
    ]
