"""Templates: named values that configurations take where they do not set their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined import expconf
from determined.common.wire import limits
from determined.expconf.completion import without_fields_of_tasks
from determined_registry.database.tables import templates
from determined_service.base.aside import aside
from determined_service.base.checks import check_text
from determined_service.base.db import hold_name
from determined_service.base.errors import BadRequest, Conflict, NotFound, OverQuota


@dataclass(frozen=True, slots=True)
class StoredTemplate:
    """``content``: its configuration in JSON."""

    name: str
    content: bytes

    @property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = orjson.loads(self.content)
        return config

    @property
    def of_experiments(self) -> expconf.Document:
        """The part that experiments take; its problems name the template."""
        return expconf.Document(without_fields_of_tasks(self.config), f"template {self.name}")


async def find(conn: AsyncConnection, name: str | None) -> StoredTemplate | None:
    """The template that a submission names, if any. Raises BadRequest if there is none of that name."""
    if not name:
        return None
    found = await conn.scalar(sa.select(templates.c.config).where(templates.c.name == name))
    if found is None:
        raise BadRequest(
            f"template: there is no template {name!r} (det template list shows those that exist)"
        )
    return StoredTemplate(name, orjson.dumps(found))


async def check(config: Mapping[str, Any], name: str) -> None:
    """Raises BadRequest for a configuration that no template can have."""
    # No larger than a configuration may be: that is the limit of a request's body, too.
    size = len(orjson.dumps(config))
    try:
        await aside(size, expconf.check_template, config, f"template {name}")
    except expconf.ConfigError as error:
        raise BadRequest(str(error)) from error


def check_name(given: str) -> str:
    """The name without spaces around it. Raises BadRequest."""
    name = check_text(given, "name", limits.TEMPLATE_NAME_CHARS).strip()
    if not name or not name.isprintable() or "/" in name or name in (".", ".."):
        raise BadRequest(
            f"name: {given!r} cannot be the name of a template: it stands in an address, so it needs a "
            "printable character and no '/'"
        )
    return name


async def create(
    conn: AsyncConnection,
    name: str,
    config: Mapping[str, Any],
    owner_id: int,
    submitted_by: str | None,
    workspace_id: int,
) -> None:
    """Writes a new template. Raises Conflict if the name is taken, and OverQuota."""
    await hold_name(conn, f"{owner_id}/templates")
    count = await conn.scalar(sa.select(sa.func.count()).where(templates.c.owner_id == owner_id))
    if (count or 0) >= limits.TEMPLATES:
        raise OverQuota(
            f"you have {count} templates, and a user may have {limits.TEMPLATES}: remove some "
            "(det template remove NAME)"
        )
    made = await conn.scalar(
        insert(templates)
        .values(
            name=name,
            config=config,
            owner_id=owner_id,
            submitted_by=submitted_by,
            workspace_id=workspace_id,
        )
        .on_conflict_do_nothing()
        .returning(templates.c.name)
    )
    if made is None:
        raise Conflict(
            f"template {name!r} exists already: change it (det template set-value config {name} FILE), or "
            "choose another name"
        )


async def replace_config(conn: AsyncConnection, name: str, config: Mapping[str, Any]) -> None:
    """Writes the template's configuration anew. Raises NotFound."""
    done = await conn.execute(
        sa.update(templates)
        .where(templates.c.name == name)
        .values(config=config, updated_at=sa.func.clock_timestamp())
    )
    if not done.rowcount:
        raise NotFound(f"template {name} does not exist")


async def delete(conn: AsyncConnection, name: str) -> None:
    """Removes the template; what was made with it keeps its values. Raises NotFound."""
    done = await conn.execute(sa.delete(templates).where(templates.c.name == name))
    if not done.rowcount:
        raise NotFound(f"template {name} does not exist")
