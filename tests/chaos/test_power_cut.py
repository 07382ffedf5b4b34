"""The machine loses power in mid-search, and two people type `cluster-up` at once: the search goes on."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path

import psutil

from determined_deployments.local import daemon
from determined_deployments.local import state as states
from determined_deployments.local.layout import Layout
from determined_searchers import simulate
from tests.chaos import load
from tests.local_cluster import DET, LocalCluster
from tests.waiting import until


def members(cluster: LocalCluster) -> list[psutil.Process]:
    state = states.load(Layout(cluster.data_dir))
    assert state is not None
    return list(daemon.members(state.marker))


def test_a_search_goes_on_after_a_power_cut(cluster: LocalCluster, tmp_path: Path) -> None:
    config = load.config("random", 3, tmp_path / "storage").replace("batches: 40", "batches: 120")
    experiment = cluster.submit(tmp_path, config, script_py=load.SCRIPT)
    until(
        "two running trials",
        lambda: [trial["state"] for trial in cluster.trials(experiment)][:2],
        equals=["RUNNING"] * 2,
    )
    time.sleep(2)  # the power goes in the midst of training
    assert len(members(cluster)) > 10
    for _ in range(3):
        for process in members(cluster):
            with contextlib.suppress(psutil.Error):
                process.kill()
    psutil.wait_procs(members(cluster), 5)
    assert members(cluster) == []

    command = [*DET, "deploy", "local", "cluster-up", "--slots", "2"]
    starts = [
        subprocess.Popen(
            command, env=cluster.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    said = [start.communicate(timeout=120)[0] for start in starts]
    assert [start.returncode for start in starts] == [0, 0], said

    assert cluster.wait(experiment) == "COMPLETED"
    found = cluster.trials(experiment)
    expected = simulate(cluster.describe(experiment)["config"]).trials
    assert [(t["requestId"], t["hparams"], t["seed"]) for t in found] == [
        (t.request_id, t.hparams, t.seed) for t in expected
    ]
    # A power cut does not count as a failure of the trial.
    assert {(trial["state"], trial["restarts"]) for trial in found} == {("COMPLETED", 0)}
    for trial in found:
        assert cluster.reported(trial["id"], "training") == list(range(1, 121))
