"""The Kubernetes objects of a leg, as JSON. Pure: nothing here asks the API server.

A leg is a Job with one pod, and a Secret that the Job owns, with the order of the leg's supervisor. A gang
is a Job for each node. A ``pod_spec`` is merged over our own pod by :mod:`determined.expconf.pod_spec`.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Literal

from determined.common.wire.legs import LegSpec
from determined.expconf.pod_spec import TRIAL_CONTAINER, applied, merge_pod_specs
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.base import Call, Job
from determined_deployments.agent.launchers.kubernetes import labels, names, pod
from determined_deployments.agent.launchers.kubernetes.account import PodError
from determined_deployments.agent.launchers.kubernetes.features import Features
from determined_deployments.agent.launchers.kubernetes.settings import Kubernetes
from determined_tasks.supervision import SUPERVISE

Hold = Literal["gates", "suspend"]
"""How the pods of a gang are held back until all Jobs are there."""

_DOCKER_HUB = "https://index.docker.io/v1/"


def leg_job(
    job: Job,
    settings: Kubernetes,
    config: AgentConfig,
    *,
    features: Features,
    machine: str | None = None,
    gang: Hold | None = None,
) -> dict[str, Any]:
    """The Job of a leg.

    ``machine``: the node that the pod prefers; None: the one that the order names. ``gang``: how the pod is
    held back, see :func:`hold_of`. Raises PodError.
    """
    leg = _leg(job)
    if _is_by(settings, "kueue") and not features.suspend:
        raise PodError("kubernetes.queueing: kueue needs Kubernetes 1.22 or later")
    name, machine = name_of(leg, config), machine or leg.machine
    own = {"metadata": _pod_metadata(job, leg, settings, config, machine)}
    own["spec"] = pod.spec_of(leg, name, config, machine)
    template = _merged(own, leg, config)
    spec: dict[str, Any] = {
        "backoffLimit": 0,
        "parallelism": 1,
        "completions": 1,
        "template": template,
    }
    if features.waits_for_end:
        spec["podReplacementPolicy"] = "Failed"
    if gang == "suspend" or _is_by(settings, "kueue"):
        # Kueue starts a Job by itself when there is room for it.
        spec["suspend"] = True
    if gang == "gates":
        template["spec"]["schedulingGates"] = [{"name": labels.GATE}]
    found = {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}
    found["metadata"] = _metadata(job, leg, name, settings, config, machine)
    return found


def hold_of(leg: LegSpec, settings: Kubernetes, features: Features) -> Hold | None:
    """How the leg's pod is held back until all Jobs of its gang are there. None: it is not, because the leg
    has one node, a gang scheduler sees to it, or the server can do neither: then Jobs that do not all run in
    time are withdrawn together."""
    if leg.nodes == 1 or settings.queueing is not None:
        return None
    if features.gates:
        return "gates"
    return "suspend" if features.suspend else None


def order(job: Job, config: AgentConfig) -> dict[str, Any]:
    """The order of the leg's supervisor: the job's call, with its place in the pod.

    The account is the pod's own, and so are its limits and devices. Another call is left as it is.
    """
    call = job.program
    assert isinstance(call, Call), call
    argument = dict(call.argument)
    if call.function != SUPERVISE:
        return {"function": call.function, "argument": argument}
    argument["spec"] = {**argument["spec"], "agent_user": None}
    argument["place"] = {
        **argument["place"],
        "work_dir": pod.WORK_DIR,
        "master": config.container.master_url or config.master_url,
        "default_task": None,
        "checkpoint_dir": None,
        "device_uuids": {},
        "slots": 0,
        "limits": None,
        "compiled_bytes": 0,
        "in_pod": True,
    }
    argument["learn_into"] = None
    return {"function": call.function, "argument": argument}


def order_secret(name: str, order: dict[str, Any], owner: dict[str, Any]) -> dict[str, Any]:
    """The Secret that brings ``order`` into the pod of the Job ``owner``, as the API server returned it.

    ``name``: the Job's.
    """
    content = {pod.ORDER_FILE: json.dumps(order)}
    return _secret(names.order(name), "Opaque", content, owner)


def registry_secret(job: Job, name: str, owner: dict[str, Any]) -> dict[str, Any] | None:
    """The Secret with the experiment's ``registry_auth``, if it has one. ``name``, ``owner``: as above.

    Without a ``serveraddress`` it is for the registry of the leg's image.
    """
    given = (_leg(job).config.get("environment") or {}).get("registry_auth") or {}
    auth = {key: str(value) for key, value in given.items() if value}
    if not auth:
        return None
    if "username" in auth and "password" in auth and "auth" not in auth:
        pair = f"{auth['username']}:{auth['password']}"
        auth["auth"] = base64.b64encode(pair.encode()).decode()
    server = auth.pop("serveraddress", None) or _registry(_image(owner))
    content = {".dockerconfigjson": json.dumps({"auths": {server: auth}})}
    return _secret(names.registry(name), "kubernetes.io/dockerconfigjson", content, owner)


def pod_group(
    job: Job, settings: Kubernetes, config: AgentConfig, owner: dict[str, Any]
) -> dict[str, Any] | None:
    """The group of a gang's pods for the cluster's gang scheduler, owned by the Job of the first node.

    None: there is no such scheduler, or the leg has one node.
    """
    leg, queueing = _leg(job), settings.queueing
    if leg.nodes == 1 or queueing is None or queueing.by == "kueue":
        return None
    is_volcano = queueing.by == "volcano"
    spec: dict[str, Any] = {"minMember": leg.nodes}
    if is_volcano and queueing.queue is not None:
        spec["queue"] = queueing.queue
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1"
        if is_volcano
        else "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {
            "name": _group(leg, config),
            "namespace": settings.namespace,
            "labels": owner["metadata"]["labels"],
            "ownerReferences": [reference(owner)],
        },
        "spec": spec,
    }


def name_of(leg: LegSpec, config: AgentConfig) -> str:
    """The name of the leg's Job."""
    return names.job(leg.name, config.agent_id, leg.cluster_id)


