"""The parts of a configuration that give containers power over the machine: capabilities, devices, mounts,
and those of pods beside them.

The agent decides right before it makes a container; the service asks the same rule of what agents have said,
so that what none of them gives is refused at submission.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from determined.constants import SHARED_FS_CONTAINER_PATH
from determined.expconf.paths import render
from determined.expconf.pod_spec import mounts
from determined.expconf.pod_wishes import pod_wishes

CAPABILITIES, DEVICES, HOST_PATHS = "capabilities", "devices", "host_paths"
POD_FIELDS = "pod_fields"


class Wish(NamedTuple):
    """``path``: of the configuration; ``found``: what stands there. ``setting``: the list of
    ``security.containers`` in an agent's settings that would give it. ``in_pod``: the container is a pod's.
    """

    path: str
    found: str
    setting: str
    in_pod: bool = False


_VERBS = {CAPABILITIES: "add", DEVICES: "have", HOST_PATHS: "mount as root", POD_FIELDS: "have"}


def wishes(config: Mapping[str, Any], *, is_root: bool, in_pod: bool = False) -> Iterator[Wish]:
    """Those of a complete configuration. ``is_root``: the containers' processes are; under an account that is
    not, a mount shows only files that the account may read, and needs no right.

    ``in_pod``: the containers are pods' of Kubernetes. A folder of a node is as good as the node there,
    whatever the account, and devices are Kubernetes' own business.
    """
    if in_pod:
        yield from _of_pods(config)
        return
    yield from _of_containers(config, is_root)


def of_pod_spec(pod_spec: Any, path: str) -> Iterator[Wish]:
    """Those of a pod spec. ``path``: its own in the configuration."""
    for wish in pod_wishes(pod_spec):
        here = f"{path}.{render(wish.path)}"
        if wish.host_path:
            yield Wish(here, wish.host_path, HOST_PATHS, True)
        elif wish.capability:
            yield Wish(here, wish.capability, CAPABILITIES, True)
        else:
            yield Wish(here, wish.field, POD_FIELDS, True)


def _of_pods(config: Mapping[str, Any]) -> Iterator[Wish]:
    environment = config.get("environment") or {}
    storage = str((config.get("checkpoint_storage") or {}).get("host_path"))
    has_storage = mounts(environment.get("pod_spec"), SHARED_FS_CONTAINER_PATH, storage)
    for wish in _of_containers(config, True):
        if wish.setting != DEVICES and not (
            has_storage and wish.path.startswith("checkpoint_storage")
        ):
            yield wish._replace(in_pod=True)
    yield from of_pod_spec(environment.get("pod_spec"), "environment.pod_spec")


def _of_containers(config: Mapping[str, Any], is_root: bool) -> Iterator[Wish]:
    environment = config.get("environment") or {}
    for index, name in enumerate(environment.get("add_capabilities") or ()):
        yield Wish(f"environment.add_capabilities[{index}]", str(name), CAPABILITIES)
    resources = config.get("resources") or {}
    for index, device in enumerate(resources.get("devices") or ()):
        yield Wish(f"resources.devices[{index}].host_path", device["host_path"], DEVICES)
    if not is_root:
        return
    for index, mount in enumerate(config.get("bind_mounts") or ()):
        yield Wish(f"bind_mounts[{index}].host_path", mount["host_path"], HOST_PATHS)
    storage = config.get("checkpoint_storage") or {}
    if storage.get("type") == "shared_fs" and storage.get("host_path"):
        yield Wish("checkpoint_storage.host_path", storage["host_path"], HOST_PATHS)


def is_given(
    wish: Wish, lists: Iterable[str], real: Callable[[str], str] = posixpath.normpath
) -> bool:
    """True if the wish is in one of ``lists`` or, for devices and folders, below an entry.

    ``real``: what a path leads to, where links can be followed.
    """
    if wish.setting == CAPABILITIES:
        return not {_capability(wish.found), "ALL"}.isdisjoint(map(_capability, lists))
    if wish.setting == POD_FIELDS:
        return wish.found in lists
    found = _rooted(real(wish.found))
    tops = [_rooted(real(top)) for top in lists]
    return any(posixpath.commonpath([found, top]) == top for top in tops)


def refusal(wish: Wish, allowed: str) -> str:
    """The sentence. ``allowed``: which agent allows what."""
    ways = "let an administrator submit it"
    if wish.setting == HOST_PATHS and not wish.in_pod:
        ways += ", or have the task run under a separate account (security.default_task)"
    verb = "mount" if wish.setting == HOST_PATHS and wish.in_pod else _VERBS[wish.setting]
    who = "pods" if wish.in_pod else "containers"
    return (
        f"{wish.path}: {who} may not {verb} {wish.found!r}; {allowed}: ask who runs that"
        f" agent to add it to security.containers.{wish.setting} in its settings, or {ways}"
    )


def _rooted(path: str) -> str:
    return "/" + path.lstrip("/")


def _capability(name: str) -> str:
    return name.upper().removeprefix("CAP_")
