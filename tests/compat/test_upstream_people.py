"""The published `det user-group`, `det rbac` and `det user` against a service with roles."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from determined_service.app import create_app
from determined_service.base.db import Database
from determined_service.base.settings import Settings
from determined_service.lifecycle import configuration
from tests.compat.upstream_client import UpstreamClient
from tests.integration.conftest import (
    database_url,
    postgres_server,
    serve,
    settings,
    template,
)
from tests.integration.roles import RBAC

__all__ = ["database_url", "postgres_server", "settings", "template"]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def det(settings: Settings, upstream_python: Path, tmp_path: Path) -> Iterator[UpstreamClient]:
    """The published client, logged in as the administrator."""

    async def put() -> None:
        db = Database(settings.db_url)
        await configuration.put(db, RBAC, settings)
        await db.close()

    app = create_app(settings)
    with serve(app) as url:
        asyncio.run(put())
        client = UpstreamClient(upstream_python, tmp_path, url, {"determined": "", "admin": ""})
        client.login("admin", "")
        yield client


def test_groups_and_roles(det: UpstreamClient) -> None:
    for name in ("ann", "bob"):
        det.det("user", "create", name, "--password", "Secret-1-word")
    said = det.det("user-group", "create", "Vision", "--add-user", "ann").stdout
    assert "user group with name Vision" in said
    assert "ann was added to the group" in said
    det.det("user-group", "add-user", "Vision", "bob,determined")
    det.det("user-group", "remove-user", "Vision", "determined")
    assert [one["username"] for one in det.json("user-group", "describe", "Vision")["users"]] == [
        "ann",
        "bob",
    ]
    det.det("user-group", "change-name", "Vision", "Sight")
    assert "Sight" in det.det("user-group", "list").stdout
    assert "Sight" in det.det("user-group", "ls", "--groups-user-belongs-to", "bob").stdout

    assert "to group 'Sight'" in det.det("rbac", "assign-role", "Viewer", "-g", "Sight").stdout
    assert "to user 'ann'" in det.det("rbac", "assign-role", "Editor", "-u", "ann").stdout
    assert "Editor" in det.det("rbac", "list-roles").stdout
    assert "ClusterAdmin" not in det.det("rbac", "list-roles", "--exclude-global-roles").stdout
    roles = det.json("rbac", "list-users-roles", "ann")["roles"]
    assert {one["role"]["name"] for one in roles} == {"Viewer", "Editor"}
    assert "Sight" in det.det("rbac", "list-users-roles", "bob").stdout
    assert (
        "role 'Viewer' with ID 4 assigned" in det.det("rbac", "list-groups-roles", "Sight").stdout
    )
    described = det.det("rbac", "describe-role", "Editor").stdout
    assert "role 'Editor' with ID 5 with permissions" in described
    assert "role is not assigned to any group" in described
    assert "global permissions assigned" in det.det("rbac", "my-permissions").stdout
    det.det("rbac", "unassign-role", "Editor", "-u", "ann")
    assert "user group with name Sight" in det.det("user-group", "delete", "Sight", "--yes").stdout
    assert "user has no role assignments" in det.det("rbac", "list-users-roles", "ann").stdout

    det.det(
        "user", "edit", "ann", "--display-name", "Ann", "--username", "anna", "--active", "false"
    )
    det.det("user", "create", "far", "--remote")
    shown = det.det("user", "list", "--all").stdout
    assert "anna" in shown
    assert "far" in shown
