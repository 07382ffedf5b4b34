"""``pod_spec``: what may not be set, what needs a right, and how patches are merged."""

from __future__ import annotations

from typing import Any

import pytest

from determined.expconf.container_wishes import Wish, is_given, refusal, wishes
from determined.expconf.paths import render
from determined.expconf.pod_spec import applied, merge_pod_specs, refused
from determined.expconf.pod_wishes import pod_wishes

OURS = "determined-container"


def trial(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": OURS, **fields}]}}


@pytest.mark.parametrize(
    ("given", "path", "words"),
    [
        ({"metadata": {"name": "x"}}, "metadata.name", "chooses the pod's name"),
        ({"metadata": {"finalizers": ["x"]}}, "metadata.finalizers", "all but labels and annot"),
        (
            {"metadata": {"labels": {"determined-prefect.io/agent": "x"}}},
            "metadata.labels.determined-prefect.io/agent",
            "are the platform's",
        ),
        ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy", "sets this field of pods"),
        ({"spec": {"nodeName": "n1"}}, "spec.nodeName", "sets this field of pods"),
        ({"spec": {"shareProcessNamespace": True}}, "spec.shareProcessNamespace", "sets this"),
        (trial(image="x"), "spec.containers[0].image", "sets this field of 'determined-container'"),
        (trial(restartPolicy="Always"), "spec.containers[0].restartPolicy", "sets this field of"),
        (
            trial(resources={"limits": {"nvidia.com/gpu": 8}}),
            "spec.containers[0].resources.limits.nvidia.com/gpu",
            "the number of slots says how many GPUs",
        ),
        (
            {
                "spec": {
                    "containers": [{"name": "s", "resources": {"requests": {"amd.com/gpu": 1}}}]
                }
            },
            "spec.containers[0].resources.requests.amd.com/gpu",
            "the number of slots",
        ),
        (
            trial(env=[{"name": "DET_MASTER", "value": "x"}]),
            "spec.containers[0].env[0].name",
            "the task would not see 'DET_MASTER'",
        ),
        (
            {"spec": {"volumes": [{"name": "determined-order", "emptyDir": {}}]}},
            "spec.volumes[0].name",
            "are the platform's",
        ),
        (
            {"spec": {"initContainers": [{"name": OURS, "image": "x"}]}},
            "spec.initContainers[0].name",
            "only containers has one, 'determined-container'",
        ),
        ({"spec": {"$patch": "replace"}}, "spec.$patch", "would take away what the platform"),
        ({"spec": {"affinity": {"$patch": "merge"}}}, "spec.affinity.$patch", "expected 'replace'"),
        ({"spec": {"$retainKeys": ["x"]}}, "spec.$retainKeys", "only $patch is known"),
        (
            {"spec": {"containers": [{"$patch": "replace"}, {"name": "s"}]}},
            "spec.containers[0].$patch",
            "would take away",
        ),
        (trial(**{"$patch": "delete"}), "spec.containers[0].$patch", "would take away"),
        (
            trial(volumeMounts=[{"$patch": "replace"}]),
            "spec.containers[0].volumeMounts[0].$patch",
            "would take away",
        ),
        (
            trial(volumeMounts=[{"mountPath": "/run/determined", "$patch": "delete"}]),
            "spec.containers[0].volumeMounts[0].$patch",
            "would take away",
        ),
        (
            trial(resources={"limits": {"$patch": "replace", "cpu": 1}}),
            "spec.containers[0].resources.limits.$patch",
            "would take away",
        ),
        (
            {"spec": {"imagePullSecrets": [{"name": "det-9-1-ab-pull"}]}},
            "spec.imagePullSecrets[0].name",
            "is a Secret of the platform",
        ),
        (
            {"spec": {"volumes": [{"name": "v", "secret": {"secretName": "det-7-1-ab-order"}}]}},
            "spec.volumes[0].secret.secretName",
            "'det-7-1-ab-order' is a Secret of the platform",
        ),
        (
            trial(envFrom=[{"secretRef": {"name": "det-7-1-ab-order"}}]),
            "spec.containers[0].envFrom[0].secretRef.name",
            "is a Secret of the platform",
        ),
        (
            {
                "spec": {
                    "volumes": [
                        {
                            "projected": {"sources": [{"secret": {"name": "det-1-pull"}}]},
                            "name": "v",
                        }
                    ]
                }
            },
            "spec.volumes[0].projected.sources[0].secret.name",
            "is a Secret of the platform",
        ),
    ],
)
def test_what_nobody_may_set(given: dict[str, Any], path: str, words: str) -> None:
    ((found, why),) = refused(given)
    assert render(found) == path
    assert words in why


def test_what_everybody_may_set() -> None:
    given = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}, "creationTimestamp": None},
        "spec": {
            "restartPolicy": "Never",
            "priorityClassName": "mine",
            "tolerations": [{"$patch": "replace"}, {"operator": "Exists"}],
            "securityContext": {"runAsNonRoot": True, "fsGroupChangePolicy": "OnRootMismatch"},
            "volumes": [
                {"name": "v", "persistentVolumeClaim": {"claimName": "c"}},
                {"name": "w", "projected": {"sources": [{"configMap": {"name": "c"}}]}},
            ],
            "containers": [
                {
                    "name": OURS,
                    "env": [{"name": "A", "value": "b"}, {"name": "B", "$patch": "delete"}],
                    "resources": {"limits": {"memory": "1Gi"}},
                },
                {
                    "name": "side",
                    "image": "x",
                    "securityContext": {"privileged": False, "capabilities": {"drop": ["ALL"]}},
                    "ports": [{"containerPort": 1}],
                },
            ],
        },
    }
    assert list(refused(given)) == []
    assert list(pod_wishes(given)) == []


