"""The pod of a leg, before any ``pod_spec`` is merged over it. Pure: nothing here asks the API server."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from determined import __version__
from determined.common.wire.legs import LegSpec
from determined.expconf.environment import Images
from determined.expconf.pod_spec import GPUS_SHOWN, TRIAL_CONTAINER, containers_of, mounts
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.kubernetes import account, names
from determined_deployments.agent.launchers.kubernetes.account import Account, PodError
from determined_deployments.agent.launchers.kubernetes.settings import (
    STORAGE_SECRET_DIR,
    Kubernetes,
)
from determined_tasks.containers.settings import SHARED_FS_DIR
from determined_tasks.containers.sizes import size_in_bytes

HARNESS_IMAGE = f"determined-prefect/harness:{__version__}"
"""What `make images` builds (docs/operate/images.md)."""
WORK_DIR = "/run/determined"
"""In the pod: for the leg's files."""
ORDER_DIR = "/run/determined-order"
ORDER_FILE = "order.json"
HARNESS_DIR = "/opt/determined-harness"
"""In pods of images without our package: the package and its interpreter."""
CALL = "determined_deployments.agent.launchers.call"
TAKE_ALONG = "determined_deployments.agent.launchers.kubernetes.take_along"
START_ID = "DET_START_ID"
MACHINE = "DET_MACHINE"
"""The variable with the pod's uid: a Job that makes a second pod makes another start."""
GPUS = {"cuda": "nvidia.com/gpu", "rocm": "amd.com/gpu"}
"""The resource of a slot, by slot type."""
DEFAULT_PRIORITY = 50
"""Of a leg whose order says none; a higher number is more important on Kubernetes."""

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_QUANTITY = re.compile(r"([0-9]+)(?:\.([0-9]+))?([A-Za-z]*)")


def spec_of(
    leg: LegSpec, job_name: str, config: AgentConfig, machine: str | None
) -> dict[str, Any]:
    """The ``spec`` of the pod. Raises PodError."""
    settings, who = config.kubernetes, account.account(leg, config)
    account.require_rights(leg, config)
    mounted = config.container.harness == "mounted"
    found: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": settings.termination_grace,
        "securityContext": account.of_pod(who),
        "containers": [_container(leg, config, who)],
        "volumes": [*_volumes(leg, job_name, config)],
    }
    if leg.defaults.network_mode == "host":
        found.update(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")
    if mounted:
        found["initContainers"] = [_harness(config, who)]
    for key, value in _placing(leg, settings, machine):
        found[key] = value
    pull = [*settings.image_pull_secrets, *_registry(leg, job_name)]
    if pull:
        found["imagePullSecrets"] = [{"name": name} for name in pull]
    if settings.service_account is not None:
        found["serviceAccountName"] = settings.service_account
    return found


def pod_specs_of(leg: LegSpec, config: AgentConfig) -> list[dict[str, Any]]:
    """The agent's ``pod_spec`` and the leg's, as far as there are some; the last one wins."""
    found = (config.kubernetes.pod_spec, _section(leg, "environment").get("pod_spec"))
    return [one for one in found if one is not None]


def image(leg: LegSpec, config: AgentConfig) -> str:
    """The image of the experiment, or the agent's when the configuration has only Determined's default."""
    wanted = _section(leg, "environment").get("image")
    kind = config.slot_type
    chosen = wanted.get(kind) if isinstance(wanted, dict) else wanted
    if not chosen or chosen == getattr(Images(), kind):
        return config.container.images.get(kind, HARNESS_IMAGE)
    return str(chosen)


def python(config: AgentConfig) -> str:
    """The interpreter with our package in pods, also for what is executed there."""
    return f"{HARNESS_DIR}/bin/python3" if config.container.harness == "mounted" else "python3"


def slot_resources(slots: int, config: AgentConfig) -> dict[str, Any]:
    """The ``resources`` of a container with that many slots."""
    given, kind = config.kubernetes.slot_resources, config.slot_type
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if not slots:
        return {}
    if kind == "cpu":
        requests["cpu"] = limits["cpu"] = times(given.cpu or "1", slots)
    else:
        requests[GPUS[kind]] = limits[GPUS[kind]] = str(slots)
        if given.cpu is not None:
            requests["cpu"] = times(given.cpu, slots)
    if given.memory is not None:
        requests["memory"] = limits["memory"] = times(given.memory, slots)
    return {"requests": requests, "limits": limits}


def times(quantity: str, number: int) -> str:
    """A quantity of Kubernetes several times, in its unit."""
    found = _QUANTITY.fullmatch(quantity)
    assert found is not None, quantity
    whole, part, unit = found[1], found[2] or "", found[3]
    digits = str(int(whole + part) * number).rjust(len(part) + 1, "0")
    if not part:
        return digits + unit
    return f"{digits[: -len(part)]}.{digits[-len(part) :]}{unit}"


def threads(slots: int, config: AgentConfig) -> int:
    """How many threads libraries are to use: a container's share of the cores is not in what they ask."""
    found = _QUANTITY.fullmatch(config.kubernetes.slot_resources.cpu or "1")
    assert found is not None
    cores = float(f"{found[1]}.{found[2] or '0'}") * (0.001 if found[3] == "m" else 1)
    return max(1, int(cores * slots))


def _container(leg: LegSpec, config: AgentConfig, who: Account | None) -> dict[str, Any]:
    settings = config.kubernetes
    told = {START_ID: "metadata.uid", MACHINE: "spec.nodeName"}
    env: list[dict[str, Any]] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in told.items()
    ]
    variables = {"PYTHONUNBUFFERED": "1"}
    if config.container.harness == "mounted":
        # Where libpython is, if the interpreter needs it.
        variables["LD_LIBRARY_PATH"] = f"{HARNESS_DIR}/base/lib"
    if who is not None:
        # The image may know no such account.
        variables |= {"HOME": WORK_DIR, "USER": who.name, "LOGNAME": who.name}
    if config.slot_type == "cpu" and leg.slot_ids:
        variables["OMP_NUM_THREADS"] = str(threads(len(leg.slot_ids), config))
    env += [{"name": name, "value": value} for name, value in variables.items()]
    found: dict[str, Any] = {
        "name": TRIAL_CONTAINER,
        "image": image(leg, config),
        "command": [python(config), "-m", CALL, f"{ORDER_DIR}/{ORDER_FILE}"],
        "workingDir": WORK_DIR,
        "env": env,
        "resources": slot_resources(len(leg.slot_ids), config),
        "securityContext": account.of_container(leg, who),
        "volumeMounts": [*_mounts(leg, config)],
    }
    if settings.storage_secret is not None:
        found["envFrom"] = [{"secretRef": {"name": settings.storage_secret}}]
    if _section(leg, "environment").get("force_pull_image"):
        found["imagePullPolicy"] = "Always"
    elif settings.image_pull_policy is not None:
        found["imagePullPolicy"] = settings.image_pull_policy
    return found


