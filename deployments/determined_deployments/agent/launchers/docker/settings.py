"""The agent's settings as supervisors of containers need them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from determined import __version__
from determined.common.wire.agents import ContainerRights
from determined.common.wire.legs import AgentUser
from determined_deployments.agent.config import AgentConfig
from determined_tasks.containers import accounts
from determined_tasks.containers.settings import ContainerSettings
from determined_tasks.identity import IdentityError

IMAGE = f"determined-prefect/harness:{__version__}"
"""What `make images` builds (docs/operate/images.md)."""
SYSTEM = ("/", "/usr", "/usr/local")


class HarnessError(ValueError):
    """The agent's interpreter cannot be shown to containers; the message says why."""


def of_agent(config: AgentConfig) -> dict[str, Any]:
    """The arguments of ContainerSettings, in JSON. Raises HarnessError."""
    given = config.container
    mounted = given.harness == "mounted"
    settings = ContainerSettings(
        images={kind: given.images.get(kind, IMAGE) for kind in ("cpu", "cuda")},
        network_mode=given.network_mode or ("host" if config.is_master_local else "bridge"),
        is_network_given=given.network_mode is not None,
        master_url=given.master_url or config.master_url,
        shm_size=int(given.shm_size),
        memory=int(config.limits.memory),
        processes=config.limits.processes,
        cpus=config.limits.cpus,
        # An engine cannot give more than it has itself: the default is not asked for.
        open_files=config.limits.open_files,
        rights=config.security.containers.model_dump(),
        read_only=interpreter() if mounted else [],
        path=[str(Path(sys.executable).parent)] if mounted else [],
    )
    return asdict(settings)


def rights(config: AgentConfig) -> ContainerRights:
    """The agent's lists as the service may compare them: it cannot follow links of this machine."""
    given = config.security.containers
    folders = [*given.host_paths, *([str(config.checkpoint_dir)] if config.checkpoint_dir else [])]
    task = config.security.default_task
    try:
        account = accounts.resolve(
            None,
            AgentUser(**task.model_dump()) if task else None,
            allow_root=config.security.allow_root,
            agent_id=config.agent_id,
        )
        is_root = accounts.is_root(account)
    except IdentityError:
        # Its tasks fail, and say why.
        is_root = False
    return ContainerRights(
        given.capabilities, _with_targets(given.devices), _with_targets(folders), is_root
    )


def _with_targets(paths: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(one for path in paths for one in (path, os.path.realpath(path))))


def interpreter() -> list[str]:
    """The directories of this interpreter and its packages, none inside another. Raises HarnessError."""
    for prefix in (sys.base_prefix, sys.prefix):
        if prefix in SYSTEM:
            raise HarnessError(
                f"container.harness: this agent's Python is the system's ({prefix}), which would hide the"
                " image's own; use a virtual environment of a Python with a directory of its own, or images"
                " that have determined (container.harness: image)"
            )
    wanted = [sys.base_prefix, sys.prefix, *(path for path in sys.path if Path(path).is_dir())]
    found: list[str] = []
    for path in sorted(dict.fromkeys(str(Path(item).absolute()) for item in wanted), key=len):
        if not any(Path(path).is_relative_to(other) for other in found):
            found.append(path)
    return found