@pytest.mark.parametrize(
    ("given", "path", "name"),
    [
        ({"hostNetwork": True}, "spec.hostNetwork", "hostNetwork"),
        ({"hostPID": True}, "spec.hostPID", "hostPID"),
        ({"serviceAccountName": "admin"}, "spec.serviceAccountName", "serviceAccountName"),
        (
            {"automountServiceAccountToken": True},
            "spec.automountServiceAccountToken",
            "automountServiceAccountToken",
        ),
        (
            {"priorityClassName": "system-node-critical"},
            "spec.priorityClassName",
            "priorityClassName",
        ),
        ({"securityContext": {"runAsUser": 0}}, "spec.securityContext.runAsUser", "runAsUser"),
        (
            {"securityContext": {"runAsNonRoot": False}},
            "spec.securityContext.runAsNonRoot",
            "runAsNonRoot",
        ),
        (
            {"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]},
            "spec.initContainers[0].securityContext.privileged",
            "privileged",
        ),
        (
            {"containers": [{"name": "s", "securityContext": {"ofNextYear": "x"}}]},
            "spec.containers[0].securityContext.ofNextYear",
            "ofNextYear",
        ),
        (
            {"containers": [{"name": "s", "ports": [{"hostPort": 22}]}]},
            "spec.containers[0].ports[0].hostPort",
            "hostPort",
        ),
        (
            {"volumes": [{"name": "v", "secret": {"secretName": "s3"}}]},
            "spec.volumes[0].secret",
            "secret",
        ),
        ({"volumes": [{"name": "v", "nfs": {"server": "x"}}]}, "spec.volumes[0].nfs", "nfs"),
        (
            {"volumes": [{"projected": {"sources": [{"serviceAccountToken": {}}]}}]},
            "spec.volumes[0].projected.sources[0].serviceAccountToken",
            "serviceAccountToken",
        ),
        (
            {"containers": [{"name": OURS, "envFrom": [{"secretRef": {"name": "s3"}}]}]},
            "spec.containers[0].envFrom[0].secretRef",
            "secret",
        ),
        (
            {"containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "s3"}}}]}]},
            "spec.containers[0].env[0].valueFrom.secretKeyRef",
            "secret",
        ),
    ],
)
def test_what_needs_a_right(given: dict[str, Any], path: str, name: str) -> None:
    config = {"environment": {"pod_spec": {"spec": given}}}
    # On other agents a pod spec is ignored.
    assert list(wishes(config, is_root=True)) == []
    (wish,) = wishes(config, is_root=False, in_pod=True)
    assert wish == Wish(f"environment.pod_spec.{path}", name, "pod_fields", True)
    assert is_given(wish, [name]) and not is_given(wish, ["other"])
    words = f"environment.pod_spec.{path}: pods may not have {name!r}; agent a allows none: ask who"
    assert refusal(wish, "agent a allows none").startswith(words)


def test_folders_and_capabilities_have_their_own_lists() -> None:
    pod = {
        "volumes": [{"name": "v", "hostPath": {"path": "/data/sets"}}],
        "containers": [{"name": "s", "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}],
    }
    folder, capability = wishes(
        {"environment": {"pod_spec": {"spec": pod}}}, is_root=False, in_pod=True
    )
    assert (folder.setting, folder.found) == ("host_paths", "/data/sets")
    assert is_given(folder, ["/data"]) and not is_given(folder, ["/dat"])
    assert "pods may not mount '/data/sets'" in refusal(folder, "agent a allows none")
    assert "security.default_task" not in refusal(folder, "agent a allows none")
    assert (capability.setting, capability.found) == ("capabilities", "NET_ADMIN")
    assert is_given(capability, ["cap_net_admin"])


def test_an_account_needs_the_right_to_mount_a_nodes_folder() -> None:
    config = {
        "bind_mounts": [{"host_path": "/data", "container_path": "/d"}],
        "resources": {"devices": [{"host_path": "/dev/fuse", "container_path": "/dev/fuse"}]},
    }
    (wish,) = wishes(config, is_root=False, in_pod=True)
    assert wish.path == "bind_mounts[0].host_path"
    # As a process of the machine it sees what it may read; the engine is asked for devices.
    assert [one.setting for one in wishes(config, is_root=False)] == ["devices"]


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(containers), **spec}}


SIDE = {"name": "side", "image": "a", "env": [{"name": "A", "value": "1"}]}


@pytest.mark.parametrize(
    ("mine", "base", "expected"),
    [
        (pod({"name": "side", "$patch": "delete"}), pod(SIDE), pod()),
        (
            pod({"name": "side", "$patch": "replace", "image": "b"}),
            pod(SIDE),
            pod({"name": "side", "image": "b"}),
        ),
        (
            {"spec": {"affinity": {"$patch": "replace", "podAffinity": {}}}},
            {"spec": {"affinity": {"nodeAffinity": {}}}},
            {"spec": {"affinity": {"podAffinity": {}}}},
        ),
        (
            {"spec": {"affinity": {"$patch": "delete"}}},
            {"spec": {"affinity": {"a": {}}}},
            {"spec": {}},
        ),
        (
            {"spec": {"imagePullSecrets": [{"$patch": "replace"}, {"name": "b"}]}},
            {"spec": {"imagePullSecrets": [{"name": "a"}]}},
            {"spec": {"imagePullSecrets": [{"name": "b"}]}},
        ),
        (
            {"spec": {"tolerations": [{"key": "b"}]}},
            {"spec": {"tolerations": [{"key": "a"}]}},
            {"spec": {"tolerations": [{"key": "b"}]}},
        ),
        (
            pod({"name": "side", "env": [{"name": "B", "value": "2"}]}),
            pod(SIDE),
            pod({**SIDE, "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}),
        ),
    ],
)
def test_patches(mine: Any, base: Any, expected: Any) -> None:
    assert applied(merge_pod_specs(mine, base)) == expected


def test_a_patch_over_a_patch_holds_for_a_third_one() -> None:
    # The experiment's over the cluster's, and both over the agent's.
    delete = pod({"name": "side", "$patch": "delete"})
    assert applied(merge_pod_specs(merge_pod_specs(delete, pod()), pod(SIDE))) == pod()
    again = merge_pod_specs(pod({"name": "side", "image": "c"}), delete)
    assert applied(merge_pod_specs(again, pod(SIDE))) == pod({"name": "side", "image": "c"})
    replaced = {"spec": {"imagePullSecrets": [{"$patch": "replace"}, {"name": "b"}]}}
    both = merge_pod_specs(replaced, {"spec": {"imagePullSecrets": [{"name": "a"}]}})
    third = {"spec": {"imagePullSecrets": [{"name": "z"}]}}
    assert applied(merge_pod_specs(both, third)) == {"spec": {"imagePullSecrets": [{"name": "b"}]}}
