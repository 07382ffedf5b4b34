"""The place that a configuration names, before it is completed: :func:`names_in`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from determined import expconf
from determined_service.access.principal import Principal
from determined_service.access.targets import Kind
from determined_service.base.aside import aside
from determined_service.base.db import Database
from determined_service.base.errors import BadRequest
from determined_service.lifecycle import places
from determined_service.lifecycle.places import Named, Place
from determined_service.state.change import reader
from determined_service.submission.templates import StoredTemplate

_NOTHING = Named()
_FIELDS = ("workspace", "project")


async def names_in(
    config: Mapping[str, Any] | str, template: StoredTemplate | None = None
) -> tuple[str, str]:
    """``workspace`` and ``project`` of a configuration, which may be wrong, over a template; blank: not
    given.

    Raises BadRequest for YAML that cannot be read.
    """
    layers: list[Mapping[str, Any]] = []
    if not isinstance(config, str):
        layers.append(config)
    # Most name neither, and YAML takes long to read.
    elif any(field in config for field in _FIELDS):
        try:
            data = (await aside(len(config), expconf.load_yaml, config)).data
        except expconf.ConfigError as error:
            raise BadRequest(str(error)) from error
        layers.append(data if isinstance(data, dict) else {})
    if template is not None and any(field.encode() in template.content for field in _FIELDS):
        layers.append(template.config)
    found = [
        next((layer[field] for layer in layers if layer.get(field) is not None), "")
        for field in _FIELDS
    ]
    if not all(isinstance(name, str) for name in found):
        # It is refused with its line when the configuration is checked.
        return "", ""
    return found[0], found[1]


async def find(
    db: Database,
    subject: Principal | None,
    named: Named,
    made: Kind,
    *,
    whole: bool = False,
) -> Place:
    """As :func:`.places.find`, without a transaction; if nothing is named, the database is not asked."""
    if named == _NOTHING:
        place = places.FIRST_WORKSPACE if whole else places.FIRST_PLACE
        places.require_allowed(subject, made, place.workspace_id, place.workspace)
        return place
    async with reader(db).connect() as conn:
        return await places.find(conn, subject, named, made, whole=whole)


async def of_task(
    db: Database,
    subject: Principal | None,
    config: Mapping[str, Any] | str,
    template: StoredTemplate | None,
    named: Named,
) -> Place:
    """The place of a launched task: what the request names, else the configuration.

    Raises as :func:`find`.
    """
    if named == _NOTHING:
        workspace, project = await names_in(config, template)
        named = Named(workspace, project)
    return await find(db, subject, named, Kind.TASK, whole=True)


async def of_experiment(
    db: Database,
    subject: Principal | None,
    config: str,
    template: StoredTemplate | None,
    project_id: int | None,
    *,
    otherwise: Named = _NOTHING,
) -> Place:
    """The place of an experiment: the project that the request names, else the configuration, else
    ``otherwise``. Raises as :func:`find`."""
    named = Named(project_id=project_id or None)
    if named == _NOTHING:
        workspace, project = await names_in(config, template)
        named = Named(workspace, project) if workspace or project else otherwise
    return await find(db, subject, named, Kind.EXPERIMENT)
