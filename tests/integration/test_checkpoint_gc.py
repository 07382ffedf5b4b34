"""Checkpoints on a real cluster: retention, deletion, and the detection of a damaged one."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from determined.common.api import Session
from determined.experimental import Determined
from tests.chaos.test_kill_experiment_flow import flow_process
from tests.integration.prefect_server import Prefect
from tests.local_cluster import LocalCluster
from tests.outcomes import client
from tests.waiting import until

SAVES = """
import determined as det
info = det.get_cluster_info()
a = info.trial.hparams["a"]
with det.core.init() as core_context:
    for op in core_context.searcher.operations():
        for steps in range(1, {steps} + 1):
            # The best in the middle, the trial with the largest "a" the best of all.
            loss = abs(steps - 2) + 1 / a
            core_context.train.report_validation_metrics(steps, {{"x": loss}})
            with core_context.checkpoint.store_path({{"steps_completed": steps}}) as (path, uuid):
                (path / "weights").write_bytes(bytes(1000))
                (path / "optimizer").mkdir()
                for part in range({parts}):
                    (path / "optimizer" / f"part-{{part}}.pt").write_bytes(bytes(10))
        op.report_completed(loss)
"""
CONFIG = """
name: kept
entrypoint: python3 script.py
hyperparameters: {{a: {{type: categorical, vals: [1, 2, 4]}}}}
searcher: {{name: grid, metric: x, max_concurrent_trials: 2, max_length: 1}}
max_restarts: 0
checkpoint_storage: {{type: shared_fs, host_path: {root}, {policy}}}
"""
POLICY = "save_experiment_best: 2, save_trial_best: 0, save_trial_latest: 1"
EVERYTHING = "save_experiment_best: 0, save_trial_best: 99, save_trial_latest: 0"


@pytest.fixture(scope="module")
def sdk(cluster: LocalCluster) -> Iterator[Determined]:
    made = client(cluster)
    yield made
    made._session.close()


@pytest.fixture
def session(sdk: Determined) -> Session:
    return sdk._session


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of checkpoints of the test's experiments."""
    return tmp_path / "storage"


def stored(root: Path) -> set[str]:
    """The checkpoints on the disk (TensorBoard files are in a directory named by a uuid too)."""
    names = {path.name for path in root.iterdir() if re.fullmatch(r"[0-9a-f-]{36}", path.name)}
    return {name for name in names if not (root / name / "tensorboard").exists()}


def hidden(root: Path) -> list[str]:
    """The other files there, made by running or killed processes."""
    return sorted(path.name for path in root.iterdir() if path.name.startswith("."))


def listed(session: Session, experiment_id: int) -> dict[str, dict[str, Any]]:
    path = f"/api/v1/experiments/{experiment_id}/checkpoints"
    found = session.get(path, params={"limit": -1})["checkpoints"]
    return {one["uuid"]: one for one in found}


def whole(session: Session, experiment_id: int) -> dict[str, dict[str, Any]]:
    found = listed(session, experiment_id)
    return {name: one for name, one in found.items() if one["state"] == "STATE_COMPLETED"}


def search(
    cluster: LocalCluster,
    tmp_path: Path,
    root: Path,
    policy: str,
    *,
    steps: int = 3,
    parts: int = 1,
) -> int:
    """An experiment of three trials with ``steps`` checkpoints each, at its end."""
    script = SAVES.format(steps=steps, parts=parts)
    config = CONFIG.format(root=root, policy=policy)
    experiment_id = cluster.submit(tmp_path, config, script_py=script)
    assert cluster.wait(experiment_id) == "COMPLETED"
    return experiment_id


