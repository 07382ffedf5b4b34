"""What happens to pods in production, one by one: one end each, in words that the user reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.agents import POOLS, Agent
from tests.kubernetes.conftest import (
    DISRUPT,
    KUBECONFIG,
    NEWEST,
    NODES,
    NODES_ARE_HERE,
    Target,
    tolerations,
)
from tests.kubernetes.disturbances import (
    api_away,
    delete,
    evict,
    fast_disks,
    image,
    no_more,
    node_gone,
    node_lost,
    node_short,
    preempted,
    webhook,
)
from tests.kubernetes.trials import Truth
from tests.local_cluster import LocalCluster
from tests.waiting import until

pytestmark = pytest.mark.parametrize("target", [NEWEST], indirect=True, scope="session")
by_hand = pytest.mark.skipif(KUBECONFIG is not None, reason="only the stand-in does it on demand")
disruptive = pytest.mark.skipif(
    KUBECONFIG is not None and DISRUPT is None, reason="takes parts away: set DET_TEST_DISRUPT"
)
on_this_machine = pytest.mark.skipif(
    KUBECONFIG is not None and not NODES_ARE_HERE,
    reason="the cluster asks a server of the test: set DET_TEST_NODES_ARE_HERE",
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.running(config=POOLS) as made:
        yield made


@pytest.fixture(scope="module")
def agent(cluster: LocalCluster, target: Target) -> Iterator[Agent]:
    made = Agent(cluster, target, "kube-1", unplaced_after=4 if target.standin else 20)
    yield made
    made.stop()


@pytest.fixture
def begin(
    cluster: LocalCluster, agent: Agent, target: Target, tmp_path: Path
) -> Callable[..., Truth]:
    return lambda more="": Truth(cluster, target, tmp_path, more)


def told_in_time(truth: Truth, words: str) -> None:
    """The script was told in time to end, which counts as no restart."""
    told = truth.ended()
    assert "its machine is going away" in told
    assert words in told
    # The next leg may have waited longer than `unplaced_after` for its pod.
    assert (truth.states()[0], truth.states()[-1]) == ("PREEMPTED", "COMPLETED")
    assert truth.restarts() == 0


@pytest.mark.parametrize("plural", ["jobs", "pods"])
def test_deleted_by_hand(begin: Callable[..., Truth], target: Target, plural: str) -> None:
    truth = begin()
    pod = truth.begun()
    name = pod["metadata"]["name"] if plural == "pods" else pod["metadata"]["labels"]["job-name"]
    delete(target, plural, name)
    told_in_time(truth, "was deleted in the cluster, not by its agent")


def test_drained(begin: Callable[..., Truth], target: Target) -> None:
    """Kubernetes before 1.26 does not say that it was an eviction."""
    truth = begin()
    evict(target, truth.begun())
    told_in_time(truth, "drained")


def test_preempted_by_kubernetes(begin: Callable[..., Truth], target: Target) -> None:
    truth = begin()
    with preempted(target, truth.begun()):
        told_in_time(truth, "preempted by")


@disruptive
def test_evicted_by_its_node(begin: Callable[..., Truth], target: Target) -> None:
    truth = begin()
    pod = truth.begun()
    with node_short(target, pod):
        told = truth.ended()
    words = "The node was low on resource: memory"
    assert f"evicted from node {pod['spec']['nodeName']}: {words}" in told
    assert truth.states()[0] == "LOST"
    assert truth.restarts() == 0


EATS = """environment:
  environment_variables: [EATS=1]
  pod_spec:
    spec: {containers: [{name: determined-container, resources: {limits: {memory: 400Mi}}}]}
"""


def test_out_of_memory(begin: Callable[..., Truth], target: Target) -> None:
    """On the stand-in of the whole container, on a cluster of the script's process."""
    truth = begin(EATS if target.standin is None else "")
    if target.standin is not None:
        pod = truth.begun()
        target.standin.do(lambda cluster: cluster.run_out_of_memory(pod))
    assert "out of memory" in truth.ended("ERROR")


SOON = [
    {"key": f"node.kubernetes.io/{what}", "effect": "NoExecute", "tolerationSeconds": 5}
    for what in ("unreachable", "not-ready")
]
GIVES_UP_SOON = (
    f"environment: {{pod_spec: {{spec: {{tolerations: {json.dumps(tolerations(*SOON))}}}}}}}\n"
)
"""Of nodes that are silent; else after five minutes."""


