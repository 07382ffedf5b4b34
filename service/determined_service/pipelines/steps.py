"""The steps of a pipeline, each done once: :func:`advance`.

Whatever is done locks the pipeline's row, looks whether it is still to be done, and does it and writes that
it is done in one transaction. So any number of processes may advance the same pipeline, killed at any point:
what is written counts, and what is not was not done. An experiment is made in the transaction that writes its
number, and what it has found is written in the transaction in which it counts as completed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.pipeline import (
    PlannedStep,
    ReferenceError_,
    configuration,
    items,
    skipped_because,
)
from determined.common.pipeline.kinds import APPROVAL, COMMAND, EVALUATE, EXPERIMENT, IN_TRIALS
from determined.common.pipeline.resolving import NO_ITEM
from determined.common.wire.kinds import TaskKind
from determined_registry.database.tables import experiments, tasks
from determined_registry.database.tables.people import FIRST
from determined_service.access.principal import Principal
from determined_service.access.rules import Action, authorise
from determined_service.access.targets import HomeWorkspace, Kind, Target
from determined_service.access.visible import seen_of
from determined_service.base import topics
from determined_service.base.db import Database, asking
from determined_service.base.errors import ApiError, Conflict, Forbidden
from determined_service.base.settings import Settings
from determined_service.lifecycle.kinds.table import launched_kinds
from determined_service.lifecycle.places import Named, Place
from determined_service.pipelines import (
    comparing,
    in_trials,
    machine,
    of_retraining,
    promoting,
    results,
    rows,
    telling,
)
from determined_service.pipelines.machine import Await, Expand, Finish, Try
from determined_service.pipelines.rows import StoredPipeline
from determined_service.state import run_records, states
from determined_service.state.change import Change, changing, reader
from determined_service.submission import cached, launching, placing, submit, user_defaults
from determined_service.submission.templates import Layers


@dataclass(frozen=True, slots=True)
class Now:
    """Where a pipeline is. ``topics``: of the experiments and tasks whose end it waits for."""

    pipeline: StoredPipeline
    topics: tuple[str, ...] = ()


async def advance(db: Database, settings: Settings, pipeline_id: int) -> Now:
    """Does all that can be done now, and says what the pipeline waits for. May be repeated, also at once.

    Raises NotFound.
    """
    while True:
        async with changing(db) as change:
            row = await rows.lock(change.conn, pipeline_id)
            if row.state != machine.RUNNING:
                return Now(await rows.load(change.conn, row))
            await settle(change, row)
            # As it is now: with what was written, and with the number of its changes.
            now = await rows.load(change.conn, await rows.lock(change.conn, pipeline_id))
        left = machine.to_submit(now.plan, now.standings)
        if now.row.state != machine.RUNNING or not left:
            return Now(now, tuple(map(_topic, machine.waited_for(now.standings))))
        for place, one in left:
            await _submit(db, settings, now, place, one)


def _topic(one: Try) -> str:
    if one.experiment_id is not None:
        return topics.experiment(one.experiment_id)
    return topics.task(str(one.task_id))


async def settle(change: Change, row: sa.Row[Any]) -> None:
    """Writes what has ended and what begins in the (locked) pipeline."""
    now = await rows.load(change.conn, row)
    if await _conclude(change, now):
        now = await rows.load(change.conn, row)
    while moves := machine.next_moves(now.plan, now.standings):
        for move in moves:
            if isinstance(move, Expand):
                await _expand(change, now, move.step)
            elif isinstance(move, Finish):
                await rows.set_step(change, row.id, move.step, move.state, move.reason)
            elif isinstance(move, Await):
                await telling.touch(change, row.id, state=machine.AWAITING, reason=move.reason)
                await run_records.ended(change, run_records.PIPELINE, row.id)
                return
            else:
                await telling.end(change, row.id, move.state, move.reason)
                return
        await telling.touch(change, row.id)
        now = await rows.load(change.conn, row)


async def _conclude(change: Change, now: StoredPipeline) -> bool:
    """Writes the ends of experiments; whether there were any."""
    waits = machine.waited_for(now.standings)
    if not waits:
        return False
    e, t = experiments.c, tasks.c
    of_experiments = sa.select(e.id, e.state, e.reason).where(
        e.id.in_([one.experiment_id for one in waits])
    )
    of_tasks = sa.select(t.id, t.state, t.reason).where(t.id.in_([one.task_id for one in waits]))
    known: dict[int | str, sa.Row[Any]] = {}
    for statement in (of_experiments, of_tasks):
        known |= {one.id: one for one in await change.conn.execute(statement)}
    ended = False
    for place, standing in enumerate(now.standings):
        for one in standing.tries:
            if one not in waits:
                continue
            number = one.task_id if one.experiment_id is None else one.experiment_id
            awaited = None if number is None else known.get(number)
            if awaited is not None and awaited.state not in states.ENDED:
                continue
            await _conclude_one(change, now, place, one, awaited)
            ended = True
    if ended:
        await telling.touch(change, now.row.id)
    return ended


async def _conclude_one(
    change: Change, now: StoredPipeline, place: int, one: Try, awaited: sa.Row[Any] | None
) -> None:
    """``awaited``: the experiment or the task, which has ended; None: it was deleted."""
    if awaited is not None and awaited.state == states.COMPLETED:
        await _complete(change, now, place, one)
    elif one.cached:
        # It was somebody else's, who has ended it: this step runs one of its own.
        await rows.set_try(
            change, now.row.id, place, one, machine.WAITING, experiment_id=None, cached=False
        )
    else:
        what = f"task {one.task_id}" if one.experiment_id is None else ""
        reason = how_it_ended(what or f"experiment {one.experiment_id}", awaited)
        await rows.set_try(change, now.row.id, place, one, machine.FAILED, reason=reason)


async def _complete(change: Change, now: StoredPipeline, place: int, one: Try) -> None:
    """Writes what the try's experiment, or its command, has found."""
    step, item = now.plan.steps[place], _item(now, place, one)
    try:
        found = None
        if step.kind in IN_TRIALS:
            found = await in_trials.result_of(change.conn, now, step, one)
        elif one.experiment_id is not None:
            of = None if item is NO_ITEM else item
            found = await results.result_of(change.conn, one.experiment_id, of)
            if now.row.retraining_run_id is not None:
                found = await results.with_checkpoint(change.conn, found)
    except ApiError as error:
        await rows.set_try(change, now.row.id, place, one, machine.FAILED, reason=error.message)
        return
    result = None if found is None else asdict(found)
    await rows.set_try(change, now.row.id, place, one, machine.COMPLETED, result=result)


