"""Config policies: docs/operate/policies.md."""

# Parameters and fields are named as in the API.
# ruff: noqa: N815
from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.responses import Response

from determined import expconf
from determined.common.wire import limits
from determined.common.wire.checks import show
from determined_service.access.dependencies import Admission, ClusterReader, WorkspaceReader, may
from determined_service.access.permissions import Permission
from determined_service.access.principal import USER, Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.aside import aside
from determined_service.base.bounds import Id, Name
from determined_service.base.errors import BadRequest, Forbidden, NotFound
from determined_service.base.json import JsonResponse
from determined_service.base.policy import EXPERIMENT, TASKS
from determined_service.lifecycle import config_policies as keeping
from determined_service.lifecycle import workspaces
from determined_service.state.change import changing, reader
from determined_service.views.workspaces import get_workspace
from determined_service.web.router import Router
from determined_service.web.state import Db, OwnersOf, SettingsOf

router = Router("Workspaces", "/api/v1/config-policies")
GLOBAL = "/global/{workload_type}"
OF_WORKSPACE = "/workspaces/{workspace_id}/{workload_type}"
VERB = "set the config policies of"

Setter = Annotated[Principal, may(Action.RESTRICT, Kind.WORKSPACE, VERB)]
GlobalSetter = Annotated[Principal, may(Action.RESTRICT, Kind.CLUSTER, VERB)]


class NewPolicy(BaseModel):
    """``v1PutWorkspaceConfigPoliciesRequest`` and its global sister. ``workloadType`` and ``workspaceId`` are
    those of the address."""

    configPolicies: str = Field(
        description="The policy as YAML or JSON text: `invariant_config` and `constraints`."
    )
    workloadType: Name = ""
    workspaceId: Id | None = None

    async def read(self, workload: str, workspace_id: int | None) -> dict[str, Any]:
        """The checked policy. Raises BadRequest with all problems."""
        if self.workloadType and _workload(self.workloadType) != workload:
            raise BadRequest(
                f"workloadType: {show(self.workloadType)} is not the {workload} of the address"
            )
        if self.workspaceId and self.workspaceId != workspace_id:
            raise BadRequest(f"workspaceId: {self.workspaceId} is not that of the address")
        size = len(self.configPolicies.encode())
        if size > limits.POLICY_BYTES:
            raise BadRequest(
                f"configPolicies: {size} bytes found, at most {limits.POLICY_BYTES} are allowed"
            )
        try:
            return await aside(size, _checked, self.configPolicies, workload == TASKS)
        except expconf.ConfigError as error:
            raise BadRequest(str(error)) from error


def _checked(text: str, of_tasks: bool) -> dict[str, Any]:
    return expconf.check_policy(expconf.load_yaml(text, "configPolicies"), of_tasks=of_tasks)


def _workload(given: str) -> str:
    """Raises BadRequest."""
    found = given.upper()
    if found not in (EXPERIMENT, TASKS):
        raise BadRequest(
            f"workloadType: {show(given)} found, allowed are {EXPERIMENT} and {TASKS} (commands, notebooks, "
            "shells, TensorBoards and generic tasks)"
        )
    return found


def _shown(policy: dict[str, Any], workload: str, *, whole: bool) -> Response:
    """``whole``: with its secrets."""
    if not whole and policy.get("invariant_config"):
        mask = expconf.masked_task_for_others if workload == TASKS else expconf.masked_for_others
        policy = {**policy, "invariant_config": mask(policy["invariant_config"])}
    return JsonResponse({"configPolicies": policy})


def _lacks(user: Principal, permission: Permission, workspace_id: int | None = None) -> bool:
    return user.rights is not None and not user.rights.allow(permission, workspace_id)


@router.get(GLOBAL)
async def read_global(workload_type: Name, user: ClusterReader, db: Db) -> Response:
    """The policy of all workspaces; empty if there is none. Secrets are masked, unless an administrator
    asks."""
    workload = _workload(workload_type)
    if _lacks(user, Permission.VIEW_GLOBAL_CONFIG_POLICIES):
        raise Forbidden(
            f"user {user.username} may not read the global config policies: that needs the role "
            "ClusterAdmin; those of a workspace are shown to who sees it (-w WORKSPACE)"
        )
    async with reader(db).connect() as conn:
        found = await keeping.find(conn, workload, None)
    return _shown(found, workload, whole=user.admin and user.kind == USER)


@router.put(GLOBAL)
async def put_global(
    workload_type: Name, given: NewPolicy, user: GlobalSetter, db: Db, settings: SettingsOf
) -> Response:
    """Sets the policy of all workspaces, in place of the one before. It holds from now on; what has begun
    stays as it is."""
    workload = _workload(workload_type)
    policy = await given.read(workload, None)
    async with changing(db) as change:
        await keeping.put(change, workload, None, policy, user.user_id)
    await keeping.load(db, settings)
    return _shown(policy, workload, whole=True)


@router.delete(GLOBAL)
async def delete_global(
    workload_type: Name, user: GlobalSetter, db: Db, settings: SettingsOf
) -> Response:
    """Takes the policy of all workspaces away; may be repeated."""
    workload = _workload(workload_type)
    async with changing(db) as change:
        await keeping.delete(change, workload, None)
    await keeping.load(db, settings)
    return JsonResponse({})


@router.get(OF_WORKSPACE)
async def read_of_workspace(
    workspace_id: Id, workload_type: Name, user: WorkspaceReader, db: Db, owners: OwnersOf
) -> Response:
    """The policy of a workspace; empty if there is none. Secrets are masked, unless its owner or an
    administrator asks."""
    workload = _workload(workload_type)
    async with reader(db).connect() as conn:
        await get_workspace(conn, workspace_id, user)
        if _lacks(user, Permission.VIEW_WORKSPACE_CONFIG_POLICIES, workspace_id):
            raise NotFound(f"workspace {workspace_id} does not exist")
        found = await keeping.find(conn, workload, workspace_id)
    admission = Admission(user, Action.RESTRICT, Kind.WORKSPACE, VERB, owners)
    _, refused = await admission.refusals([workspace_id])
    return _shown(found, workload, whole=not refused and user.kind == USER)


@router.put(OF_WORKSPACE)
async def put_of_workspace(
    workspace_id: Id,
    workload_type: Name,
    given: NewPolicy,
    user: Setter,
    db: Db,
    settings: SettingsOf,
) -> Response:
    """Sets the policy of a workspace, in place of the one before. It holds from now on, beneath the global
    one; what has begun stays as it is."""
    workload = _workload(workload_type)
    policy = await given.read(workload, workspace_id)
    async with changing(db) as change:
        await workspaces.hold_workspace(change.conn, workspace_id, "get config policies")
        await keeping.put(change, workload, workspace_id, policy, user.user_id)
    await keeping.load(db, settings)
    return _shown(policy, workload, whole=True)


@router.delete(OF_WORKSPACE)
async def delete_of_workspace(
    workspace_id: Id, workload_type: Name, user: Setter, db: Db, settings: SettingsOf
) -> Response:
    """Takes the policy of a workspace away; may be repeated."""
    workload = _workload(workload_type)
    async with changing(db) as change:
        await workspaces.hold_workspace(change.conn, workspace_id, "lose config policies")
        await keeping.delete(change, workload, workspace_id)
    await keeping.load(db, settings)
    return JsonResponse({})
