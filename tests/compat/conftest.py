"""The published client against this session's cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.compat.upstream_client import UpstreamClient, installed_python
from tests.local_cluster import LocalCluster

SCRIPT = """
import logging, sys
import determined as det

logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
quality = det.get_cluster_info().trial.hparams["quality"]
with det.core.init() as core_context:
    for step in range(1, 7):
        core_context.train.report_training_metrics(
            steps_completed=step, metrics={"loss": 1 / step, "grad": float("inf")})
        core_context.train.report_progress(step / 6)
        print("step", step)
        if step % 3 == 0:
            core_context.train.report_validation_metrics(
                steps_completed=step, metrics={"accuracy": quality * step, "regret": 1 - quality})
            with core_context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
                (path / "state.txt").write_text(f"{quality} {step}")
    logging.warning("almost done")
    print("on stderr", file=sys.stderr)
"""

CONFIG = """
name: from-the-published-client
labels: [compat]
entrypoint: python3 train.py
max_restarts: 0
searcher: {name: grid, metric: accuracy, smaller_is_better: false}
hyperparameters:
  quality: {type: categorical, vals: [0.1, 0.02]}
"""


@dataclass(frozen=True)
class Submitted:
    """An experiment that the published `det` has created, and its configuration and model directory."""

    id: int
    config: Path
    model: Path


@pytest.fixture(scope="session")
def upstream_python() -> Path:
    """An interpreter with the published client (and harness)."""
    return installed_python()


@pytest.fixture(scope="session")
def upstream(
    upstream_python: Path, cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> UpstreamClient:
    """The published client, logged in as `determined` with `det user login`."""
    record = json.loads((cluster.data_dir / "cluster.json").read_text())
    home = tmp_path_factory.mktemp("upstream-home")
    client = UpstreamClient(upstream_python, home, record["master_url"], record["passwords"])
    client.login("determined", record["passwords"]["determined"])
    return client


@pytest.fixture(scope="session")
def submitted(upstream: UpstreamClient, tmp_path_factory: pytest.TempPathFactory) -> Submitted:
    """A completed grid search of two trials, `quality` 0.1 and 0.02; two checkpoints each.

    Its metric is better the larger it is.
    """
    folder = tmp_path_factory.mktemp("submitted")
    config, model = folder / "config.yaml", folder / "model"
    model.mkdir()
    config.write_text(CONFIG)
    (model / "train.py").write_text(SCRIPT)
    experiment_id = upstream.create(config, str(model))
    upstream.wait(experiment_id)
    return Submitted(experiment_id, config, model)
