"""``environment.pod_spec``: merging, and the fields that only the platform may set.

A pod spec is a strategic merge patch of Kubernetes. Patches are merged over each other at submission (the
experiment's over the template's over the cluster's), and over the platform's own pod by the agent.
"""

import re
from collections.abc import Iterator
from typing import Any

from determined.expconf.paths import Path

TRIAL_CONTAINER = "determined-container"
OUR_PREFIX = "determined-"
"""Of the names of the platform's other containers and of its volumes."""
OUR_LABELS = "determined-prefect.io/"
GPUS_SHOWN = "NVIDIA_VISIBLE_DEVICES"
_GPUS = ("nvidia.com/", "amd.com/")
_OUR_VARIABLES = ("DET_", "PREFECT_")
_OUR_FOLDERS = ("/run/determined", "/run/secrets/determined", "/opt/determined")
OUR_SECRETS = ("det-", ("-order", "-pull"))
"""How the names of the platform's Secrets begin, and end: they have the tokens of tasks."""
_TAKES_OURS = "would take away what the platform has set there"
#: Set by the platform for the trial's own container.
_OURS = (
    "image",
    "command",
    "args",
    "workingDir",
    "ports",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "imagePullPolicy",
    "securityContext",
    "restartPolicy",
)
#: Fields of the pod that the platform sets, each with its only value; None: there is none.
_OUR_POD = {
    "restartPolicy": "Never",
    "nodeName": None,
    "schedulingGates": None,
    "ephemeralContainers": None,
    # The platform signals process 1 of the trial's container, which must be the supervisor.
    "shareProcessNamespace": False,
}
_SECRET_SECTIONS = frozenset(
    {"secretKeyRef", "secretRef", "secret", "nodePublishSecretRef", "imagePullSecrets"}
)
_CONTAINERS = ("containers", "initContainers")
_LISTS = ("initContainers", "volumes", "imagePullSecrets")
_MAPPINGS = ("nodeSelector", "affinity", "securityContext")
"""Fields of a pod in which the platform has something itself."""
_PATCH, _REPLACE, _DELETE = "$patch", "replace", "delete"
#: The fields by which Kubernetes recognises items of its lists; all other lists are replaced.
_ITEM_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "ownerReferences": "uid",
}


def refused(spec: Any) -> Iterator[tuple[Path, str]]:
    """Yield each invalid field and each field that only the platform may set: its path below the pod spec,
    and why.

    Determined's own schema has the names of fields in snake_case, Kubernetes in camelCase.
    """
    for key in ("name", "name_space"):
        if isinstance(spec, dict) and spec.get(key) is not None:
            yield (key,), "the platform chooses the pod's name and namespace"
    yield from _metadata(_mapping(spec, "metadata"))
    pod = spec.get("spec") if isinstance(spec, dict) else None
    if pod is not None and not isinstance(pod, dict):
        yield ("spec",), "must be a mapping, the specification of a pod"
    containers = _mapping(spec, "spec").get("containers")
    if containers is not None and not isinstance(containers, list):
        yield ("spec", "containers"), "must be a list of containers"
    yield from _pod(_mapping(spec, "spec"))
    yield from _directives(spec, ())
    yield from _secrets(_mapping(spec, "spec"), ("spec",))
    for path, container in containers_of(spec):
        yield from _container(path, container)


def containers_of(spec: Any) -> Iterator[tuple[Path, Any]]:
    """Each container of a pod spec, and its path."""
    for key in _CONTAINERS:
        for index, container in enumerate(_items(_mapping(spec, "spec"), key)):
            yield ("spec", key, index), container


def mounts(pod_spec: Any, *folders: str) -> bool:
    """Whether a pod spec mounts a volume at one of these folders of the trial's container."""
    return any(
        mount.get("mountPath") in folders and _PATCH not in mount
        for path, container in containers_of(pod_spec)
        if isinstance(container, dict) and container.get("name") == TRIAL_CONTAINER
        for mount in _items(container, "volumeMounts")
        if isinstance(mount, dict)
    )


