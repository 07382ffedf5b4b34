"""What happens to agents and their namespace: what becomes of the trials, and what is read about it."""

from __future__ import annotations

import csv
import dataclasses
import io
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from determined_deployments.local import state as states
from determined_deployments.local.layout import Layout
from tests.kubernetes.agents import POOLS, Agent
from tests.kubernetes.conftest import KUBECONFIG, NEWEST, NODES, Target
from tests.kubernetes.disturbances import evict, fast_disks, namespace
from tests.kubernetes.trials import Truth
from tests.local_cluster import LocalCluster
from tests.waiting import until

pytestmark = pytest.mark.parametrize("target", [NEWEST], indirect=True, scope="session")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.running(config=POOLS) as made:
        yield made


@pytest.fixture
def started(cluster: LocalCluster) -> Iterator[list[Agent]]:
    """Agents that end with the test."""
    found: list[Agent] = []
    yield found
    for agent in found:
        if agent.process.poll() is None:
            agent.stop()


def test_a_namespace_is_deleted(
    cluster: LocalCluster, target: Target, started: list[Agent], tmp_path: Path
) -> None:
    other = dataclasses.replace(target, namespace=f"det-test-{secrets.token_hex(3)}")
    with namespace(other):
        started.append(Agent(cluster, other, "kube-namespace", unplaced_after=20))
        truth = Truth(cluster, other, tmp_path)
        truth.begun()
    # It is gone.
    words = f"namespace '{other.namespace}' does not exist"
    until("its log says so", lambda: words in truth.log(), show=started[0].log)
    until("its leg went back", lambda: "UNPLACED" in truth.states())
    assert words in truth.described()
    with namespace(other):
        told = truth.ended()
        assert truth.states()[0] == "PREEMPTED", told
        assert "was deleted in the cluster, not by its agent" in told
        assert truth.restarts() == 0


def test_an_agent_is_started_twice(
    cluster: LocalCluster, target: Target, started: list[Agent], tmp_path: Path
) -> None:
    """On one host, where the second is taken for the first one's successor; `det agent start` refuses it.
    Neither disturbs what the other began."""
    started.append(Agent(cluster, target, "kube-twice"))
    truth = Truth(cluster, target, tmp_path)
    pod = truth.begun()
    started.append(Agent(cluster, target, "kube-twice"))
    first = started[0]
    until("the first knows of the second", lambda: "registering again" in first.log())
    second = Truth(cluster, target, tmp_path)
    pods = [pod, second.begun()]
    assert {one["metadata"]["uid"] for one in target.list("pods")} == {
        one["metadata"]["uid"] for one in pods
    }
    for one in pods:
        evict(target, one)
    for one in (truth, second):
        one.ended()
        assert one.states() == ["PREEMPTED", "COMPLETED"]
        assert one.restarts() == 0
        assert one.log().count("begun") == 2


def test_an_agent_is_started_with_other_settings(
    cluster: LocalCluster, target: Target, started: list[Agent], tmp_path: Path
) -> None:
    """What runs goes on as it was begun; what comes next is as the settings say now."""
    agent = Agent(cluster, target, "kube-settings", max_slots=2)
    started.append(agent)
    truth = Truth(cluster, target, tmp_path)
    pod = truth.begun()
    agent.kill()
    started[:] = [Agent(cluster, target, "kube-settings", max_slots=1, termination_grace=7)]
    assert truth.pod()["metadata"]["uid"] == pod["metadata"]["uid"]
    evict(target, pod)
    truth.ended()
    assert truth.states() == ["PREEMPTED", "COMPLETED"]
    assert truth.restarts() == 0
    later = Truth(cluster, target, tmp_path)
    assert later.begun()["spec"]["terminationGracePeriodSeconds"] == 7
    evict(target, later.pod())
    later.ended()


def test_an_agent_is_started_in_another_namespace(
    cluster: LocalCluster, target: Target, started: list[Agent], tmp_path: Path
) -> None:
    """It does not see what runs in the earlier one: the trial goes on in the new one, and the earlier pod
    ends by itself, because its start counts no more."""
    other = dataclasses.replace(target, namespace=f"det-test-{secrets.token_hex(3)}")
    with namespace(other):
        started.append(Agent(cluster, other, "kube-moved"))
        truth = Truth(cluster, other, tmp_path)
        truth.begun()
        started[0].kill()
        started[:] = [Agent(cluster, target, "kube-moved")]
        assert cluster.wait(truth.experiment) == "COMPLETED", truth.log()
        assert truth.states() == ["LOST", "COMPLETED"]
        assert "agent kube-moved restarted without it" in truth.described()
        assert truth.restarts() == 0
        assert truth.log().count("begun") == 2

        def running() -> list[str]:
            return [pod["metadata"]["name"] for pod in other.list("pods") if is_running(pod)]

        until("the earlier pod has ended", running, equals=[])


