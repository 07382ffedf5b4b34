"""The Jobs, pods and Secrets of legs on Kubernetes."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from determined.common.wire.legs import AgentUser, Granted, LegSpec, TaskDefaults
from determined.expconf import pod_spec
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.kubernetes import account, labels, manifest, names, pod
from determined_deployments.agent.launchers.kubernetes.account import PodError
from determined_deployments.agent.launchers.kubernetes.features import Features
from tests.unit.deployments.kubernetes_legs import OWNER, agent, job_of, leg

OLDEST = "1.20"
RELEASES = [OLDEST, "1.25", "1.29", "1.33", "1.34", "1.35", "1.36", "1.37"]
KNOWN = json.loads(Path(__file__).with_name("kubernetes_1_20.json").read_text())
"""The fields that a server of release 1.20 knows, by the kind of object, from its published schema."""


def job(
    config: AgentConfig, spec: LegSpec, release: str = "1.37", machine: str | None = None
) -> dict[str, Any]:
    features = Features.of(release)
    hold = manifest.hold_of(spec, config.kubernetes, features)
    return manifest.leg_job(
        job_of(spec), config.kubernetes, config, features=features, machine=machine, gang=hold
    )


def pod_of(config: AgentConfig, spec: LegSpec, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = job(config, spec, **more)["spec"]["template"]["spec"]
    return found


def container(config: AgentConfig, spec: LegSpec, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = pod_of(config, spec, **more)["containers"][0]
    return found


def validate(found: dict[str, Any], release: str) -> None:
    """Against the release's schema, strictly: an unknown field is an error."""
    if release == OLDEST:
        known(found, "Job" if found["kind"] == "Job" else "Secret")
        release = "1.25"
    kubernetes_validate.validate(found, release, strict=True)


def known(found: Any, kind: str) -> None:
    """Fails when a server of 1.20 has no such field."""
    fields = KNOWN[kind]
    for key, value in found.items():
        assert key in fields, f"{kind}.{key}"
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict) and fields[key]:
                known(item, fields[key])


EVERYTHING: dict[str, Any] = {
    "environment": {
        "image": {"cpu": "me/mine:1", "cuda": "me/mine:2"},
        "force_pull_image": True,
        "registry_auth": {"username": "u", "password": "p", "serveraddress": "r.example"},
        "add_capabilities": ["SYS_PTRACE"],
        "drop_capabilities": ["cap_mknod"],
    },
    "resources": {"shm_size": "1G", "priority": 70},
    "bind_mounts": [
        {"host_path": "/data", "container_path": "/d", "read_only": True, "propagation": "rslave"}
    ],
    "checkpoint_storage": {"type": "shared_fs", "host_path": "/checkpoints"},
}
SETTINGS: dict[str, Any] = {
    "namespace": "ours",
    "node_selector": {"pool": "a"},
    "service_account": "trials",
    "image_pull_secrets": ["hub"],
    "image_pull_policy": "IfNotPresent",
    "slot_resources": {"cpu": "1500m", "memory": "1.5Gi"},
    "priority_classes": {1: "low", 60: "high"},
    "scheduler_name": "mine",
    "storage_secret": "s3",
}
ALL: dict[str, Any] = {"kubernetes": SETTINGS, "container": {"harness": "mounted"}}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("slot_type", ["cpu", "cuda", "rocm"])
@pytest.mark.parametrize("queueing", [None, "kueue", "volcano", "coscheduling"])
def test_manifests_are_valid(release: str, slot_type: str, queueing: str | None) -> None:
    more = {"by": queueing, **({"queue": "q"} if queueing in ("kueue", "volcano") else {})}
    config = agent(slot_type, **ALL)
    if queueing is not None:
        if queueing == "kueue" and not Features.of(release).suspend:
            pytest.skip("Kueue needs Jobs that can be suspended")
        config.kubernetes = config.kubernetes.model_validate({**SETTINGS, "queueing": more})
    for nodes in (1, 2):
        user = AgentUser(uid=1000, gid=1001, user="ada", group="ada")
        spec = leg(2, EVERYTHING, nodes=nodes, agent_user=user, granted=Granted(administrator=True))
        validate(job(config, spec, release, machine="node-1"), release)
        order = manifest.order(job_of(spec), config)
        validate(manifest.order_secret("det-job", order, OWNER), release)
        secret = manifest.registry_secret(job_of(spec), "det-job", OWNER)
        assert secret is not None
        validate(secret, release)


