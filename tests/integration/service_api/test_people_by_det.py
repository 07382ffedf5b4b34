"""`det user-group` and `det rbac`."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from determined.cli.root import app
from determined.experimental import Determined


@pytest.fixture
def admin(own: Determined, service_url: str) -> Determined:
    """The SDK of the administrator; `det` in this process logs in as `determined`."""
    found = Determined(service_url, "admin", "")
    found.create_user("ann", admin=False, password="first")
    found.create_user("bob", admin=False, password="first")
    return found


def det(*words: str) -> Result:
    return CliRunner().invoke(app, [*words])


def ok(*words: str) -> str:
    done = det("-u", "admin", *words)
    assert done.exit_code == 0, done.output
    return done.stdout + done.stderr


def rows(*words: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(det("-u", "admin", *words, "--csv").stdout)))


def document(*words: str) -> Any:
    return json.loads(det("-u", "admin", *words, "--json").stdout)


def test_groups(admin: Determined) -> None:
    assert "created group Vision with ann" in ok(
        "user-group", "create", "Vision", "--add-user", "ann"
    )
    assert "group Vision has bob, determined" in ok(
        "user-group", "add-user", "vision", "bob,determined"
    )
    assert "no longer has ann" in ok("user-group", "remove-user", "Vision", "ann")
    assert [one["Username"] for one in rows("user-group", "describe", "Vision")] == [
        "bob",
        "determined",
    ]
    assert "is now Sight" in ok("user-group", "change-name", "Vision", "Sight")
    ok("user-group", "create", "Empty")
    assert [(one["Name"], one["Members"]) for one in rows("user-group", "list")] == [
        ("Empty", "0"),
        ("Sight", "2"),
    ]
    assert [
        one["name"] for one in document("user-group", "ls", "--limit", "1", "--pages", "1")
    ] == ["Empty"]
    mine = rows("user-group", "list", "--groups-user-belongs-to", "bob")
    assert [one["Name"] for one in mine] == ["Sight"]
    asked = det("-u", "admin", "user-group", "delete", "Sight")
    assert (asked.exit_code, "Its members (2) lose" in asked.stderr) == (1, True)
    assert "deleted group Sight" in ok("user-group", "delete", "Sight", "--yes")
    gone = det("-u", "admin", "user-group", "describe", "Sight")
    assert (gone.exit_code, "there is no group 'Sight'" in gone.stderr) == (1, True)
    refused = det("user-group", "create", "Mine")
    assert (refused.exit_code, "only an administrator may create groups" in refused.stderr) == (
        1,
        True,
    )


def test_roles(admin: Determined) -> None:
    names = [one["Role"] for one in rows("rbac", "list-roles")]
    assert {"Viewer", "Editor", "WorkspaceAdmin", "ClusterAdmin"} < set(names)
    assert "ClusterAdmin" not in [
        one["Role"] for one in rows("rbac", "list-roles", "--exclude-global-roles")
    ]
    ok("user-group", "create", "Vision", "--add-user", "bob")
    said = ok("rbac", "assign-role", "editor", "-u", "ann", "-w", "uncategorized")
    assert "assigned editor in workspace uncategorized to user ann" in said
    assert "everywhere to group Vision" in ok("rbac", "assign-role", "Viewer", "-g", "Vision")
    again = det("-u", "admin", "rbac", "assign-role", "Viewer", "-g", "Vision")
    assert (again.exit_code, "has the role Viewer everywhere already" in again.stderr) == (1, True)
    assert rows("rbac", "list-users-roles", "ann") == [
        {"Role": "Editor", "User": "ann", "Group": "", "Where": "Uncategorized"}
    ]
    assert rows("rbac", "list-users-roles", "bob") == [
        {"Role": "Viewer", "User": "", "Group": "Vision", "Where": "everywhere"}
    ]
    assert rows("rbac", "list-groups-roles", "Vision") == [
        {"Role": "Viewer", "Where": "everywhere"}
    ]
    assert document("rbac", "describe-role", "Viewer")["role"]["roleId"] == 4
    described = ok("rbac", "describe-role", "Viewer")
    assert "VIEW_EXPERIMENT_METADATA" in described
    assert "Vision" in described
    mine = ok("rbac", "my-permissions")
    assert "roles do not hold in this cluster" in mine
    assert "ClusterAdmin: everywhere" in mine
    assert "took Viewer everywhere from group Vision" in ok(
        "rbac", "unassign-role", "Viewer", "-g", "Vision"
    )
    assert "you have no roles" in det("rbac", "my-permissions").stderr
    for words, expected in (
        (("assign-role", "Viewer"), "give either -u"),
        (("assign-role", "Viewr", "-u", "ann"), "there is no role 'Viewr'; there are Viewer"),
        (("assign-role", "Viewer", "-u", "ann", "-w", "no"), "there is no workspace 'no'"),
        (("assign-role", "Viewer", "-u", "nobody"), "nobody"),
    ):
        refused = det("-u", "admin", "rbac", *words)
        assert refused.exit_code != 0
        assert expected in refused.stderr, refused.stderr
