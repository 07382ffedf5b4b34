"""Builds the description of a leg's container. Pure: nothing here asks the engine.

The fields are those of the Docker engine's API, ``POST /containers/create``.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from string import Template
from typing import Any
from urllib.parse import urlsplit

from determined.common.wire.legs import LegSpec
from determined.expconf.environment import Images
from determined_tasks import compiled_code, task_environment
from determined_tasks.containers.settings import (
    COMPILED_DIR,
    LABEL_AGENT,
    LABEL_ALLOCATION,
    LABEL_CLUSTER,
    LABEL_WORK_DIR,
    RUN_DIR,
    SHARED_FS_DIR,
    WORKDIR,
    ContainerSettings,
)
from determined_tasks.containers.sizes import size_in_bytes
from determined_tasks.identity import Identity
from determined_tasks.leg_groups import MOST_SHARES, SHARES
from determined_tasks.limits import OOM_SCORE
from determined_tasks.ports import LOOPBACK
from determined_tasks.task_environment import LONGEST_VARIABLE, AgentSide

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The engine's usual limit would make it drop the oldest lines while the service is away.
LOG_CONFIG = {
    "Type": "local",
    "Config": {"max-size": "1t", "max-file": "1", "compress": "false"},
}


class NetworkError(Exception):
    """Containers of the network that is asked for do not reach the service; the message says what to do."""


def container_name(agent_id: str, work_dir: Path, allocation_id: str) -> str:
    """The same for each try to start the same leg, and no other agent's on the machine."""
    owner = hashlib.sha256(f"{agent_id}\0{work_dir}".encode()).hexdigest()[:8]
    return f"det-{owner}-{re.sub('[^a-zA-Z0-9_.-]', '-', allocation_id)}"


def image(spec: LegSpec, place: AgentSide, settings: ContainerSettings) -> str:
    """The image of the experiment, or the agent's when the configuration has only the default.

    The defaults of the configuration are Determined's own images, without this harness.
    """
    wanted = _section(spec.config, "environment").get("image")
    chosen = wanted.get(place.slot_type) if isinstance(wanted, dict) else wanted
    if not chosen or chosen == getattr(Images(), place.slot_type):
        return settings.images[place.slot_type]
    return str(chosen)


def files_dir(spec: LegSpec) -> str:
    """The directory in the container that holds the model definition."""
    return spec.defaults.work_dir or WORKDIR


def work_dir(spec: LegSpec, account: Identity | None = None) -> str:
    """The working directory in the container; it holds the model definition, unless the task has another."""
    if spec.work_dir is None:
        return files_dir(spec)
    agent_user = account.name if account is not None else "root"
    names = {"AGENT_USER": agent_user, "DET_USER": spec.owner}
    return str(PurePosixPath(files_dir(spec), Template(spec.work_dir).safe_substitute(names)))


def network_mode(spec: LegSpec, settings: ContainerSettings) -> str:
    """The agent's setting, else the cluster configuration's, else the agent's default.

    Raises NetworkError when containers would not reach the service.
    """
    wanted = spec.defaults.network_mode
    if settings.is_network_given or wanted is None:
        return settings.network_mode
    host = urlsplit(settings.master_url).hostname or ""
    if wanted != "host" and (host in ("localhost", "::1") or host.startswith("127.")):
        raise NetworkError(
            f"task_container_defaults.network_mode {wanted!r}: containers there do not reach the service at"
            f" {settings.master_url}, an address of the machine's loopback; set container.master_url in the"
            " agent's settings to an address that they reach, or network_mode to host"
        )
    return wanted


def environment(
    spec: LegSpec,
    place: AgentSide,
    settings: ContainerSettings,
    image_env: Iterable[str],
    account: Identity | None,
    compiled: bool = False,
) -> dict[str, str]:
    """The variables set on top of the image's own environment. ``compiled``: :data:`COMPILED_DIR` is
    mounted."""
    env = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    given = dict(item.partition("=")[::2] for item in image_env)
    if compiled:
        found = compiled_code.variables(Path(COMPILED_DIR))
        env.update({name: path for name, path in found.items() if name not in given})
    if settings.path:
        env["PATH"] = os.pathsep.join([*settings.path, given.get("PATH") or DEFAULT_PATH])
    if account is not None:
        env.update(HOME=files_dir(spec), USER=account.name, LOGNAME=account.name)
    inside = task_environment.variables(
        spec, place, Path(work_dir(spec, account)), Path(RUN_DIR), resources_type="docker-container"
    )
    env.update(inside)
    if place.slot_type == "cpu" and place.slots:
        env["OMP_NUM_THREADS"] = str(task_environment.threads(spec, place))
    env.update(spec.env)
    env.update(spec.user_environment())
    return {key: value for key, value in env.items() if len(value) <= LONGEST_VARIABLE}