def test_features_are_used_where_a_server_has_them() -> None:
    config = agent()
    gang = leg(nodes=2)
    oldest, middle, newest = (job(config, gang, one)["spec"] for one in ("1.20", "1.25", "1.37"))
    assert "suspend" not in oldest and middle["suspend"] is True and "suspend" not in newest
    gates = [one["template"]["spec"].get("schedulingGates") for one in (oldest, middle, newest)]
    assert gates == [None, None, [{"name": "determined-prefect.io/gang"}]]
    assert [one.get("podReplacementPolicy") for one in (oldest, middle, newest)] == [
        None,
        None,
        "Failed",
    ]
    # A leg of one node is never held back.
    alone = job(config, leg(), "1.37")["spec"]
    assert "suspend" not in alone and "schedulingGates" not in alone["template"]["spec"]
    assert Features.of("v1.27.3+k3s1").gates and not Features.of("1.26").gates
    with pytest.raises(ValueError, match="expected the release"):
        Features.of("new")


def test_an_order_that_no_secret_can_hold() -> None:
    config = {"data": {"list": ["x" * 1000] * 1100}}
    with pytest.raises(PodError, match=r"holds at most 1048576: put long lists into a file"):
        job(agent(), leg(config=config))


def test_the_job_never_starts_a_second_pod() -> None:
    spec = job(agent(), leg())["spec"]
    assert (spec["backoffLimit"], spec["parallelism"], spec["completions"]) == (0, 1, 1)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_secrets_are_in_the_secret_alone() -> None:
    config, spec = agent(**ALL), leg(config=EVERYTHING, granted=Granted(administrator=True))
    spec.config["environment"] = {**EVERYTHING["environment"], "environment_variables": []}
    text = json.dumps(job(config, spec))
    assert "secret-of" not in text and '"p"' not in text
    order = manifest.order(job_of(spec), config)
    secret = manifest.order_secret("det-job", order, OWNER)
    assert json.loads(base64.b64decode(secret["data"]["order.json"])) == order
    assert secret["metadata"]["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "det-job", "uid": "0f3a"}
    ]
    place, sent = order["argument"]["place"], order["argument"]["spec"]
    assert place["token"] == "secret-of-leg" and place["in_pod"] and place["limits"] is None
    assert place["work_dir"] == pod.WORK_DIR and place["master"] == "http://determined.ours:8080"
    assert sent["session_token"] == "secret-of-session" and sent["agent_user"] is None
    # The order of the service is not changed.
    assert spec.to_json()["session_token"] == "secret-of-session"


def test_the_registry_secret_is_what_docker_reads() -> None:
    found = manifest.registry_secret(job_of(leg(config=EVERYTHING)), "det-job", OWNER)
    assert found is not None and found["type"] == "kubernetes.io/dockerconfigjson"
    auths = json.loads(base64.b64decode(found["data"][".dockerconfigjson"]))["auths"]
    assert auths == {
        "r.example": {
            "username": "u",
            "password": "p",
            "auth": base64.b64encode(b"u:p").decode(),
        }
    }
    assert manifest.registry_secret(job_of(leg()), "det-job", OWNER) is None
    for image, server in (
        ("me/mine:1", "https://index.docker.io/v1/"),
        ("python", "https://index.docker.io/v1/"),
        ("r.example:5000/me/mine", "r.example:5000"),
        ("localhost/mine@sha256:ab", "localhost"),
    ):
        spec = leg(config={"environment": {"image": image, "registry_auth": {"username": "u"}}})
        owner = {**job(agent(), spec), **OWNER}
        found = manifest.registry_secret(job_of(spec), "det-job", owner)
        assert found is not None
        assert server in json.loads(base64.b64decode(found["data"][".dockerconfigjson"]))["auths"]
    pull = pod_of(agent(**ALL), leg(config=EVERYTHING, granted=Granted(administrator=True)))[
        "imagePullSecrets"
    ]
    spec = leg(config=EVERYTHING)
    own = names.registry(manifest.name_of(spec, agent()))
    assert pull == [{"name": "hub"}, {"name": own}]


