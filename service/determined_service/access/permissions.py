"""Permissions, and the :class:`Rights` that a user's roles give.

Permissions have the names that Determined's clients know (``PERMISSION_TYPE_…``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto


class Permission(StrEnum):
    """What a role may allow."""

    ADMINISTRATE_USER = auto()
    CREATE_EXPERIMENT = auto()
    VIEW_EXPERIMENT_ARTIFACTS = auto()
    VIEW_EXPERIMENT_METADATA = auto()
    UPDATE_EXPERIMENT = auto()
    UPDATE_EXPERIMENT_METADATA = auto()
    DELETE_EXPERIMENT = auto()
    CREATE_NSC = auto()
    VIEW_NSC = auto()
    UPDATE_NSC = auto()
    UPDATE_GROUP = auto()
    CREATE_WORKSPACE = auto()
    VIEW_WORKSPACE = auto()
    UPDATE_WORKSPACE = auto()
    DELETE_WORKSPACE = auto()
    SET_WORKSPACE_AGENT_USER_GROUP = auto()
    SET_WORKSPACE_CHECKPOINT_STORAGE_CONFIG = auto()
    SET_WORKSPACE_DEFAULT_RESOURCE_POOL = auto()
    CREATE_PROJECT = auto()
    VIEW_PROJECT = auto()
    UPDATE_PROJECT = auto()
    DELETE_PROJECT = auto()
    ASSIGN_ROLES = auto()
    VIEW_MODEL_REGISTRY = auto()
    EDIT_MODEL_REGISTRY = auto()
    CREATE_MODEL_REGISTRY = auto()
    DELETE_MODEL_REGISTRY = auto()
    DELETE_MODEL_VERSION = auto()
    DELETE_OTHER_USER_MODEL_REGISTRY = auto()
    DELETE_OTHER_USER_MODEL_VERSION = auto()
    VIEW_MASTER_LOGS = auto()
    VIEW_CLUSTER_USAGE = auto()
    UPDATE_AGENTS = auto()
    VIEW_SENSITIVE_AGENT_INFO = auto()
    VIEW_MASTER_CONFIG = auto()
    UPDATE_MASTER_CONFIG = auto()
    CONTROL_STRICT_JOB_QUEUE = auto()
    VIEW_TEMPLATES = auto()
    UPDATE_TEMPLATES = auto()
    CREATE_TEMPLATES = auto()
    DELETE_TEMPLATES = auto()
    MODIFY_RP_WORKSPACE_BINDINGS = auto()
    MODIFY_GLOBAL_CONFIG_POLICIES = auto()
    MODIFY_WORKSPACE_CONFIG_POLICIES = auto()
    VIEW_GLOBAL_CONFIG_POLICIES = auto()
    VIEW_WORKSPACE_CONFIG_POLICIES = auto()
    ADMINISTRATE_TOKEN = auto()
    UPDATE_TOKEN = auto()
    CREATE_TOKEN = auto()
    CREATE_OTHER_TOKEN = auto()
    VIEW_OTHER_TOKEN = auto()
    VIEW_TOKEN = auto()

    @property
    def wire(self) -> str:
        """The name in Determined's JSON."""
        return f"PERMISSION_TYPE_{self.name}"


CLUSTER_WIDE = frozenset(
    {
        Permission.ADMINISTRATE_USER,
        Permission.UPDATE_GROUP,
        Permission.CREATE_WORKSPACE,
        Permission.SET_WORKSPACE_AGENT_USER_GROUP,
        Permission.VIEW_MASTER_LOGS,
        Permission.VIEW_CLUSTER_USAGE,
        Permission.UPDATE_AGENTS,
        Permission.VIEW_SENSITIVE_AGENT_INFO,
        Permission.VIEW_MASTER_CONFIG,
        Permission.UPDATE_MASTER_CONFIG,
        Permission.CONTROL_STRICT_JOB_QUEUE,
        Permission.MODIFY_RP_WORKSPACE_BINDINGS,
        Permission.MODIFY_GLOBAL_CONFIG_POLICIES,
        Permission.VIEW_GLOBAL_CONFIG_POLICIES,
        Permission.ADMINISTRATE_TOKEN,
        Permission.UPDATE_TOKEN,
        Permission.CREATE_TOKEN,
        Permission.CREATE_OTHER_TOKEN,
        Permission.VIEW_OTHER_TOKEN,
        Permission.VIEW_TOKEN,
    }
)
"""No role that is assigned in a single workspace gives these."""


@dataclass(frozen=True, slots=True)
class Rights:
    """What roles allow: in the cluster and all workspaces, and in single workspaces by their ids."""

    everywhere: frozenset[Permission] = frozenset()
    inside: Mapping[int, frozenset[Permission]] = field(default_factory=dict, hash=False)

    def allow(self, permission: Permission, workspace_id: int | None = None) -> bool:
        """True if they allow it in that workspace; None: in all, or in the cluster."""
        if permission in self.everywhere:
            return True
        return workspace_id is not None and permission in self.inside.get(workspace_id, ())

    def allow_somewhere(self, permission: Permission) -> bool:
        """True if they allow it in at least one workspace, or in the cluster."""
        return permission in self.everywhere or any(
            permission in allowed for allowed in self.inside.values()
        )

    def workspaces(self, permission: Permission) -> frozenset[int] | None:
        """The workspaces in which they allow it; None: all."""
        if permission in self.everywhere:
            return None
        return frozenset(one for one, allowed in self.inside.items() if permission in allowed)
