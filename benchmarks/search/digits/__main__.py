"""`python -m benchmarks.search.digits [ROUNDS [TOOLS]]`: 32 trials of 9 epochs, ASHA with divisor 3,
two workers, by `det flow run examples/digits/adaptive.yaml` and by other tools, all in one run.

Ours is the whole command, the first on a new cluster that has come to rest (its start is not
counted); the others' times hold their imports and their end. All train the same function on the
same points in the same order. The other tools run in the Python that ``PEER_PYTHON`` names (with
ray[tune], optuna, syne-tune, torch and scikit-learn); without it only the bare fork and ours are
run. TOOLS: a pattern, for some of them only.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml

from benchmarks.cluster import DET, Cluster, cluster
from benchmarks.search.digits.task import EXAMPLE
from determined_searchers import simulate

HERE = Path(__file__).parent
CONFIG = EXAMPLE / "adaptive.yaml"
PEERS = {
    "Optuna, threads of one process": ["optuna_search.py", "threads"],
    "Ray Tune, reused actors": ["ray_search.py", "reused"],
    "Optuna, a process per trial": ["optuna_search.py", "process"],
    "Syne Tune, a process per trial": ["syne_search.py"],
    "Ray Tune, a process per trial": ["ray_search.py", "fresh"],
}
OURS = "det flow run"
FORK = "bare fork, no framework"


@dataclass
class Run:
    """Seconds of wall and CPU time, the best validation accuracy, epochs trained."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)


class TreeCpu(threading.Thread):
    """CPU seconds of a process and all it starts, by sampling: some daemons never wait for their
    children, so that the kernel's own sum lacks them."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self._root, self._seen, self._done = psutil.Process(root), dict[int, float](), False
        self.start()

    def run(self) -> None:
        while not self._done:
            try:
                tree = [self._root, *self._root.children(recursive=True)]
            except psutil.NoSuchProcess:
                break
            for process in tree:
                try:
                    times = process.cpu_times()
                except psutil.Error:
                    continue
                self._seen[process.pid] = times.user + times.system
            time.sleep(0.05)

    def total(self) -> float:
        self._done = True
        self.join()
        return sum(self._seen.values())


def run_tool(python: str, command: list[str], folder: Path, result: Run) -> None:
    notes = folder / f"notes-{time.monotonic_ns()}"
    env = {
        **os.environ,
        "SEARCH_POINTS": str(folder / "points.json"),
        "SEARCH_NOTES": str(notes),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(HERE),
    }
    start = time.perf_counter()
    process = subprocess.Popen(
        [python, str(HERE / command[0]), *command[1:]],
        env=env,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    tree = TreeCpu(process.pid)
    _, errors = process.communicate(timeout=600)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{errors[-2000:]}")
    result.wall.append(time.perf_counter() - start)
    result.cpu.append(tree.total())
    reports = [json.loads(line) for line in notes.read_text().splitlines()]
    accuracies = [note["accuracy"] for note in reports if note["event"] == "epoch"]
    result.best.append(max(accuracies))
    result.epochs.append(len(accuracies))


def run_ours(running: Cluster, result: Run) -> None:
    before = sum(running.cpu_seconds().values())
    start = time.perf_counter()
    command = [*DET, "flow", "run", str(CONFIG), str(EXAMPLE), "--json"]
    process = subprocess.Popen(
        command, env=running.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    tree = TreeCpu(process.pid)
    out, _ = process.communicate(timeout=600)
    result.wall.append(time.perf_counter() - start)
    result.cpu.append(sum(running.cpu_seconds().values()) - before + tree.total())
    document = json.loads(out)
    if document["experiment"]["state"] != "COMPLETED":
        raise SystemExit(out)
    experiment = str(document["experiment"]["id"])
    rows = json.loads(running.det("experiment", "list-trials", experiment, "--json").stdout)
    result.best.append(
        max(row["bestValidation"]["metrics"]["avgMetrics"]["accuracy"] for row in rows)
    )
    result.epochs.append(sum(int(row["totalBatchesProcessed"]) for row in rows))


def main(rounds: int = 1, pattern: str = "") -> None:
    peer = os.environ.get("PEER_PYTHON")
    config = yaml.safe_load(CONFIG.read_text())
    trials = simulate(config).trials
    peers = {tool: command for tool, command in PEERS.items() if re.search(pattern, tool)}
    results = {name: Run() for name in [FORK, OURS, *(peers if peer else {})]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        points = [{"hparams": trial.hparams, "seed": trial.seed} for trial in trials]
        (folder / "points.json").write_text(json.dumps(points))
        for _ in range(rounds):
            run_tool(sys.executable, ["bare_fork.py"], folder, results[FORK])
            # The cluster of each round is gone before the others run: it would cost them time.
            with cluster() as running:
                running.settle()
                run_ours(running, results[OURS])
            for tool, command in peers.items() if peer else ():
                run_tool(str(peer), command, folder, results[tool])
    floor = statistics.median(results[FORK].wall)
    print(f"{len(trials)} trials, {rounds} rounds, medians")
    print(f"{'':34}{'wall s':>8}{'x fork':>8}{'CPU s':>8}{'epochs':>8}{'best':>8}")
    for name, run in results.items():
        wall = statistics.median(run.wall)
        print(
            f"{name:34}{wall:8.1f}{wall / floor:8.1f}{statistics.median(run.cpu):8.1f}"
            f"{statistics.median(run.epochs):8.0f}{max(run.best):8.3f}"
        )
    if not peer:
        print("the other tools were not run: PEER_PYTHON names no interpreter that has them")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1, *sys.argv[2:3])
