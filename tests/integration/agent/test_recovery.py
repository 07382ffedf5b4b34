"""Processes of a real cluster are killed; experiments go on. The whole cluster is stopped and started by
test_user_paths.py."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.local_cluster import LocalCluster
from tests.processes import is_alive
from tests.waiting import TIMEOUT_S, until

CONFIG = """
name: recovery
entrypoint: python3 train.py {folder}
max_restarts: 0
hyperparameters: {{}}
searcher: {{name: random, metric: x, max_trials: 2, max_concurrent_trials: 2, max_length: 1}}
"""

# What Prefect's client sends for them by default, its server may refuse.
SORT: dict[str, Any] = {"sort": "NAME_ASC"}

# Each leg leaves a file, and waits for the test's word.
SCRIPT = """
import os, sys, time
import determined as det
folder = sys.argv[1]
info = det.get_cluster_info()
with open(f"{folder}/part-{info.allocation_id}", "w") as file:
    file.write(str(os.getpid()))
os.rename(file.name, f"{folder}/begun-{info.allocation_id}")
with det.core.init() as core_context:
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.05)
        if core_context.preempt.should_preempt():
            sys.exit()
    for op in core_context.searcher.operations():
        core_context.train.report_validation_metrics(op.length, {"x": 1.0})
        op.report_completed(1.0)
"""


def begin(cluster: LocalCluster, tmp_path: Path, trials: int = 2) -> tuple[int, Path]:
    """An experiment whose trials run and wait."""
    folder = tmp_path / "signals"
    folder.mkdir()
    experiment = cluster.submit(tmp_path, CONFIG.format(folder=folder), train_py=SCRIPT)

    def begun() -> int:
        # A file exists a moment before it has its content.
        return sum(path.stat().st_size > 0 for path in folder.glob("begun-*"))

    until("all trials begun", begun, equals=trials)
    return experiment, folder


def process_of(cluster: LocalCluster, component: str) -> psutil.Process:
    record = json.loads((cluster.data_dir / "run" / f"{component}.json").read_text())
    return psutil.Process(record["pid"])


def flow_process_of(cluster: LocalCluster, experiment: int) -> tuple[str, int]:
    """Its flow run's id, and the process; other runs, of a garbage collection, may be there too."""
    # Trials may begin before the flow does.
    run_id = until("the flow's run", lambda: cluster.describe(experiment)["flowRunId"])
    record = cluster.data_dir / "agent" / "flow_runs" / f"{run_id}.json"
    until("the flow's process", record.exists)
    return run_id, json.loads(record.read_text())["pid"]


def legs_of(folder: Path) -> set[str]:
    return {path.name.rpartition(".")[2] for path in folder.glob("begun-*")}


