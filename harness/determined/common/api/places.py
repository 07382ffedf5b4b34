"""Workspaces and projects by their names, as the service's JSON."""

from __future__ import annotations

from typing import Any

from determined.common.api import errors, pages
from determined.common.api.session import Session

WORKSPACES = "/api/v1/workspaces"
PROJECTS = "/api/v1/projects"
_NAMED = 20


def find_workspace(session: Session, name: str) -> dict[str, Any]:
    """The workspace of that name, in any case of letters. Raises NotFoundException with the nearest name."""
    for one in pages.read(session, WORKSPACES, "workspaces", {"name": name}):
        if one["name"].lower() == name.lower():
            return one
    names = [one["name"] for one in pages.read(session, WORKSPACES, "workspaces")]
    raise _missing("workspace", name, names)


def find_project(session: Session, workspace: dict[str, Any], name: str) -> dict[str, Any]:
    """The workspace's project of that name, in any case of letters. Raises NotFoundException with the nearest
    name."""
    path = f"{WORKSPACES}/{workspace['id']}/projects"
    for one in pages.read(session, path, "projects", {"name": name}):
        if one["name"].lower() == name.lower():
            return one
    names = [one["name"] for one in pages.read(session, path, "projects")]
    raise _missing("project", name, names, f" in workspace {workspace['name']!r}")


def _missing(noun: str, name: str, names: list[str], where: str = "") -> errors.NotFoundException:
    from determined.expconf.problems import nearest

    meant = nearest(name, names)
    hint = f"; did you mean {meant!r}?" if meant else ""
    listed = ", ".join(names[:_NAMED]) or "none"
    return errors.NotFoundException(
        f"not found: there is no {noun} {name!r}{where}{hint} (there are {listed})"
    )