def how_it_ended(what: str, awaited: sa.Row[Any] | None) -> str:
    """Why the experiment or task did not complete, in words."""
    if awaited is None or awaited.state in states.DELETION:
        return f"{what} was deleted"
    how = "failed" if awaited.state == states.ERROR else "was canceled"
    return f"{what} {how}" + (f": {awaited.reason}" if awaited.reason else "")


def _item(now: StoredPipeline, place: int, one: Try) -> Any:
    if now.plan.steps[place].for_each is None:
        return NO_ITEM
    return now.steps[place].items[one.item]


async def _expand(change: Change, now: StoredPipeline, place: int) -> None:
    """The step begins, with a try for each of its items."""
    step = now.plan.steps[place]
    listed: list[Any] | None = None
    started: dict[str, Any] = {"started_at": sa.func.clock_timestamp()}
    try:
        if (why := skipped_because(step, now.results)) is not None:
            await rows.set_step(change, now.row.id, place, machine.SKIPPED, why)
            return
        if step.for_each is not None:
            listed = items(step, now.results)
    except ReferenceError_ as error:
        await rows.set_step(change, now.row.id, place, machine.FAILED, str(error), **started)
        return
    await rows.set_step(change, now.row.id, place, machine.RUNNING, items=listed, **started)
    for item in range(1 if listed is None else len(listed)):
        await rows.add_try(change, now.row.id, place, item, 1)


