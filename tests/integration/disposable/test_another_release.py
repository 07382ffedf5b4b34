"""`cluster-up` over the components of another release."""

from __future__ import annotations

import json
from pathlib import Path

from determined_deployments.local.layout import Layout
from tests.local_cluster import LocalCluster
from tests.processes import is_alive
from tests.waiting import until

CONFIG = """
entrypoint: python3 train.py
max_restarts: 0
hyperparameters: {out: %s}
searcher: {name: single, metric: x, max_length: {batches: 1}}
"""
TRAIN = """
import os, pathlib, time
import determined as det
info = det.get_cluster_info()
out = pathlib.Path(info.trial.hparams["out"])
with det.core.init() as core_context:
    with (out / "begun").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    while not (out / "end").exists():
        time.sleep(0.05)
    core_context.train.report_validation_metrics(1, {"x": 1.0})
"""


def pids(cluster: LocalCluster) -> dict[str, int]:
    return {row["component"]: row["pid"] for row in cluster.json("deploy", "local", "status")}


def test_components_of_another_release_are_restarted_and_trials_go_on(
    disposable: LocalCluster, tmp_path: Path
) -> None:
    experiment = disposable.submit(tmp_path, CONFIG % tmp_path, train_py=TRAIN)
    begun = tmp_path / "begun"
    trial_pid = int(until("the trial", lambda: begun.exists() and begun.read_text()))
    before = pids(disposable)
    for path in Layout(disposable.data_dir).pid_file("service").parent.glob("*.json"):
        record = json.loads(path.read_text())
        settings, _, release = record["fingerprint"].partition("@")
        assert release
        path.write_text(json.dumps({**record, "fingerprint": f"{settings}@0.0.9"}))

    said = disposable.up().stderr
    after = pids(disposable)
    assert before.keys() == after.keys() >= {"postgres", "prefect", "service", "agent"}
    for name, pid in before.items():
        assert after[name] != pid
        assert f"{name} is of another release (0.0.9, not {release}); restarting it" in said
    assert is_alive(trial_pid)
    (tmp_path / "end").touch()
    assert disposable.wait(experiment) == "COMPLETED"
    (trial,) = disposable.trials(experiment)
    assert trial["restarts"] == 0 and begun.read_text() == f"{trial_pid}\n"
    # Now they are of this one.
    disposable.up()
    assert pids(disposable) == after
