"""The published client's own unmanaged experiments, kept by this service."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.compat.upstream_client import UpstreamClient
from tests.waiting import TIMEOUT_S

SCRIPT = """
import sys
from determined.experimental import core_v2

config = core_v2.Config(
    name="published, unmanaged", hparams={"lr": 0.5}, checkpoint_storage=sys.argv[1],
    searcher={"name": "single", "metric": "loss"},
    external_experiment_id="published", external_trial_id="published")
core_v2.init(config=config, tensorboard_mode=core_v2.TensorboardMode.MANUAL)
start = core_v2.info.trial._steps_completed
print("going on after", start)
for step in range(start + 1, start + 4):
    core_v2.train.report_training_metrics(step, {"x": step})
with core_v2.checkpoint.store_path({"steps_completed": step}) as (path, _):
    (path / "step").write_text(str(step))
core_v2.train.report_validation_metrics(step, {"loss": 1 / step})
"""
STATE = """
found = [e for e in client.list_experiments() if e.name == "published, unmanaged"]
show([{"state": e.state.value, "progress": e.progress} for e in found])
"""
LOOK = """
(experiment,) = [e for e in client.list_experiments() if e.name == "published, unmanaged"]
(trial,) = experiment.list_trials()
show({
    "experiment": experiment.state.value, "trial": trial.state.value, "hparams": trial.hparams,
    "training": [m.steps_completed for m in trial.iter_metrics("training")],
    "validation": [m.metrics["loss"] for m in trial.iter_metrics("validation")],
    "checkpoints": len(trial.list_checkpoints()), "logs": "".join(trial.iter_logs()),
})
"""


# Waits after its start, then goes on as its second argument says.
WAITS = (
    SCRIPT.partition("start =")[0]
    + """
print("ready", core_v2.info.trial._trial_run_id, flush=True)
sys.stdin.readline()
print("from run", core_v2.info.trial._trial_run_id)
if sys.argv[2] == "report":
    core_v2.train.report_training_metrics(99, {"x": 99})
if sys.argv[2] == "progress":
    core_v2.train.report_progress(0.9)
if sys.argv[2] == "raise":
    raise ValueError("no more data")
if sys.argv[2] == "print":
    for number in range(5000):
        print("line", number)
"""
)


def begin(upstream: UpstreamClient, storage: Path, then: str) -> subprocess.Popen[str]:
    """A script that has started and waits for a line."""
    process = subprocess.Popen(
        [str(upstream.python), "-c", WAITS, str(storage), then],
        env=upstream.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    assert any("ready" in line for line in process.stdout)
    return process


def test_unmanaged(upstream: UpstreamClient, tmp_path: Path) -> None:
    """A second start while earlier processes of the same trial run: the earlier ones can change nothing
    more."""
    superseded = {
        then: begin(upstream, tmp_path, then) for then in ("report", "progress", "raise", "print")
    }
    holder = begin(upstream, tmp_path, "nothing")
    for then, process in superseded.items():
        said, _ = process.communicate("\n", timeout=TIMEOUT_S)
        # Its client prints a traceback, at the latest when it reports the end.
        assert "has ended: its script has started again, as run 5" in said, then
    (found,) = upstream.sdk(STATE)
    assert found["state"] == "STATE_RUNNING" and found["progress"] == 0
    holder.communicate("\n", timeout=TIMEOUT_S)
    assert holder.returncode == 0
    for _ in range(2):
        done = upstream._run(["-c", SCRIPT, str(tmp_path)], None, 90)
        assert done.returncode == 0, done.stdout + done.stderr
    found = upstream.sdk(LOOK)
    logs = found.pop("logs")
    assert "going on after 0" in logs and "going on after 3" in logs
    assert "from run 5" in logs and logs.count("from run") == 1 and "line 4999" not in logs
    assert found == {
        "experiment": "STATE_COMPLETED",
        "trial": "STATE_COMPLETED",
        "hparams": {"lr": 0.5},
        "training": [1, 2, 3, 4, 5, 6],
        "validation": [1 / 3, 1 / 6],
        "checkpoints": 2,
    }
    listed = upstream.det("experiment", "list").stdout
    assert "published, unmanaged" in listed
