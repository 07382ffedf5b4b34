"""Roles, and who has which."""

# Parameters are named as in the API.
# ruff: noqa: N815
from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Query
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import (
    group_members,
    groups,
    role_assignments,
    users,
    workspaces,
)
from determined_service.access import assignments
from determined_service.access.assignments import Assignment, by_number, readable
from determined_service.access.dependencies import Admission, RoleReader, may_named
from determined_service.access.permissions import Permission
from determined_service.access.principal import Principal
from determined_service.access.roles import CLUSTER_ADMIN, ROLES, Role
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Id, ManyIds, Name
from determined_service.base.errors import BadRequest, NotFound
from determined_service.public.groups import one_group
from determined_service.views.paging import pagination, window
from determined_service.views.people import (
    groups_json,
    role_json,
    summary_json,
    with_assignments,
)
from determined_service.views.users import get_user, select_users, user_json
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf

router = Router("Users", "/api/v1")

MOST = 1_000
_a = role_assignments.c
_SELECT = (
    sa.select(
        role_assignments,
        users.c.username,
        groups.c.name.label("group"),
        workspaces.c.name.label("workspace"),
    )
    .outerjoin(users, users.c.id == _a.user_id)
    .outerjoin(groups, groups.c.id == _a.group_id)
    .outerjoin(workspaces, workspaces.c.id == _a.workspace_id)
    .where(_a.role.in_(list(ROLES)))
    .order_by(_a.id)
)


class OfRole(BaseModel):
    """A role, by its number or its name."""

    roleId: Id | None = None
    name: Name | None = None


class _Scope(BaseModel):
    role: OfRole
    scopeWorkspaceId: Id | None = None
    scopeCluster: bool | None = None


class _OfUser(BaseModel):
    userId: Id
    roleAssignment: _Scope


class _OfGroup(BaseModel):
    groupId: Id
    roleAssignment: _Scope


class RoleAssignments(BaseModel):
    """Assignments. One without a ``scopeWorkspaceId`` holds everywhere."""

    userRoleAssignments: Annotated[list[_OfUser], Field(max_length=MOST)] = []
    groupRoleAssignments: Annotated[list[_OfGroup], Field(max_length=MOST)] = []

    def read(self) -> list[Assignment]:
        """Raises NotFound for an unknown role, and BadRequest."""
        found = [
            Assignment(_role(one), one_of.userId, None, one.scopeWorkspaceId)
            for one_of in self.userRoleAssignments
            for one in [one_of.roleAssignment]
        ]
        found += [
            Assignment(_role(one), None, one_of.groupId, one.scopeWorkspaceId)
            for one_of in self.groupRoleAssignments
            for one in [one_of.roleAssignment]
        ]
        if not found:
            raise BadRequest(
                "there is no assignment: give userRoleAssignments or groupRoleAssignments"
            )
        return found


def _role(given: _Scope) -> str:
    if given.scopeCluster and given.scopeWorkspaceId is not None:
        raise BadRequest("scopeCluster and scopeWorkspaceId say two things: leave one out")
    if given.scopeCluster is False and given.scopeWorkspaceId is None:
        raise BadRequest("scopeCluster is false: give scopeWorkspaceId, the number of a workspace")
    return by_number(given.role.roleId, given.role.name).name


class Page(BaseModel):
    """A page of the roles. 0 for ``limit``: 100."""

    offset: Id = 0
    limit: Id = 0

    def of(self, found: list[Role]) -> dict[str, Any]:
        start, end = window(len(found), self.offset, self.limit)
        return {
            "roles": [role_json(role) for role in found[start:end]],
            "pagination": pagination(len(found), self.offset, self.limit),
        }


class Assignable(Page):
    """``workspaceId``: roles that can be assigned in one workspace; none: all."""

    workspaceId: Id | None = None


class RoleIds(BaseModel):
    """The numbers of roles."""

    roleIds: ManyIds = []


async def _select(
    conn: AsyncConnection, user: Principal, *wanted: sa.ColumnElement[bool]
) -> list[sa.Row[Any]]:
    return list(await conn.execute(_SELECT.where(readable(user), *wanted)))


def _of_user(user_id: int) -> sa.ColumnElement[bool]:
    own = sa.select(group_members.c.group_id).where(group_members.c.user_id == user_id)
    return sa.or_(_a.user_id == user_id, _a.group_id.in_(own))


