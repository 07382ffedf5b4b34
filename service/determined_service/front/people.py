"""Users, groups, roles, access tokens, templates and configuration policies."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Request
from starlette.responses import Response

from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.errors import ApiError, BadRequest
from determined_service.base.json import dumps
from determined_service.front.actions import FormAction, offer
from determined_service.front.forms import Form, read_form
from determined_service.front.rendering import PageRouter, page
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

SHOWN = 200
WORKLOADS = ("EXPERIMENT", "TASKS")


def _user(form: Form) -> dict[str, Any]:
    user = {
        "username": form.text("username").strip(),
        "displayName": form.text("display_name", ""),
        "admin": form.text("admin", "") == "yes",
        "active": True,
    }
    return {"user": user, "password": form.text("password")}


def _assignment(form: Form) -> dict[str, Any]:
    """The body that gives or takes a role: of a user or a group, in a workspace or everywhere."""
    whose, _, number = form.text("who").partition(":")
    if whose not in ("user", "group") or not number.isdigit():
        raise BadRequest("who: choose a user or a group")
    scope = form.text("workspace", "")
    given: dict[str, Any] = {"role": {"roleId": form.numbers("role")[0]}}
    given |= {"scopeWorkspaceId": int(scope)} if scope.isdigit() else {"scopeCluster": True}
    one = {f"{whose}Id": int(number), "roleAssignment": given}
    return {f"{whose}RoleAssignments": [one]}


offer(
    router,
    {
        "user.create": FormAction("POST", "/users", "There is a user {username} now.", _user),
        "user.activate": FormAction(
            "PATCH",
            "/users/{id}",
            "User {username} may log in.",
            lambda form: {"active": True},
        ),
        "user.deactivate": FormAction(
            "PATCH",
            "/users/{id}",
            "User {username} is deactivated; shells and notebooks of that user end.",
            lambda form: {"active": False},
        ),
        "group.create": FormAction(
            "POST",
            "/groups",
            "There is a group {name} now.",
            lambda form: {"name": form.text("name"), "addUsers": form.numbers("user")},
        ),
        "group.delete": FormAction("DELETE", "/groups/{id}", "The group is deleted."),
        "group.add": FormAction(
            "PUT",
            "/groups/{id}",
            "The group has its new members.",
            lambda form: {"addUsers": form.numbers("user")},
        ),
        "role.assign": FormAction(
            "POST", "/roles/add-assignments", "The role is assigned.", _assignment
        ),
        "role.take": FormAction(
            "POST", "/roles/remove-assignments", "The role is taken.", _assignment
        ),
        "token.revoke": FormAction(
            "PATCH", "/tokens/{id}", "The token is revoked.", lambda form: {"setRevoked": True}
        ),
        "template.delete": FormAction("DELETE", "/templates/{name}", "Template {name} is deleted."),
        "policy.set": FormAction(
            "PUT",
            "/config-policies/global/{workload}",
            "The policy is set.",
            lambda form: {"configPolicies": form.text("policy")},
        ),
        "policy.delete": FormAction(
            "DELETE", "/config-policies/global/{workload}", "The policy is taken away."
        ),
    },
)

TABS = [
    ("", "Users"),
    ("groups", "Groups"),
    ("roles", "Roles"),
    ("tokens", "Access tokens"),
    ("templates", "Templates"),
    ("policies", "Policies"),
]


@router.get("/admin", include_in_schema=False)
async def users(request: Request, visit: Visitor, q: str = "") -> Response:
    """The users, by part of their names."""
    found = await visit.get(
        "/users", {"limit": SHOWN, **({"name": q.strip()} if q.strip() else {})}
    )
    return page(
        "people_users",
        request,
        visit,
        tab="",
        tabs_shown=TABS,
        command="det user list",
        users=found["users"],
        total=found.get("pagination", {}).get("total", len(found["users"])),
        may_administer=visit.may(Action.CREATE, Kind.USER),
        q=q,
    )


@router.get("/admin/groups", include_in_schema=False)
async def groups(request: Request, visit: Visitor) -> Response:
    """The groups that the visitor sees, with their members."""
    found = await visit.send("POST", "/groups/search", {"limit": 50})
    listed = [one["group"] for one in found["groups"]]
    whole = await asyncio.gather(
        *(visit.maybe(f"/groups/{one.get('groupId', one.get('id'))}") for one in listed)
    )
    everybody = (await visit.get("/users", {"limit": SHOWN}))["users"]
    return page(
        "people_groups",
        request,
        visit,
        tab="groups",
        tabs_shown=TABS,
        command="det user-group list",
        groups=[one["group"] for one in whole if one],
        users=everybody,
        may_administer=visit.may(Action.CREATE, Kind.GROUP),
    )


@router.get("/admin/roles", include_in_schema=False)
async def roles(request: Request, visit: Visitor) -> Response:
    """The roles, what they allow, and who has them as far as the visitor sees it."""
    found = await visit.send("POST", "/roles/search", {"limit": 50})
    ids = [one["roleId"] for one in found["roles"]]
    assigned, people, own, workspaces, groups_found = await asyncio.gather(
        visit.send("POST", "/roles/search/by-ids", {"roleIds": ids}),
        visit.get("/users", {"limit": SHOWN}),
        visit.get("/permissions/summary"),
        visit.get("/workspaces", {"limit": SHOWN}),
        visit.send("POST", "/groups/search", {"limit": SHOWN}),
    )
    return page(
        "people_roles",
        request,
        visit,
        tab="roles",
        tabs_shown=TABS,
        command="det rbac list-roles",
        roles=assigned["roles"],
        own=own,
        users=people["users"],
        groups=[one["group"] for one in groups_found["groups"]],
        workspaces=workspaces["workspaces"],
        has_roles=request.app.state.auth.has_roles,
    )


@router.get("/admin/tokens", include_in_schema=False)
async def tokens(request: Request, visit: Visitor) -> Response:
    """The visitor's access tokens; an administrator's page shows everybody's."""
    return await _tokens(request, visit, "", "")