def _harness(config: AgentConfig, who: Account | None) -> dict[str, Any]:
    """The init container that copies our package and its interpreter for the leg's container."""
    found: dict[str, Any] = {
        "name": "determined-harness",
        "image": config.kubernetes.harness_image or HARNESS_IMAGE,
        "command": ["python3", "-m", TAKE_ALONG, HARNESS_DIR],
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": "determined-harness", "mountPath": HARNESS_DIR}],
    }
    if who is not None and who.uid != 0:
        found["securityContext"]["capabilities"] = {"drop": ["ALL"]}
    if config.kubernetes.image_pull_policy is not None:
        found["imagePullPolicy"] = config.kubernetes.image_pull_policy
    return found


def _volumes(leg: LegSpec, job_name: str, config: AgentConfig) -> Iterable[dict[str, Any]]:
    yield {"name": "determined-work", "emptyDir": {}}
    yield {
        "name": "determined-shm",
        "emptyDir": {"medium": "Memory", "sizeLimit": str(_shm(leg, config))},
    }
    # Only this pod mounts it, perhaps under an account that the image alone knows.
    yield {
        "name": "determined-order",
        "secret": {"secretName": names.order(job_name), "defaultMode": 0o444},
    }
    if config.container.harness == "mounted":
        yield {"name": "determined-harness", "emptyDir": {}}
    if (secret := config.kubernetes.storage_secret) is not None:
        yield {"name": "determined-storage", "secret": {"secretName": secret, "defaultMode": 0o444}}
    for name, path, *_ in _host_paths(leg, config):
        yield {"name": name, "hostPath": {"path": path}}


