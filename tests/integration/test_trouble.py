"""The commands for trouble, on real processes: several ids, describe, support-bundle, cluster doctor.

For the doctor's findings in a broken cluster see disposable/test_doctor.py.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from tests.local_cluster import LocalCluster
from tests.waiting import until

FAILS = """
name: trouble
entrypoint: python3 train.py
hyperparameters: {}
searcher: {name: single, metric: loss, max_length: 8}
max_restarts: 1
"""
HOLDS = """
name: holds
entrypoint: python3 train.py
hyperparameters: {}
searcher: {name: single, metric: loss, max_length: 8}
resources: {slots_per_trial: SLOTS}
"""
REPORTS_FOR_EVER = """
import time
import determined as det
with det.core.init() as context:
    for step in range(1, 100000):
        context.train.report_validation_metrics(step, {"loss": 1.0})
        time.sleep(0.1)
        if context.preempt.should_preempt():
            break
"""
SLEEPS = "import time\ntime.sleep(300)\n"


def test_describe_and_bundle_of_a_trial_that_fails(cluster: LocalCluster, tmp_path: Path) -> None:
    code = "import sys\nprint('going to fail')\nsys.exit(3)\n"
    experiment = cluster.submit(tmp_path, FAILS, train_py=code)
    assert cluster.wait(experiment) == "ERROR"
    document = cluster.describe(experiment)
    (trial,) = document["trials"]
    assert [leg["runId"] for leg in trial["legs"]] == [1, 2]
    assert {leg["exitCode"] for leg in trial["legs"]} == {3}
    assert all("code 3" in leg["reason"] and leg["agentId"] for leg in trial["legs"])
    (failure,) = document["failures"]
    assert failure["restarts"] == 1 or trial["restarts"] == failure["restarts"]
    assert any("going to fail" in line for line in failure["lastLogs"])
    assert document["waiting"] == []
    table = cluster.det("e", "describe", str(experiment)).stdout
    assert "Failed trials" in table
    assert "going to fail" in table

    done = cluster.det("t", "support-bundle", str(trial["id"]), "-o", str(tmp_path / "out"))
    with tarfile.open(done.stdout.strip()) as archive:
        names = {Path(name).name for name in archive.getnames()}
        (logs,) = [m for m in archive.getmembers() if m.name.endswith("logs.txt")]
        file = archive.extractfile(logs)
        assert file is not None
        assert file.read().decode().count("going to fail") == 2
        (manifest,) = [m for m in archive.getmembers() if m.name.endswith("manifest.json")]
        file = archive.extractfile(manifest)
        assert file is not None
        assert json.load(file)["missing"] == {}
    assert {
        "trial.json",
        "experiment.json",
        "config.yaml",
        "allocations.json",
        "cluster.json",
    } < names


def test_waiting_for_slots_is_shown_and_many_are_killed_at_once(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    first = cluster.submit(tmp_path / "a", HOLDS.replace("SLOTS", "2"), train_py=SLEEPS)
    until(
        "the first experiment running",
        lambda: cluster.describe(first)["state"],
        equals="STATE_RUNNING",
    )
    second = cluster.submit(tmp_path / "b", HOLDS.replace("SLOTS", "1"), train_py=SLEEPS)

    def reasons() -> list[str]:
        return [item["reason"] for item in cluster.describe(second)["waiting"] if item["trialId"]]

    (reason,) = until("the reason", reasons)
    assert reason == "wants 1 slot of resource pool 'default': 0 of 2 are free"
    done = cluster.det("e", "kill", str(first), "99999", str(second), check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"killed experiment {first}",
        "error: not found: experiment 99999 does not exist",
        f"killed experiment {second}",
        "1 of 3 failed",
    ]
    for experiment in (first, second):
        assert cluster.wait(experiment) == "CANCELED"


def test_test_mode(cluster: LocalCluster, tmp_path: Path) -> None:
    """A length in the code: the trial that is tried out ends with its first validation."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").write_text(REPORTS_FOR_EVER)
    (tmp_path / "config.yaml").write_text(
        "name: endless\nentrypoint: python3 train.py\nhyperparameters: {}\n"
        "searcher: {name: single, metric: loss}\n"
    )
    create = ("e", "create", str(tmp_path / "config.yaml"), str(tmp_path / "model"), "-t")
    done = cluster.det(*create)
    experiment = int(done.stdout.split()[-1])
    assert "test: passed" in done.stderr
    cluster.det("e", "kill", str(experiment))
    (tmp_path / "model" / "train.py").write_text("raise ValueError('no luck')\n")
    done = cluster.det(*create, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "ValueError: no luck" in done.stderr
    listed = {row["id"]: row for row in cluster.json("e", "list", "--all")}
    tested = [row for row in listed.values() if row["name"] == "test of endless"]
    assert [row["archived"] for row in tested] == [True, True]
    assert max(listed) == max(row["id"] for row in tested)


def test_the_doctor_of_a_healthy_cluster(cluster: LocalCluster) -> None:
    done = cluster.det("cluster", "doctor")
    checks = {line.split()[1] for line in done.stdout.splitlines() if not line.startswith(" ")}
    assert {"postgres", "prefect", "service", "agent", "checkpoint", "clocks"} <= checks
    assert "FAILED" not in done.stdout