@disruptive
@pytest.mark.parametrize("how", ["lost", "gone"])
def test_a_node(begin: Callable[..., Truth], target: Target, how: str) -> None:
    truth = begin(GIVES_UP_SOON if target.standin is None else "")
    pod = truth.begun()
    node = pod["spec"]["nodeName"]
    with (node_lost if how == "lost" else node_gone)(target, node):
        told = truth.ended()
    assert f"its node is lost: node {node}" in told, told + truth.log()
    # The other nodes may have had no room for the next leg at once.
    assert (truth.states()[0], truth.states()[-1]) == ("LOST", "COMPLETED")
    assert truth.restarts() == 0
    # An old Kubernetes makes another pod, until the agent has forbidden it.
    job = pod["metadata"]["labels"]["job-name"]
    events = [one for one in target.list("events") if one["involvedObject"]["name"] == job]
    made = [one["message"] for one in events if one["reason"] == "SuccessfulCreate"]
    assert len(made) <= 3, made


@on_this_machine
@pytest.mark.parametrize("state", ["missing", "denied"])
def test_an_image_that_is_not_there_fails_at_once(
    begin: Callable[..., Truth], target: Target, state: str
) -> None:
    with image(target, state) as name:
        told = begin(f"environment: {{image: '{name}'}}\n").ended("ERROR")
    assert f"image {name} cannot be pulled" in told


def test_a_registry_that_is_away(begin: Callable[..., Truth], target: Target) -> None:
    with image(target, "away") as name:
        truth = begin(f"environment: {{image: '{name}'}}\n")
        until("it says what it waits for", lambda: "no such host" in truth.log())
        until("its leg is lost", lambda: "LOST" in truth.states())
        assert "no such host" in truth.described()
    if target.standin is None:
        truth.kill()
    truth.ended("CANCELED" if target.standin is None else "COMPLETED")


@pytest.mark.parametrize("counted", ["pods", "count/jobs.batch"])
def test_a_quota(begin: Callable[..., Truth], target: Target, counted: str) -> None:
    with no_more(target, counted):
        truth = begin()
        until("it says what it waits for", lambda: "exceeded quota" in truth.log())
    truth.begun()
    evict(target, truth.pod())
    truth.ended()


@on_this_machine
@pytest.mark.parametrize("plural", ["pods", "jobs"])
def test_a_webhook_that_refuses(begin: Callable[..., Truth], target: Target, plural: str) -> None:
    with webhook(target, plural, "no such team"):
        assert "no such team" in begin().ended("ERROR")


@pytest.mark.skipif(KUBECONFIG is not None and not NODES, reason="labels nodes: set DET_TEST_NODES")
def test_unschedulable_goes_back_to_the_queue(begin: Callable[..., Truth], target: Target) -> None:
    # The agent has free slots; only Kubernetes finds no room.
    truth = begin("environment: {pod_spec: {spec: {nodeSelector: {disk: fast}}}}\n")
    words = "its agent's cluster did not place it: 0/"
    until("the scheduler's words are in the log", lambda: words in truth.log())
    assert words in truth.described()
    with fast_disks(target):
        truth.ended()
    assert truth.states()[0] == "UNPLACED"
    assert truth.states()[-1] == "COMPLETED"
    assert truth.restarts() == 0


@disruptive
def test_the_api_server_is_away(begin: Callable[..., Truth], target: Target, agent: Agent) -> None:
    truth = begin()
    pod = truth.begun()
    seen = agent.log().count("\n")
    with api_away(target):
        until("the agent has noticed", lambda: agent.log().count("\n") > seen)
    assert truth.pod()["metadata"]["uid"] == pod["metadata"]["uid"]
    evict(target, pod)
    told_in_time(truth, "")


@by_hand
def test_a_watch_that_is_too_old(begin: Callable[..., Truth], target: Target) -> None:
    truth = begin()
    pod = truth.begun()
    assert target.standin is not None

    def lose_track(cluster: Any) -> None:
        cluster.store.break_watches()
        cluster.disrupt(pod, "EvictionByEvictionAPI", "Eviction API: evicting")
        cluster.store.forget()

    target.standin.do(lose_track)
    truth.ended()


def test_an_agent_that_is_killed(begin: Callable[..., Truth], target: Target, agent: Agent) -> None:
    """Its legs go on, and the next one has them."""
    truth = begin()
    pod = truth.begun()
    agent.kill()
    agent.start()
    evict(target, pod)
    truth.ended()
    assert truth.restarts() == 0
