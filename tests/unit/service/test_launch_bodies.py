"""The bodies of launches: each kind's own fields, and no other's."""

from __future__ import annotations

from fastapi.routing import APIRoute

from determined_service.public import launched


def _fields() -> dict[str, set[str]]:
    """The names of the body's fields by the address of the launch."""
    found = {}
    for route in launched.router.routes:
        assert isinstance(route, APIRoute)
        if route.openapi_extra is not None:
            content = route.openapi_extra["requestBody"]["content"]["application/json"]
            found[route.path.rpartition("/")[2]] = set(content["schema"]["properties"])
    return found


def test_a_launch_takes_the_fields_of_its_own_kind_only() -> None:
    fields = _fields()
    shared = fields["commands"]
    assert {"config", "files", "templateName", "workspaceId", "idempotencyKey"} <= shared
    assert {kind: names - shared for kind, names in fields.items()} == {
        "commands": set(),
        "notebooks": {"restoreId"},
        "shells": set(),
        "tensorboards": {"experimentIds", "trialIds"},
    }
    assert all(shared <= names for names in fields.values())