@router.post("/admin/tokens", include_in_schema=False)
async def make_token(request: Request, visit: Visitor) -> Response:
    """Makes an access token, which the answer shows this once: it is in no address and in no cookie."""
    form = await read_form(visit)
    given: dict[str, Any] = {
        "userId": visit.subject.user_id,
        "description": form.text("description", ""),
        "readOnly": form.text("read_only", "") == "yes",
    }
    if form.text("days", "").strip():
        given["lifespan"] = f"{form.numbers('days')[0] * 24}h"
    try:
        made = await visit.send("POST", "/tokens", given)
    except ApiError as refusal:
        return await _tokens(request, visit, "", refusal.message)
    return await _tokens(request, visit, made["token"], "")


async def _tokens(request: Request, visit: Visit, made: str, problem: str) -> Response:
    found = await visit.get("/tokens", {"limit": SHOWN})
    return page(
        "people_tokens",
        request,
        visit,
        tab="tokens",
        tabs_shown=TABS,
        command="det token list",
        tokens=found["tokenInfo"],
        made=made,
        problem=problem,
    )


@router.get("/admin/templates", include_in_schema=False)
async def templates(request: Request, visit: Visitor) -> Response:
    """The templates of configurations."""
    found = await visit.get("/templates", {"limit": SHOWN})
    names = [one["name"] for one in found["templates"]]
    may = await visit.permitted(Action.CHANGE, Kind.TEMPLATE, names)
    return page(
        "people_templates",
        request,
        visit,
        tab="templates",
        tabs_shown=TABS,
        command="det template list",
        templates=found["templates"],
        may_change=may,
    )


@router.get("/admin/policies", include_in_schema=False)
async def policies(request: Request, visit: Visitor) -> Response:
    """The configuration policies of the cluster, as far as the visitor sees them."""
    found = await asyncio.gather(
        *(visit.maybe(f"/config-policies/global/{one}") for one in WORKLOADS)
    )
    return page(
        "people_policies",
        request,
        visit,
        tab="policies",
        tabs_shown=TABS,
        command="det config-policies describe experiment",
        policies={
            name: None if one is None else _text(one["configPolicies"])
            for name, one in zip(WORKLOADS, found, strict=True)
        },
        may_set=visit.may(Action.RESTRICT, Kind.CLUSTER),
    )


def _text(policy: dict[str, Any]) -> str:
    return dumps(policy).decode() if policy else ""
