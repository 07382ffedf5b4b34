"""A local cluster with a configuration file: changed while a trial runs, refused, and with other pools."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from determined_deployments.local.layout import Layout
from determined_deployments.local.state import load
from tests.local_cluster import DET, LocalCluster
from tests.waiting import until

TRAIN = """
import os, time
import determined as det
with det.core.init() as context:
    print("variable", os.environ.get("FROM"), flush=True)
    while not os.path.exists("{go}"):
        time.sleep(0.05)
    context.train.report_validation_metrics(1, {{"x": 1.0}})
"""
CONFIG = """
name: waits
entrypoint: python3 train.py
searcher: {name: single, metric: x, max_length: 1}
max_restarts: 0
"""
# No pool is called "default", from the first start on.
ONE = """
resource_manager: {default_compute_resource_pool: main, default_aux_resource_pool: main}
resource_pools: [{pool_name: main}, {pool_name: spare, description: not used}]
"""
CHANGED = """
resource_manager:
  scheduler: {type: round_robin}
  default_compute_resource_pool: main
  default_aux_resource_pool: main
resource_pools: [{pool_name: main}, {pool_name: more}]
task_container_defaults: {environment_variables: [FROM=cluster]}
port: 8080
"""
ELSEWHERE = """
resource_manager: {default_compute_resource_pool: more, default_aux_resource_pool: more}
resource_pools: [{pool_name: more}]
"""


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """This module's cluster, started with two pools."""
    with LocalCluster.running(config=ONE) as running:
        yield running


def apply(cluster: LocalCluster, folder: Path, text: str) -> tuple[int, str]:
    """Exit code and messages of `cluster-up --config`."""
    path = folder / "cluster.yaml"
    path.write_text(text)
    done = cluster.det(
        *("deploy", "local", "cluster-up", "--master-config-path", str(path)), check=False
    )
    return done.returncode, done.stderr


def names(cluster: LocalCluster) -> list[str]:
    return [pool["name"] for pool in cluster.json("resource-pool", "list")]


def test_a_change_while_a_trial_runs_a_refusal_and_other_pools(
    configured: LocalCluster, tmp_path: Path
) -> None:
    cluster, go = configured, tmp_path / "go"
    assert names(cluster) == ["main", "spare"]
    train = TRAIN.format(go=go)
    running = cluster.submit(tmp_path / "first", CONFIG, train_py=train)
    until("the trial's output", lambda: "variable None" in cluster.logs(running))

    code, said = apply(cluster, tmp_path, "resource_pools: [{pool_nam: a}]\n")
    assert code == 1
    assert "cluster.yaml:1: resource_pools[0].pool_nam: unknown field; did you mean" in said
    assert "restarting" not in said

    code, said = apply(cluster, tmp_path, CHANGED)
    assert code == 0, said
    assert "cluster.yaml:8: port: not used: `det deploy local cluster-up --master-port`" in said
    assert names(cluster) == ["main", "more"]
    (trial,) = cluster.trials(running)
    assert trial["state"] == "RUNNING"

    code, said = apply(cluster, tmp_path, ELSEWHERE)
    assert code == 1
    assert f"'main' cannot be removed, because it has 1 unfinished experiment ({running})" in said
    assert "restarting" not in said
    assert names(cluster) == ["main", "more"]
    assert (cluster.data_dir / "cluster.yaml").read_text() == CHANGED
    cluster.up()  # the refusal has left no trace

    go.touch()
    assert cluster.wait(running) == "COMPLETED", cluster.logs(running)
    assert cluster.trials(running)[0]["restarts"] == 0
    second = cluster.submit(tmp_path / "second", CONFIG, train_py=train)
    assert cluster.wait(second) == "COMPLETED", cluster.logs(second)
    assert "variable cluster" in cluster.logs(second)

    # The agent moves to the new default compute pool, and the flows with it. Before that the collection of
    # the second experiment must have ended.
    until("all checkpoints looked through", lambda: not cluster.collections())
    until("no flow in the pool", lambda: apply(cluster, tmp_path, ELSEWHERE)[0] == 0)
    (agent,) = cluster.json("agent", "list")
    assert agent["resourcePools"] == ["more"]
    third = cluster.submit(tmp_path / "third", CONFIG, train_py=train)
    assert cluster.wait(third) == "COMPLETED", cluster.logs(third)
    state = load(Layout.of(cluster.data_dir))
    assert state is not None
    with httpx.Client(base_url=state.prefect_api_url, trust_env=False) as prefect:
        prefect.auth = httpx.BasicAuth(*state.prefect_auth.split(":", 1))
        found = {pool["name"]: pool for pool in prefect.post("/work_pools/filter", json={}).json()}
    assert (found["main"]["is_paused"], found["more"]["is_paused"]) == (True, False)
    assert "variables" in found["more"]["base_job_template"]
    done = cluster.det("flow", "run", str(tmp_path / "third/config.yaml"), str(tmp_path / "third/model"),
                       "--config", "resources.resource_pool=mroe", check=False)  # fmt: skip
    assert "there is no resource pool 'mroe'; did you mean 'more'?" in done.stderr