def test_a_machine_is_disabled_on_which_a_pod_runs_whose_slots_are_elsewhere(
    cluster: LocalCluster, target: Target, started: list[Agent], tmp_path: Path
) -> None:
    """`det agent disable AGENT/MACHINE` ends what runs there, and nothing else."""
    agent = Agent(cluster, target, "kube-elsewhere", unplaced_after=4 if target.standin else 20)
    started.append(agent)
    found = cluster.session().get(f"/api/v1/agents/{agent.name}")["agent"]
    slots = found["slots"].values()
    # The scheduler gives slots of the first machine, and the pod's node selector wants another one.
    counted = next(one["machine"] for one in slots)
    node = next(one["machine"] for one in slots if one["machine"] != counted)
    spec = f"{{nodeSelector: {{kubernetes.io/hostname: {node}}}}}"
    truth = Truth(cluster, target, tmp_path, f"environment: {{pod_spec: {{spec: {spec}}}}}\n")
    pod = truth.begun()
    assert pod["metadata"]["annotations"]["determined-prefect.io/machine"] == counted
    assert truth.pod()["spec"]["nodeName"] == node
    where = f"{agent.name}/{node}"
    until("it is known where it runs", lambda: where in truth.described(), show=truth.described)
    used = lambda: {  # noqa: E731
        row["Agent ID"]: row["Slots Used"].partition("/")[0]
        for row in csv.DictReader(io.StringIO(cluster.det("agent", "list", "--csv").stdout))
    }
    assert (used()[where], used()[f"{agent.name}/{counted}"]) == ("1", "0")
    cluster.det("-u", "admin", "agent", "disable", f"{agent.name}/{counted}")
    assert truth.states() == ["RUNNING"]
    cluster.det("-u", "admin", "agent", "enable", f"{agent.name}/{counted}")
    cluster.det("-u", "admin", "agent", "disable", where)
    # Its next pod keeps off the machine, which it wants.
    until("its next pod finds no node", lambda: "nodes are available" in truth.log())
    assert f"machine {where} was disabled" in truth.described()
    cluster.det("-u", "admin", "agent", "enable", where)
    truth.ended()
    assert (truth.states()[0], truth.states()[-1]) == ("LOST", "COMPLETED")
    assert truth.restarts() == 0


def is_running(pod: dict[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Pending", "Running")


class Page:
    """What Prefect's page of a trial's run shows."""

    @classmethod
    def found(cls, cluster: LocalCluster, experiment: int) -> Page | None:
        runs = [trial["flowRunId"] for trial in cluster.trials(experiment)]
        return cls(cluster, runs[0]) if any(runs) else None

    def __init__(self, cluster: LocalCluster, run: str) -> None:
        state = states.load(Layout.of(cluster.data_dir))
        assert state is not None
        self.run = run
        self.client = httpx.Client(base_url=state.prefect_api_url, trust_env=False)
        self.client.auth = httpx.BasicAuth(*state.prefect_auth.split(":", 1))

    def state(self) -> dict[str, Any]:
        return dict(self.client.get(f"/flow_runs/{self.run}").raise_for_status().json()["state"])

    def artifacts(self) -> str:
        wanted = {"artifacts": {"flow_run_id": {"any_": [self.run]}}}
        found = self.client.post("/artifacts/filter", json=wanted).raise_for_status().json()
        return "\n".join(str(one["data"]) for one in found)


@pytest.mark.skipif(KUBECONFIG is not None and not NODES, reason="labels nodes: set DET_TEST_NODES")
def test_prefects_page_of_a_pod_that_waits_and_of_one_that_is_evicted(
    cluster: LocalCluster, target: Target, started: list[Agent], tmp_path: Path
) -> None:
    started.append(Agent(cluster, target, "kube-page", unplaced_after=600))
    fast = "environment: {pod_spec: {spec: {nodeSelector: {disk: fast}}}}\n"
    truth = Truth(cluster, target, tmp_path, fast)
    page = until("its run", lambda: Page.found(cluster, truth.experiment))
    until(
        "its state says why it waits",
        lambda: "0/" in (page.state()["message"] or ""),
        show=page.state,
    )
    assert page.state()["type"] in ("SCHEDULED", "PENDING")
    with fast_disks(target):
        pod = truth.begun()
        until("it runs", lambda: page.state()["type"], equals="RUNNING")
        evict(target, pod)
        told = truth.ended()
    until("its run has ended", lambda: page.state()["type"], equals="COMPLETED")
    words = "its machine is going away"
    assert words in told
    # As a state's message only while nothing newer is known.
    until("its artifact says so", lambda: words in page.artifacts(), show=page.artifacts)