def test_a_search_leaves_the_checkpoints_of_its_policy(
    cluster: LocalCluster, tmp_path: Path, root: Path, session: Session
) -> None:
    experiment_id = search(cluster, tmp_path, root, POLICY)
    until("five checkpoints", lambda: len(whole(session, experiment_id)), equals=5)
    kept = whole(session, experiment_id)
    assert stored(root) == set(kept)
    steps = sorted(
        (one["training"]["hparams"]["a"], one["metadata"]["steps_completed"])
        for one in kept.values()
    )
    # The last of each trial, and the middle ones of the two trials with the largest a.
    assert steps == [(1, 3), (2, 2), (2, 3), (4, 2), (4, 3)]
    gone = [one for name, one in listed(session, experiment_id).items() if name not in kept]
    assert {one["state"] for one in gone} == {"STATE_DELETED"}
    # The lists of their files stay, as in Determined.
    assert all(one["resources"] for one in gone)
    assert hidden(root) == []
    assert cluster.describe(experiment_id)["state"] == "STATE_COMPLETED"
    # Another policy asks first, and says what would go.
    policy = ("--save-experiment-best=0", "--save-trial-best=0", "--save-trial-latest=1")
    command = ("experiment", "set", "gc-policy", str(experiment_id), *policy)
    asked = cluster.det(*command, check=False)
    assert asked.returncode == 1
    assert "would delete 2 checkpoints" in asked.stderr
    assert "--yes" in asked.stderr
    assert len(stored(root)) == 5
    cluster.det(*command, "--yes")
    until("three checkpoints", lambda: len(whole(session, experiment_id)), equals=3)
    assert stored(root) == set(whole(session, experiment_id))


def test_files_and_checkpoints_that_are_named(
    cluster: LocalCluster, tmp_path: Path, root: Path, session: Session, sdk: Determined
) -> None:
    experiment_id = search(cluster, tmp_path, root, EVERYTHING)
    first, second, third, *_ = names = sorted(stored(root))
    done = cluster.det("checkpoint", "rm", first, second, "--glob", "optimizer/*", "--yes")
    assert "deleted optimizer/* from 2 checkpoints" in done.stderr
    for name in (first, second):
        shown = listed(session, experiment_id)[name]
        assert shown["state"] == "STATE_PARTIALLY_DELETED"
        left = {path.name for path in (root / name).rglob("*") if not path.name.startswith(".")}
        assert left == {"weights", "metadata.json", "optimizer"}
        assert set(shown["resources"]) == {"weights", "metadata.json", "optimizer/"}
    sdk.get_checkpoint(first).download(str(tmp_path / "copy"))
    assert not (tmp_path / "copy" / "optimizer" / "part-0.pt").exists()
    cluster.det("checkpoint", "delete", f"{second},{third}", "--yes")
    assert stored(root) == set(names) - {second, third}
    assert listed(session, experiment_id)[third]["state"] == "STATE_DELETED"
    again = cluster.det("checkpoint", "delete", third, "--yes")
    assert "deleted" in again.stderr
    unknown = "00000000-0000-0000-0000-000000000000"
    refused = cluster.det("checkpoint", "delete", unknown, "--yes", check=False)
    assert refused.returncode == 1
    assert unknown in refused.stderr


def test_a_collection_that_is_killed_is_finished(
    cluster: LocalCluster, tmp_path: Path, root: Path, session: Session
) -> None:
    experiment_id = search(cluster, tmp_path, root, EVERYTHING, steps=20, parts=120)
    names = stored(root)
    assert len(names) == 60
    body = {"checkpointUuids": sorted(names)}
    deletion_id = session.request("DELETE", "/api/v1/checkpoints", json=body).json()["deletionId"]

    def run_of() -> str | None:
        found: str | None = session.get(f"/api/v1/deletions/{deletion_id}")["flowRunId"]
        return found

    first_run = until("the flow run of the deletion", run_of)
    until("ten checkpoints deleted", lambda: len(stored(root)) < 50)
    process = flow_process(cluster, first_run)
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    assert len(stored(root)) > 0, "it was killed too late to tell"

    def state() -> str:
        return str(session.get(f"/api/v1/deletions/{deletion_id}")["state"])

    until("the end of the deletion", state, equals="STATE_DONE")
    assert run_of() == first_run, "its run goes on"
    task_id = session.get(f"/api/v1/deletions/{deletion_id}")["taskId"]
    lines = session.stream(f"/api/v1/tasks/{task_id}/logs")
    assert any("checkpoints deleted" in line["log"] for line in lines)
    assert stored(root) == set()
    assert hidden(root) == []
    assert {one["state"] for one in listed(session, experiment_id).values()} == {"STATE_DELETED"}


UNFINISHED = """
import os, signal, sys
import determined as det
info = det.get_cluster_info()
with det.core.init() as core_context:
    for op in core_context.searcher.operations():
        core_context.train.report_validation_metrics(1, {"x": 1.0})
        with core_context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
            (path / "weights").write_bytes(bytes(1000))
            if info.trial._trial_run_id == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        writer = core_context.train.get_tensorboard_path() / "events"
        writer.write_text("curves")
        print("a line of the log")
        op.report_completed(1.0)
"""


