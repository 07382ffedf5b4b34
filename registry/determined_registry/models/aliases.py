"""Aliases: names such as "champion" that stand for one version of a model, and who moved them when."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from determined_registry.database.tables import (
    model_alias_history,
    model_aliases,
    model_versions,
)
from determined_registry.models import checks
from determined_registry.models.changes import ModelRef, find_to_change, touch
from determined_registry.models.errors import ModelNotFound

a = model_aliases.c


def set_alias(
    conn: sa.Connection, model: ModelRef, alias: str, version: int, user_id: int
) -> int | None:
    """The alias stands for ``version`` from now on; the version that it stood for, None: it is new.

    If it stands for that version already, nothing changes. Raises ModelNotFound, Invalid; ModelConflict when
    the model is archived.
    """
    name = checks.check_alias(alias)
    # Of two concurrent promotions the second waits, and sees the first one's result.
    row = find_to_change(conn, model)
    exists = conn.execute(
        sa.select(model_versions.c.id).where(
            model_versions.c.model_id == row.id, model_versions.c.version == version
        )
    ).first()
    if exists is None:
        raise ModelNotFound(f"model {row.name!r} has no version {version}")
    before = _stands_for(conn, row.id, name)
    if before != version:
        move(conn, row.id, name, before, version, user_id)
        touch(conn, row.id)
    return before


def delete_alias(conn: sa.Connection, model: ModelRef, alias: str, user_id: int) -> int:
    """The version that it stood for. Raises ModelNotFound; ModelConflict when the model is archived."""
    row = find_to_change(conn, model)
    before = _stands_for(conn, row.id, alias)
    if before is None:
        raise ModelNotFound(f"model {row.name!r} has no alias {alias[:300]!r}")
    move(conn, row.id, alias, before, None, user_id)
    touch(conn, row.id)
    return before


def _stands_for(conn: sa.Connection, model_id: int, alias: str) -> int | None:
    found: int | None = conn.execute(
        sa.select(a.version).where(a.model_id == model_id, a.alias == alias)
    ).scalar_one_or_none()
    return found


def move(
    conn: sa.Connection,
    model_id: int,
    alias: str,
    before: int | None,
    after: int | None,
    user_id: int,
) -> None:
    """The alias and its history, of a model that is locked. ``after`` None: the alias goes."""
    if after is None:
        conn.execute(sa.delete(model_aliases).where(a.model_id == model_id, a.alias == alias))
    else:
        moved = {"version": after, "moved_at": sa.func.now()}
        conn.execute(
            insert(model_aliases)
            .values(model_id=model_id, alias=alias, **moved)
            .on_conflict_do_update(index_elements=[a.model_id, a.alias], set_=moved)
        )
    conn.execute(
        sa.insert(model_alias_history).values(
            model_id=model_id,
            alias=alias,
            from_version=before,
            to_version=after,
            user_id=user_id,
        )
    )
