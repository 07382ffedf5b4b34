"""Legs that were given up but still run, and runs that are executed twice at once: real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.prefect_server import Prefect
from tests.local_cluster import LocalCluster
from tests.processes import is_alive
from tests.waiting import TIMEOUT_S, until

CONFIG = """
name: fenced
entrypoint: python3 script.py
hyperparameters: {out: %s}
searcher: {name: single, metric: loss, max_length: 2}
max_restarts: 0
"""

# The steps of the first leg, once, and its end. The second leg has no such steps.
TRAIN = """
import os, pathlib, sys, time
import determined as det
info = det.get_cluster_info()
out = pathlib.Path(info.trial.hparams["out"])
leg = info.allocation_id.rpartition(".")[2]
(out / f"pid-{leg}").write_text(str(os.getpid()))
def first_leg(core):
    BODY
with det.core.init() as core:
    if leg == "1":
        try:
            first_leg(core)
        except BaseException as error:
            (out / "ended").write_text(f"{type(error).__name__}: {error}")
            raise
        (out / "ended").write_text("it was let go on")
    for op in core.searcher.operations():
        core.train.report_validation_metrics(op.length, {"loss": 0.5})
        op.report_completed(0.5)
"""
REPORTS = """for step in range(10**9):
        core.train.report_training_metrics(step, {"loss": 1.0})
        time.sleep(0.05)"""
COMPUTES = """while not (out / "go").exists():
        time.sleep(0.05)
    with core.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "weights").write_bytes(b"w" * 1000)"""


@pytest.fixture
def prefect(cluster: LocalCluster) -> Prefect:
    return Prefect(cluster)


@pytest.fixture
def quiet_agent(cluster: LocalCluster) -> Iterator[None]:
    """The agent does not get the order to kill, as if the network were cut."""
    pid = next(row["pid"] for row in status(cluster) if row["component"] == "agent")
    stopped = []

    class Stopper:
        def __call__(self) -> None:
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)

    yield Stopper()  # type: ignore[misc]
    for one in stopped:
        os.kill(one, signal.SIGCONT)


def status(cluster: LocalCluster) -> list[dict[str, Any]]:
    found = json.loads(cluster.det("deploy", "local", "status", "--json").stdout)
    return found["components"] if isinstance(found, dict) else found  # type: ignore[no-any-return]


def internal(cluster: LocalCluster) -> httpx.Client:
    record = json.loads((cluster.data_dir / "cluster.json").read_text())
    return httpx.Client(
        base_url=record["master_url"],
        headers={"Authorization": f"Bearer {record['agent_token']}"},
        trust_env=False,
    )


def declare_dead(cluster: LocalCluster, allocation_id: str) -> None:
    body = {"kind": "infrastructure", "reason": "declared dead by the test"}
    with internal(cluster) as client:
        path = f"/internal/v1/allocations/{allocation_id}/exit"
        client.post(path, json=body).raise_for_status()


def start(cluster: LocalCluster, tmp_path: Path, body: str) -> tuple[int, str]:
    """An experiment whose first leg runs; its id and the leg's allocation."""
    experiment = cluster.submit(tmp_path, CONFIG % tmp_path, script_py=TRAIN.replace("BODY", body))
    until("the first leg", (tmp_path / "pid-1").exists)
    with internal(cluster) as client:
        trial = cluster.trials(experiment)[0]["id"]
        found = client.get(f"/api/v1/trials/{trial}").raise_for_status().json()
    return experiment, f"{found['trial']['taskId']}.1"


def stored(cluster: LocalCluster) -> set[str]:
    return {path.name for path in (cluster.data_dir / "checkpoints").glob("*-*-*-*-*")}


def until_the_first_leg_ends(tmp_path: Path) -> None:
    """Its process is gone too: an agent that hears again would kill it before its last words are printed."""
    until("its end", (tmp_path / "ended").exists)
    pid = int((tmp_path / "pid-1").read_text())
    until("its process gone", lambda: not is_alive(pid))


def test_a_dead_leg_that_reports_is_ended_by_its_report(
    cluster: LocalCluster, quiet_agent: Any, tmp_path: Path
) -> None:
    _, allocation = start(cluster, tmp_path, REPORTS)
    time.sleep(1)
    quiet_agent()
    declare_dead(cluster, allocation)
    until_the_first_leg_ends(tmp_path)
    words = (tmp_path / "ended").read_text()
    assert words.startswith("AllocationEnded: determined: stopping this process: allocation")
    assert "has ended" in words


def test_a_dead_leg_that_only_computes_learns_it_at_its_checkpoint(
    cluster: LocalCluster, quiet_agent: Any, tmp_path: Path
) -> None:
    _, allocation = start(cluster, tmp_path, COMPUTES)
    before = stored(cluster)
    quiet_agent()
    declare_dead(cluster, allocation)
    time.sleep(1)
    assert not (tmp_path / "ended").exists()
    (tmp_path / "go").touch()
    until_the_first_leg_ends(tmp_path)
    assert "has ended" in (tmp_path / "ended").read_text()
    # Its files, which no row names, are removed again.
    until("its files gone", lambda: stored(cluster), equals=before)


