"""The published client's workspaces and projects against this service."""

from __future__ import annotations

import json

import pytest

from tests.compat.upstream_client import UpstreamClient

pytestmark = pytest.mark.timeout(900)


def test_workspaces_and_projects_by_the_published_det(upstream: UpstreamClient) -> None:
    def det(*words: str) -> str:
        return upstream.det(*words).stdout

    made = json.loads(det("workspace", "create", "published vision", "--json"))
    assert (made["name"], made["archived"]) == ("published vision", False)
    assert "published vision" in det("workspace", "list")
    described = json.loads(det("w", "describe", "published vision", "--json"))
    assert described["id"] == made["id"]
    storage = '{"type": "s3", "bucket": "ours"}'
    edited = json.loads(
        det(
            *("workspace", "edit", "published vision", "--name", "published sight", "--json"),
            *("--checkpoint-storage-config", storage),
        )
    )
    assert edited["checkpointStorageConfig"]["bucket"] == "ours"
    words = ("project", "create", "published sight", "cats", "--description", "d", "--json")
    project = json.loads(det(*words))
    assert (project["name"], project["workspaceId"]) == ("cats", made["id"])
    assert "cats" in det("project", "list", "published sight")
    assert "cats" in det("workspace", "list-projects", "published sight")
    assert "default" in det("workspace", "list-pools", "published sight")
    det("project", "edit", "published sight", "cats", "--new_name", "dogs", "--key", "DOGS")
    assert "dogs" in det("project", "describe", "published sight", "dogs")
    det("project", "archive", "published sight", "dogs")
    det("project", "unarchive", "published sight", "dogs")
    det("workspace", "archive", "published sight")
    described = json.loads(det("workspace", "describe", "published sight", "--json"))
    assert described["archived"] is True
    det("workspace", "unarchive", "published sight")
    det("project", "delete", "published sight", "dogs", "--yes")
    det("workspace", "delete", "published sight", "--yes")
    assert "published sight" not in det("workspace", "list")


def test_workspaces_by_the_published_sdk(upstream: UpstreamClient) -> None:
    script = """
one = client.create_workspace("sdk vision")
project = one.create_project("cats", "which cat")
project.add_note("plan", "all of them")
project.set_key("SDKS")
project.reload()
found = {
    "names": [each.name for each in client.list_workspaces()],
    "project": [project.name, project.key, project.description, project.archived],
    "notes": [note["name"] for note in project.notes],
    "same": client.get_workspace("sdk vision").get_project("cats").id == project.id,
    "pools": [each.name for each in one.list_pools()],
    "experiments": len(project.list_experiments()),
}
project.remove_note("plan")
project.archive()
project.unarchive()
one.delete_project("cats")
client.delete_workspace("sdk vision")
show(found)
"""
    found = upstream.sdk(script)
    assert {"Uncategorized", "sdk vision"} <= set(found["names"])
    assert found["project"] == ["cats", "SDKS", "which cat", False]
    assert (found["notes"], found["same"], found["experiments"]) == (["plan"], True, 0)
    assert "default" in found["pools"]