def request(
    spec: LegSpec,
    place: AgentSide,
    settings: ContainerSettings,
    *,
    root: Path,
    image: str,
    command: list[str],
    env: Mapping[str, str],
    user: str,
    account: Identity | None = None,
    compiled: Path | None = None,
) -> dict[str, Any]:
    """The body of the request that creates the container. ``root``: the allocation's directory; ``user``:
    ``uid:gid``; ``compiled``: what compilers keep."""
    return {
        "Image": image,
        # Our entrypoint replaces the image's entrypoint and its command.
        "Entrypoint": command,
        "Cmd": [],
        "Env": [f"{key}={value}" for key, value in env.items()],
        "User": user,
        "WorkingDir": work_dir(spec, account),
        "Labels": {
            LABEL_AGENT: place.agent_id,
            LABEL_ALLOCATION: spec.allocation_id,
            LABEL_CLUSTER: spec.cluster_id,
            LABEL_WORK_DIR: str(place.work_dir),
        },
        "HostConfig": _host_config(spec, place, settings, root, user, compiled),
    }


def own_address(container: Mapping[str, Any]) -> str:
    """The address at which this machine reaches a container with a separate network."""
    network = container.get("NetworkSettings") or {}
    return next(
        (one["IPAddress"] for one in (network.get("Networks") or {}).values() if one["IPAddress"]),
        network.get("IPAddress") or LOOPBACK,
    )


def _host_config(
    spec: LegSpec,
    place: AgentSide,
    settings: ContainerSettings,
    root: Path,
    user: str,
    compiled: Path | None,
) -> dict[str, Any]:
    resources = _section(spec.config, "resources")
    given = _section(spec.config, "environment")
    shm_size = resources.get("shm_size")
    network = network_mode(spec, settings)
    host: dict[str, Any] = {
        "Mounts": [
            _bind(str(root / "run"), RUN_DIR),
            _bind(str(root / "workdir"), files_dir(spec)),
            *([_bind(str(compiled), COMPILED_DIR)] if compiled else []),
            *(_bind(path, path, read_only=True) for path in settings.read_only),
            *_storage(spec.config),
            *_users_mounts(spec),
        ],
        "NetworkMode": network,
        "ShmSize": settings.shm_size if shm_size is None else size_in_bytes(shm_size),
        "Devices": [
            {
                "PathOnHost": device["host_path"],
                "PathInContainer": device["container_path"],
                "CgroupPermissions": device.get("mode") or "mrw",
            }
            for device in resources.get("devices") or ()
        ],
        "CapAdd": list(given.get("add_capabilities") or ()),
        "CapDrop": list(given.get("drop_capabilities") or ()),
        "LogConfig": LOG_CONFIG,
        # Process 1 reaps the orphans of the training process.
        "Init": True,
        # A program that forks without end ends its own task, not the machine's others.
        "PidsLimit": settings.processes,
        "CpuShares": min(SHARES * max(1, len(spec.slot_ids)), MOST_SHARES),
        "OomScoreAdj": OOM_SCORE,
        "RestartPolicy": {"Name": "no"},
    }
    if user.partition(":")[0] != "0":
        # A set-uid program of the image would run as root, and every mount would be open to it.
        host["SecurityOpt"] = ["no-new-privileges:true"]
    if settings.open_files is not None:
        most = settings.open_files
        host["Ulimits"] = [{"Name": "nofile", "Soft": most, "Hard": most}]
    if network == "bridge":
        host["ExtraHosts"] = ["host.docker.internal:host-gateway"]
    if settings.cpus is not None:
        # An engine refuses more than it has.
        host["NanoCpus"] = int(min(settings.cpus, os.cpu_count() or 1) * 1e9)
    if settings.memory is not None:
        # Without swap beside it, which would only make the end slower.
        host["Memory"] = host["MemorySwap"] = settings.memory
    if place.slot_type == "cuda" and spec.slot_ids:
        uuids = place.device_uuids or {}
        devices = [uuids.get(slot) or str(slot) for slot in spec.slot_ids]
        host["DeviceRequests"] = [
            {"Driver": "", "Count": 0, "DeviceIDs": devices, "Capabilities": [["gpu"]]}
        ]
    return host


def _bind(
    source: str, target: str, read_only: bool = False, propagation: str = "rprivate"
) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": propagation},
    }


def _storage(config: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    storage = _section(config, "checkpoint_storage")
    if storage.get("type") == "shared_fs" and storage.get("host_path"):
        propagation = storage.get("propagation") or "rprivate"
        yield _bind(storage["host_path"], SHARED_FS_DIR, propagation=propagation)


def _users_mounts(spec: LegSpec) -> Iterable[dict[str, Any]]:
    for mount in spec.config.get("bind_mounts") or ():
        yield _bind(
            mount["host_path"],
            str(PurePosixPath(files_dir(spec), mount["container_path"])),
            bool(mount.get("read_only")),
            mount.get("propagation") or "rprivate",
        )


def _section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return config.get(key) or {}