@router.get("/permissions/summary")
async def my_permissions(user: RoleReader, db: Db, settings: SettingsOf) -> dict[str, Any]:
    """The sender's roles, with their permissions, and where it has them. Ours: `inForce`, whether roles hold
    in this cluster. An administrator has the role ClusterAdmin."""
    async with db.tx() as conn:
        rows = await _select(conn, user, _of_user(user.user_id))
    found = summary_json(rows)
    admin = ROLES[CLUSTER_ADMIN]
    if user.admin and all(one["roleId"] != admin.id for one in found["roles"]):
        found["roles"].append(role_json(admin))
        found["assignments"].append(
            {
                "roleId": admin.id,
                "scopeWorkspaceIds": [],
                "workspaceNames": [],
                "scopeCluster": True,
            }
        )
    return {**found, "inForce": settings.cluster.has_roles}


@router.post("/roles/search")
async def list_roles(given: Page, user: RoleReader) -> dict[str, Any]:
    """The roles, with their permissions."""
    return given.of(list(ROLES.values()))


@router.post("/roles/search/by-assignability")
async def list_assignable_roles(given: Assignable, user: RoleReader) -> dict[str, Any]:
    """The roles that can be assigned in a workspace, or everywhere."""
    in_one = bool(given.workspaceId)
    return given.of([role for role in ROLES.values() if not (in_one and role.cluster_wide)])


@router.post("/roles/search/by-ids")
async def read_roles(given: RoleIds, user: RoleReader, db: Db) -> dict[str, Any]:
    """Roles, with those assignments that the sender sees: its own, and those in workspaces that it sees."""
    found = [by_number(one, None) for one in given.roleIds]
    async with db.tx() as conn:
        rows = await _select(conn, user, _a.role.in_([role.name for role in found]))
    return {"roles": [with_assignments(role, rows) for role in found]}


@router.get("/roles/search/by-user/{user_id}")
async def roles_of_user(user_id: Id, user: RoleReader, db: Db) -> dict[str, Any]:
    """A user's roles, its own and those of its groups, as far as the sender sees them."""
    async with db.tx() as conn:
        await get_user(conn, user_id)
        rows = await _select(conn, user, _of_user(user_id))
    names = {row.role for row in rows}
    return {"roles": [with_assignments(ROLES[name], rows) for name in ROLES if name in names]}


@router.get("/roles/search/by-group/{group_id}")
async def roles_of_group(group_id: Id, user: RoleReader, db: Db) -> dict[str, Any]:
    """A group's roles, as far as the sender sees them."""
    async with db.tx() as conn:
        await one_group(conn, user, group_id)
        return summary_json(await _select(conn, user, _a.group_id == group_id))


@router.get("/roles/workspace/{workspace_id}")
async def members_of_workspace(
    workspace_id: Id,
    user: RoleReader,
    db: Db,
    name: Annotated[Name | None, Query(description="part of a name")] = None,
) -> dict[str, Any]:
    """The users and groups that have a role in the workspace itself."""
    async with db.tx() as conn:
        w = workspaces.c
        there = (await conn.execute(sa.select(w.id).where(w.id == workspace_id))).first()
        rights = user.rights
        if there is None or (
            rights is not None and not rights.allow(Permission.VIEW_WORKSPACE, workspace_id)
        ):
            raise NotFound(f"workspace {workspace_id} does not exist")
        wanted = [_a.workspace_id == workspace_id]
        if name:
            called = sa.func.coalesce(users.c.username, groups.c.name)
            wanted.append(called.icontains(name, autoescape=True))
        rows = await _select(conn, user, *wanted)
        direct = [row.user_id for row in rows if row.user_id is not None]
        people = await conn.execute(
            select_users().where(users.c.id.in_(direct)).order_by(users.c.username)
        )
        names = {row.role for row in rows}
        return {
            "usersAssignedDirectly": [user_json(row) for row in people],
            "groups": await groups_json(
                conn, [row.group_id for row in rows if row.group_id is not None]
            ),
            "assignments": [with_assignments(ROLES[one], rows) for one in ROLES if one in names],
        }


Assigner = Annotated[Admission, may_named(Action.ASSIGN, Kind.ROLE)]


@router.post("/roles/add-assignments")
async def assign_roles(given: RoleAssignments, admission: Assigner, db: Db) -> dict[str, Any]:
    """Assigns roles to users and groups: all, or none. In a workspace: administrators, and who has a role
    there that assigns roles. Everywhere: administrators. 409 when somebody has the role there already."""
    wanted = given.read()
    async with db.tx() as conn:
        await assignments.authorise_all(conn, admission.subject, wanted, "assign")
        await assignments.assign(conn, wanted)
    return {}


@router.post("/roles/remove-assignments")
async def unassign_roles(given: RoleAssignments, admission: Assigner, db: Db) -> dict[str, Any]:
    """Takes roles from users and groups: all, or none. Who may assign a role may take it, too."""
    wanted = given.read()
    async with db.tx() as conn:
        await assignments.authorise_all(conn, admission.subject, wanted, "take away")
        await assignments.unassign(conn, wanted)
    return {}