@pytest.mark.parametrize(
    ("slot_type", "slots", "requests", "limits"),
    [
        ("cpu", 2, {"cpu": "3000m", "memory": "3.0Gi"}, {"cpu": "3000m", "memory": "3.0Gi"}),
        (
            "cuda",
            4,
            {"nvidia.com/gpu": "4", "cpu": "6000m", "memory": "6.0Gi"},
            {"nvidia.com/gpu": "4", "memory": "6.0Gi"},
        ),
        (
            "rocm",
            1,
            {"amd.com/gpu": "1", "cpu": "1500m", "memory": "1.5Gi"},
            {"amd.com/gpu": "1", "memory": "1.5Gi"},
        ),
    ],
)
def test_resources_of_slots(
    slot_type: str, slots: int, requests: dict[str, str], limits: dict[str, str]
) -> None:
    found = container(agent(slot_type, kubernetes=SETTINGS), leg(slots))
    assert found["resources"] == {"requests": requests, "limits": limits}


def test_a_task_without_slots_asks_for_nothing() -> None:
    assert container(agent("cuda"), leg(0))["resources"] == {}
    assert container(agent(), leg(3))["resources"]["limits"] == {"cpu": "3"}


@pytest.mark.parametrize(
    ("quantity", "number", "expected"),
    [
        ("1", 3, "3"),
        ("0.5", 3, "1.5"),
        ("250m", 4, "1000m"),
        ("1.25Gi", 2, "2.50Gi"),
        ("0.05", 1, "0.05"),
    ],
)
def test_quantities_are_multiplied(quantity: str, number: int, expected: str) -> None:
    assert pod.times(quantity, number) == expected


def test_shared_memory_is_a_volume_in_memory() -> None:
    def shm(config: dict[str, Any], **sections: Any) -> Any:
        volumes = pod_of(agent(**sections), leg(config=config))["volumes"]
        return next(one["emptyDir"] for one in volumes if one["name"] == "determined-shm")

    assert shm({}) == {"medium": "Memory", "sizeLimit": str(4 << 30)}
    assert shm({"resources": {"shm_size": "1G"}})["sizeLimit"] == str(1 << 30)
    assert shm({}, container={"shm_size": "2G"})["sizeLimit"] == str(2 << 30)


def test_priority_classes() -> None:
    config = agent(kubernetes=SETTINGS)

    def chosen(priority: int | None, **environment: Any) -> Any:
        spec = leg(config={"environment": environment}, priority=priority)
        return pod_of(config, spec).get("priorityClassName")

    assert (chosen(None), chosen(59), chosen(60), chosen(99)) == ("low", "low", "high", "high")
    assert chosen(60, pod_spec={"spec": {"priorityClassName": "mine"}}) == "mine"
    assert pod_of(agent(), leg()).get("priorityClassName") is None


