"""Groups, roles and their assignments: the JSON (``v1Group…``, ``v1Role…``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import group_members, groups, users
from determined_service.access.permissions import CLUSTER_WIDE, Permission
from determined_service.access.roles import ROLES, Role
from determined_service.views.users import select_users, user_json

_m = group_members.c


def permission_json(permission: Permission) -> dict[str, Any]:
    """``v1Permission``."""
    return {
        "id": permission.wire,
        "name": permission.value.replace("_", " "),
        "scopeTypeMask": {"cluster": True, "workspace": permission not in CLUSTER_WIDE},
    }


def role_json(role: Role) -> dict[str, Any]:
    """``v1Role``. Ours: ``description``, what it is for."""
    return {
        "roleId": role.id,
        "name": role.name,
        "description": role.says,
        "permissions": [permission_json(one) for one in Permission if one in role.allows],
        "scopeTypeMask": {"cluster": True, "workspace": not role.cluster_wide},
    }


def assignment_json(row: sa.Row[Any]) -> dict[str, Any]:
    """``v1UserRoleAssignment`` or ``v1GroupRoleAssignment``. Ours: the names beside the numbers."""
    whose = {"groupId": row.group_id} if row.user_id is None else {"userId": row.user_id}
    return {
        **whose,
        "name": row.group if row.user_id is None else row.username,
        "roleAssignment": {
            "role": {"roleId": ROLES[row.role].id, "name": row.role},
            "scopeWorkspaceId": row.workspace_id,
            "scopeCluster": row.workspace_id is None,
            "workspaceName": row.workspace,
        },
    }


def with_assignments(role: Role, rows: Iterable[sa.Row[Any]]) -> dict[str, Any]:
    """``v1RoleWithAssignments``."""
    own = [row for row in rows if row.role == role.name]
    return {
        "role": role_json(role),
        "userRoleAssignments": [assignment_json(row) for row in own if row.user_id is not None],
        "groupRoleAssignments": [assignment_json(row) for row in own if row.user_id is None],
    }


def summary_json(rows: Iterable[sa.Row[Any]]) -> dict[str, Any]:
    """``roles`` and ``assignments`` (``v1RoleAssignmentSummary``), which are in the same order. Ours:
    ``workspaceNames``."""
    places: dict[str, dict[int | None, str]] = defaultdict(dict)
    for row in rows:
        places[row.role][row.workspace_id] = row.workspace
    found = [role for name, role in ROLES.items() if name in places]
    return {
        "roles": [role_json(role) for role in found],
        "assignments": [
            {
                "roleId": role.id,
                "scopeWorkspaceIds": (inside := sorted(filter(None, places[role.name]))),
                "workspaceNames": [places[role.name][one] for one in inside],
                "scopeCluster": None in places[role.name],
            }
            for role in found
        ],
    }


async def groups_json(conn: AsyncConnection, ids: Iterable[int]) -> list[dict[str, Any]]:
    """``v1GroupDetails`` of each, by name."""
    wanted = sorted(set(ids))
    rows = await conn.execute(
        sa.select(groups).where(groups.c.id.in_(wanted)).order_by(sa.func.lower(groups.c.name))
    )
    found = {row.id: {"groupId": row.id, "name": row.name, "users": []} for row in rows}
    members = (
        select_users()
        .add_columns(_m.group_id)
        .join(group_members, _m.user_id == users.c.id)
        .where(_m.group_id.in_(wanted))
        .order_by(users.c.username)
    )
    for row in await conn.execute(members):
        found[row.group_id]["users"].append(user_json(row))
    return list(found.values())
