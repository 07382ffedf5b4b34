"""Steps that promote: a checkpoint becomes a model's next version, and an alias stands for it.

What those do that compare first: :mod:`.comparing`.
"""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.pipeline import Result
from determined_registry import models as registry
from determined_service.access.principal import ALLOCATION, USER, AllocationRef, Principal
from determined_service.access.roles import standing
from determined_service.access.rules import Action, authorise
from determined_service.access.targets import Kind, Target, find_owners, missing
from determined_service.base.errors import BadRequest
from determined_service.lifecycle import models as modelling


async def check(conn: AsyncConnection, subject: Principal, todo: dict[str, Any]) -> None:
    """What can be known before the step: the alias is a name, and the subject may change the model.

    Raises BadRequest, Forbidden.
    """
    if todo["alias"] is not None:
        try:
            registry.check_alias(todo["alias"])
        except registry.Invalid as error:
            raise BadRequest(str(error)) from None
    action = Action.REGISTER if todo["alias"] is None else Action.CHANGE
    owners = await find_owners(conn, Kind.MODEL, [todo["model"]])
    for model, owner in owners.items():
        authorise(subject, action, Target(Kind.MODEL, model, owner))


async def promote(
    conn: AsyncConnection, pipeline: sa.Row[Any], step: str, todo: dict[str, Any]
) -> tuple[str, Result]:
    """Registers the version and moves the alias, in the name of the (locked) pipeline's owner; in words, what
    it has done, and what it has found. The model is made if there is none.

    Raises BadRequest, NotFound, Forbidden, Conflict.
    """
    version = await register(
        conn,
        pipeline,
        todo,
        f"pipeline {pipeline.id}, step {step}",
        {"pipeline": {"id": pipeline.id, "step": step}},
    )
    name, alias, checkpoint = todo["model"], todo["alias"], todo["checkpoint"]
    found = {"version": version, "promoted": alias is not None}
    done = f"checkpoint {checkpoint} is version {version} of model {name}"
    if alias is not None:
        before = await modelling.apply(
            conn, registry.set_alias, name, alias, version, pipeline.owner_id
        )
        done += f", its {alias} now" + (f" (before: version {before})" if before else "")
    return done, Result(checkpoint=checkpoint, metrics=found)


async def register(
    conn: AsyncConnection,
    pipeline: sa.Row[Any],
    todo: dict[str, Any],
    comment: str,
    metadata: dict[str, Any],
) -> int:
    """Makes ``checkpoint`` of ``todo`` the next version of its ``model``, which is made if there is none, in
    the name of the (locked) pipeline's owner; the version.

    Raises BadRequest, NotFound, Forbidden, Conflict.
    """
    owner = subject(pipeline)
    name = todo["model"]
    await check(conn, owner, todo)
    try:
        checkpoint = uuid.UUID(todo["checkpoint"])
    except ValueError:
        raise BadRequest(f"promote: checkpoint {todo['checkpoint']!r} is not a UUID") from None
    owners = await find_owners(conn, Kind.CHECKPOINT, [checkpoint])
    if checkpoint not in owners:
        raise missing(Kind.CHECKPOINT, [checkpoint])
    authorise(owner, Action.REGISTER, Target(Kind.CHECKPOINT, checkpoint, owners[checkpoint]))
    if not await find_owners(conn, Kind.MODEL, [name]):
        await modelling.apply(
            conn,
            registry.create_model,
            name,
            pipeline.owner_id,
            submitted_by=pipeline.submitted_by,
        )
    made = await modelling.apply(
        conn,
        registry.register_version,
        name,
        checkpoint,
        pipeline.owner_id,
        comment=comment,
        metadata=metadata,
    )
    return int(made.version)


def subject(pipeline: sa.Row[Any]) -> Principal:
    """In whose name a pipeline acts: its owner's, with the rights of now; one that a task's process submitted
    may no more than that task."""
    task, owner_id, username = pipeline.submitted_by, pipeline.owner_id, pipeline.username
    admin, rights = standing(pipeline.admin, pipeline.roles, pipeline.has_roles)
    if task is None:
        return Principal(USER, owner_id, username, admin, rights=rights)
    own = AllocationRef(f"of pipeline {pipeline.id}", task, None, None, 0)
    return Principal(ALLOCATION, owner_id, username, False, own, rights=rights)