@pytest.fixture(autouse=True)
def _second_leg_completes(cluster: LocalCluster, tmp_path: Path) -> Iterator[None]:
    """Set up first, torn down last: the agent hears again, and the second leg ends the trial."""
    yield
    if not (tmp_path / "pid-1").exists():
        return
    experiment = max(row["id"] for row in cluster.json("experiment", "list"))
    assert cluster.wait(experiment) == "COMPLETED"
    (trial,) = cluster.trials(experiment)
    assert trial["restarts"] == 0
    assert (tmp_path / "pid-2").exists()
    logs = cluster.logs(experiment)
    assert "stopping this process" in logs


LOOP = """
import pathlib, time
import determined as det
out = pathlib.Path(det.get_cluster_info().trial.hparams["out"])
with (out / "legs").open("a") as log:
    log.write(det.get_cluster_info().allocation_id + "\\n")
with det.core.init() as core:
    for op in core.searcher.operations():
        time.sleep(4)
        core.train.report_validation_metrics(op.length, {"loss": 0.5})
        op.report_completed(0.5)
"""


def execute(
    cluster: LocalCluster, prefect: Prefect, run_id: str, home: Path
) -> subprocess.Popen[bytes]:
    """Prefect's own engine, as its runner starts it; its output goes to ``<home>/out``."""
    record = json.loads((cluster.data_dir / "cluster.json").read_text())
    home.mkdir(parents=True)
    with (home / "out").open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "prefect.engine", run_id],
            env={
                **os.environ,
                "PREFECT_API_URL": f"{prefect.url}/api",
                "PREFECT_API_AUTH_STRING": prefect.auth,
                "PREFECT_HOME": str(home),
                "DET_MASTER": record["master_url"],
                "DET_AGENT_TOKEN": record["agent_token"],
            },
            cwd=home,
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until they have ended."""
    try:
        for process in processes:
            process.wait(TIMEOUT_S)
    finally:
        for process in processes:
            process.kill()


def test_two_workers_that_execute_the_same_trial_run(
    cluster: LocalCluster,
    prefect: Prefect,
    tmp_path: Path,
) -> None:
    blocker = tmp_path / "blocker"
    blocking = CONFIG % blocker + "resources: {slots_per_trial: 2}\n"
    holder = cluster.submit(blocker, blocking, script_py="import time; time.sleep(600)")
    until(
        "the blocker running",
        lambda: [trial["state"] for trial in cluster.trials(holder)],
        equals=["RUNNING"],
    )
    try:
        experiment = cluster.submit(tmp_path / "raced", CONFIG % tmp_path, script_py=LOOP)
        until(
            "the run of the trial",
            lambda: any(trial["flowRunId"] for trial in cluster.trials(experiment)),
        )
        prefect.http.patch("/work_pools/default", json={"is_paused": True}).raise_for_status()
        run_id = cluster.trials(experiment)[0]["flowRunId"]
        # By then no undelivered message to Prefect can replace the state that the test sets.
        until(
            "the reason told",
            lambda: prefect.call(f"/flow_runs/{run_id}")["state_name"].startswith(
                "AwaitingSlots: "
            ),
        )
        prefect.call(f"/flow_runs/{run_id}/set_state", {"state": {"type": "SCHEDULED"}})
        homes = [tmp_path / "home1", tmp_path / "home2"]
        pair = [execute(cluster, prefect, run_id, home) for home in homes]
        done = "STATE_COMPLETED"
        until("the end", lambda: cluster.describe(experiment)["state"], equals=done)
        end(pair)
        # One leg, run once, whoever of the two won.
        (leg,) = (tmp_path / "legs").read_text().split()
        assert leg.endswith(".1")
        assert prefect.wait(run_id)["state_type"] == "COMPLETED"
        (trial,) = cluster.trials(experiment)
        assert (trial["state"], trial["restarts"]) == ("COMPLETED", 0)
        # Both began; one had the leg.
        said = [(home / "out").read_text() for home in homes]
        assert sum("Finished in state Completed" in text for text in said) == 1, said
    finally:
        prefect.http.patch("/work_pools/default", json={"is_paused": False}).raise_for_status()
        cluster.det("experiment", "kill", str(holder))


def test_two_processes_that_drive_the_same_experiment_run(
    cluster: LocalCluster,
    prefect: Prefect,
    tmp_path: Path,
) -> None:
    config = (CONFIG % tmp_path).replace(
        "{name: single, metric: loss, max_length: 2}",
        "{name: random, metric: loss, max_length: 2, max_trials: 4, max_concurrent_trials: 2}",
    )
    experiment = cluster.submit(tmp_path, config, script_py=LOOP)
    until("a trial", lambda: cluster.trials(experiment))
    # A trial is there, and may run, before the experiment has its run.
    run_id = until("its run", lambda: cluster.describe(experiment)["flowRunId"])
    second = execute(cluster, prefect, run_id, tmp_path / "home")
    until("the end", lambda: cluster.describe(experiment)["state"], equals="STATE_COMPLETED")
    end([second])
    trials = cluster.trials(experiment)
    assert [trial["state"] for trial in trials] == ["COMPLETED"] * 4
    # Each trial was made once and ran once.
    legs = (tmp_path / "legs").read_text().split()
    assert len(legs) == len(set(legs)) == 4
    assert prefect.wait(run_id)["state_type"] == "COMPLETED"