async def _submit(
    db: Database, settings: Settings, now: StoredPipeline, place: int, one: Try
) -> None:
    """Begins the try in the owner's name, unless another process has."""
    try:
        kind = now.plan.steps[place].kind
        if kind == EXPERIMENT or kind in IN_TRIALS:
            await _submit_one(db, settings, now, place, one)
        elif kind == COMMAND:
            await _launch_one(db, settings, now, place, one)
        else:
            await _do_one(db, now, place, one)
    except (ApiError, ReferenceError_) as error:
        if isinstance(error, ApiError) and error.status in (429, 503):
            raise
        message = error.message if isinstance(error, ApiError) else str(error)
        async with changing(db) as change:
            if await _is_open(change, now.row.id, place, one):
                await rows.set_try(change, now.row.id, place, one, machine.FAILED, reason=message)
                await telling.touch(change, now.row.id)


async def _submit_one(
    db: Database, settings: Settings, now: StoredPipeline, place: int, one: Try
) -> None:
    row, step = now.row, now.plan.steps[place]
    if step.kind in IN_TRIALS:
        async with reader(db).connect() as conn:
            config = await in_trials.configure(conn, now, step)
    else:
        config = configuration(step, now.results, _item(now, place, one))
    code = now.steps[place].model_def_hash
    content = cached.content_of(config, code)
    if config.get("name") is None:
        config["name"] = _name(now, step, one)
    layers = await _defaults(db, row.owner_id)
    submission = submit.SubmissionRequest(config=orjson.dumps(config).decode(), layers=layers)
    own = inherited(row.project_id)
    subject = promoting.subject(row)
    within = await placing.of_experiment(
        db, subject, submission.config, layers, None, otherwise=own
    )
    prepared = await submit.prepare(submission, settings, within)
    async with changing(db) as change:
        conn = change.conn
        if not await _is_open(change, row.id, place, one):
            return
        await _require_owner(conn, row.id)
        experiment_id = None
        if step.cached:
            wanted = now.plan.wants_checkpoint(step.name)

            async def is_usable(found: int) -> bool:
                return (
                    not wanted
                    or (await results.result_of(conn, found, None)).checkpoint is not None
                )

            experiment_id, key = await cached.find(conn, row.owner_id, content, is_usable)
            submission = replace(submission, idempotency_key=key)
        is_shared = experiment_id is not None
        if experiment_id is None:
            with asking(await seen_of(conn, row.owner_id, settings.cluster.has_roles)):
                planned = await submit.plan(conn, submission, prepared, settings, row.owner_id)
            planned = replace(planned, model_def_hash=code)
            experiment_id = await submit.store(
                change, planned, submission, row.owner_id, row.submitted_by
            )
        if row.retraining_run_id is not None and step.kind == EVALUATE:
            version = config["hyperparameters"].get(in_trials.COMPARED_WITH)
            await of_retraining.note_champion(change, row.retraining_run_id, version)
        values = {"experiment_id": experiment_id, "cached": is_shared}
        await rows.set_try(change, row.id, place, one, machine.RUNNING, **values)
        await telling.touch(change, row.id)


async def _launch_one(
    db: Database, settings: Settings, now: StoredPipeline, place: int, one: Try
) -> None:
    row, step = now.row, now.plan.steps[place]
    config = {"description": _name(now, step, one), **configuration(step, now.results)}
    within = await command_place(db, promoting.subject(row), config, row.project_id)
    layers = await _defaults(db, row.owner_id)
    launch = launch_of(config, now.steps[place].model_def_hash, within, layers)
    prepared = await launching.prepare(launch, settings)
    async with changing(db) as change:
        if not await _is_open(change, row.id, place, one):
            return
        await _require_owner(change.conn, row.id)
        planned = await launching.plan(change.conn, launch, prepared, settings, row.owner_id)
        task_id = await launching.store(
            change, launch, planned, settings, row.owner_id, row.submitted_by
        )
        await rows.set_try(change, row.id, place, one, machine.RUNNING, task_id=task_id)
        await telling.touch(change, row.id)


