"""Event files of trials on a cluster, read by TensorBoard's own reader."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.local_cluster import LocalCluster
from tests.outcomes import client

EXAMPLE = Path(__file__).parents[2] / "examples/digits_pytorch_trial"

# The first leg is killed after its checkpoint at step 4; steps 5 and 6 are reported twice.
SCRIPT = """
import os, signal, time
import determined as det

info = det.get_cluster_info()
with det.core.init() as core_context:
    start = info.trial._steps_completed
    for step in range(start + 1, 9):
        value = {2: float("nan"), 3: float("inf")}.get(step, info.trial._trial_run_id + step / 8)
        core_context.train.report_training_metrics(step, {"x": value})
        if step == 4:
            with core_context.checkpoint.store_path({"steps_completed": step}) as (path, _):
                (path / "state").write_text("")
        if step == 6 and start == 0:
            core_context.train._reporter.flush()
            core_context.train._tensorboard.upload()
            os.kill(os.getpid(), signal.SIGKILL)
    core_context.train.report_validation_metrics(8, {"accuracy": 0.5})
    core_context.train.report_metrics("other", 8, {"y": 7})
"""
CONFIG = """
name: charts
entrypoint: python3 script.py
searcher: {name: single, metric: accuracy}
max_restarts: 1
profiling: {enabled: true}
"""


def scalars(directory: Path) -> dict[str, dict[int, float]]:
    found = EventAccumulator(str(directory)).Reload()
    return {
        tag: {event.step: event.value for event in found.Scalars(tag)}
        for tag in found.Tags()["scalars"]
    }


def reported(trial: Any, group: str, prefix: str) -> dict[str, dict[int, float]]:
    """The service's metrics, in the form of :func:`scalars`: floats of 32 bits."""
    result: dict[str, dict[int, float]] = {}
    for report in trial.iter_metrics(group):
        for name, value in report.metrics.items():
            # Names that already have the prefix are kept.
            tag = f"Determined/{name}" if name.startswith("val") else prefix + name
            points = result.setdefault(tag, {})
            points[report.steps_completed] = float(np.float32(value))
    return result


def same(one: dict[str, dict[int, float]], other: dict[str, dict[int, float]]) -> bool:
    """Equal, NaN included: in text."""
    return repr(sorted((tag, sorted(points.items())) for tag, points in one.items())) == repr(
        sorted((tag, sorted(points.items())) for tag, points in other.items())
    )


def test_a_killed_and_resumed_trial(cluster: LocalCluster, tmp_path: Path) -> None:
    experiment_id = cluster.submit(tmp_path, CONFIG, script_py=SCRIPT)
    assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
    (trial,) = client(cluster).get_experiment(experiment_id).get_trials()
    said = cluster.det("experiment", "download-tensorboard", str(experiment_id), cwd=tmp_path)
    folder = tmp_path / said.stdout.strip()
    assert folder == tmp_path / "tensorboard" / str(experiment_id)
    charts = scalars(folder / "trial" / str(trial.id))
    known = {
        **reported(trial, "training", "Determined/"),
        **reported(trial, "validation", "Determined/val_"),
        **reported(trial, "other", "other/"),
    }
    assert sorted(known["Determined/x"]) == list(range(1, 9))
    assert math.isnan(known["Determined/x"][2])
    assert known["Determined/x"][5] == 2 + 5 / 8
    assert same(charts, known), (charts, known)
    # The machine's metrics have separate groups.
    (memory,) = trial.iter_metrics("memory")
    (values,) = memory.metrics.values()
    assert values["memory_free"] > 1e6
    assert {"cpu", "memory", "disk", "network"} < set(trial.summary_metrics or {})
    (row,) = cluster.trials(experiment_id)
    assert (row["searcherMetricValue"], row["totalBatchesProcessed"]) == (0.5, 8)
    # Files of both legs.
    assert len(list((folder / "trial" / str(trial.id)).iterdir())) == 2


def test_a_trial_class_with_a_profiler(cluster: LocalCluster, tmp_path: Path) -> None:
    configuration = yaml.safe_load((EXAMPLE / "const.yaml").read_text())
    configuration.update(
        entrypoint="profiled:ProfiledTrial", searcher={"name": "single", "metric": "accuracy"}
    )
    configuration["searcher"]["max_length"] = {"epochs": 2}
    profiled = """
import torch
from model_def import DigitsTrial

class ProfiledTrial(DigitsTrial):
    def __init__(self, context):
        super().__init__(context)
        self.writer = context.get_tensorboard_writer()
        context.set_profiler(
            activities=[torch.profiler.ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1))

    def train_batch(self, batch, epoch_idx, batch_idx):
        if batch_idx == 3:
            self.writer.add_scalar("mine/three", 3.0, batch_idx)
        return super().train_batch(batch, epoch_idx, batch_idx)
"""
    model = (EXAMPLE / "model_def.py").read_text()
    experiment_id = cluster.submit(
        tmp_path, yaml.safe_dump(configuration), model_def_py=model, profiled_py=profiled
    )
    assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
    (trial,) = client(cluster).get_experiment(experiment_id).get_trials()
    experiment = client(cluster).get_experiment(experiment_id)
    folder = Path(experiment.download_tensorboard_files(tmp_path / "charts"))
    trial_folder = folder / "trial" / str(trial.id)
    charts = scalars(trial_folder)
    assert charts.pop("mine/three") == {3: 3.0}
    known = {
        **reported(trial, "training", "Determined/"),
        **reported(trial, "validation", "Determined/val_"),
    }
    assert sorted(known["Determined/loss"]) == [45, 90]
    assert same(charts, known), (charts, known)
    assert len(list(trial_folder.glob("*.pt.trace.json"))) == 1


GANG = """
import determined as det

distributed = det.core.DistributedContext.from_torch_distributed()
with det.core.init(distributed=distributed) as core_context:
    path = core_context.train.get_tensorboard_path()
    (path / "host_1.17.pt.trace.json").write_text(str(distributed.rank))
    if distributed.rank == 0:
        core_context.train.report_validation_metrics(1, {"accuracy": 0.5})
"""


def test_every_process_of_a_trial_and_the_end_of_it_all(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    config = {
        "name": "charts of two",
        "entrypoint": "python3 -m determined.launch.torch_distributed -- python3 script.py",
        "searcher": {"name": "single", "metric": "accuracy"},
        "resources": {"slots_per_trial": 2},
        "max_restarts": 0,
    }
    experiment_id = cluster.submit(tmp_path, yaml.safe_dump(config), script_py=GANG)
    assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
    experiment = client(cluster).get_experiment(experiment_id)
    folder = Path(experiment.download_tensorboard_files(tmp_path / "charts"))
    traces = {path.name: path.read_text() for path in folder.glob("trial/*/*.pt.trace.json")}
    assert traces == {"host_1.17.pt.trace.json": "0", "host_1#1.17.pt.trace.json": "1"}

    cluster.det("experiment", "delete-tb-files", str(experiment_id), "--yes")
    after = tmp_path / "after"
    said = cluster.det("experiment", "download-tensorboard", str(experiment_id), "-o", str(after))
    assert f"experiment {experiment_id} has no TensorBoard files" in said.stderr
    assert not after.exists()
