"""Models: found, made, changed, archived and deleted.

A model is named by its name, in any case of letters, or by its id as a number (also as text: no name is a
number).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from determined.common.wire import limits
from determined_registry.database.tables import models
from determined_registry.database.tables.people import FIRST
from determined_registry.models import checks
from determined_registry.models.errors import ModelConflict, ModelNotFound

ModelRef = int | str
_ID = 2**31 - 1


def named(model: ModelRef) -> sa.ColumnElement[bool]:
    """The rows (none or one) that ``model`` names."""
    text = str(model)
    # A longer number than any id names nothing, and no name is a number.
    if text.isascii() and text.isdecimal():
        return models.c.id == int(text) if len(text) < 11 and int(text) <= _ID else sa.false()
    return sa.func.lower(models.c.name) == sa.func.lower(text)


def find_model(conn: sa.Connection, model: ModelRef, *, lock: bool = False) -> sa.Row[Any]:
    """The model's row; ``lock``: as whoever changes it or what belongs to it. Raises ModelNotFound."""
    statement = sa.select(models).where(named(model))
    if lock:
        statement = statement.with_for_update(key_share=True)
    row = conn.execute(statement).first()
    if row is None:
        raise ModelNotFound(f"model {str(model)[:300]!r} does not exist")
    return row


def find_to_change(conn: sa.Connection, model: ModelRef) -> sa.Row[Any]:
    """The row, locked. Raises ModelNotFound; ModelConflict when the model is archived."""
    row = find_model(conn, model, lock=True)
    if row.archived:
        raise ModelConflict(
            f"model {row.name!r} is archived: unarchive it first (Model.unarchive() of the SDK)"
        )
    return row


def create_model(
    conn: sa.Connection,
    name: str,
    owner_id: int,
    *,
    description: str = "",
    notes: str = "",
    metadata: Mapping[str, Any] | None = None,
    labels: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    submitted_by: str | None = None,
    request_id: UUID | None = None,
    workspace_id: int = FIRST,
) -> int:
    """The new model's id. Raises Invalid; ModelConflict when the name is taken.

    ``submitted_by``: the task whose process makes it. ``request_id``: of a request that may come twice; the
    second time it is answered with the id that the first one made.
    """
    values = _checked(
        name=name,
        description=description,
        notes=notes,
        metadata=metadata or {},
        labels=labels,
    )
    given = {
        key: value for key, value in checks.check_tags(tags or {}).items() if value is not None
    }
    checks.check_size(given, "tags")
    values[models.c.tags] = given
    values[models.c.owner_id] = owner_id
    values[models.c.submitted_by] = submitted_by
    values[models.c.request_id] = request_id
    values[models.c.workspace_id] = workspace_id
    made = conn.execute(
        insert(models).values(values).on_conflict_do_nothing().returning(models.c.id)
    ).scalar_one_or_none()
    if made is not None:
        return int(made)
    taken = find_model(conn, values[models.c.name])
    if request_id is not None and (taken.request_id, taken.owner_id) == (request_id, owner_id):
        return int(taken.id)
    raise _taken(taken.name)


def _taken(name: str) -> ModelConflict:
    return ModelConflict(
        f"there is a model {name!r} already: choose another name (names that differ in case alone are equal)"
    )


def _checked(**given: Any) -> dict[Any, Any]:
    """The columns and values of the arguments that are not None."""
    check: dict[str, Any] = {
        "name": checks.check_name,
        "description": lambda text: checks.check_text(text, "description"),
        "notes": lambda text: checks.check_text(text, "notes", limits.NOTES_CHARS),
        "metadata": checks.check_metadata,
        "labels": checks.check_labels,
    }
    return {
        models.c["user_metadata" if name == "metadata" else name]: check[name](value)
        for name, value in given.items()
        if value is not None
    }


def change_model(
    conn: sa.Connection,
    model: ModelRef,
    *,
    name: str | None = None,
    description: str | None = None,
    notes: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    labels: Sequence[str] | None = None,
) -> int:
    """Change the fields that are not None; the model's id. Raises ModelNotFound, Invalid; ModelConflict
    when the model is archived or another model has the name."""
    row = find_to_change(conn, model)
    values = _checked(
        name=name, description=description, notes=notes, metadata=metadata, labels=labels
    )
    if models.c.name in values:
        other = conn.execute(
            sa.select(models.c.name).where(named(values[models.c.name]), models.c.id != row.id)
        ).scalar_one_or_none()
        if other is not None:
            raise _taken(other)
    if values:
        values[models.c.updated_at] = sa.func.now()
        try:
            with conn.begin_nested():
                conn.execute(sa.update(models).where(models.c.id == row.id).values(values))
        except sa.exc.IntegrityError:
            # Taken since it was looked for.
            raise _taken(name or row.name) from None
    return int(row.id)


def change_metadata(
    conn: sa.Connection, model: ModelRef, metadata: Mapping[str, Any], remove: Collection[str]
) -> int:
    """Sets these keys of the metadata, removes those, and keeps the others. The model's id.

    Raises ModelNotFound, Invalid; ModelConflict when it is archived.
    """
    row = find_to_change(conn, model)
    both = {**row.user_metadata, **metadata}
    after = {key: value for key, value in both.items() if key not in remove}
    values = {**_checked(metadata=after), models.c.updated_at: sa.func.now()}
    conn.execute(sa.update(models).where(models.c.id == row.id).values(values))
    return int(row.id)


def set_tags(conn: sa.Connection, model: ModelRef, tags: Mapping[str, str | None]) -> int:
    """Sets these tags and keeps the others; None: the tag goes. The model's id.

    Raises ModelNotFound, Invalid; ModelConflict when it is archived.
    """
    row = find_to_change(conn, model)
    change_tags(conn, models, row, tags)
    return int(row.id)


def change_tags(
    conn: sa.Connection, table: sa.Table, row: sa.Row[Any], tags: Mapping[str, str | None]
) -> None:
    """As :func:`set_tags`, of a row (with ``id`` and ``tags``) whose model is locked."""
    after = {**row.tags, **checks.check_tags(tags)}
    kept = {key: value for key, value in after.items() if value is not None}
    checks.check_tags(kept)
    checks.check_size(kept, "tags")
    conn.execute(
        sa.update(table).where(table.c.id == row.id).values(tags=kept, updated_at=sa.func.now())
    )


def set_archived(conn: sa.Connection, model: ModelRef, archived: bool) -> int:
    """An archived model keeps its versions and changes no more. The model's id. Raises ModelNotFound."""
    row = find_model(conn, model, lock=True)
    if row.archived != archived:
        conn.execute(
            sa.update(models)
            .where(models.c.id == row.id)
            .values(archived=archived, updated_at=sa.func.now())
        )
    return int(row.id)


def delete_model(conn: sa.Connection, model: ModelRef) -> None:
    """With its versions, aliases and their history: its checkpoints may be deleted. Raises ModelNotFound."""
    row = find_model(conn, model, lock=True)
    conn.execute(sa.delete(models).where(models.c.id == row.id))


def touch(conn: sa.Connection, model_id: int) -> None:
    """Something of the model has changed now."""
    conn.execute(sa.update(models).where(models.c.id == model_id).values(updated_at=sa.func.now()))
