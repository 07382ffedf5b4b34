"""The user and group of a pod's processes, and the rights of its containers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from determined.common.wire.agents import ContainerRights
from determined.common.wire.legs import AgentUser, LegSpec
from determined_deployments.agent.config import AgentConfig, DefaultTask
from determined_tasks.containers import rights
from determined_tasks.containers.rights import RightsError


class PodError(Exception):
    """No pod can be made for the leg as it is configured, now or later. The message is for the user."""


@dataclass(frozen=True)
class Account:
    uid: int
    gid: int
    name: str


def account(spec: LegSpec, config: AgentConfig) -> Account | None:
    """Whose the pod's processes are. None: the image says it. Raises PodError.

    Numbers are needed: an image has separate accounts, which nobody can ask before the pod runs.
    """
    given: AgentUser | DefaultTask | None = spec.agent_user
    origin = "linked to the owner"
    if given is None:
        given, origin = (
            config.security.default_task,
            "security.default_task of the agent's settings",
        )
    if given is None:
        return None
    name = given.user or str(given.uid)
    if given.uid is None or given.gid is None:
        raise PodError(
            f"the task must run as {name} ({origin}), of whom the uid or the gid is missing: pods need both"
            " numbers (det user link-with-agent-user, or security.default_task)"
        )
    if 0 in (given.uid, given.gid) and not config.security.allow_root:
        raise PodError(
            f"uid {given.uid}, gid {given.gid} ({origin}) is root, and agent {config.agent_id} starts no task"
            " as root: name another account, or set security.allow_root in the agent's settings"
        )
    return Account(given.uid, given.gid, name)


def require_rights(spec: LegSpec, config: AgentConfig) -> None:
    """Raises PodError where the configuration asks for more than its pod may have."""
    try:
        rights.require(
            spec,
            config.security.containers.model_dump(),
            agent_id=config.agent_id,
            is_root=True,
            storage=config.checkpoint_dir,
            in_pod=True,
        )
    except RightsError as error:
        raise PodError(str(error)) from error


def told_rights(config: AgentConfig) -> ContainerRights:
    """What the service must know to refuse at submission what :func:`require_rights` would refuse."""
    given = config.security.containers
    folders = [*given.host_paths, *([str(config.checkpoint_dir)] if config.checkpoint_dir else [])]
    return ContainerRights(
        given.capabilities, [], folders, is_root=True, pod_fields=given.pod_fields, in_pod=True
    )


def of_pod(who: Account | None) -> dict[str, Any]:
    """The pod's ``securityContext``."""
    found: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if who is not None:
        # The group owns what Kubernetes mounts, so that the account can read and write there.
        found.update(runAsUser=who.uid, runAsGroup=who.gid, fsGroup=who.gid)
        if who.uid != 0:
            found["runAsNonRoot"] = True
    return found


def of_container(spec: LegSpec, who: Account | None) -> dict[str, Any]:
    """The ``securityContext`` of the leg's container."""
    environment = spec.config.get("environment") or {}
    add = [_capability(name) for name in environment.get("add_capabilities") or ()]
    drop = [_capability(name) for name in environment.get("drop_capabilities") or ()]
    if who is not None and who.uid != 0:
        # An account that is not root has none of them anyway, and strict namespaces want it said.
        drop = ["ALL"]
    capabilities = {key: names for key, names in (("add", add), ("drop", drop)) if names}
    found: dict[str, Any] = {"allowPrivilegeEscalation": False}
    if capabilities:
        found["capabilities"] = capabilities
    return found


def _capability(name: str) -> str:
    return name.upper().removeprefix("CAP_")