def inherited(project_id: int | None) -> Named:
    """Where the experiments of a pipeline of that project go whose configurations name none."""
    return Named() if project_id == FIRST else Named(project_id=project_id)


async def command_place(
    db: Database, subject: Principal | None, config: Mapping[str, Any], project_id: int | None
) -> Place:
    """The place of a command's step of a pipeline of that project."""
    named = Named(*await placing.names_in(config))
    if named == Named():
        named = inherited(project_id)
    return await placing.find(db, subject, named, Kind.TASK, whole=True)


async def _defaults(db: Database, owner_id: int) -> Layers:
    async with reader(db).connect() as conn:
        return await user_defaults.find(conn, owner_id)


def launch_of(
    config: dict[str, Any], code: str | None, place: Place, layers: Layers
) -> launching.Launch:
    """The launch of a command's step. ``code``: the hash of its files."""
    kind = launched_kinds()[TaskKind.COMMAND.name]
    return launching.Launch(kind, config, model_def_hash=code, place=place, layers=layers)


async def _do_one(db: Database, now: StoredPipeline, place: int, one: Try) -> None:
    """Asks a person, or promotes, once. If the pipeline ends by that, it does so in this transaction."""
    step = now.plan.steps[place]
    todo = configuration(step, now.results)
    async with changing(db) as change:
        # The model's row first, as people do who answer (:mod:`.people`).
        await comparing.lock_model(change.conn, now, step)
        if not await _is_open(change, now.row.id, place, one):
            return
        if step.kind == APPROVAL:
            asks = f"{todo['question']} (det pipeline approve {now.row.id} --step {step.name})"
            await rows.set_step(change, now.row.id, place, machine.RUNNING, asks)
            await rows.set_try(change, now.row.id, place, one, machine.RUNNING)
        else:
            row = await _require_owner(change.conn, now.row.id)
            if "comparison" in todo:
                await comparing.promote(change, row, now, place, one)
            else:
                reason, found = await promoting.promote(change.conn, row, step.name, todo)
                await rows.set_try(
                    change,
                    row.id,
                    place,
                    one,
                    machine.COMPLETED,
                    reason=reason,
                    result=asdict(found),
                )
        await telling.touch(change, now.row.id)
        await settle(change, await rows.lock(change.conn, now.row.id))


async def _require_owner(conn: AsyncConnection, pipeline_id: int) -> sa.Row[Any]:
    """The pipeline's row. Raises Conflict when its owner is deactivated, or could not submit it any more."""
    row = await rows.lock(conn, pipeline_id)
    what, todo = "this pipeline runs", "submit it"
    if row.retraining_run_id is not None:
        what, todo = "this model is trained again", "create the retraining"
    if not row.active:
        raise Conflict(
            f"user {row.username}, in whose name {what}, is deactivated: let another user {todo}"
        )
    target = Target(Kind.EXPERIMENT, into=HomeWorkspace(row.workspace_id, row.workspace))
    try:
        authorise(promoting.subject(row), Action.SUBMIT, target, "submit")
    except Forbidden as refusal:
        raise Conflict(
            f"the roles of user {row.username}, in whose name {what}, do not suffice any more: "
            f"{refusal.message}; or let another user {todo}"
        ) from None
    return row


async def _is_open(change: Change, pipeline_id: int, place: int, one: Try) -> bool:
    """Whether the try still waits for its submission, in the pipeline that is locked now."""
    row = await rows.lock(change.conn, pipeline_id)
    if row.state != machine.RUNNING:
        return False
    x = rows.x
    found = await change.conn.execute(
        sa.select(x.state, sa.func.max(x.attempt).over().label("last"), x.attempt)
        .where(x.pipeline_id == pipeline_id, x.step == place, x.item == one.item)
        .order_by(x.attempt.desc())
        .limit(1)
    )
    last = found.first()
    return last is not None and (last.attempt, last.state) == (one.attempt, machine.WAITING)


def _name(now: StoredPipeline, step: PlannedStep, one: Try) -> str:
    name = f"{now.row.name}: {step.name}"
    return name if step.for_each is None else f"{name} [{one.item}]"