MORE = ELSEWHERE.replace("[{pool_name: more}]", "[{pool_name: more}, {pool_name: empty}]")
GONE = """
resource_manager: {default_compute_resource_pool: empty, default_aux_resource_pool: empty}
resource_pools: [{pool_name: empty}]
"""


def kill_while_it_applies(cluster: LocalCluster, folder: Path, text: str) -> None:
    path, kept = folder / "killed.yaml", cluster.data_dir / "cluster.yaml"
    path.write_text(text)
    command = [*DET, "deploy", "local", "cluster-up", "--slots", "2", "--config", str(path)]
    with subprocess.Popen(command, env=cluster.env, stderr=subprocess.DEVNULL) as process:
        until("the new configuration", lambda: kept.read_text() == text)
        process.kill()


def test_a_command_that_is_killed_while_it_applies_a_configuration(
    configured: LocalCluster, tmp_path: Path
) -> None:
    cluster = configured
    assert apply(cluster, tmp_path, ELSEWHERE)[0] == 0
    kill_while_it_applies(cluster, tmp_path, MORE)
    cluster.up()  # goes on with it
    assert names(cluster) == ["more", "empty"]
    waiting = cluster.submit(tmp_path / "waits", CONFIG, train_py=TRAIN.format(go=tmp_path / "go"))
    kill_while_it_applies(cluster, tmp_path, GONE)
    done = cluster.det("deploy", "local", "cluster-up", "--slots", "2", check=False)
    assert done.returncode == 1
    assert "'more' cannot be removed" in done.stderr
    # The state before the killed command.
    assert (cluster.data_dir / "cluster.yaml").read_text() == MORE
    cluster.up()
    assert names(cluster) == ["more", "empty"]
    (tmp_path / "go").touch()
    assert cluster.wait(waiting) == "COMPLETED", cluster.logs(waiting)


def test_the_message_for_a_missing_object(configured: LocalCluster, tmp_path: Path) -> None:
    cluster = configured
    assert apply(cluster, tmp_path, MORE)[0] == 0
    path = tmp_path / "config.yaml"

    def refused(resources: str) -> str:
        path.write_text(f"{CONFIG}resources: {resources}\n")
        done = cluster.det("experiment", "create", str(path), str(tmp_path), check=False)
        assert done.returncode == 1
        return done.stderr

    assert "resources.resource_pool: there is no resource pool 'emty'; did you mean 'empty'?" in (
        refused("{resource_pool: emty}")
    )
    assert "resources.priority: must be at least 1, found 0" in refused("{priority: 0}")
    assert (
        "resources.slots_per_trial: 3 slots are more than any agent of the resource pool 'more' has"
        in refused("{slots_per_trial: 3}")
    )
    assert "'more' knows no agent with gpu=a100" in (refused("{placement: {labels: {gpu: a100}}}"))
    path.write_text(f"{CONFIG}resources: {{resource_pool: empty}}\n")
    done = cluster.det("experiment", "create", str(path), str(tmp_path))
    number = done.stdout.split()[-1]
    assert "warning: resource pool 'empty' has no agent now on which a trial" in done.stderr
    until("its request", lambda: cluster.json("job", "explain", number)["waiting"])
    explained = cluster.det("job", "explain", number).stdout
    assert "wants 1 slot of resource pool 'empty', which has no agent" in explained
    cluster.det("experiment", "kill", number)
    cluster.wait(int(number))

    options = ["--pool", "nowhere", "--artificial-slots", "1", "--name", "lost"]
    done = cluster.det("agent", "start", *options, check=False)
    assert done.returncode == 1
    assert "resource_pool of agent lost: there is no resource pool 'nowhere'" in done.stderr
    assert "Traceback" not in done.stderr
