"""DeepSpeed's own package with our trial classes, where it is not installed beside us."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.installed import kept, run_or_skip
from tests.integration.gangs.interrupted import HELD, check_interrupted, reports
from tests.local_cluster import LocalCluster
from tests.outcomes import client

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/deepspeed"
# Modules that it imports and we do not.
PACKAGES = ("deepspeed", "einops", "hjson", "msgpack", "ninja", "py-cpuinfo")
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def folder() -> Path:
    """The directory of the packages; installed on first use, without torch, which is here."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line for line in lines if line.partition("==")[0] in PACKAGES]
    assert len(pinned) == len(PACKAGES)

    def install(home: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run_or_skip("deepspeed", [*pip, "--no-deps", "--target", str(home), *pinned])

    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return kept(f"{pinned[0].replace('==', '-')}-python{version}", install)


@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is not None,
    reason="deepspeed is installed: tests/training/frameworks/test_deepspeed.py runs in this session",
)
def test_trials_with_the_package(folder: Path) -> None:
    tests = [
        "tests/training/frameworks/test_deepspeed.py",
        "tests/training/frameworks/test_deepspeed_horovod.py",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", *tests],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout


def test_the_example_on_the_cluster(cluster: LocalCluster, folder: Path, tmp_path: Path) -> None:
    """In two processes, half of the optimizer's state in each."""
    configuration = yaml.safe_load((EXAMPLE / "distributed.yaml").read_text())
    configuration["searcher"]["max_length"] = {"epochs": 1}
    configuration["environment"] = {"environment_variables": [f"PYTHONPATH={folder}"]}
    model = {"model_def_py": (EXAMPLE / "model_def.py").read_text()}
    model["ds_config_json"] = (EXAMPLE / "ds_config.json").read_text()
    experiment_id = cluster.submit(tmp_path, yaml.safe_dump(configuration), **model)
    assert cluster.wait(experiment_id, 300) == "COMPLETED", cluster.logs(experiment_id)
    (trial,) = client(cluster).get_experiment(experiment_id).get_trials()
    found = {one.steps_completed: one.metrics for one in trial.iter_metrics("validation")}
    assert sorted(found) == [45]
    assert found[45]["accuracy"] > 0.8
    (checkpoint,) = [
        one for one in trial.list_checkpoints() if one.metadata["steps_completed"] == 45
    ]
    parts = {Path(name).name for name in checkpoint.resources}
    assert {f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(2)} <= parts


def test_paused_and_killed_the_losses_are_the_same(
    cluster: LocalCluster, folder: Path, tmp_path: Path
) -> None:
    configuration = yaml.safe_load((EXAMPLE / "distributed.yaml").read_text())
    configuration["entrypoint"] = "held:HeldTrial"
    configuration["environment"] = {"environment_variables": [f"PYTHONPATH={folder}"]}
    go = tmp_path / "go"
    unbroken, broken = (
        cluster.submit(
            tmp_path / name,
            yaml.safe_dump(configuration),
            model_def_py=(EXAMPLE / "model_def.py").read_text(),
            ds_config_json=(EXAMPLE / "ds_config.json").read_text(),
            held_py=HELD.format(go=str(go), holds=name == "broken"),
        )
        for name in ("unbroken", "broken")
    )
    check_interrupted(cluster, unbroken, broken, go, processes=2)
    assert list(reports(cluster, broken, "validation")) == [45 * epoch for epoch in range(1, 6)]
