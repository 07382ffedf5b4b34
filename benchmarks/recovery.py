"""`python -m benchmarks recovery`: how long a trial is out of work when somebody or something interferes.

One trial that reports every 20 ms and asks for preemption every 100 ms, on a cluster of its own:

* pause: from `POST …/pause` until its slot is free;
* activate: from `POST …/activate` until the next leg's first line of user code;
* service: killed (-9) and started again; from the moment that it answers until it has a report of the
  trial again;
* machine: the agent and all its processes killed (-9) and the agent started again; from the kill until the
  next leg's first line of user code.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.cluster import Cluster, cluster
from determined.common.api import Session, errors
from determined_deployments.local.up import cluster_up

ROUNDS = 3
TIMEOUT_S = 60.0

SCRIPT = """
import sys, time
print("FIRST", time.time(), flush=True)
import determined as det

info = det.get_cluster_info()
with open(sys.argv[1], "a") as file:
    print(time.time(), file=file, flush=True)
with det.core.init() as core_context:
    step = 0
    if info.latest_checkpoint:
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
            step = int((path / "step").read_text())
    for op in core_context.searcher.operations():
        while step < op.length:
            time.sleep(0.02)
            step += 1
            core_context.train.report_training_metrics(step, {"loss": 1 / step})
            if step % 5 == 0 and core_context.preempt.should_preempt():
                with core_context.checkpoint.store_path({"steps_completed": step}) as (path, _):
                    (path / "step").write_text(str(step))
                sys.exit()
        core_context.train.report_validation_metrics(step, {"x": 1.0})
        op.report_completed(1.0)
"""


class Trial:
    """The trial that is interfered with."""

    def __init__(self, running: Cluster, folder: Path) -> None:
        record = json.loads((running.data_dir / "cluster.json").read_text())
        self.running = running
        self.session = Session(record["master_url"], record["agent_token"])
        self.lines = folder / "first-lines"
        self.lines.touch()
        config = {
            "name": "recovery",
            "entrypoint": f"python3 script.py {self.lines}",
            "max_restarts": 100,
            "searcher": {"name": "single", "metric": "x", "max_length": {"batches": 10**6}},
        }
        (folder / "model").mkdir()
        (folder / "model" / "script.py").write_text(SCRIPT)
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        done = running.det(
            "flow", "run", str(folder / "config.yaml"), str(folder / "model"), "--detach"
        )
        self.experiment = int(done.stdout.split()[-1])

    def first_lines(self) -> list[float]:
        """When each leg came to its first line of user code, seconds since the epoch."""
        return [float(line) for line in self.lines.read_text().splitlines()]

    def post(self, what: str) -> None:
        self.session.post(f"/api/v1/experiments/{self.experiment}/{what}")

    def slots_held(self) -> int:
        agents = self.session.get("/api/v1/agents")["agents"]
        return sum(len(agent["containers"]) for agent in agents)

    def steps(self) -> int:
        """The newest report that the service has."""
        answer = self.session.get(f"/api/v1/experiments/{self.experiment}/trials")
        return max((int(trial["totalBatchesProcessed"]) for trial in answer["trials"]), default=0)


def until(condition: Callable[[], Any]) -> Any:
    """The first true value."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            if found := condition():
                return found
        except errors.MasterNotFoundException:
            pass
        time.sleep(0.01)
    raise SystemExit("it did not happen in time")


def pause_and_activate(trial: Trial) -> tuple[float, float]:
    legs = len(trial.first_lines())
    begin = time.time()
    trial.post("pause")
    until(lambda: trial.slots_held() == 0)
    paused = time.time() - begin
    begin = time.time()
    trial.post("activate")
    until(lambda: len(trial.first_lines()) > legs)
    activated = trial.first_lines()[-1] - begin
    seen = trial.steps()
    until(lambda: trial.steps() > seen)
    return paused, activated


def kill_service(trial: Trial) -> float:
    seen = trial.steps()
    for process in trial.running.processes()["service"]:
        process.kill()
    cluster_up(trial.running.data_dir)
    begin = time.time()
    until(lambda: trial.steps() > seen + 1)
    return time.time() - begin


def kill_machine(trial: Trial) -> float:
    legs = len(trial.first_lines())
    begin = time.time()
    agent = trial.running.processes()["agent"]
    for process in agent:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    cluster_up(trial.running.data_dir)
    until(lambda: len(trial.first_lines()) > legs)
    return trial.first_lines()[-1] - begin


def main() -> None:
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name, cluster() as running:
        trial = Trial(running, Path(name))
        until(trial.first_lines)
        until(trial.steps)
        running.settle(20)
        for _ in range(ROUNDS):
            paused, activated = pause_and_activate(trial)
            found.setdefault("pause until the slot is free", []).append(paused)
            found.setdefault("activate until the first user line", []).append(activated)
        for _ in range(ROUNDS):
            found.setdefault("service ready until it has a report", []).append(kill_service(trial))
        for _ in range(ROUNDS):
            found.setdefault("machine killed until the first user line", []).append(
                kill_machine(trial)
            )
        trial.post("kill")
    for what, seconds in found.items():
        each = ", ".join(f"{one:.2f}" for one in seconds)
        print(f"{what:42} median {statistics.median(seconds):5.2f} s   ({each})")


if __name__ == "__main__":
    main()
