"""What a container may have of its machine beyond an ordinary program's rights.

Capabilities, devices, and mounts for processes that are root are as good as the machine. They are an
administrator's to have or to give: by the cluster configuration, for all tasks, or by the agent's settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from determined.common.wire.legs import LegSpec


class RightsError(Exception):
    """The container may not have what it asks for; the message says who may change that."""


def require(
    spec: LegSpec,
    given: Mapping[str, Iterable[str]],
    *,
    agent_id: str,
    is_root: bool,
    storage: Path | None,
) -> None:
    """Raises RightsError. ``given``: ``security.containers`` of the agent's settings; ``is_root``: whether
    the container's processes are; ``storage``: the cluster's own checkpoint storage, if it is a directory.
    """
    if spec.granted.administrator:
        return
    allowed = {
        "capabilities": [_capability(one) for one in given.get("capabilities") or ()],
        "devices": list(given.get("devices") or ()),
        "host_paths": list(given.get("host_paths") or ()),
    }
    granted = spec.granted
    for path, name in _capabilities(spec.config):
        known = {*allowed["capabilities"], *map(_capability, granted.capabilities)}
        if not known & {_capability(name), "ALL"}:
            raise _refused(path, name, "add", "capabilities", allowed, agent_id)
    for path, device in _devices(spec.config):
        if not _is_below(device, [*allowed["devices"], *granted.devices]):
            raise _refused(path, device, "have", "devices", allowed, agent_id)
    own = [] if storage is None else [str(storage)]
    for path, folder in _host_paths(spec.config) if is_root else ():
        if not _is_below(folder, [*allowed["host_paths"], *granted.host_paths, *own]):
            raise _refused(path, folder, "mount as root", "host_paths", allowed, agent_id)


def _refused(
    path: str, found: str, verb: str, setting: str, allowed: Mapping[str, list[str]], agent_id: str
) -> RightsError:
    listed = ", ".join(allowed[setting]) or "none"
    ways = "let an administrator submit it"
    if setting == "host_paths":
        ways += ", or have the task run under an account of its own (security.default_task)"
    return RightsError(
        f"{path}: containers may not {verb} {found!r}; agent {agent_id} allows {listed}: ask who runs that"
        f" agent to add it to security.containers.{setting} in its settings, or {ways}"
    )


def _capability(name: str) -> str:
    return name.upper().removeprefix("CAP_")


def _is_below(path: str, folders: Iterable[str]) -> bool:
    """Whether it is one of ``folders`` or in one. A link is what it leads to: the engine follows it."""
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(os.path.realpath(folder)) for folder in folders)


def _capabilities(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    environment = config.get("environment") or {}
    for index, name in enumerate(environment.get("add_capabilities") or ()):
        yield f"environment.add_capabilities[{index}]", str(name)


def _devices(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    resources = config.get("resources") or {}
    for index, device in enumerate(resources.get("devices") or ()):
        yield f"resources.devices[{index}].host_path", device["host_path"]


def _host_paths(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for index, mount in enumerate(config.get("bind_mounts") or ()):
        yield f"bind_mounts[{index}].host_path", mount["host_path"]
    storage = config.get("checkpoint_storage") or {}
    if storage.get("type") == "shared_fs" and storage.get("host_path"):
        yield "checkpoint_storage.host_path", storage["host_path"]
