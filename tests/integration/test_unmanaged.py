"""Scripts outside of the cluster that report to it: killed, resumed, failing, ended by a user."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import httpx
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.local_cluster import LocalCluster
from tests.outcomes import client
from tests.waiting import TIMEOUT_S

EXAMPLE = Path(__file__).parents[2] / "examples/unmanaged/train.py"

# Steps, with a checkpoint after each third; slow once it is past the first.
SCRIPT = """
import sys, time
from determined.experimental import core_v2

core_v2.init(config=core_v2.Config(
    name="outside", hparams={"lr": 0.5}, checkpoint_storage=sys.argv[1],
    searcher={"name": "single", "metric": "loss"},
    external_experiment_id="exp/1", external_trial_id="trial 1"))
start = 0
if core_v2.info.latest_checkpoint:
    with core_v2.checkpoint.restore_path(core_v2.info.latest_checkpoint) as path:
        start = int((path / "step").read_text())
print("going on after", start)
for step in range(start + 1, 11):
    core_v2.train.report_training_metrics(step, {"x": core_v2.info.trial._trial_run_id * 100 + step})
    if step % 3 == 0:
        with core_v2.checkpoint.store_path({"steps_completed": step}) as (path, _):
            (path / "step").write_text(str(step))
    print("step", step, flush=True)
    if start == 0 and step == 5:
        core_v2.train._reporter.flush()
        time.sleep(1.5)  # the time of a shipment of the output
        print("now", flush=True)
        time.sleep(600)
core_v2.train.report_validation_metrics(10, {"loss": 0.25})
"""


def run(
    cluster: LocalCluster, script: str, *args: object, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Runs the script to its end, which must be with ``code``."""
    command = [sys.executable, "-c", script, *map(str, args)]
    done = subprocess.run(
        command, env=cluster.env, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def begin(cluster: LocalCluster, script: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, args)]
    return subprocess.Popen(command, env=cluster.env, stdout=subprocess.PIPE, text=True)


def read_until(stream: IO[str] | None, word: str) -> None:
    assert stream is not None
    assert any(word in line for line in stream), f"it ended without {word!r}"


def find(cluster: LocalCluster, name: str) -> dict[str, Any]:
    """The newest experiment of that name, as `det experiment list` shows it."""
    rows = [row for row in cluster.json("experiment", "list") if row["name"] == name]
    return dict(max(rows, key=lambda row: int(row["id"])))


