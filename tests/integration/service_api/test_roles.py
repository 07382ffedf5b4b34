"""Roles: who has which rights, and when they are found out."""

from __future__ import annotations

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined.common.cluster_config import ClusterConfig
from determined_registry.database.tables import group_members, groups, role_assignments
from determined_service.access import authenticator
from determined_service.access.permissions import Permission, Rights
from determined_service.base import topics
from determined_service.base.hub import notify
from tests.integration.roles import give, put_mode, subject, take, user_id, workspace
from tests.integration.service_api.world import World
from tests.waiting import until_async

LAUNCH = Permission.CREATE_EXPERIMENT


async def test_rights_hold_in_a_cluster_with_roles_alone(
    service_app: FastAPI, user: httpx.AsyncClient
) -> None:
    vision = await workspace(service_app, "vision")
    await give(service_app, "determined", "Editor", vision)
    assert (await subject(service_app, user)).rights is None
    await put_mode(service_app)
    rights = (await subject(service_app, user)).rights
    assert rights is not None
    assert rights.allow(LAUNCH, vision)
    assert not rights.allow(LAUNCH, 1)
    assert not rights.allow(LAUNCH)
    await put_mode(service_app, ClusterConfig())
    assert (await subject(service_app, user)).rights is None


async def test_a_role_that_is_given_or_taken_counts_at_the_next_request(
    service_app: FastAPI, user: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The announcement is what is waited for, not the end of a token's second."""
    monkeypatch.setattr(authenticator, "REMEMBER_S", 3600.0)
    await put_mode(service_app)
    assert (await subject(service_app, user)).rights == Rights()
    for role, allowed in (("Editor", True), (None, False), ("Viewer", False), ("Editor", True)):
        if role is None:
            await take(service_app, "determined")
        else:
            await give(service_app, "determined", role)

        async def is_so(allowed: bool = allowed) -> bool:
            rights = (await subject(service_app, user)).rights
            return rights is not None and rights.allow(LAUNCH, 1) == allowed

        await until_async(f"{role} counts", is_so)


async def test_a_group_gives_its_members_its_roles(
    service_app: FastAPI, user: httpx.AsyncClient
) -> None:
    await put_mode(service_app)
    vision = await workspace(service_app, "vision")
    async with service_app.state.db.tx() as conn:
        team = await conn.scalar(sa.insert(groups).values(name="team").returning(groups.c.id))
        await conn.execute(
            sa.insert(role_assignments).values(role="Viewer", group_id=team, workspace_id=vision)
        )
        await conn.execute(
            sa.insert(group_members).values(
                group_id=team, user_id=await user_id(service_app, "determined")
            )
        )
        await notify(conn, topics.ROLES)
    rights = (await subject(service_app, user)).rights
    assert rights is not None
    assert rights.workspaces(Permission.VIEW_EXPERIMENT_METADATA) == {vision}


async def test_a_cluster_admin_is_an_administrator_and_so_is_an_admin_without_a_role(
    service_app: FastAPI, user: httpx.AsyncClient
) -> None:
    """The second is the way out when nobody has the role."""
    await put_mode(service_app)
    await give(service_app, "determined", "ClusterAdmin")
    found = await subject(service_app, user)
    assert (found.admin, found.rights) == (True, None)
    token = (
        await user.post("/api/v1/auth/login", json={"username": "admin", "password": ""})
    ).json()["token"]
    found = await service_app.state.auth.principal(token)
    assert found.admin
    assert found.rights is None


async def test_a_training_process_has_its_owners_rights(service_app: FastAPI, world: World) -> None:
    leg = await world.leg()
    await put_mode(service_app)
    await give(service_app, "determined", "Editor", 1)
    found = await subject(service_app, leg.client)
    assert not found.admin
    assert found.rights is not None
    assert found.rights.allow(LAUNCH, 1)
    await give(service_app, "determined", "ClusterAdmin")

    async def sees_everything() -> bool:
        found = await subject(service_app, leg.client)
        return found.rights is None and not found.admin

    await until_async("the process sees everything, and is no administrator", sees_everything)