def _merged(own: dict[str, Any], leg: LegSpec, config: AgentConfig) -> dict[str, Any]:
    """Our pod under the agent's ``pod_spec`` under the leg's. Raises PodError."""
    merged: dict[str, Any] = own
    for given in pod.pod_specs_of(leg, config):
        shown = {key: given[key] for key in ("metadata", "spec") if given.get(key)}
        merged = merge_pod_specs(shown, merged)
    merged = applied(merged)
    selector = merged["spec"].get("nodeSelector") or {}
    for key, value in config.kubernetes.node_selector.items():
        if selector.get(key) != value:
            raise PodError(
                f"environment.pod_spec.spec.nodeSelector: {key!r} is {value!r} in resource pool"
                f" {leg.resource_pool!r}, and the pod asks for {selector.get(key)!r}: leave it out, or name"
                " another pool"
            )
    return merged


def _metadata(
    job: Job,
    leg: LegSpec,
    name: str,
    settings: Kubernetes,
    config: AgentConfig,
    machine: str | None,
) -> dict[str, Any]:
    marks, queueing = labels.of_leg(leg, config.agent_id), settings.queueing
    if queueing is not None and queueing.by == "kueue":
        marks["kueue.x-k8s.io/queue-name"] = str(queueing.queue)
    return {
        "name": name,
        "namespace": settings.namespace,
        "labels": marks,
        "annotations": labels.notes_of_leg(leg, job.note, machine),
    }


def _pod_metadata(
    job: Job, leg: LegSpec, settings: Kubernetes, config: AgentConfig, machine: str | None
) -> dict[str, Any]:
    marks = labels.of_leg(leg, config.agent_id)
    notes = labels.notes_of_leg(leg, job.note, machine)
    queueing = settings.queueing
    if queueing is not None and queueing.by == "volcano":
        if queueing.queue is not None:
            notes["scheduling.volcano.sh/queue-name"] = queueing.queue
        if leg.nodes > 1:
            notes["scheduling.k8s.io/group-name"] = _group(leg, config)
    elif queueing is not None and queueing.by == "coscheduling" and leg.nodes > 1:
        marks["scheduling.x-k8s.io/pod-group"] = _group(leg, config)
    return {"labels": marks, "annotations": notes}


def _group(leg: LegSpec, config: AgentConfig) -> str:
    return names.gang(leg.allocation_id, config.agent_id, leg.cluster_id)


def _is_by(settings: Kubernetes, name: str) -> bool:
    return settings.queueing is not None and settings.queueing.by == name


def _image(owner: dict[str, Any]) -> str:
    """The image of the leg's container in its Job."""
    containers = owner["spec"]["template"]["spec"]["containers"]
    return next(str(one["image"]) for one in containers if one["name"] == TRIAL_CONTAINER)


def _registry(image: str) -> str:
    """The address of an image's registry; of a name without one, Docker's hub."""
    first, slash, _ = image.partition("/")
    is_host = slash and ("." in first or ":" in first or first == "localhost")
    return first if is_host else _DOCKER_HUB


def _secret(name: str, kind: str, content: dict[str, str], owner: dict[str, Any]) -> dict[str, Any]:
    metadata = owner["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": kind,
        "immutable": True,
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": metadata["labels"],
            "ownerReferences": [reference(owner)],
        },
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in content.items()},
    }


def reference(owner: dict[str, Any]) -> dict[str, Any]:
    """Of something that goes with its ``owner``, a Job."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }


def _leg(job: Job) -> LegSpec:
    assert job.leg is not None, job.id
    return job.leg
