"""The published client's own unmanaged experiments, kept by this service."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.compat.upstream_client import UpstreamClient

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


# Waits between its start and its only report.
LATE = (
    SCRIPT.partition("start =")[0]
    + """
print("ready", flush=True)
sys.stdin.readline()
core_v2.train.report_training_metrics(99, {"x": 99})
"""
)


def test_unmanaged(upstream: UpstreamClient, tmp_path: Path) -> None:
    late = subprocess.Popen(
        [str(upstream.python), "-c", LATE, str(tmp_path)],
        env=upstream.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert late.stdout is not None
    assert any("ready" in line for line in late.stdout)
    for _ in range(2):
        done = upstream._run(["-c", SCRIPT, str(tmp_path)], None, 90)
        assert done.returncode == 0, done.stdout + done.stderr
    # Another start has taken over: its report is refused.
    said, _ = late.communicate("\n", timeout=90)
    assert "run 1 of trial" in said and "has ended: its script has started again" in said
    found = upstream.sdk(LOOK)
    logs = found.pop("logs")
    assert "going on after 0" in logs and "going on after 3" in logs
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
