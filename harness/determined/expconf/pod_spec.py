"""``environment.pod_spec``: the allowed fields, and the merging of two pod specs."""

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
    """Each field that only the platform may set: its path below the pod spec, and the reason."""
    metadata = _mapping(spec, "metadata")
    for key in ("name", "namespace"):
        if metadata.get(key) is not None:
            yield ("metadata", key), "the platform chooses the pod's name and namespace"
    containers = _mapping(spec, "spec").get("containers")
    for index, container in enumerate(containers if isinstance(containers, list) else []):
        if not isinstance(container, dict) or container.get("name") != TRIAL_CONTAINER:
            continue
        for key in _OURS:
            if container.get(key) is not None:
                path = ("spec", "containers", index, key)
                yield path, f"the platform sets this field of {TRIAL_CONTAINER!r} itself"


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