def test_killed_and_run_again(cluster: LocalCluster, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    process = begin(cluster, SCRIPT, storage)
    read_until(process.stdout, "now")
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = find(cluster, "outside")
    assert (found["state"], found["unmanaged"], found["flowRunId"]) == (
        "STATE_RUNNING",
        True,
        None,
    )
    assert "going on after 3" in run(cluster, SCRIPT, storage).stdout

    experiment_id = int(found["id"])
    assert find(cluster, "outside")["id"] == found["id"]
    assert cluster.describe(experiment_id)["state"] == "STATE_COMPLETED"
    experiment = client(cluster).get_experiment(experiment_id)
    (trial,) = experiment.get_trials()
    assert trial.hparams == {"lr": 0.5}
    reports = {one.steps_completed: one.metrics["x"] for one in trial.iter_metrics("training")}
    assert reports == {**{n: 100 + n for n in (1, 2, 3)}, **{n: 200 + n for n in range(4, 11)}}
    logs = cluster.logs(experiment_id)
    assert logs.count("going on after") == 2 and "step 5" in logs and "step 10" in logs
    checkpoint = trial.select_checkpoint(latest=True)
    assert (Path(checkpoint.download(str(tmp_path / "c"))) / "step").read_text() == "9"
    (row,) = cluster.trials(experiment_id)
    described = cluster.det("trial", "describe", str(row["id"])).stdout
    assert "its script has started again" in described and "its script has ended" in described

    charts = experiment.download_tensorboard_files(tmp_path / "charts")
    events = EventAccumulator(f"{charts}/trial/{row['id']}").Reload()
    points = {point.step: point.value for point in events.Scalars("Determined/x")}
    assert points.items() >= {n: 200.0 + n for n in range(4, 11)}.items()

    cluster.det("experiment", "delete", str(experiment_id), "--yes")
    assert not list(storage.rglob("step")), "checkpoints are left"


FAILS = """
import sys
from determined.experimental import core_v2

config = core_v2.Config(name=sys.argv[1], checkpoint_storage=sys.argv[2])
if sys.argv[1] == "with":
    with core_v2.init_context(config=config) as context:
        print("on its way out")
        raise ValueError("no such data")
core_v2.init(config=config)
print("on its way out")
if sys.argv[1] == "refused":
    core_v2.train.report_training_metrics(1, {"no such data": "long" * 50_000})
if sys.argv[1] == "exit":
    sys.exit(3)
if sys.argv[1] == "raise":
    raise ValueError("no such data")
"""


def test_the_end_of_a_script(cluster: LocalCluster, tmp_path: Path) -> None:
    for name, code in {"with": 1, "raise": 1, "exit": 3, "refused": 1, "well": 0}.items():
        run(cluster, FAILS, name, tmp_path / "storage", code=code)
        found = find(cluster, name)
        assert found["state"] == ("STATE_COMPLETED" if name == "well" else "STATE_ERROR"), name
        logs = cluster.logs(int(found["id"]))
        assert "on its way out" in logs
        words = {"refused": "bytes found"}.get(name, "ValueError: no such data")
        assert logs.count(words) == (name in ("with", "raise", "refused")), name


# Steps, each with a checkpoint of both; in the first run rank 1 fails after the third.
GANG = """
import sys
from determined.experimental import core_v2

dist = core_v2.DistributedContext.from_torch_distributed()
core_v2.init(distributed=dist, config=core_v2.Config(
    name="gang", checkpoint_storage=sys.argv[1], searcher={"name": "single", "metric": "loss"},
    external_experiment_id="gang", external_trial_id="gang"))
start, latest = core_v2.info.trial._steps_completed, core_v2.info.latest_checkpoint
if latest:
    with core_v2.checkpoint.restore_path(latest) as path:
        assert (path / f"shard-{dist.rank}").read_text() == str(start)
print("going on after", start, flush=True)
for step in range(start + 1, 6):
    if dist.rank == 0:
        core_v2.train.report_training_metrics(step, {"x": core_v2.info.trial._trial_run_id * 100 + step})
    with core_v2.checkpoint.store_path({"steps_completed": step}, shard=True) as (path, _):
        (path / f"shard-{dist.rank}").write_text(str(step))
    assert not core_v2.preempt.should_preempt()
    if (start, step, dist.rank) == (0, 3, 1):
        raise ValueError("no more data")
if dist.rank == 0:
    core_v2.train.report_validation_metrics(5, {"loss": 0.25})
"""


def test_in_several_processes(cluster: LocalCluster, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(GANG)
    launch = ["-m", "determined.launch.torch_distributed", "--nproc_per_node=2", "--", str(script)]
    command = [sys.executable, *launch, str(tmp_path / "storage")]
    for code, state in {1: "STATE_ERROR", 0: "STATE_COMPLETED"}.items():
        done = subprocess.run(
            command,
            env=cluster.env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == code, done.stderr
        assert find(cluster, "gang")["state"] == state
    experiment_id = int(find(cluster, "gang")["id"])
    (trial,) = client(cluster).get_experiment(experiment_id).get_trials()
    reports = {one.steps_completed: one.metrics["x"] for one in trial.iter_metrics("training")}
    assert reports == {**{n: 100 + n for n in (1, 2, 3)}, 4: 204, 5: 205}
    stored = trial.list_checkpoints()
    assert sorted(one.metadata["steps_completed"] for one in stored) == [1, 2, 3, 4, 5]
    assert all({"shard-0", "shard-1"} < set(one.resources or {}) for one in stored)
    logs = cluster.logs(experiment_id)
    # Who fails has the last word; the launcher ends the other before it may have sent its own.
    assert "[rank=1] || ValueError: no more data" in logs
    assert logs.count("going on after 3") == 2


# The same calls in a trial on the cluster.
MANAGED = """
import time
from determined.experimental import core_v2

dist = core_v2.DistributedContext.from_torch_distributed()
core_v2.init(distributed=dist, config=core_v2.Config(name="ignored"))
start = core_v2.info.trial._steps_completed
print("going on after", start, flush=True)
for step in range(start + 1, 31):
    time.sleep(0.02)
    if dist.rank == 0:
        core_v2.train.report_training_metrics(step, {"x": step})
    preempted = core_v2.preempt.should_preempt()
    while start == 0 and step == 10 and not preempted:  # the first run does not end by itself
        time.sleep(0.05)
        preempted = core_v2.preempt.should_preempt()
    if preempted:
        with core_v2.checkpoint.store_path({"steps_completed": step}, shard=True) as (path, _):
            (path / f"shard-{dist.rank}").write_text(str(step))
        print("preempted after", step, flush=True)
        break
else:
    if dist.rank == 0:
        core_v2.train.report_validation_metrics(30, {"loss": 0.25})
"""
MANAGED_CONFIG = """
name: managed
entrypoint: python3 -m determined.launch.torch_distributed -- python3 script.py
resources: {slots_per_trial: 2}
searcher: {name: single, metric: loss}
max_restarts: 0
"""


def test_the_same_in_a_trial_on_the_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    experiment_id = cluster.submit(tmp_path, MANAGED_CONFIG, script_py=MANAGED)
    cluster.wait_for_lines(experiment_id, "going on after 0", 2)
    cluster.det("experiment", "pause", str(experiment_id))
    lines = cluster.wait_for_lines(experiment_id, "preempted after", 2)
    (steps,) = {line.split()[-1] for line in lines}
    cluster.det("experiment", "activate", str(experiment_id))
    assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
    assert len(cluster.wait_for_lines(experiment_id, f"going on after {steps}", 2)) == 2
    (trial,) = client(cluster).get_experiment(experiment_id).get_trials()
    assert [one.steps_completed for one in trial.iter_metrics("training")] == list(range(1, 31))
    (row,) = cluster.trials(experiment_id)
    assert (row["restarts"], row["checkpointCount"]) == (0, 1)


def test_started_again_while_it_runs(cluster: LocalCluster, tmp_path: Path) -> None:
    """The second takes over; the first ends at its next report."""
    storage = tmp_path / "storage"
    held = SCRIPT.replace("time.sleep(600)", "sys.stdin.readline()").replace("outside", "twice")
    held = held.replace("exp/1", "exp/2")
    command = [sys.executable, "-c", held, str(storage)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=cluster.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as first:
        read_until(first.stdout, "now")
        assert "going on after 3" in run(cluster, held, storage).stdout
        _, said = first.communicate("\n", timeout=TIMEOUT_S)
    assert first.returncode == 1
    assert "has ended: its script has started again, as run 2" in said
    found = find(cluster, "twice")
    assert found["state"] == "STATE_COMPLETED"
    (trial,) = client(cluster).get_experiment(int(found["id"])).get_trials()
    reports = {one.steps_completed: one.metrics["x"] for one in trial.iter_metrics("training")}
    assert reports == {**{n: 100 + n for n in (1, 2, 3)}, **{n: 200 + n for n in range(4, 11)}}
    steps = [one.metadata["steps_completed"] for one in trial.list_checkpoints()]
    assert sorted(steps) == [3, 6, 9]


WAITS = """
import sys, time
from determined.core import _unmanaged
from determined.experimental import core_v2

_unmanaged.HEARTBEAT_S = 0.2
core_v2.init(config=core_v2.Config(name="ended", checkpoint_storage=sys.argv[1]))
print("ready", flush=True)
for step in range(1, 1200):
    core_v2.train.report_training_metrics(step, {"x": 1})
    time.sleep(0.1)
"""


def test_ended_by_a_user(cluster: LocalCluster, tmp_path: Path) -> None:
    process = begin(cluster, WAITS, tmp_path / "storage")
    read_until(process.stdout, "ready")
    experiment_id = str(find(cluster, "ended")["id"])
    paused = cluster.det("experiment", "pause", experiment_id, check=False)
    assert paused.returncode == 1 and "unmanaged" in paused.stderr
    cluster.det("experiment", "kill", experiment_id)
    assert process.wait(TIMEOUT_S) == 1
    assert find(cluster, "ended")["state"] == "STATE_CANCELED"


def test_the_example(cluster: LocalCluster) -> None:
    env = {**cluster.env, "XDG_DATA_HOME": str(Path(cluster.env["HOME"]) / "share")}
    for expected in ("epoch 20: accuracy 0.9", "going on after epoch 20"):
        done = subprocess.run(
            [sys.executable, str(EXAMPLE)],
            env=env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
    url = done.stdout.split("charts: ")[1].strip()
    assert "accuracy" in httpx.get(url, trust_env=False, timeout=TIMEOUT_S).text
