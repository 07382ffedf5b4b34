"""Objects of Kubernetes are read as ends of legs, and as what legs wait for, with words for the user."""

from __future__ import annotations

from typing import Any

import pytest

from determined.common.wire.legs import ExitKind
from determined_deployments.agent.launchers.base import Exit
from determined_deployments.agent.launchers.kubernetes import cluster, ends
from determined_deployments.agent.launchers.kubernetes.ends import Sight, Wait

NAME = "determined-container"


def job(parallelism: int = 1, **more: Any) -> dict[str, Any]:
    meta = {"name": "det-7", "uid": "j1", "annotations": more.pop("annotations", {})}
    if more.pop("ending", False):
        meta["deletionTimestamp"] = "2026-11-27T00:00:00Z"
    return {"metadata": meta, "spec": {"parallelism": parallelism}, "status": more}


def pod(
    state: dict[str, Any] | None = None,
    *,
    node: str | None = "n1",
    ending: bool = False,
    limits: dict[str, str] | None = None,
    image: str = "img",
    **status: Any,
) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": "det-7-x", "uid": "p1"}
    if ending:
        meta["deletionTimestamp"] = "2026-11-27T00:00:00Z"
    spec: dict[str, Any] = {"containers": [{"name": NAME, "resources": {"limits": limits or {}}}]}
    if node:
        spec["nodeName"] = node
    if state is not None:
        status["containerStatuses"] = [
            {"name": "sidecar", "state": {"running": {}}, "image": "other"},
            {"name": NAME, "state": state, "image": image},
        ]
    return {"metadata": meta, "spec": spec, "status": status}


def terminated(code: int, **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, **more}}


def disruption(reason: str, message: str = "") -> list[dict[str, str]]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}]


def ended(**given: Any) -> Exit:
    found = ends.end(Sight(**{"job": job(), **given}))
    assert found is not None
    return found


@pytest.mark.parametrize(
    "sight",
    [
        Sight(),
        Sight(job=job()),
        Sight(job=job(), pod=pod(node=None, phase="Pending")),
        Sight(job=job(), pod=pod({"running": {}}, phase="Running")),
        Sight(job=job(), pod=pod({"running": {}}, ending=True, phase="Running")),
        # A node that does not answer may come back, until Kubernetes gives its pods up.
        Sight(job=job(), pod=pod({"running": {}}, phase="Running"), node="node n1 is silent"),
    ],
)
def test_a_leg_goes_on(sight: Sight) -> None:
    assert ends.end(sight) is None


def test_a_supervisor_that_has_reported_ends_in_order_whatever_became_of_its_pod() -> None:
    order = job(0, annotations={ends.END: ends.end_text(Exit(signal=15))})
    for given in (job(), order):
        for state in (pod(terminated(0)), pod(terminated(0), ending=True, reason="Evicted")):
            assert ended(job=given, pod=state).in_order
            assert ended(job=given, pod=state, pod_gone=True, job_gone=True).in_order


def test_a_leg_that_was_killed_did_not_end_in_order() -> None:
    killed = job(0, annotations={ends.END: ends.end_text(Exit(signal=9))})
    assert ended(job=killed, pod=pod(terminated(0), ending=True)) == Exit(signal=9)
    assert ended(job=killed, pod=pod(phase="Succeeded")) == Exit(signal=9)


def test_an_end_that_the_agent_ordered_is_known_to_the_next_agent() -> None:
    told = Exit(kind=ExitKind.UNPLACED, reason="0/3 nodes are available")
    given = job(0, annotations={ends.END: ends.end_text(told)})
    assert ended(job=given) == told
    assert ended(job=given, pod=pod(terminated(137)), pod_gone=True) == told
    assert ends.end(Sight(job=given, pod=pod({"running": {}}, ending=True))) is None, "it runs on"


