"""Every method of MLflow's client and every function of ``mlflow``: which answer as MLflow's own store does.

What that answered is in ``tests/fixtures/mlflow_answers.json``; ``python -m
tests.integration.mlflow.calls.comparison --write`` asks it again, and asks ours what takes longer, too.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import mlflow
import psutil

from benchmarks.mlflow.servers import TrackingServer
from tests.integration.mlflow.calls import ANSWERS, differences, of_client, of_mlflow
from tests.integration.mlflow.calls.reasons import REASONS, group_of
from tests.integration.mlflow.conftest import Cluster


def test_no_method_is_forgotten() -> None:
    methods = {
        name
        for name, _ in inspect.getmembers(mlflow.MlflowClient, callable)
        if not name.startswith("_")
    }
    assert methods == set(of_client.CALLS)
    functions = {
        name
        for name, found in inspect.getmembers(mlflow, inspect.isfunction)
        if not name.startswith("_")
    }
    assert functions == set(of_mlflow.CALLS) | set(of_mlflow.NOT_CALLED)


def test_answers_are_those_of_mlflows_store(cluster: Cluster, tmp_path: Path) -> None:
    # In a separate process, as the program does: MLflow's client has global state.
    ours_at = TrackingServer(cluster.tracking_uri, cluster.token, psutil.Process())
    command = [sys.executable, "-m", "tests.integration.mlflow.calls", str(tmp_path), "--short"]
    done = subprocess.run(command, env=ours_at.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    ours = json.loads((tmp_path / "answers.json").read_text())
    theirs = json.loads(ANSWERS.read_text())
    differ = differences(ours, theirs)
    assert {name: (ours[name], theirs[name]) for name in differ if not group_of(name)} == {}
    # Every listed difference exists; and no answer is a failure that clients would retry.
    assert {group_of(name) for name in differ} == REASONS.keys() - {"traces"}
    assert {name: one for name, one in ours.items() if "INTERNAL_ERROR" in str(one)} == {}
