"""Roles of a service in the test's process."""

from __future__ import annotations

import httpx
import sqlalchemy as sa
from fastapi import FastAPI

from determined.common.cluster_config import ClusterConfig
from determined_registry.database.tables import role_assignments, users, workspaces
from determined_service.access.authenticator import Authenticator
from determined_service.access.principal import Principal
from determined_service.base import topics
from determined_service.base.hub import notify
from determined_service.base.settings import Settings
from determined_service.lifecycle import configuration
from tests.waiting import until_async

RBAC = ClusterConfig.model_validate({"security": {"authz": {"type": "rbac"}}})


async def put_mode(app: FastAPI, wanted: ClusterConfig = RBAC) -> None:
    """Puts the mode into force, as another process of the service would."""
    settings: Settings = app.state.settings
    await configuration.put(app.state.db, wanted, settings)

    async def is_in_force() -> bool:
        return settings.cluster == wanted

    await until_async("the mode is in force", is_in_force)


async def user_id(app: FastAPI, username: str) -> int:
    """The id of a user, made here if need be."""
    async with app.state.db.tx() as conn:
        found = await conn.scalar(sa.select(users.c.id).where(users.c.username == username))
        if found is None:
            found = await conn.scalar(
                sa.insert(users)
                .values(username=username, password_hash="-", active=True)
                .returning(users.c.id)
            )
    return int(found or 0)


async def workspace(app: FastAPI, name: str) -> int:
    """The id of a new workspace."""
    async with app.state.db.tx() as conn:
        found = await conn.scalar(
            sa.insert(workspaces).values(name=name).returning(workspaces.c.id)
        )
    return int(found or 0)


async def give(app: FastAPI, username: str, role: str, workspace_id: int | None = None) -> None:
    """Assigns a role to a user, as the route does it; None: everywhere."""
    own = await user_id(app, username)
    async with app.state.db.tx() as conn:
        await conn.execute(
            sa.insert(role_assignments).values(role=role, user_id=own, workspace_id=workspace_id)
        )
        await notify(conn, topics.user(own))


async def take(app: FastAPI, username: str) -> None:
    """Takes all roles from a user."""
    own = await user_id(app, username)
    async with app.state.db.tx() as conn:
        await conn.execute(sa.delete(role_assignments).where(role_assignments.c.user_id == own))
        await notify(conn, topics.user(own))


async def subject(app: FastAPI, client: httpx.AsyncClient) -> Principal:
    """The subject of that client's requests."""
    auth: Authenticator = app.state.auth
    return await auth.principal(client.headers["authorization"].removeprefix("Bearer "))
