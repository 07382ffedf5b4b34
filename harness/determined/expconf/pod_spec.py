"""``environment.pod_spec``: the allowed fields, and the merging of two pod specs."""

import re
from collections.abc import Iterator
from typing import Any

from determined.expconf.paths import Path

TRIAL_CONTAINER = "determined-container"
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
)
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
    metadata = _mapping(spec, "metadata")
    for key in ("name", "namespace"):
        if metadata.get(key) is not None:
            yield ("metadata", key), "the platform chooses the pod's name and namespace"
    pod = spec.get("spec") if isinstance(spec, dict) else None
    if pod is not None and not isinstance(pod, dict):
        yield ("spec",), "must be a mapping, the specification of a pod"
    containers = _mapping(spec, "spec").get("containers")
    if containers is not None and not isinstance(containers, list):
        yield ("spec", "containers"), "must be a list of containers"
    for index, container in enumerate(containers if isinstance(containers, list) else []):
        path = ("spec", "containers", index)
        if not isinstance(container, dict):
            yield path, "must be a mapping, a container"
        elif container.get("name") == TRIAL_CONTAINER:
            for key in (*_OURS, *map(_snake_case, _OURS)):
                if container.get(key) is not None:
                    why = f"the platform sets this field of {TRIAL_CONTAINER!r} itself"
                    yield (*path, key), why


def _snake_case(name: str) -> str:
    """Of a name that has capitals; of another one, a name that no field has."""
    found = re.sub("([A-Z])", lambda capital: f"_{capital[1].lower()}", name)
    return found if found != name else ""


def merge_pod_specs(mine: Any, base: Any) -> Any:
    """Merge a pod spec over another one, as a Kubernetes strategic merge patch does.

    Mappings merge key by key. Lists whose items have an identity (containers by name, mounts by path)
    merge item by item; other lists are replaced.
    """
    if not isinstance(mine, dict) or not isinstance(base, dict):
        return mine
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


def _merge_items(mine: list[Any], base: list[Any], key: str) -> list[Any]:
    def identity(item: Any) -> Any:
        found = item.get(key) if isinstance(item, dict) else None
        return found if isinstance(found, str | int) else None

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
