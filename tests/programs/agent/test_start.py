"""Agents that are started by hand: their settings, and refusals."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from determined_deployments.agent import start
from determined_deployments.agent.config import AgentConfig, DefaultTask
from determined_deployments.agent.launchers.docker import settings as docker_settings
from determined_deployments.agent.start import AgentOptions, StartError, become, configure
from determined_deployments.local import state
from determined_deployments.local.layout import Layout
from determined_deployments.local.state import ClusterState
from tests import accounts


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DET_MASTER", "DET_AGENT_TOKEN", "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DET_DATA_DIR", str(tmp_path))


@pytest.fixture
def cluster() -> ClusterState:
    made = ClusterState(agent_id="own", master_port=1234)
    state.save(Layout.of(), made)
    return made


def test_an_agent_of_the_local_cluster_has_its_addresses_and_secrets(
    cluster: ClusterState, tmp_path: Path
) -> None:
    wishes = AgentOptions(
        pool="p",
        name="n",
        kind="docker",
        artificial_slots=3,
        container={"images": {"cpu": "mine"}},
        limits={"memory": "2G"},
        rights={"host_paths": ["/data"]},
    )
    made = configure(wishes)
    assert (made.agent_id, made.resource_pool, made.launcher) == ("n", "p", "docker")
    assert made.master_url == cluster.master_url
    assert made.agent_token.get_secret_value() == cluster.agent_token
    assert made.prefect_api_url == cluster.prefect_api_url
    assert made.checkpoint_dir == tmp_path / "checkpoints"
    assert len(made.slot_list()) == 3
    assert (made.limits.memory, made.limits.processes) == (2 << 30, 16_384)
    assert made.security.containers.host_paths == ["/data"]
    assert made.work_dir == tmp_path / "agents" / "n"


def test_an_agent_on_kubernetes_has_its_section_and_no_slots_of_this_machine(
    cluster: ClusterState, tmp_path: Path
) -> None:
    section = tmp_path / "kubernetes.yaml"
    section.write_text("namespace: ml\nnode_selector: {pool: gpu}\n")
    inside = {"master_url": "http://determined.ml:8080"}
    wishes = AgentOptions(
        name="k", kind="kubernetes", gpus="all", container=inside, kubernetes=section
    )
    made = configure(wishes)
    assert (made.launcher, made.slot_type, made.slots) == ("kubernetes", "cuda", None)
    assert (made.kubernetes.namespace, made.kubernetes.max_slots) == ("ml", None)
    assert made.kubernetes.node_selector == {"pool": "gpu"}
    counted = configure(AgentOptions(name="k", kind="kubernetes", slots=6, container=inside))
    assert (counted.slot_type, counted.kubernetes.max_slots) == ("cpu", 6)


def test_the_settings_file_of_an_agent_is_read_as_it_was_written(
    cluster: ClusterState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda path, argv, env: ran.append([path]))
    for kind in ("process", "kubernetes"):
        container = {"master_url": "http://x:1"} if kind == "kubernetes" else {}
        made = configure(AgentOptions(name=kind, kind=kind, slots=2, container=container))
        start.become(made)
        written = (tmp_path / "agents" / kind / "agent.json").read_text()
        assert AgentConfig.model_validate_json(written) == made
    assert len(ran) == 2


def test_an_agent_needs_the_token_of_its_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartError, match="no cluster"):
        configure(AgentOptions())
    with pytest.raises(StartError, match="set DET_AGENT_TOKEN to the service's agent_token"):
        configure(AgentOptions(master="http://m:1"))
    monkeypatch.setenv("DET_AGENT_TOKEN", "t")
    assert configure(AgentOptions(master="http://m:1")).master_url == "http://m:1"


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"kind": "pod"}, "--type: expected process, docker, kubernetes, found 'pod'"),
        ({"name": "a/b"}, "--name: expected letters"),
        ({"name": "own"}, "the local cluster's own agent has this name"),
        ({"slots": 1, "gpus": "all"}, "give one of --slots and --gpus"),
        (
            {"kind": "kubernetes", "kubernetes": Path("/does/not/exist")},
            "--kubernetes /does/not/exist: .*No such file",
        ),
        ({"kind": "kubernetes", "slots": 1, "gpus": "2"}, "give one of --slots and --gpus"),
        ({"kind": "kubernetes"}, "container.master_url: required"),
        ({"gpus": "some"}, "--gpus: expected 'all' or a number, found 'some'"),
        ({"gpus": "all"}, "no NVIDIA GPU found"),
        ({"slots": -1}, "expected 0 or more"),
        ({"limits": {"memory": "much"}}, "expected a size"),
        ({"container": {"memory": "2G"}}, "memory of containers is limits.memory now"),
        ({"rights": {"host_paths": ["data"]}}, "expected an absolute path"),
        ({"container": {"network_mode": "bridge"}}, "set container.master_url"),
        ({"task_user": "no-such-user"}, "--task-user: .*does not know: add the account there"),
        ({"task_user": "nobody:"}, "--task-user: expected USER or USER:GROUP"),
    ],
)
def test_refusals(cluster: ClusterState, wishes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        configure(AgentOptions(**wishes))


def of_tasks(**wishes: Any) -> dict[str, Any] | None:
    found = configure(AgentOptions(name="n", slots=1, **wishes)).security_of_tasks()["default_task"]
    assert found is None or isinstance(found, dict)
    return found


def test_tasks_have_the_account_that_the_local_cluster_gives_them(
    cluster: ClusterState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert of_tasks() is None
    nobody = {"user": "nobody", "uid": None, "group": None, "gid": None}
    assert of_tasks(task_user="nobody") == nobody
    cluster.default_task = DefaultTask(user="nobody")
    state.save(Layout.of(), cluster)
    for kind in ("process", "docker"):
        assert of_tasks(kind=kind) == nobody
    assert of_tasks(task_user="daemon") == nobody | {"user": "daemon"}
    assert of_tasks(task_user="") is None
    cluster.default_task = DefaultTask(user="removed-since")
    state.save(Layout.of(), cluster)
    with pytest.raises(
        StartError, match=r"removed-since.*For this agent alone, give `det agent start` --task-user"
    ):
        of_tasks()


def test_without_root_no_account_is_taken_over_silently(
    cluster: ClusterState, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.default_task = DefaultTask(user="nobody")
    state.save(Layout.of(), cluster)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(StartError, match="only root may start processes of another user"):
        of_tasks()


def test_the_way_to_its_tasks_is_opened_for_the_account(
    cluster: ClusterState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with accounts.made(1) as (one,):
        monkeypatch.setattr(os, "execve", lambda program, argv, env: None)
        folder = tmp_path / "agents"
        folder.mkdir(mode=0o700)
        become(configure(AgentOptions(name="n", slots=1, task_user=one.pw_name)))
        assert folder.stat().st_mode & 0o777 == 0o701


def test_one_agent_has_a_name(cluster: ClusterState, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[dict[str, str]] = []
    monkeypatch.setattr(os, "execve", lambda program, argv, env: called.append(env))
    config = configure(AgentOptions(name="n", slots=1))
    monkeypatch.setenv("DET_AGENT_TOKEN", cluster.agent_token)
    become(config)
    # Processes that the agent starts inherit its environment, and must not have the token.
    assert "DET_AGENT_TOKEN" not in called[0]
    settings = Path(called[0]["DET_AGENT_CONFIG"])
    assert settings.stat().st_mode & 0o777 == 0o600
    again = AgentConfig.model_validate_json(settings.read_text())
    assert again == config
    # An engine whose own limit is lower could start no container with the default of processes.
    assert docker_settings.of_agent(again)["open_files"] is None
    assert json.loads(settings.read_text())["agent_token"] == cluster.agent_token
    with pytest.raises(StartError, match="an agent of this name runs already"):
        become(config)


def test_prefects_worker_stays_one_where_no_cluster_is_known() -> None:
    start.start_as_worker("determined-process", "p", None)


def test_prefects_worker_becomes_an_agent(
    cluster: ClusterState, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[AgentConfig] = []
    monkeypatch.setattr(start, "become", made.append)
    start.start_as_worker("determined-docker", "p", "w")
    assert [(one.agent_id, one.resource_pool, one.launcher) for one in made] == [
        ("w", "p", "docker")
    ]
    with pytest.raises(SystemExit, match="the local cluster's own agent"):
        start.start_as_worker("determined-docker", "p", "own")