def test_an_order_that_somebody_else_wrote_is_no_fault() -> None:
    found = ended(job=job(0, annotations={ends.END: "[1]"}))
    assert found.kind is ExitKind.INFRASTRUCTURE and found.reason


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        (
            pod(terminated(137, reason="OOMKilled"), limits={"memory": "4Gi"}),
            ExitKind.EXITED,
            "out of memory: its limit is 4Gi",
        ),
        (pod(terminated(137, reason="OOMKilled")), ExitKind.EXITED, "out of memory, of its node"),
        (
            pod(terminated(137), phase="Failed", reason="Evicted", message="low on memory."),
            ExitKind.INFRASTRUCTURE,
            "evicted from node n1: low on memory.",
        ),
        (
            pod(phase="Failed", reason="Evicted", message="disk"),
            ExitKind.INFRASTRUCTURE,
            "evicted from node n1: disk",
        ),
        (
            pod(terminated(128, reason="ContainerCannotRun", message='"python3": not found')),
            ExitKind.FAILED_TO_START,
            'its container could not be started: "python3": not found',
        ),
        (
            pod(terminated(137), ending=True, conditions=disruption("EvictionByEvictionAPI", "x")),
            ExitKind.INFRASTRUCTURE,
            "evicted, as when a node is drained: x",
        ),
        (
            pod(terminated(1)),
            ExitKind.INFRASTRUCTURE,
            "the supervisor in pod det-7-x died (exit code 1)",
        ),
        (
            pod(terminated(137)),
            ExitKind.INFRASTRUCTURE,
            "the supervisor in pod det-7-x died (signal 9)",
        ),
        (
            pod(
                phase="Failed",
                initContainerStatuses=[{"name": "harness", "state": terminated(3, reason="Error")}],
            ),
            ExitKind.INFRASTRUCTURE,
            "init container harness ended with exit code 3: Error",
        ),
    ],
)
def test_a_container_that_failed(given: dict[str, Any], kind: ExitKind, words: str) -> None:
    found = ended(pod=given)
    assert (found.kind, found.reason) == (kind, words)
    assert not found.in_order


@pytest.mark.parametrize(
    ("sight", "words"),
    [
        (
            {"pod": pod({"running": {}}, conditions=disruption("PreemptionByScheduler", "by b"))},
            "preempted by a pod of higher priority: by b",
        ),
        (
            {"pod": pod({"running": {}}), "told": {"Preempted": "by default/b on node n1"}},
            "preempted by Kubernetes: by default/b on node n1",
        ),
        (
            {"pod": pod({"running": {}}), "node": "node n1 is gone from the cluster"},
            "its node is lost: node n1 is gone from the cluster",
        ),
        (
            {"pod": pod({"running": {}}), "job_gone": True},
            "its Job was deleted in the cluster, not by its agent",
        ),
        (
            {"pod": pod({"running": {}})},
            "its pod det-7-x was deleted in the cluster, not by its agent (kubectl, or a drained node)",
        ),
    ],
)
def test_a_pod_that_is_gone(sight: dict[str, Any], words: str) -> None:
    found = ended(**sight, pod_gone=True)
    assert (found.code, found.kind, found.reason) == (None, ExitKind.INFRASTRUCTURE, words)


def test_a_pod_that_a_silent_node_cannot_end_has_ended() -> None:
    found = ended(pod=pod({"running": {}}, ending=True), node="node n1 does not answer")
    assert found.reason == "its node is lost: node n1 does not answer"


def test_a_job_without_its_pod_tells_the_end_itself() -> None:
    def condition(kind: str, **more: str) -> dict[str, Any]:
        return job(conditions=[{"type": kind, "status": "True", **more}])

    assert ended(job=condition("Complete")).in_order
    found = ended(job=condition("Failed", message="Job has reached the backoff limit"))
    assert found.kind is ExitKind.INFRASTRUCTURE
    assert found.reason is not None and found.reason.endswith("the backoff limit")
    assert ended(job=job(), job_gone=True).reason is not None
    # The agent that set this died before it noted why.
    assert ended(job=job(0)).reason is not None


def waits(**given: Any) -> Wait | None:
    return ends.waits(Sight(**{"job": job(), **given}))


def test_a_leg_that_runs_or_is_being_made_waits_for_nothing() -> None:
    assert waits(pod=pod({"running": {}}, phase="Running")) is None
    creating = {"waiting": {"reason": "ContainerCreating"}}
    assert waits(pod=pod(creating, phase="Pending")) is None
    assert waits() == waits(pod=pod(node=None, phase="Pending")) == Wait(None)


def test_a_leg_that_has_no_node_waits_with_the_schedulers_words() -> None:
    words = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    given = pod(node=None, phase="Pending", conditions=[told])
    assert waits(pod=given) == Wait(words, kind=ExitKind.UNPLACED)