def test_killed_agent_is_replaced_and_the_trials_do_not_notice(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    experiment, folder = begin(cluster, tmp_path)
    agent = process_of(cluster, "agent")
    agent.send_signal(signal.SIGKILL)
    until("the end of the agent", lambda: not is_alive(agent.pid))
    cluster.up()
    (folder / "go").touch()
    assert cluster.wait(experiment) == "COMPLETED"
    assert legs_of(folder) == {"1"}
    assert [trial["restarts"] for trial in cluster.trials(experiment)] == [0, 0]


def test_killed_experiment_flow_goes_on(cluster: LocalCluster, tmp_path: Path) -> None:
    experiment, folder = begin(cluster, tmp_path)
    os.kill(flow_process_of(cluster, experiment)[1], signal.SIGKILL)
    (folder / "go").touch()
    assert cluster.wait(experiment, timeout=TIMEOUT_S) == "COMPLETED"
    assert legs_of(folder) == {"1"}


def test_killed_supervisor_is_a_new_leg(cluster: LocalCluster, tmp_path: Path) -> None:
    experiment, folder = begin(cluster, tmp_path)
    records = (cluster.data_dir / "agent" / "allocations").glob("*/leg.json")
    pids = [json.loads(path.read_text())["supervisor"]["pid"] for path in records]
    os.kill(pids[0], signal.SIGKILL)
    until("a second leg", lambda: legs_of(folder), equals={"1", "2"})
    (folder / "go").touch()
    assert cluster.wait(experiment) == "COMPLETED"
    assert [trial["restarts"] for trial in cluster.trials(experiment)] == [0, 0]


@pytest.fixture
def prefect(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Calls a function with a client of the cluster's Prefect server."""
    record = json.loads((cluster.data_dir / "cluster.json").read_text())
    from prefect.client.orchestration import get_client
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_URL,
        temporary_settings,
    )

    def call(function: Any) -> Any:
        async def run() -> Any:
            async with get_client() as client:
                return await function(client)

        settings = {
            PREFECT_API_URL: f"{record['prefect_url']}/api",
            PREFECT_API_AUTH_STRING: record["prefect_auth"],
        }
        with temporary_settings(settings):
            return asyncio.run(run())

    async def deployed(client: Any) -> bool:
        names = [deployment.name for deployment in await client.read_deployments(limit=100, **SORT)]
        return {"experiment", "trial"} <= set(names)

    # The agent registers them a moment after it is ready for work.
    until("the deployments", lambda: call(deployed))
    return call


def test_worker_and_deployments_are_seen_in_prefect(cluster: LocalCluster, prefect: Any) -> None:
    async def read(client: Any) -> tuple[Any, ...]:
        answer = await client.request("POST", "/work_pools/default/workers/filter", json={})
        pool = await client.read_work_pool("default")
        deployments = [
            await client.read_deployment_by_name(name)
            for name in ("experiment/experiment", "trial/trial")
        ]
        return answer.json(), pool, deployments

    workers, pool, deployments = prefect(read)
    assert [worker["status"] for worker in workers] == ["ONLINE"]
    assert pool.type == "determined-process"
    assert [deployment.entrypoint for deployment in deployments] == [
        "determined_flows.experiment.run_experiment",
        "determined_flows.trial.run_trial",
    ]
    assert "config" in deployments[0].parameter_openapi_schema["properties"]


def test_experiment_started_and_cancelled_in_prefect(
    cluster: LocalCluster, prefect: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "signals"
    folder.mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").write_text(SCRIPT)
    parameters = {"config": CONFIG.format(folder=folder), "model_dir": str(tmp_path / "model")}

    async def start(client: Any) -> Any:
        deployment = await client.read_deployment_by_name("experiment/experiment")
        run = await client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
        return run.id

    run_id = prefect(start)
    until("two trials begun", lambda: len(list(folder.glob("begun-*"))), equals=2)
    pids = [int(path.read_text()) for path in folder.glob("begun-*")]

    async def cancel(client: Any) -> None:
        from prefect.states import Cancelling

        await client.set_flow_run_state(run_id, Cancelling())

    prefect(cancel)

    async def state(client: Any) -> str:
        return str((await client.read_flow_run(run_id)).state.name)

    until("the flow run cancelled", lambda: prefect(state), equals="Cancelled")
    until("no process left", lambda: [pid for pid in pids if psutil.pid_exists(pid)], equals=[])


def test_flow_that_was_killed_with_its_agent_is_started_again_by_the_next_one(
    cluster: LocalCluster, prefect: Any, tmp_path: Path
) -> None:
    experiment, folder = begin(cluster, tmp_path)
    run_id, pid = flow_process_of(cluster, experiment)
    agent = process_of(cluster, "agent")
    agent.send_signal(signal.SIGKILL)
    until("the end of the agent", lambda: not is_alive(agent.pid))
    os.kill(pid, signal.SIGKILL)

    async def forget(client: Any) -> None:
        # As if the agent had been killed before it told which process runs the flow.
        given = {"infrastructure_pid": None}
        answer = await client.request("PATCH", f"/flow_runs/{run_id}", json=given)
        answer.raise_for_status()
        assert (await client.read_flow_run(run_id)).infrastructure_pid is None

    prefect(forget)
    cluster.up()
    (folder / "go").touch()
    assert cluster.wait(experiment, timeout=TIMEOUT_S) == "COMPLETED"
    assert legs_of(folder) == {"1"}

    async def messages(client: Any) -> list[str]:
        history = await client.read_flow_run_states(run_id)
        return [state.message for state in history]

    # By the agent, which knows at once, not by the service, which waits for a sign of life.
    assert "its process ended while the agent was away" in prefect(messages)
