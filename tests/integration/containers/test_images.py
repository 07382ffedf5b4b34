"""A cluster of the images that `make images` builds; skipped without them, because that takes minutes."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from determined import __version__
from tests import container_engine
from tests.local_cluster import DET
from tests.waiting import TIMEOUT_S

REPOSITORY = Path(__file__).parents[3]
SCRIPT = REPOSITORY / "deployments" / "docker" / "cluster.sh"
TRAIN = """
import determined as det, torch
with det.core.init() as core:
    for op in core.searcher.operations():
        print("torch", torch.__version__.split("+")[0], "in a container")
        core.train.report_training_metrics(1, {"loss": 0.5})
        with core.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
            (path / "weights").write_text("1 2 3")
        op.report_completed(0.5)
"""
CONFIG = """
name: from images
entrypoint: python3 train.py
hyperparameters: {x: {type: categorical, vals: [1, 2]}}
searcher: {name: grid, metric: loss, max_length: {batches: 1}}
max_restarts: 0
"""


@pytest.fixture
def cluster(engine: None) -> Iterator[dict[str, str]]:
    """A cluster in containers; the environment for `det`."""
    for image in ("harness", "service", "agent"):
        if not container_engine.has_image(f"determined-prefect/{image}:{__version__}"):
            pytest.skip(f"no image {image} in the engine: run `make images`")
    with tempfile.TemporaryDirectory(prefix="determined-test-images-") as folder:
        socket = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DET_")},
            "HOME": folder,
            "PORT": "18480",
            "DOCKER_SOCKET": socket.removeprefix("unix://"),
        }
        place = Path(folder) / "cluster"
        command = ["sh", str(SCRIPT)]
        try:
            done = subprocess.run(
                [*command, "up", place], env=env, capture_output=True, text=True, timeout=TIMEOUT_S
            )
            assert done.returncode == 0, done.stderr
            found = dict(word.split("=", 1) for word in done.stdout.split())
            yield {**env, **found, "DET_DEBUG_CONFIG_PATH": str(Path(folder) / "login")}
        finally:
            subprocess.run([*command, "down", place], env=env, check=True, timeout=TIMEOUT_S)
            assert container_engine.containers() == []


def test_an_experiment_on_a_cluster_of_images(cluster: dict[str, str], tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "train.py").write_text(TRAIN)
    (tmp_path / "config.yaml").write_text(CONFIG)

    def det(*args: str) -> str:
        command = [*DET, *args]
        done = subprocess.run(
            command, env=cluster, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    created = det("experiment", "create", str(tmp_path / "config.yaml"), str(model))
    number = next(word for word in created.split() if word.isdigit())
    det("experiment", "wait", number)
    for trial in ("1", "2"):
        assert det("trial", "logs", trial).count("in a container") == 1
    assert "COMPLETED" in det("experiment", "describe", number)
    assert det("experiment", "list-checkpoints", number).count("COMPLETED") == 2
