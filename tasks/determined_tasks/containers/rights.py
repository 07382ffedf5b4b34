"""Checks the rights over its machine that a container may have beyond an ordinary program's.

Capabilities, devices, and mounts for processes that are root are as good as the machine. They are an
administrator's to have or to give: by the cluster configuration, for all tasks, or by the agent's settings.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping
from pathlib import Path

from determined.common.wire.legs import LegSpec
from determined.expconf.container_wishes import is_given, refusal, wishes


class RightsError(Exception):
    """The container asks for a right that it may not have; the message says who may change that."""


def require(
    spec: LegSpec,
    given: Mapping[str, Iterable[str]],
    *,
    agent_id: str,
    is_root: bool,
    storage: Path | None,
    in_pod: bool = False,
) -> None:
    """Raises RightsError. ``given``: ``security.containers`` of the agent's settings; ``is_root``: whether
    the container's processes are; ``storage``: the cluster's own checkpoint storage, if it is a directory.
    ``in_pod``: the container is a pod's.
    """
    granted = spec.granted
    if granted.administrator:
        return
    also = {
        "capabilities": granted.capabilities,
        "devices": granted.devices,
        "host_paths": [*granted.host_paths, *([] if storage is None else [str(storage)])],
        "pod_fields": granted.pod_fields,
    }
    # Nobody here can follow the links of a pod's node.
    real = posixpath.normpath if in_pod else os.path.realpath
    for wish in wishes(spec.config, is_root=is_root, in_pod=in_pod):
        allowed = list(given.get(wish.setting) or ())
        # The target of a link counts, because the engine follows it.
        if not is_given(wish, [*allowed, *also[wish.setting]], real):
            listed = ", ".join(allowed) or "none"
            raise RightsError(refusal(wish, f"agent {agent_id} allows {listed}"))