@pytest.mark.parametrize(
    ("reason", "message", "at_once"),
    [
        ("InvalidImageName", 'couldn\'t parse image reference "X"', True),
        ("ErrImagePull", "manifest for a:b not found: manifest unknown", True),
        ("ErrImagePull", "pull access denied for a, repository does not exist", True),
        ("ErrImagePull", "dial tcp: lookup registry.x on 1.1.1.1:53: no such host", False),
        ("ErrImagePull", "net/http: request canceled (Client.Timeout exceeded)", False),
        ("ImagePullBackOff", 'Back-off pulling image "img"', False),
    ],
)
def test_an_image_that_cannot_be_pulled(reason: str, message: str, at_once: bool) -> None:
    state = {"waiting": {"reason": reason, "message": message}}
    found = waits(pod=pod(state, phase="Pending"))
    assert found is not None and found.words is not None
    assert found.at_once is at_once
    assert found.words == f"image img cannot be pulled: {message}"
    kind = ExitKind.FAILED_TO_START if at_once else ExitKind.INFRASTRUCTURE
    assert found.kind is kind


def test_the_registrys_words_are_kept_while_the_node_only_backs_off() -> None:
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}
    found = waits(pod=pod(state, phase="Pending"), told={"Failed": "manifest unknown"})
    assert found is not None and found.at_once
    assert found.words == "image img cannot be pulled: manifest unknown"


def test_events_without_a_registrys_words_do_not_take_their_place() -> None:
    def kept(message: str) -> bool:
        about = {"kind": "Pod", "name": "det-7-x", "uid": "p1"}
        event = {"metadata": {"uid": "e1"}, "involvedObject": about, "reason": "Failed"}
        return cluster._event({**event, "message": message}) is not None

    assert kept('Failed to pull image "img": rpc error: no such host')
    assert not kept("Error: ErrImagePull")
    assert not kept("Error: ImagePullBackOff")


def test_a_container_that_cannot_be_configured_waits_and_fails_to_start() -> None:
    state = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "s" not found'}}
    found = waits(pod=pod(state, phase="Pending"))
    words = 'CreateContainerConfigError: secret "s" not found'
    assert found == Wait(words, kind=ExitKind.FAILED_TO_START)


@pytest.mark.parametrize(
    ("message", "at_once"),
    [
        ('pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2', False),
        ('admission webhook "policy" denied the request: no root', True),
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot', True),
        ("maximum memory usage per Container is 1Gi, but limit is 2Gi", True),
        ('serviceaccount "a" not found', False),
    ],
)
def test_a_job_whose_pod_the_cluster_refuses(message: str, at_once: bool) -> None:
    found = waits(told={"FailedCreate": message})
    assert found is not None and found.words is not None and message in found.words
    assert found.at_once is at_once
    assert found.kind is (ExitKind.FAILED_TO_START if at_once else ExitKind.UNPLACED)


def test_words_of_the_cluster_are_fit_for_a_log() -> None:
    found = waits(told={"FailedCreate": "a\x1b[2Jb\nc" + "x" * 9000})
    assert found is not None and found.words is not None
    assert found.words.startswith("a\\x1b[2Jb c")
    assert len(found.words) < 2000


def test_a_container_without_our_package_says_so_and_is_not_tried_again() -> None:
    died = ended(pod=pod(terminated(1)))
    log = "Traceback\n  x\nModuleNotFoundError: No module named 'determined_tasks'\n"
    found = ends.with_log(died, log)
    assert found.kind is ExitKind.FAILED_TO_START
    assert found.reason is not None and "No module named 'determined_tasks'" in found.reason
    other = ends.with_log(died, "segfault\n")
    assert other.kind is ExitKind.INFRASTRUCTURE
    assert other.reason is not None and other.reason.endswith("the end of its log: segfault")
    assert ends.with_log(died, " \n") == died


def test_a_pod_whose_node_is_gone_says_so_whoever_saw_it_first() -> None:
    words = "its node is lost: node n1 is gone from the cluster"
    collected = disruption("DeletionByPodGC", "PodGC: node no longer exists")
    message = "PodGC: node no longer exists"
    failed = pod(phase="Failed", message=message, conditions=collected)
    removed = pod({"running": {}}, conditions=collected)
    assert ended(pod=failed).reason == words
    assert ended(pod=removed, pod_gone=True).reason == words
    node = "node n1 is gone from the cluster"
    assert ended(pod=pod({"running": {}}), pod_gone=True, node=node).reason == words