def test_a_deleted_experiment_leaves_nothing(
    cluster: LocalCluster, tmp_path: Path, root: Path, session: Session
) -> None:
    prefect = Prefect(cluster)
    script, policy = UNFINISHED, "save_trial_latest: 1"
    config = CONFIG.format(root=root, policy=policy).replace("max_restarts: 0", "max_restarts: 1")
    ids = []
    for number in range(2):
        config = config.replace("vals: [1, 2, 4]", "vals: [1, 2]")
        ids.append(cluster.submit(tmp_path / str(number), config, script_py=script))
    for experiment_id in ids:
        assert cluster.wait(experiment_id) == "COMPLETED"
    # Leftovers of the killed legs are removed automatically after the end.
    until("no hidden files", lambda: hidden(root), equals=[])
    assert len(stored(root)) == 4
    assert len(list(root.glob("*/tensorboard/**/events"))) == 4
    runs = [
        run["id"]
        for experiment_id in ids
        for run in prefect.call(
            "/flow_runs/filter",
            {"flow_runs": {"tags": {"any_": [f"experiment-{experiment_id}"]}}, "sort": "ID_DESC"},
        )
    ]
    assert len(runs) >= 2 * 3
    done = cluster.det("experiment", "delete", *map(str, ids), "--yes")
    for experiment_id in ids:
        assert f"deleted experiment {experiment_id}" in done.stderr
        answer = cluster.det("experiment", "describe", str(experiment_id), check=False)
        assert answer.returncode == 1
    assert [path for path in root.rglob("*") if path.is_file()] == []
    for run in runs:
        assert prefect.http.get(f"/flow_runs/{run}").status_code == 404
    again = cluster.det("experiment", "delete", str(ids[0]), "--yes", check=False)
    assert again.returncode == 1
    assert "does not exist" in again.stderr


DAMAGES = """
import determined as det
info = det.get_cluster_info()
print("starts from", info.latest_checkpoint)
with det.core.init() as core_context:
    if info.latest_checkpoint:
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
            print("restored", (path / "weights").read_text())
    for op in core_context.searcher.operations():
        for steps in range(1, 4 if info.trial._trial_run_id == 1 else 1):
            with core_context.checkpoint.store_path({"steps_completed": steps}) as (path, uuid):
                (path / "weights").write_text(f"of step {steps}")
        if info.trial._trial_run_id == 1:
            with core_context.checkpoint.restore_path(uuid) as path:
                HOW
            raise RuntimeError("the first leg is over")
        core_context.train.report_validation_metrics(op.length, {"x": 1.0})
        op.report_completed(1.0)
"""
ONE = """
name: damaged
entrypoint: python3 script.py
hyperparameters: {{}}
searcher: {{name: single, metric: x, max_length: 1}}
max_restarts: 1
checkpoint_storage: {{type: shared_fs, host_path: {root}, save_trial_latest: 9}}
"""


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ('(path / "weights").write_text("of step 9")', "have changed since the file was stored"),
        ('(path / "weights").write_text("short")', "has 5 bytes, but 9 were stored"),
        ('(path / "weights").unlink()', "is missing"),
    ],
    ids=["changed", "short", "missing"],
)
def test_a_damaged_latest_checkpoint_is_passed_over(
    cluster: LocalCluster, tmp_path: Path, root: Path, session: Session, how: str, reason: str
) -> None:
    script = DAMAGES.replace("HOW", how)
    experiment_id = cluster.submit(tmp_path, ONE.format(root=root), script_py=script)
    assert cluster.wait(experiment_id) == "COMPLETED"
    logs = cluster.logs(experiment_id)
    found = listed(session, experiment_id)
    by_steps = {one["metadata"]["steps_completed"]: name for name, one in found.items()}
    assert f"starts from {by_steps[2]}" in logs
    assert "restored of step 2" in logs
    assert f"starts from the one before, {by_steps[2]}" in logs
    assert found[by_steps[3]]["state"] == "STATE_ERROR"
    assert reason in found[by_steps[3]]["reason"]
    assert f"{by_steps[3]}/weights" in found[by_steps[3]]["reason"]
    shown = cluster.det("checkpoint", "describe", by_steps[3]).stdout
    assert reason in shown
