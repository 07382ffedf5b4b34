"""Groups of users, and the assignment of roles."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import group_members, role_assignments
from determined_service.access import authenticator
from determined_service.access.permissions import Permission
from tests.integration.roles import give, put_mode, subject, user_id, workspace
from tests.waiting import until_async

GROUPS = "/api/v1/groups"


async def make(client: httpx.AsyncClient, name: str, *members: int) -> int:
    answer = await client.post(GROUPS, json={"name": name, "addUsers": list(members)})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["group"]["groupId"])


def said(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["message"])


def of(role: str, workspace_id: int | None = None, **whose: int) -> dict[str, Any]:
    scope: dict[str, Any] = {"role": {"name": role}}
    if workspace_id is not None:
        scope["scopeWorkspaceId"] = workspace_id
    kind = "userRoleAssignments" if "userId" in whose else "groupRoleAssignments"
    return {kind: [{**whose, "roleAssignment": scope}]}


async def test_a_group_and_its_members(service_app: FastAPI, agent: httpx.AsyncClient) -> None:
    ann, bob = [await user_id(service_app, name) for name in ("ann", "bob")]
    group = await make(agent, "Vision", ann)
    changed = await agent.put(
        f"{GROUPS}/{group}", json={"name": "Team", "addUsers": [bob, bob], "removeUsers": [ann]}
    )
    shown = changed.json()["group"]
    assert (shown["name"], [one["username"] for one in shown["users"]]) == ("Team", ["bob"])
    assert (await agent.get(f"{GROUPS}/{group}")).json()["group"] == shown
    for body, names in (
        ({}, ["Other", "Team"]),
        ({"name": "tEAM"}, ["Team"]),
        ({"userId": bob}, ["Team"]),
        ({"userId": ann}, []),
        ({"limit": 1, "offset": 1}, ["Team"]),
    ):
        if not body:
            await make(agent, "Other")
        answer = (await agent.post(f"{GROUPS}/search", json=body)).json()
        assert [one["group"]["name"] for one in answer["groups"]] == names, body
    assert answer["pagination"]["total"] == 2
    assert answer["groups"][0]["numMembers"] == 1
    assert (await agent.delete(f"{GROUPS}/{group}")).status_code == 200
    assert (
        said(await agent.get(f"{GROUPS}/{group}"), 404)
        == f"not found: group {group} does not exist"
    )


@pytest.mark.parametrize("name", ["", "  ", " a", "a\n", "x" * 251, "a\0"])
async def test_names_that_are_refused(agent: httpx.AsyncClient, name: str) -> None:
    assert (await agent.post(GROUPS, json={"name": name})).status_code == 400


async def test_names_are_unique_in_any_case(agent: httpx.AsyncClient) -> None:
    one, other = await make(agent, "Vision"), await make(agent, "Sound")
    assert "'Vision' already" in said(await agent.post(GROUPS, json={"name": "vISION"}), 409)
    assert "'Vision' already" in said(
        await agent.put(f"{GROUPS}/{other}", json={"name": "VISION"}), 409
    )
    assert (await agent.put(f"{GROUPS}/{one}", json={"name": "VISION"})).status_code == 200
    answers = await asyncio.gather(
        *(agent.post(GROUPS, json={"name": "race" if n % 2 else "RACE"}) for n in range(8))
    )
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 7


async def test_a_change_is_whole_or_nothing(service_app: FastAPI, agent: httpx.AsyncClient) -> None:
    ann = await user_id(service_app, "ann")
    group = await make(agent, "Vision")
    for body, status in (
        ({"name": "New", "addUsers": [ann, 999_999]}, 404),
        ({"name": "New", "addUsers": [ann], "removeUsers": [ann]}, 400),
    ):
        said(await agent.put(f"{GROUPS}/{group}", json=body), status)
        shown = (await agent.get(f"{GROUPS}/{group}")).json()["group"]
        assert (shown["name"], shown["users"]) == ("Vision", [])


async def test_sixteen_writers_lose_nothing(service_app: FastAPI, agent: httpx.AsyncClient) -> None:
    people = [await user_id(service_app, f"writer{n}") for n in range(16)]
    leaving = [await user_id(service_app, f"leaving{n}") for n in range(16)]
    group = await make(agent, "Vision", *leaving)
    answers = await asyncio.gather(
        *(
            agent.put(f"{GROUPS}/{group}", json={"addUsers": [new], "removeUsers": [old]})
            for new, old in zip(people, leaving, strict=True)
        )
    )
    assert {answer.status_code for answer in answers} == {200}
    async with service_app.state.db.tx() as conn:
        found = await conn.execute(
            sa.select(group_members.c.user_id).where(group_members.c.group_id == group)
        )
    assert sorted(found.scalars()) == sorted(people)


async def test_sixteen_assignments_at_once_are_one(
    service_app: FastAPI, agent: httpx.AsyncClient
) -> None:
    ann, bob = [await user_id(service_app, name) for name in ("ann", "bob")]
    both = [*of("Viewer", 1, userId=ann)["userRoleAssignments"]]
    both += of("Viewer", 1, userId=bob)["userRoleAssignments"]
    bodies = [{"userRoleAssignments": both[:: 1 if n % 2 else -1]} for n in range(16)]
    answers = await asyncio.gather(
        *(agent.post("/api/v1/roles/add-assignments", json=body) for body in bodies)
    )
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 15
    async with service_app.state.db.tx() as conn:
        assert len(list(await conn.execute(sa.select(role_assignments)))) == 2


async def test_a_group_that_is_deleted_takes_its_roles_along(
    service_app: FastAPI,
    user: httpx.AsyncClient,
    agent: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authenticator, "REMEMBER_S", 3600.0)
    await put_mode(service_app)
    own = await user_id(service_app, "determined")
    group = await make(agent, "Vision", own)
    assigned = await agent.post(
        "/api/v1/roles/add-assignments", json=of("Editor", 1, groupId=group)
    )
    assert assigned.status_code == 200, assigned.text

    async def allowed() -> bool:
        rights = (await subject(service_app, user)).rights
        return rights is not None and rights.allow(Permission.CREATE_EXPERIMENT, 1)

    async def refused() -> bool:
        return not await allowed()

    await until_async("the member has the group's role", allowed)
    for method, body in (("PUT", {"removeUsers": [own]}), ("PUT", {"addUsers": [own]})):
        await agent.request(method, f"{GROUPS}/{group}", json=body)
        await until_async(
            "the role follows the membership", allowed if "addUsers" in body else refused
        )
    await agent.delete(f"{GROUPS}/{group}")
    await until_async("the role is gone", refused)


async def test_who_may_assign(
    service_app: FastAPI, user: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    await put_mode(service_app)
    vision = await workspace(service_app, "vision")
    hidden = await workspace(service_app, "hidden")
    ann = await user_id(service_app, "ann")
    await give(service_app, "determined", "Editor", vision)

    async def ask(body: Any, verb: str = "add") -> httpx.Response:
        return await user.post(f"/api/v1/roles/{verb}-assignments", json=body)

    assert said(await ask(of("Viewer", vision, userId=ann)), 403).endswith(
        "user determined may not assign role Viewer: that needs the role WorkspaceAdmin in workspace "
        "'vision'; who may assign it runs `det rbac assign-role WorkspaceAdmin -u determined -w vision`"
    )
    assert said(await ask(of("Viewer", hidden, userId=ann)), 404) == (
        f"not found: workspace {hidden} does not exist"
    )
    await give(service_app, "determined", "WorkspaceAdmin", vision)

    async def passes() -> bool:
        return (await ask(of("Viewer", vision, userId=ann))).status_code in (200, 409)

    await until_async("a WorkspaceAdmin assigns roles there", passes)
    assert said(await ask(of("Viewer", vision, userId=ann)), 409).endswith(
        f"user {ann} has the role Viewer in workspace {vision} already"
    )
    # Not one that holds everywhere, and none that makes an administrator.
    for role in ("Viewer", "ClusterAdmin"):
        assert "only an administrator may assign role" in said(await ask(of(role, userId=ann)), 403)
    assert "assign it without a workspace" in said(
        await ask(of("ClusterAdmin", vision, userId=ann)), 400
    )
    assert (await ask(of("Viewer", vision, userId=ann), "remove")).status_code == 200
    assert said(await ask(of("Viewer", vision, userId=ann), "remove"), 404).endswith(
        f"user {ann} does not have the role Viewer in workspace {vision}"
    )
    assert said(await ask(of("Viewr", vision, userId=ann)), 404).startswith(
        "not found: there is no role 'Viewr'; there are Viewer (4), Editor (5)"
    )
    assert (await ask({})).status_code == 400
    everywhere = await agent.post(
        "/api/v1/roles/add-assignments", json=of("ClusterAdmin", userId=ann)
    )
    assert everywhere.status_code == 200


async def test_a_workspace_admin_of_all_workspaces_makes_no_administrator(
    service_app: FastAPI, user: httpx.AsyncClient
) -> None:
    await put_mode(service_app)
    await give(service_app, "determined", "WorkspaceAdmin")
    own = await user_id(service_app, "determined")
    for role in ("ClusterAdmin", "Editor"):
        answer = await user.post("/api/v1/roles/add-assignments", json=of(role, userId=own))
        assert "only an administrator" in said(answer, 403)


async def test_what_one_sees_of_others_roles(
    service_app: FastAPI, user: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    vision = await workspace(service_app, "vision")
    hidden = await workspace(service_app, "hidden")
    ann, own = [await user_id(service_app, name) for name in ("ann", "determined")]
    secret = await make(agent, "Secret", ann)
    team = await make(agent, "Team", own, ann)
    for body in (
        of("Editor", vision, userId=ann),
        of("Editor", hidden, userId=ann),
        of("Viewer", hidden, groupId=secret),
        of("Viewer", vision, groupId=team),
        of("WorkspaceCreator", userId=ann),
    ):
        assert (await agent.post("/api/v1/roles/add-assignments", json=body)).status_code == 200
    await put_mode(service_app)

    async def places(client: httpx.AsyncClient) -> set[tuple[str, int | None]]:
        answer = await client.get(f"/api/v1/roles/search/by-user/{ann}")
        return {
            (one["role"]["name"], each["roleAssignment"]["scopeWorkspaceId"])
            for one in answer.json()["roles"]
            for each in one["userRoleAssignments"] + one["groupRoleAssignments"]
        }

    assert await places(user) == {("Editor", vision), ("Viewer", vision)}
    assert await places(agent) == {
        ("Editor", vision),
        ("Editor", hidden),
        ("Viewer", hidden),
        ("Viewer", vision),
        ("WorkspaceCreator", None),
    }
    assert (await user.get(f"{GROUPS}/{secret}")).status_code == 404
    assert (await user.get(f"/api/v1/roles/search/by-group/{secret}")).status_code == 404
    assert (await user.get(f"/api/v1/roles/workspace/{hidden}")).status_code == 404
    answer = await user.post(f"{GROUPS}/search", json={})
    assert answer.status_code == 200, answer.text
    groups = answer.json()["groups"]
    assert [one["group"]["name"] for one in groups] == ["Team"]
    members = (await user.get(f"/api/v1/roles/workspace/{vision}")).json()
    assert [one["username"] for one in members["usersAssignedDirectly"]] == ["ann"]
    assert [one["name"] for one in members["groups"]] == ["Team"]
    mine = (await user.get("/api/v1/permissions/summary")).json()
    assert mine["inForce"] is True
    assert [one["name"] for one in mine["roles"]] == ["Viewer"]
    assert mine["assignments"] == [
        {
            "roleId": 4,
            "scopeWorkspaceIds": [vision],
            "workspaceNames": ["vision"],
            "scopeCluster": False,
        }
    ]
