"""The parts of a pod spec that give a pod power over its node, over the cluster, or over other tasks.

What is listed here is refused, or allowed by an administrator. Of volumes and of security contexts the
harmless fields are listed instead, so that fields of later releases of Kubernetes are not harmless by
mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from determined.expconf.paths import Path
from determined.expconf.pod_spec import containers_of

SECRET = "secret"
_OF_PODS = ("hostNetwork", "hostPID", "hostIPC", "automountServiceAccountToken")
_ACCOUNTS = ("serviceAccountName", "serviceAccount")
_VOLUMES = frozenset(
    {
        *("name", "configMap", "downwardAPI", "emptyDir", "ephemeral", "image"),
        *("persistentVolumeClaim", "projected"),
    }
)
_PROJECTED = frozenset({"configMap", "downwardAPI", "clusterTrustBundle"})
_CONTEXT: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "fsGroupChangePolicy": None,
    "privileged": False,
    "procMount": "Default",
    "readOnlyRootFilesystem": None,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""Fields of a ``securityContext`` with their harmless value; None: each is."""


class PodWish(NamedTuple):
    """``path``: below the pod spec. ``field``: by this name an administrator allows it. ``host_path``,
    ``capability``: what it is instead, of these two."""

    path: Path
    field: str = ""
    host_path: str = ""
    capability: str = ""


def pod_wishes(pod_spec: Any) -> Iterator[PodWish]:
    """Those of a pod spec. Values of a wrong type are ignored: the API server refuses them."""
    pod = _mapping(_mapping(pod_spec).get("spec"))
    for key in _OF_PODS:
        if pod.get(key):
            yield PodWish(("spec", key), key)
    for key in _ACCOUNTS:
        if pod.get(key):
            yield PodWish(("spec", key), "serviceAccountName")
    if str(pod.get("priorityClassName") or "").startswith("system-"):
        yield PodWish(("spec", "priorityClassName"), "priorityClassName")
    yield from _context(pod, ("spec",))
    for index, volume in enumerate(_items(pod.get("volumes"))):
        yield from _volume(_mapping(volume), ("spec", "volumes", index))
    for path, container in containers_of(pod_spec):
        yield from _container(_mapping(container), path)


def _container(container: dict[str, Any], path: Path) -> Iterator[PodWish]:
    yield from _context(container, path)
    for index, port in enumerate(_items(container.get("ports"))):
        if _mapping(port).get("hostPort"):
            yield PodWish((*path, "ports", index, "hostPort"), "hostPort")
    for index, variable in enumerate(_items(container.get("env"))):
        if _mapping(_mapping(variable).get("valueFrom")).get("secretKeyRef"):
            yield PodWish((*path, "env", index, "valueFrom", "secretKeyRef"), SECRET)
    for index, source in enumerate(_items(container.get("envFrom"))):
        if _mapping(source).get("secretRef"):
            yield PodWish((*path, "envFrom", index, "secretRef"), SECRET)


def _context(owner: dict[str, Any], path: Path) -> Iterator[PodWish]:
    for key, value in _mapping(owner.get("securityContext")).items():
        here = (*path, "securityContext", key)
        if key == "capabilities":
            for index, name in enumerate(_items(_mapping(value).get("add"))):
                yield PodWish((*here, "add", index), capability=str(name))
        elif value is None or (key in _CONTEXT and _CONTEXT[key] in (None, value)):
            continue
        elif not key.startswith("$"):
            yield PodWish(here, key)


def _volume(volume: dict[str, Any], path: Path) -> Iterator[PodWish]:
    for kind, source in volume.items():
        if source is None or kind.startswith("$"):
            continue
        if kind == "hostPath":
            folder = str(_mapping(source).get("path") or "/")
            yield PodWish((*path, kind, "path"), host_path=folder)
        elif kind == "projected":
            for index, part in enumerate(_items(_mapping(source).get("sources"))):
                for name in _mapping(part):
                    if name not in _PROJECTED:
                        yield PodWish((*path, kind, "sources", index, name), name)
        elif kind not in _VOLUMES:
            yield PodWish((*path, kind), kind)


def _mapping(value: Any) -> dict[str, Any]:
    # YAML knows keys that are numbers.
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
