"""What happens to pods in production, one by one: one end each, in words that the user reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.agents import POOLS, Agent
from tests.kubernetes.conftest import KUBECONFIG, NEWEST, NODES, Target
from tests.kubernetes.disturbances import delete, evict, fast_disks, no_more
from tests.kubernetes.trials import Truth
from tests.local_cluster import LocalCluster
from tests.waiting import until

pytestmark = pytest.mark.parametrize("target", [NEWEST], indirect=True, scope="session")
by_hand = pytest.mark.skipif(KUBECONFIG is not None, reason="only the stand-in does it on demand")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.running(config=POOLS) as made:
        yield made


@pytest.fixture(scope="module")
def agent(cluster: LocalCluster, target: Target) -> Iterator[Agent]:
    made = Agent(cluster, target, "kube-1", unplaced_after=4)
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
    assert truth.states() == ["PREEMPTED", "COMPLETED"]
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


@by_hand
def test_preempted_by_kubernetes(begin: Callable[..., Truth], target: Target) -> None:
    truth = begin()
    pod = truth.begun()
    assert target.standin is not None
    target.standin.do(lambda cluster: cluster.preempt(pod))
    told_in_time(truth, "preempted by a pod of higher priority")


@by_hand
def test_evicted_by_its_node(begin: Callable[..., Truth], target: Target) -> None:
    truth = begin()
    pod = truth.begun()
    assert target.standin is not None
    target.standin.do(lambda cluster: cluster.evict(pod))
    told = truth.ended()
    assert (
        f"evicted from node {pod['spec']['nodeName']}: The node was low on resource: memory" in told
    )
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


@by_hand
@pytest.mark.parametrize("how", ["lost", "gone"])
def test_a_node(begin: Callable[..., Truth], target: Target, how: str) -> None:
    truth = begin()
    pod = truth.begun()
    node = pod["spec"]["nodeName"]
    assert target.standin is not None
    do = target.standin.do
    try:
        if how == "lost":
            do(lambda cluster: cluster.lose_node(node, evict=True))
        else:
            do(lambda cluster: cluster.remove_node(node))
        told = truth.ended()
    finally:
        if how == "lost":
            do(lambda cluster: cluster.return_node(node))
        else:
            do(lambda cluster: cluster.add_node(node, {"cpu": "2"}))
    assert "node" in told
    assert truth.restarts() == 0


IMAGE = "environment: {image: registry.test/team/image:1}\n"


@by_hand
@pytest.mark.parametrize("state", ["missing", "denied"])
def test_an_image_that_is_not_there_fails_at_once(
    begin: Callable[..., Truth], target: Target, state: str
) -> None:
    assert target.standin is not None
    target.standin.do(lambda c: c.images.states.update({"registry.test/team/image:1": state}))
    told = begin(IMAGE).ended("ERROR")
    assert "image registry.test/team/image:1 cannot be pulled" in told


@by_hand
def test_a_registry_that_is_away(begin: Callable[..., Truth], target: Target) -> None:
    assert target.standin is not None
    do = target.standin.do
    do(lambda c: c.images.states.update({"registry.test/team/image:1": "away"}))
    truth = begin(IMAGE)
    until("it says what it waits for", lambda: "no such host" in truth.log())
    do(lambda cluster: cluster.images.states.clear())
    truth.begun()
    evict(target, truth.pod())
    truth.ended()


@pytest.mark.parametrize("counted", ["pods", "count/jobs.batch"])
def test_a_quota(begin: Callable[..., Truth], target: Target, counted: str) -> None:
    with no_more(target, counted):
        truth = begin()
        until("it says what it waits for", lambda: "exceeded quota" in truth.log())
    truth.begun()
    evict(target, truth.pod())
    truth.ended()


@by_hand
@pytest.mark.parametrize("kind", ["pods", "jobs"])
def test_a_webhook_that_refuses(begin: Callable[..., Truth], target: Target, kind: str) -> None:
    assert target.standin is not None
    do = target.standin.do
    do(lambda cluster: cluster.admission.webhooks.update({kind: "no such team"}))
    try:
        assert "no such team" in begin().ended("ERROR")
    finally:
        do(lambda cluster: cluster.admission.webhooks.clear())


@pytest.mark.skipif(KUBECONFIG is not None and not NODES, reason="labels nodes: set DET_TEST_NODES")
def test_unschedulable_goes_back_to_the_queue(begin: Callable[..., Truth], target: Target) -> None:
    # The agent has free slots; only Kubernetes finds no room.
    truth = begin("environment: {pod_spec: {spec: {nodeSelector: {disk: fast}}}}\n")
    words = "there was no room for it: 0/"
    until("the scheduler's words are in the log", lambda: words in truth.log())
    assert words in truth.described()
    with fast_disks(target):
        truth.ended()
    assert truth.states()[0] == "UNPLACED"
    assert truth.states()[-1] == "COMPLETED"
    assert truth.restarts() == 0


@by_hand
def test_the_api_server_is_away(begin: Callable[..., Truth], target: Target, agent: Agent) -> None:
    truth = begin()
    truth.begun()
    assert target.standin is not None
    seen = agent.log().count("\n")
    target.standin.go_away()
    try:
        until("the agent has noticed", lambda: agent.log().count("\n") > seen)
    finally:
        target.standin.come_back()
    evict(target, truth.pod())
    assert truth.ended()


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
