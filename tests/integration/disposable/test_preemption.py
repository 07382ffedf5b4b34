"""A pool of eight slots that serves by priority, with real processes: a less important trial saves a
checkpoint, frees its slots, and goes on from the checkpoint; also when the service is killed in the
middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.agent.test_recovery import process_of
from tests.local_cluster import LocalCluster
from tests.waiting import until

SLOTS = ("--slots", "8")
CLUSTER = "resource_manager: {scheduler: {type: priority, preemption: true}}\n"
CONFIG = """
name: %(name)s
entrypoint: python3 train.py
max_restarts: 0
hyperparameters: {out: %(out)s}
searcher: {name: random, metric: steps, max_trials: %(trials)d, max_concurrent_trials: %(trials)d}
resources: {priority: %(priority)d, slots_per_trial: %(slots)d}
"""
# Train until a file "end" exists, and go on from the checkpoint; record both in a separate file.
TRAIN = """
import pathlib, sys, time
import determined as det

info = det.get_cluster_info()
out, steps = pathlib.Path(info.trial.hparams["out"]), 0

def note(word):
    with (out / f"{info.trial.trial_id}.txt").open("a") as file:
        file.write(f"{word} {steps}\\n")

with det.core.init() as core_context:
    if info.latest_checkpoint:
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
            steps = int((path / "steps").read_text())
    note("from")
    while not (out / "end").exists():
        steps += 1
        time.sleep(0.05)
        if core_context.preempt.should_preempt():
            with core_context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
                (path / "steps").write_text(str(steps))
            note("saved")
            sys.exit(0)
    core_context.train.report_validation_metrics(steps, {"steps": steps})
"""


@pytest.fixture(scope="module")
def preempting(disposable: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> LocalCluster:
    """Eight slots, and a configuration."""
    path = tmp_path_factory.mktemp("preempting") / "cluster.yaml"
    path.write_text(CLUSTER)
    disposable.up(*SLOTS, "--config", str(path))
    return disposable


def submit(cluster: LocalCluster, folder: Path, name: str, **values: Any) -> tuple[int, Path]:
    """The experiment, and the directory of its trials' notes."""
    out = folder / f"{name}.out"
    out.mkdir()
    config = CONFIG % {"name": name, "out": out, "trials": 1, "slots": 1, **values}
    return cluster.submit(folder / name, config, train_py=TRAIN), out


def jobs(cluster: LocalCluster) -> dict[int, tuple[str, int, int]]:
    """By experiment: its state in the queue, the slots that it holds, and the slots that it holds or
    wants."""
    found = cluster.json("job", "list")["jobs"]
    return {
        int(one["entityId"]): (
            one["summary"]["state"].removeprefix("STATE_"),
            one["allocatedSlots"],
            one["requestedSlots"],
        )
        for one in found
    }


def until_jobs(cluster: LocalCluster, wanted: dict[int, tuple[str, int, int]]) -> None:
    until(f"the queue {wanted}", lambda: jobs(cluster) == wanted, show=lambda: jobs(cluster))


def noted(out: Path, word: str) -> dict[int, list[int]]:
    """By trial, the steps at which it noted the word."""
    found = {}
    for file in out.glob("*.txt"):
        lines = [line.split() for line in file.read_text().splitlines()]
        found[int(file.stem)] = [int(steps) for said, steps in lines if said == word]
    return found


def until_begun(out: Path, legs: int) -> None:
    def count() -> int:
        return sum(map(len, noted(out, "from").values()))

    until(f"{legs} legs that train", lambda: count() >= legs, show=count)


def kill_service(cluster: LocalCluster) -> None:
    """As after a crash; then a person starts it again."""
    process_of(cluster, "service").kill()
    cluster.up(*SLOTS)


def test_four_of_eight_make_room_and_go_on(preempting: LocalCluster, tmp_path: Path) -> None:
    cluster = preempting
    low, low_out = submit(cluster, tmp_path, "low", trials=8, priority=2)
    until_begun(low_out, 8)
    assert jobs(cluster) == {low: ("SCHEDULED", 8, 8)}
    high, high_out = submit(cluster, tmp_path, "high", slots=4, priority=1)
    until_begun(high_out, 1)
    until_jobs(cluster, {high: ("SCHEDULED", 4, 4), low: ("SCHEDULED", 4, 8)})
    saved = noted(low_out, "saved")
    stopped = {trial: steps[0] for trial, steps in saved.items() if steps}
    assert len(stopped) == 4
    waiting = cluster.json("job", "explain", str(low))["waiting"]
    assert {one["trialId"] for one in waiting} == set(stopped)
    (trial,) = cluster.trials(high)
    assert waiting[0]["forecast"].startswith("starts when one of the trials ")
    (high_out / "end").touch()
    assert cluster.wait(high) == "COMPLETED"
    until_begun(low_out, 12)
    # Each of the four goes on with the step that it had saved; the others never stopped.
    began = noted(low_out, "from")
    assert began == {one: [0, stopped[one]] if one in stopped else [0] for one in saved}
    assert jobs(cluster) == {low: ("SCHEDULED", 8, 8)}
    (low_out / "end").touch()
    assert cluster.wait(low) == "COMPLETED"
    assert {one["restarts"] for one in [trial, *cluster.trials(low)]} == {0}


def test_the_service_is_killed_in_the_middle(preempting: LocalCluster, tmp_path: Path) -> None:
    cluster = preempting
    low, low_out = submit(cluster, tmp_path, "low", trials=2, slots=4, priority=2)
    until_begun(low_out, 2)
    high, high_out = submit(cluster, tmp_path, "high", slots=4, priority=1)
    # Kill once between the request and the end of the preempted legs, and once after the placement.
    kill_service(cluster)
    until_begun(high_out, 1)
    kill_service(cluster)
    until_jobs(cluster, {high: ("SCHEDULED", 4, 4), low: ("SCHEDULED", 4, 8)})
    stopped = {one: steps[0] for one, steps in noted(low_out, "saved").items() if steps}
    assert len(stopped) == 1, "one had to stop, and only one did"
    (high_out / "end").touch()
    assert cluster.wait(high) == "COMPLETED"
    until_begun(low_out, 3)
    ((again, steps),) = stopped.items()
    assert noted(low_out, "from")[again] == [0, steps]
    (low_out / "end").touch()
    assert cluster.wait(low) == "COMPLETED"
    assert {one["restarts"] for one in cluster.trials(low)} == {0}
