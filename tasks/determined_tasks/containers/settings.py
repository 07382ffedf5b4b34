"""The agent's settings for containers, as supervisors get them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from determined.storage import SHARED_FS_CONTAINER_PATH
from determined_tasks.limits import PROCESSES

WORKDIR = "/run/determined/workdir"
RUN_DIR = "/run/determined"
COMPILED_DIR = "/run/determined/compiled"
SHARED_FS_DIR = SHARED_FS_CONTAINER_PATH
"""In containers and pods: the folder of ``shared_fs`` storage."""

LABEL_AGENT = "determined.agent"
LABEL_ALLOCATION = "determined.allocation"
LABEL_CLUSTER = "determined.cluster"
LABEL_WORK_DIR = "determined.work-dir"
"""Tells the containers of this agent from those of another one on the same machine that has its name."""


@dataclass(frozen=True)
class ContainerSettings:
    """``images``: by slot type, for experiments that name none. ``master_url``: the service's address inside
    containers. ``read_only``: directories of the machine that every container sees under the same path;
    ``path``: what comes first on its ``PATH``. ``memory``: bytes; None: no limit. ``shm_size``: bytes, where
    the experiment gives no size. ``api_version``: the engine's, when the agent started.
    ``processes``: how many processes and threads a container may have; ``open_files``: how many each
    of them (None: the engine's own limit); ``cpus``: on how many processors all of them compute at
    once (None: on those that are free).
    ``rights``: ``security.containers`` of the agent's settings.
    ``is_network_given``: whether ``network_mode`` comes before the cluster configuration's.
    """

    images: Mapping[str, str]
    network_mode: str
    master_url: str
    shm_size: int
    memory: int | None = None
    processes: int = PROCESSES
    open_files: int | None = None
    cpus: float | None = None
    read_only: list[str] = field(default_factory=list)
    path: list[str] = field(default_factory=list)
    api_version: str | None = None
    is_network_given: bool = False
    rights: Mapping[str, list[str]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> ContainerSettings:
        return cls(**given)