def _metadata(metadata: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    for key, value in metadata.items():
        if key in ("labels", "annotations", _PATCH) or value is None:
            continue
        why = "the platform sets all but labels and annotations"
        if key in ("name", "namespace"):
            why = "the platform chooses the pod's name and namespace"
        yield ("metadata", key), why
    for section in ("labels", "annotations"):
        for key in _mapping(metadata, section):
            if str(key).startswith(OUR_LABELS):
                yield (
                    ("metadata", section, key),
                    f"names that begin with {OUR_LABELS} are the platform's",
                )


def _pod(pod: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    for names, kind, what in ((_LISTS, list, "a list"), (_MAPPINGS, dict, "a mapping")):
        for key in names:
            if pod.get(key) is not None and not isinstance(pod[key], kind):
                yield ("spec", key), f"must be {what}"
    for key, only in _OUR_POD.items():
        if pod.get(key) not in (None, only):
            yield ("spec", key), "the platform sets this field of pods itself"
    for index, volume in enumerate(_items(pod, "volumes")):
        if isinstance(volume, dict) and str(volume.get("name")).startswith(OUR_PREFIX):
            yield (
                ("spec", "volumes", index, "name"),
                f"volumes whose names begin with {OUR_PREFIX!r} are the platform's",
            )


def _container(path: Path, container: Any) -> Iterator[tuple[Path, str]]:
    if not isinstance(container, dict):
        yield path, "must be a mapping, a container"
        return
    name = str(container.get("name"))
    is_trials = path[1] == "containers" and name == TRIAL_CONTAINER
    if name.startswith(OUR_PREFIX) and not is_trials:
        why = (
            f"of names that begin with {OUR_PREFIX!r} only containers has one, {TRIAL_CONTAINER!r}"
        )
        yield (*path, "name"), why
    if is_trials:
        yield from _ours(path, container)
    for index, variable in enumerate(_items(container, "env")):
        if isinstance(variable, dict) and variable.get("name") == GPUS_SHOWN:
            yield (*path, "env", index, "name"), "the platform says which GPUs a container sees"
    for section in ("requests", "limits"):
        for key in _mapping(_mapping(container, "resources"), section):
            if str(key).startswith(_GPUS):
                yield (
                    (*path, "resources", section, key),
                    "the number of slots says how many GPUs the pod has (resources.slots_per_trial)",
                )


def _ours(path: Path, container: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    for key in (*_OURS, *map(_snake_case, _OURS)):
        if container.get(key) is not None:
            yield (*path, key), f"the platform sets this field of {TRIAL_CONTAINER!r} itself"
    for index, variable in enumerate(_items(container, "env")):
        name = str(variable.get("name")) if isinstance(variable, dict) else ""
        if name.startswith(_OUR_VARIABLES):
            why = f"the task would not see {name!r}: use environment.environment_variables"
            yield (*path, "env", index, "name"), why
    for key, ours in (("env", ()), ("volumeMounts", _OUR_FOLDERS)):
        for index, item in enumerate(_items(container, key)):
            if isinstance(item, dict) and _PATCH in item:
                name = str(item.get(_ITEM_KEYS[key], ""))
                if not name or name.startswith(ours):
                    yield (*path, key, index, _PATCH), _TAKES_OURS
    # They say how many GPUs the task has.
    resources = _mapping(container, "resources")
    for section in ((), ("requests",), ("limits",)):
        found = _mapping(resources, section[0]) if section else resources
        if _PATCH in found:
            yield (*path, "resources", *section, _PATCH), _TAKES_OURS


def _directives(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """The mistakes in directives of the patch, wherever they stand."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _directives(item, (*path, index))
        return
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        here = (*path, str(key))
        if key == _PATCH:
            if item not in (_REPLACE, _DELETE):
                yield here, f"expected 'replace' or 'delete', found {item!r}"
            elif _takes_ours(value, path):
                yield here, _TAKES_OURS
        elif str(key).startswith("$"):
            yield here, "of the directives of a patch only $patch is known"
        else:
            yield from _directives(item, here)


def _takes_ours(item: dict[str, Any], path: Path) -> bool:
    """Whether the ``$patch`` of ``item`` reaches the pod itself, its labels, or a whole list of containers or
    volumes, in which the platform has some."""
    if len(path) <= 1 or path[0] == "metadata":
        return True
    if len(path) == 3 and path[1] in (*_CONTAINERS, "volumes"):
        return item.get("name") in (None, TRIAL_CONTAINER)
    return path == ("spec", "nodeSelector") or path == ("spec", "securityContext")


def is_our_secret(name: Any) -> bool:
    """Whether a Secret of that name is the platform's, perhaps of another user's task."""
    begin, ends = OUR_SECRETS
    return isinstance(name, str) and name.startswith(begin) and name.endswith(ends)


def _secrets(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """References to the platform's own Secrets, wherever they stand."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _secrets(item, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            is_name = key == "secretName" or (
                key == "name" and not _SECRET_SECTIONS.isdisjoint(path[-2:])
            )
            if is_name and is_our_secret(item):
                yield (*path, str(key)), f"{item!r} is a Secret of the platform"
            yield from _secrets(item, (*path, str(key)))


def _snake_case(name: str) -> str:
    """Of a name that has capitals; of another one, a name that no field has."""
    found = re.sub("([A-Z])", lambda capital: f"_{capital[1].lower()}", name)
    return found if found != name else ""


def merge_pod_specs(mine: Any, base: Any) -> Any:
    """Merge a pod spec over another one, as a Kubernetes strategic merge patch does.

    Mappings merge key by key. Lists whose items have an identity (containers by name, mounts by path)
    merge item by item; other lists are replaced. Directives (``$patch``) stay in the result, because it may
    be merged over a third one; see :func:`applied`.
    """
    if not isinstance(mine, dict) or not isinstance(base, dict) or _PATCH in mine:
        return mine
    if base.get(_PATCH) == _DELETE:
        return {**mine, _PATCH: _REPLACE}
    merged = dict(base)
    for key, value in mine.items():
        if key not in base or base[key] is None:
            merged[key] = value
        elif value is None:
            continue
        elif key in _ITEM_KEYS and isinstance(value, list) and isinstance(base[key], list):
            merged[key] = _merge_items(value, base[key], _ITEM_KEYS[key])
        else:
            merged[key] = merge_pod_specs(value, base[key])
    return merged


def applied(pod_spec: Any) -> Any:
    """The pod that is left when all patches are merged: without directives, and what they delete."""
    if isinstance(pod_spec, list):
        return [applied(item) for item in pod_spec if not _is_gone(item)]
    if not isinstance(pod_spec, dict):
        return pod_spec
    return {
        key: applied(item)
        for key, item in pod_spec.items()
        if key != _PATCH and not (isinstance(item, dict) and item.get(_PATCH) == _DELETE)
    }


def _is_gone(item: Any) -> bool:
    return isinstance(item, dict) and (item.get(_PATCH) == _DELETE or _is_for_list(item))


def _is_for_list(item: Any) -> bool:
    """Whether an item is the directive to replace its list."""
    return item == {_PATCH: _REPLACE}


def _merge_items(mine: list[Any], base: list[Any], key: str) -> list[Any]:
    def identity(item: Any) -> Any:
        found = item.get(key) if isinstance(item, dict) else None
        return found if isinstance(found, str | int) else None

    if any(map(_is_for_list, mine)):
        return mine
    own = {identity(item): item for item in mine if identity(item) is not None}
    merged = [
        merge_pod_specs(own.pop(identity(item)), item) if identity(item) in own else item
        for item in base
    ]
    rest = [item for item in mine if identity(item) is None or identity(item) in own]
    return merged + rest


def _mapping(value: Any, key: str) -> dict[str, Any]:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _items(value: dict[str, Any], key: str) -> list[Any]:
    inner = value.get(key)
    return inner if isinstance(inner, list) else []
