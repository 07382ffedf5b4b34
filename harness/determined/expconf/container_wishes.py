"""The parts of a configuration that give containers power over the machine: capabilities, devices, mounts.

The agent decides right before it makes a container; the service asks the same rule of what agents have said,
so that what none of them gives is refused at submission.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

CAPABILITIES, DEVICES, HOST_PATHS = "capabilities", "devices", "host_paths"


class Wish(NamedTuple):
    """``path``: of the configuration; ``found``: what stands there. ``setting``: the list of
    ``security.containers`` in an agent's settings that would give it."""

    path: str
    found: str
    setting: str


_VERBS = {CAPABILITIES: "add", DEVICES: "have", HOST_PATHS: "mount as root"}


def wishes(config: Mapping[str, Any], *, is_root: bool) -> Iterator[Wish]:
    """Those of a complete configuration. ``is_root``: the containers' processes are; under an account that is
    not, a mount shows only files that the account may read, and needs no right."""
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
    found = _rooted(real(wish.found))
    tops = [_rooted(real(top)) for top in lists]
    return any(posixpath.commonpath([found, top]) == top for top in tops)


def refusal(wish: Wish, allowed: str) -> str:
    """The sentence. ``allowed``: which agent allows what."""
    ways = "let an administrator submit it"
    if wish.setting == HOST_PATHS:
        ways += ", or have the task run under a separate account (security.default_task)"
    return (
        f"{wish.path}: containers may not {_VERBS[wish.setting]} {wish.found!r}; {allowed}: ask who runs that"
        f" agent to add it to security.containers.{wish.setting} in its settings, or {ways}"
    )


def _rooted(path: str) -> str:
    return "/" + path.lstrip("/")


def _capability(name: str) -> str:
    return name.upper().removeprefix("CAP_")
