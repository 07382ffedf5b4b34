"""Versions of models: registered, changed and deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from determined.common.wire import limits
from determined_registry.database.tables import (
    checkpoints,
    experiments,
    model_aliases,
    model_versions,
    models,
)
from determined_registry.models import checks
from determined_registry.models.aliases import move
from determined_registry.models.changes import (
    ModelRef,
    change_tags,
    find_model,
    find_to_change,
    touch,
)
from determined_registry.models.errors import ModelConflict, ModelNotFound

v = model_versions.c
c = checkpoints.c


def find_version(conn: sa.Connection, model: ModelRef, version: int) -> sa.Row[Any]:
    """The version's row. Raises ModelNotFound."""
    return version_of(conn, find_model(conn, model), version)


def version_of(conn: sa.Connection, model: sa.Row[Any], version: int) -> sa.Row[Any]:
    """The version's row, of the ``model``'s row. Raises ModelNotFound."""
    found = conn.execute(
        sa.select(model_versions).where(v.model_id == model.id, v.version == version)
    ).first()
    if found is None:
        raise ModelNotFound(f"model {model.name!r} has no version {version}")
    return found


def register_version(
    conn: sa.Connection,
    model: ModelRef,
    checkpoint: UUID,
    owner_id: int,
    *,
    name: str = "",
    comment: str = "",
    notes: str = "",
    metadata: Mapping[str, Any] | None = None,
    labels: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    source: str | None = None,
    request_id: UUID | None = None,
) -> sa.Row[Any]:
    """Makes the checkpoint the model's next version; the version's row.

    From then on the checkpoint cannot be deleted. ``source``: what an MLflow client calls it. ``request_id``:
    of a request that may come twice; the second time it is answered with the row that the first one made.

    Raises ModelNotFound, Invalid; ModelConflict when the model is archived, or the checkpoint is not
    COMPLETED or is being deleted.
    """
    row = find_to_change(conn, model)
    if request_id is not None:
        known = conn.execute(
            sa.select(model_versions).where(v.model_id == row.id, v.request_id == request_id)
        ).first()
        if known is not None:
            return known
    _hold(conn, checkpoint)
    given = checks.check_tags(tags or {})
    checks.check_size(given, "tags")
    values = _checked(
        name=name, comment=comment, notes=notes, metadata=metadata or {}, labels=labels
    )
    if source is not None:
        values[v.source] = checks.check_text(source, "source", limits.PATH_CHARS)
    values |= {
        v.tags: {key: value for key, value in given.items() if value is not None},
        v.model_id: row.id,
        v.version: row.last_version + 1,
        v.checkpoint_uuid: checkpoint,
        v.owner_id: owner_id,
        v.request_id: request_id,
    }
    made = conn.execute(sa.insert(model_versions).values(values).returning(*model_versions.c)).one()
    conn.execute(
        sa.update(models)
        .where(models.c.id == row.id)
        .values(last_version=row.last_version + 1, updated_at=sa.func.now())
    )
    return made


def _hold(conn: sa.Connection, checkpoint: UUID) -> None:
    """Nobody begins to delete the checkpoint before this transaction has ended. Raises ModelNotFound,
    ModelConflict."""
    found = conn.execute(
        sa.select(c.state, c.deletion_id, c.experiment_id)
        .where(c.uuid == checkpoint)
        # Whoever deletes locks it FOR NO KEY UPDATE; a key share alone would let them pass.
        .with_for_update(read=True)
    ).first()
    if found is None:
        raise ModelNotFound(f"checkpoint {checkpoint} does not exist")
    if found.state != "COMPLETED":
        raise ModelConflict(
            f"checkpoint {checkpoint} is {found.state}: only a COMPLETED checkpoint can be registered"
        )
    if found.deletion_id is not None:
        raise ModelConflict(
            f"checkpoint {checkpoint} is being deleted (deletion {found.deletion_id}): register another one"
        )
    # After the lock: a deletion of the experiment that has committed meanwhile is seen.
    state = conn.execute(
        sa.select(experiments.c.state).where(experiments.c.id == found.experiment_id)
    ).scalar_one_or_none()
    if state in ("DELETING", "DELETED"):
        raise ModelConflict(
            f"experiment {found.experiment_id}, whose checkpoint {checkpoint} is, is being deleted"
        )


def _checked(**given: Any) -> dict[Any, Any]:
    check: dict[str, Any] = {
        "name": lambda text: checks.check_text(text, "name", limits.NAME_CHARS),
        "comment": lambda text: checks.check_text(text, "comment"),
        "notes": lambda text: checks.check_text(text, "notes", limits.NOTES_CHARS),
        "metadata": checks.check_metadata,
        "labels": checks.check_labels,
    }
    return {
        v["user_metadata" if name == "metadata" else name]: check[name](value)
        for name, value in given.items()
        if value is not None
    }


def change_version(
    conn: sa.Connection,
    model: ModelRef,
    version: int,
    *,
    name: str | None = None,
    comment: str | None = None,
    notes: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    labels: Sequence[str] | None = None,
) -> sa.Row[Any]:
    """Change the fields that are not None; returns the version's former row. Raises ModelNotFound, Invalid;
    ModelConflict when the model is archived."""
    row = find_to_change(conn, model)
    before = version_of(conn, row, version)
    values = _checked(name=name, comment=comment, notes=notes, metadata=metadata, labels=labels)
    if values:
        values[v.updated_at] = sa.func.now()
        conn.execute(sa.update(model_versions).where(v.id == before.id).values(values))
        touch(conn, row.id)
    return before


def set_version_tags(
    conn: sa.Connection, model: ModelRef, version: int, tags: Mapping[str, str | None]
) -> None:
    """Sets these tags of the version and keeps the others; None: the tag goes.

    Raises ModelNotFound, Invalid; ModelConflict when the model is archived.
    """
    row = find_to_change(conn, model)
    change_tags(conn, model_versions, version_of(conn, row, version), tags)
    touch(conn, row.id)


def delete_version(conn: sa.Connection, model: ModelRef, version: int, user_id: int) -> None:
    """Its number never returns, its aliases go (their history says so), and its checkpoint may be deleted.

    Raises ModelNotFound.
    """
    row = find_model(conn, model, lock=True)
    found = version_of(conn, row, version)
    standing = conn.execute(
        sa.select(model_aliases.c.alias)
        .where(model_aliases.c.model_id == row.id, model_aliases.c.version == version)
        .order_by(model_aliases.c.alias)
    ).scalars()
    for alias in list(standing):
        move(conn, row.id, alias, version, None, user_id)
    conn.execute(sa.delete(model_versions).where(v.id == found.id))
    touch(conn, row.id)