def _mounts(leg: LegSpec, config: AgentConfig) -> Iterable[dict[str, Any]]:
    yield {"name": "determined-work", "mountPath": WORK_DIR}
    yield {"name": "determined-shm", "mountPath": "/dev/shm"}
    yield {"name": "determined-order", "mountPath": ORDER_DIR, "readOnly": True}
    if config.container.harness == "mounted":
        yield {"name": "determined-harness", "mountPath": HARNESS_DIR, "readOnly": True}
    if config.kubernetes.storage_secret is not None:
        yield {"name": "determined-storage", "mountPath": STORAGE_SECRET_DIR, "readOnly": True}
    for name, _, path, read_only, propagation in _host_paths(leg, config):
        found: dict[str, Any] = {"name": name, "mountPath": path}
        if read_only:
            found["readOnly"] = True
        if propagation in ("rslave", "rshared"):
            # As the node's mounts come and go; what the pod mounts stays with it.
            found["mountPropagation"] = "HostToContainer"
        yield found


def _host_paths(leg: LegSpec, config: AgentConfig) -> Iterable[tuple[str, str, str, bool, str]]:
    """Folders of the node: a volume's name, the folder, its path in the pod, whether it is read-only, and the
    propagation of mounts. Rights are checked elsewhere."""
    for index, mount in enumerate(leg.config.get("bind_mounts") or ()):
        path = mount["container_path"]
        if not path.startswith("/"):
            raise PodError(
                f"bind_mounts[{index}].container_path: expected an absolute path, found {path!r}: in pods"
                " nothing is mounted in the folder of the model definition"
            )
        read_only, propagation = bool(mount.get("read_only")), mount.get("propagation") or ""
        yield f"determined-bind-{index}", mount["host_path"], path, read_only, propagation
    storage, pod_specs = _section(leg, "checkpoint_storage"), pod_specs_of(leg, config)
    folder = storage.get("host_path")
    if any(mounts(one, SHARED_FS_DIR, str(folder)) for one in pod_specs):
        return
    if storage.get("type") == "shared_fs" and folder:
        propagation = storage.get("propagation") or ""
        yield "determined-checkpoints", folder, SHARED_FS_DIR, False, propagation


def _shm(leg: LegSpec, config: AgentConfig) -> int:
    wanted = _section(leg, "resources").get("shm_size")
    return int(config.container.shm_size) if wanted is None else size_in_bytes(wanted)


def _placing(leg: LegSpec, settings: Kubernetes, machine: str | None) -> Iterable[tuple[str, Any]]:
    if settings.node_selector:
        yield "nodeSelector", dict(settings.node_selector)
    if machine is not None:
        term = {"key": "metadata.name", "operator": "In", "values": [machine]}
        preference = {"weight": 100, "preference": {"matchFields": [term]}}
        affinity = {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}
        yield "affinity", {"nodeAffinity": affinity}
    scheduler = settings.scheduler_name
    if scheduler is None and settings.queueing and settings.queueing.by == "volcano":
        scheduler = "volcano"
    if scheduler is not None:
        yield "schedulerName", scheduler
    chosen = settings.priority_class(leg.priority or DEFAULT_PRIORITY)
    if chosen is not None:
        yield "priorityClassName", chosen


def avoid(spec: dict[str, Any], machines: Iterable[str]) -> None:
    """Has the pod run on none of these nodes, whatever affinity it has besides."""
    # A field takes one name at a time.
    fields = [
        {"key": "metadata.name", "operator": "NotIn", "values": [machine]} for machine in machines
    ]
    if not fields:
        return
    affinity = dict(spec.get("affinity") or {})
    nodes = dict(affinity.get("nodeAffinity") or {})
    required = dict(nodes.get(_REQUIRED) or {})
    # One of the terms has to hold, and in it everything.
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), *fields]} for term in terms
    ]
    nodes[_REQUIRED] = required
    affinity["nodeAffinity"] = nodes
    spec["affinity"] = affinity


def hide_gpus(spec: dict[str, Any], leg: LegSpec, config: AgentConfig) -> None:
    """Has no container of the pod see GPUs that it did not ask Kubernetes for: images that are made for CUDA
    show all of the node's."""
    has_own = config.slot_type == "cuda" and bool(leg.slot_ids)
    for path, container in containers_of({"spec": spec}):
        is_ours = path[1] == "containers" and container.get("name") == TRIAL_CONTAINER
        if not (is_ours and has_own):
            env = container.get("env") or []
            container["env"] = [*env, {"name": GPUS_SHOWN, "value": "void"}]


def _registry(leg: LegSpec, job_name: str) -> list[str]:
    return [names.registry(job_name)] if _section(leg, "environment").get("registry_auth") else []


def _section(leg: LegSpec, key: str) -> dict[str, Any]:
    return leg.config.get(key) or {}