def test_accounts() -> None:
    user = AgentUser(uid=1000, gid=1001, user="ada", group="ada")
    found = pod_of(agent(), leg(agent_user=user))
    assert found["securityContext"] == {
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsUser": 1000,
        "runAsGroup": 1001,
        "fsGroup": 1001,
        "runAsNonRoot": True,
    }
    inside = found["containers"][0]
    assert inside["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    env = {one["name"]: one.get("value") for one in inside["env"]}
    assert (env["USER"], env["HOME"]) == ("ada", pod.WORK_DIR)
    by_setting = agent(security={"default_task": {"uid": 5, "gid": 6}})
    assert pod_of(by_setting, leg())["securityContext"]["runAsUser"] == 5
    assert "runAsUser" not in pod_of(agent(), leg())["securityContext"]


@pytest.mark.parametrize(
    ("user", "words"),
    [
        (
            AgentUser(uid=0, gid=0, user="root", group="root"),
            "is root, and agent agent-k starts no",
        ),
        (AgentUser(uid=5, gid=0), "is root"),
        (AgentUser(user="ada"), "the uid or the gid is missing"),
        (AgentUser(uid=5), "the uid or the gid is missing"),
    ],
)
def test_accounts_that_pods_cannot_have(user: AgentUser, words: str) -> None:
    with pytest.raises(PodError, match=words):
        job(agent(), leg(agent_user=user))


def test_root_where_the_settings_allow_it() -> None:
    root = AgentUser(uid=0, gid=0, user="root", group="root")
    found = pod_of(agent(security={"allow_root": True}), leg(agent_user=root))
    assert found["securityContext"]["runAsUser"] == 0
    assert "runAsNonRoot" not in found["securityContext"]


def test_rights_beyond_the_settings_are_refused() -> None:
    mounts = {"bind_mounts": EVERYTHING["bind_mounts"]}
    with pytest.raises(PodError, match=re.escape("bind_mounts[0].host_path: pods may not mount")):
        job(agent(), leg(config=mounts))
    with pytest.raises(PodError, match=re.escape("environment.add_capabilities[0]")):
        job(agent(), leg(config={"environment": {"add_capabilities": ["SYS_ADMIN"]}}))
    # A folder of a node is as good as the node, also for an account that is not root.
    user = AgentUser(uid=1000, gid=1001)
    with pytest.raises(PodError, match="bind_mounts"):
        job(agent(), leg(config=mounts, agent_user=user))
    given: dict[str, Any] = {
        "security": {"containers": {"host_paths": ["/data"], "capabilities": ["SYS_ADMIN"]}}
    }
    found = pod_of(agent(**given), leg(config=mounts))
    assert {"name": "determined-bind-0", "hostPath": {"path": "/data"}} in found["volumes"]
    assert {
        "name": "determined-bind-0",
        "mountPath": "/d",
        "readOnly": True,
        "mountPropagation": "HostToContainer",
    } in found["containers"][0]["volumeMounts"]
    relative = {"bind_mounts": [{"host_path": "/data", "container_path": "d"}]}
    with pytest.raises(PodError, match="expected an absolute path, found 'd'"):
        job(agent(**given), leg(config=relative))


def test_capabilities() -> None:
    given = {
        "environment": {"add_capabilities": ["cap_sys_ptrace"], "drop_capabilities": ["MKNOD"]}
    }
    config = agent(security={"containers": {"capabilities": ["SYS_PTRACE"]}})
    assert container(config, leg(config=given))["securityContext"]["capabilities"] == {
        "add": ["SYS_PTRACE"],
        "drop": ["MKNOD"],
    }


def test_the_node_is_preferred_and_the_pool_required() -> None:
    found = pod_of(agent(kubernetes=SETTINGS), leg(), machine="node-7")
    (preferred,) = found["affinity"]["nodeAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert preferred["preference"]["matchFields"][0]["values"] == ["node-7"]
    assert found["nodeSelector"] == {"pool": "a"}
    elsewhere = {"environment": {"pod_spec": {"spec": {"nodeSelector": {"pool": "b"}}}}}
    with pytest.raises(
        PodError, match="'pool' is 'a' in resource pool 'default', and the pod asks"
    ):
        job(agent(kubernetes=SETTINGS), leg(config=elsewhere))
    narrower = {"environment": {"pod_spec": {"spec": {"nodeSelector": {"disk": "ssd"}}}}}
    selector = pod_of(agent(kubernetes=SETTINGS), leg(config=narrower))["nodeSelector"]
    assert selector == {"pool": "a", "disk": "ssd"}


def test_nodes_that_a_log_policy_excludes_are_avoided() -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    terms = [{"matchExpressions": [zone]}, {"matchExpressions": [{**zone, "values": ["b"]}]}]
    users = {"spec": {"affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}}}
    spec = leg(config={"environment": {"pod_spec": users}}, avoid=["n1", "n2"])
    fields = [
        {"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in ("n1", "n2")
    ]
    affinity = pod_of(agent(), spec, machine="n3")["affinity"]["nodeAffinity"]
    assert affinity[required]["nodeSelectorTerms"] == [
        {**term, "matchFields": fields} for term in terms
    ]
    assert affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    for release in (OLDEST, "1.37"):
        validate(job(agent(), spec, release), release)
    plain = pod_of(agent(), leg(avoid=["n1"]))["affinity"]["nodeAffinity"][required]
    assert plain == {"nodeSelectorTerms": [{"matchFields": fields[:1]}]}


def test_a_volume_for_the_storage_stands_for_its_folder() -> None:
    storage = {"checkpoint_storage": {"type": "shared_fs", "host_path": "/checkpoints"}}
    with pytest.raises(PodError, match=r"checkpoint_storage\.host_path: pods may not mount"):
        job(agent(), leg(config=storage))
    mount = {"name": "mine", "mountPath": "/determined_shared_fs"}
    claim = {"name": "mine", "persistentVolumeClaim": {"claimName": "checkpoints"}}
    given = {
        "spec": {
            "volumes": [claim],
            "containers": [{"name": "determined-container", "volumeMounts": [mount]}],
        }
    }
    found = pod_of(agent(), leg(config={**storage, "environment": {"pod_spec": given}}))
    assert claim in found["volumes"] and mount in found["containers"][0]["volumeMounts"]
    assert not any("hostPath" in one for one in found["volumes"])
    # The agent's own pod_spec stands for the cluster's storage, which the service grants.
    config = agent(kubernetes={"pod_spec": given})
    found = pod_of(config, leg(config=storage, granted=Granted(host_paths=["/checkpoints"])))
    assert not any("hostPath" in one for one in found["volumes"])
    found = pod_of(agent(), leg(config=storage, granted=Granted(host_paths=["/checkpoints"])))
    assert {"hostPath": {"path": "/checkpoints"}}.items() <= found["volumes"][-1].items()


def test_pod_specs_are_merged_over_the_platforms_own() -> None:
    agents: dict[str, Any] = {
        "metadata": {"annotations": {"team": "vision"}},
        "spec": {
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "containers": [{"name": "logger", "image": "logger:1"}],
            "volumes": [{"name": "cache", "emptyDir": {}}],
        },
    }
    users = {
        "metadata": {"labels": {"mine": "1"}},
        "spec": {
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "sets"}}],
            "containers": [
                {"name": "logger", "$patch": "delete"},
                {"name": "side", "image": "side:1"},
                {
                    "name": "determined-container",
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    "resources": {"requests": {"memory": "3Gi"}},
                    "env": [{"name": "HOME", "value": "/data"}],
                },
            ],
        },
    }
    user = AgentUser(uid=1000, gid=1001)
    config = agent(kubernetes={"pod_spec": agents})
    spec = leg(config={"environment": {"pod_spec": users}}, agent_user=user)
    template = job(config, spec)["spec"]["template"]
    validate(job(config, spec), "1.37")
    validate(job(config, spec, OLDEST), OLDEST)
    assert template["metadata"]["labels"]["mine"] == "1"
    assert template["metadata"]["labels"]["determined-prefect.io/agent"] == "agent-k"
    assert template["metadata"]["annotations"]["team"] == "vision"
    found = template["spec"]
    assert found["tolerations"] == agents["spec"]["tolerations"]
    assert [one["name"] for one in found["containers"]] == ["determined-container", "side"]
    assert {"cache", "data", "determined-work"} <= {one["name"] for one in found["volumes"]}
    ours = found["containers"][0]
    assert ours["command"][1:3] == ["-m", pod.CALL]
    assert {"name": "data", "mountPath": "/data"} in ours["volumeMounts"]
    assert ours["resources"] == {
        "requests": {"cpu": "1", "memory": "3Gi"},
        "limits": {"cpu": "1"},
    }
    assert {"name": "HOME", "value": "/data"} in ours["env"]
    assert "$patch" not in json.dumps(template)


def test_the_hosts_network_by_the_cluster_configuration() -> None:
    found = pod_of(agent(), leg(defaults=TaskDefaults(network_mode="host")))
    assert (found["hostNetwork"], found["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert "hostNetwork" not in pod_of(agent(), leg(defaults=TaskDefaults(network_mode="bridge")))


def test_fields_of_pods_that_only_administrators_may_set() -> None:
    given = {"environment": {"pod_spec": {"spec": {"hostNetwork": True}}}}
    words = "environment.pod_spec.spec.hostNetwork: pods may not have 'hostNetwork'; agent agent-k"
    with pytest.raises(PodError, match=re.escape(words)):
        job(agent(), leg(config=given))
    allowed = agent(security={"containers": {"pod_fields": ["hostNetwork"]}})
    assert pod_of(allowed, leg(config=given))["hostNetwork"] is True
    for granted in (Granted(administrator=True), Granted(pod_fields=["hostNetwork"])):
        assert pod_of(agent(), leg(config=given, granted=granted))["hostNetwork"] is True


def test_the_service_is_told_what_pods_may_have() -> None:
    given = {"capabilities": ["A"], "host_paths": ["/data"], "pod_fields": ["hostIPC"]}
    found = account.told_rights(agent(security={"containers": given}, checkpoint_dir="/kept"))
    assert found.to_json() == {
        "capabilities": ["A"],
        "devices": [],
        "host_paths": ["/data", "/kept"],
        "is_root": True,
        "pod_fields": ["hostIPC"],
        "in_pod": True,
    }


def test_our_secrets_are_known_by_their_names() -> None:
    name = manifest.name_of(leg(), agent())
    assert pod_spec.is_our_secret(names.order(name)) and pod_spec.is_our_secret(
        names.registry(name)
    )
    assert not pod_spec.is_our_secret("det-s3") and not pod_spec.is_our_secret("orders")


def test_images() -> None:
    from determined.expconf.environment import Images

    def image(given: Any, slot_type: str = "cuda", **sections: Any) -> Any:
        return container(
            agent(slot_type, **sections), leg(config={"environment": {"image": given}})
        )["image"]

    assert image({"cpu": "a:1", "cuda": "b:1"}) == "b:1"
    assert image("c:1") == "c:1"
    defaults = Images().model_dump()
    assert image(defaults).startswith("determined-prefect/harness:")
    assert image(defaults, container={"images": {"cuda": "ours:1"}}) == "ours:1"
    assert image(defaults, "rocm", container={"images": {"rocm": "amd:1"}}) == "amd:1"


def test_image_pull_policy() -> None:
    assert "imagePullPolicy" not in container(agent(), leg())
    force = {"environment": {"force_pull_image": True}}
    config = agent(kubernetes={"image_pull_policy": "Never"})
    assert container(config, leg())["imagePullPolicy"] == "Never"
    assert container(config, leg(config=force))["imagePullPolicy"] == "Always"


def test_the_harness_is_brought_into_other_images() -> None:
    found = pod_of(agent(container={"harness": "mounted"}), leg())
    (init,) = found["initContainers"]
    inside = found["containers"][0]
    (mount,) = init["volumeMounts"]
    assert mount == {"name": "determined-harness", "mountPath": pod.HARNESS_DIR}
    assert {**mount, "readOnly": True} in inside["volumeMounts"]
    assert inside["command"][0] == f"{pod.HARNESS_DIR}/bin/python3"
    assert "initContainers" not in pod_of(agent(), leg())


def test_a_container_sees_no_gpus_but_its_own() -> None:
    sidecar = {"spec": {"containers": [{"name": "side", "image": "for-cuda:1"}]}}
    config = {"environment": {"pod_spec": sidecar}}

    def shown(slot_type: str, slots: int) -> list[Any]:
        found = pod_of(agent(slot_type, container={"harness": "mounted"}), leg(slots, config))
        return [
            {item["name"]: item.get("value") for item in one["env"]}.get("NVIDIA_VISIBLE_DEVICES")
            for one in (*found["containers"], *found["initContainers"])
        ]

    assert shown("cuda", 0) == shown("cpu", 2) == ["void", "void", "void"]
    assert shown("cuda", 1) == [None, "void", "void"]


def test_a_start_is_known_by_the_pods_uid() -> None:
    env = container(agent(), leg())["env"]
    assert env[0] == {
        "name": "DET_START_ID",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}},
    }


def test_a_supervisor_knows_its_node() -> None:
    env = container(agent(), leg())["env"]
    assert {"name": "DET_MACHINE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}} in env


def test_names_and_labels_are_valid_and_tell_legs_apart() -> None:
    texts = ["7.b2c1.1", "7.b2c1.1.n0", "7.b2c1.1.n1", "x" * 300, "A_B", "a-b", "ä", ""]
    found = [names.job(text, "agent", "cluster") for text in texts]
    assert len(set(found)) == len(texts)
    assert names.job("1", "other", "cluster") != names.job("1", "agent", "cluster")
    assert names.job("1", "agent", "other") != names.job("1", "agent", "cluster")
    for name in [*found, *map(names.order, found), *map(names.registry, found)]:
        assert re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) and len(name) <= 57
    values = [labels.value(text) for text in [*texts, "b" * 63, "b" * 64, "-x-", "with space"]]
    assert len(set(values)) == len(values)
    for value in filter(None, values):
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", value) and len(value) <= 63
    assert labels.value("agent-1") == "agent-1"


def test_pods_of_gangs_alone_have_the_label_that_lets_them_reach_each_other() -> None:
    gang, single = (leg(nodes=nodes, node=0) for nodes in (2, 1))
    for spec, wanted in ((gang, "2"), (single, None)):
        found = job(agent(), spec)["spec"]["template"]["metadata"]["labels"]
        assert found.get(labels.NODES) == wanted
    chart = Path(__file__).parents[3] / "deployments/helm/determined-prefect/templates"
    policies = (chart / "networkpolicies.yaml").read_text()
    assert policies.count(f"key: {labels.NODES}, operator: Exists") == 3


def test_labels_say_whose_a_pod_is() -> None:
    config = {"name": "rösti & co"}
    spec = leg(2, config, nodes=2, node=1, leg_id="7.b2c1.1.n1", owner="ada lovelace")
    found = job(agent(), spec, machine="node-3")
    for metadata in (found["metadata"], found["spec"]["template"]["metadata"]):
        assert (
            metadata["labels"].items()
            >= {
                "determined-prefect.io/agent": "agent-k",
                "determined-prefect.io/allocation": "7.b2c1.1",
                "determined-prefect.io/experiment": "7",
                "determined-prefect.io/trial": "9",
                "determined-prefect.io/node": "1",
                "determined-prefect.io/user": labels.value("ada lovelace"),
            }.items()
        )
        assert metadata["annotations"] == {
            "determined-prefect.io/leg": "7.b2c1.1.n1",
            "determined-prefect.io/note": '{"a": 1}',
            "determined-prefect.io/slots": "[0, 1]",
            "determined-prefect.io/machine": "node-3",
            "determined-prefect.io/name": "rösti & co",
        }
    assert labels.selector("agent-k") == "determined-prefect.io/agent=agent-k"


def test_kueue_needs_jobs_that_can_be_suspended() -> None:
    with pytest.raises(PodError, match=r"kueue needs Kubernetes 1\.22"):
        job(agent(kubernetes={"queueing": {"by": "kueue", "queue": "q"}}), leg(), "1.20")


def test_gang_schedulers() -> None:
    def with_(by: str, **more: Any) -> AgentConfig:
        return agent(kubernetes={"queueing": {"by": by, **more}})

    gang = leg(nodes=2, leg_id="7.b2c1.1.n0")
    volcano = with_("volcano", queue="q")
    found = job(volcano, gang)["spec"]["template"]
    group = manifest.pod_group(job_of(gang), volcano.kubernetes, volcano, OWNER)
    assert group is not None and group["spec"] == {"minMember": 2, "queue": "q"}
    assert (
        group["metadata"]["name"]
        == found["metadata"]["annotations"]["scheduling.k8s.io/group-name"]
    )
    assert found["spec"]["schedulerName"] == "volcano" and "schedulingGates" not in found["spec"]
    plugin = with_("coscheduling")
    found = job(plugin, gang)["spec"]["template"]
    group = manifest.pod_group(job_of(gang), plugin.kubernetes, plugin, OWNER)
    assert group is not None and group["spec"] == {"minMember": 2}
    assert group["metadata"]["name"] == found["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"]
    assert manifest.pod_group(job_of(leg()), plugin.kubernetes, plugin, OWNER) is None
    kueue = job(with_("kueue", queue="q"), leg())
    assert kueue["spec"]["suspend"] is True
    assert kueue["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
