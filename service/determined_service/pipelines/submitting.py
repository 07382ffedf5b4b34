"""A new pipeline: checked as far as that is possible before its steps have run, and stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import Quotas
from determined.common.pipeline import PipelinePlan, PlannedStep, check, read, some_examples
from determined.common.pipeline.kinds import COMMAND, PROMOTE
from determined.common.wire import limits
from determined.expconf import ConfigError, Document
from determined_registry.database.tables import pipelines
from determined_service.access.principal import Principal
from determined_service.base.aside import LONG_BYTES, aside
from determined_service.base.db import Database, hold_name
from determined_service.base.errors import BadRequest
from determined_service.base.settings import Settings
from determined_service.lifecycle import places, surroundings
from determined_service.lifecycle.places import Place
from determined_service.lifecycle.quotas import require_room
from determined_service.pipelines import promoting, repeating, rows
from determined_service.pipelines.steps import command_place, inherited, launch_of
from determined_service.scheduling.capacity import check_slots
from determined_service.scheduling.container_rights import require_rights
from determined_service.state.change import Change, reader
from determined_service.submission import launching, placing, submit, user_defaults
from determined_service.submission.definition_store import store_definition
from determined_service.submission.model_definition import ModelDefinition

MOST_ITEMS = 10
"""Items of a step whose configurations are checked here; `det` and the SDK check all. The others are checked
when the step begins."""


@dataclass(frozen=True, slots=True)
class PreparedPipeline:
    """What a pipeline says by itself. ``known``: by step, a configuration that is known already;
    ``examples``: complete ones in which something is not known yet; ``commands``: those that are known.
    ``again``: when it runs again."""

    plan: PipelinePlan
    text: str
    known: dict[str, tuple[submit.SubmissionRequest, submit.PreparedExperiment]]
    examples: dict[str, dict[str, Any]]
    commands: dict[str, tuple[launching.Launch, launching.PreparedLaunch]]
    again: repeating.Again
    place: Place


async def prepare(
    db: Database,
    user: Principal,
    given: dict[str, Any],
    definitions: Mapping[str, ModelDefinition],
    settings: Settings,
    place: Place,
) -> PreparedPipeline:
    """All that needs no database but for the places of its steps; ``place``: its own. Raises BadRequest with
    all mistakes, Conflict, Forbidden."""
    size = len(orjson.dumps(given))
    if size > limits.PIPELINE_BYTES:
        raise BadRequest(
            f"pipeline: {size} bytes found, at most {limits.PIPELINE_BYTES} are allowed"
        )
    # Always long work: a few milliseconds for each configuration.
    plan, examples = await aside(max(size, LONG_BYTES + 1), _read, given)
    for step in plan.steps:
        if step.code is not None and step.code not in definitions:
            # An empty directory is no definition.
            raise BadRequest(f"step {step.name}: code: no modelDefinitions.{step.code} was sent")
    async with reader(db).connect() as conn:
        layers = await user_defaults.find(conn, user.user_id)
    known: dict[str, tuple[submit.SubmissionRequest, submit.PreparedExperiment]] = {}
    complete: dict[str, dict[str, Any]] = {}
    for name, (text, is_open) in examples.items():
        try:
            within = await placing.of_experiment(
                db, user, text, layers, None, otherwise=inherited(place.project_id)
            )
            if is_open:
                complete[name] = await submit.completed(text, settings, layers, place=within)
            else:
                submission = submit.SubmissionRequest(config=text, layers=layers)
                known[name] = (submission, await submit.prepare(submission, settings, within))
        except BadRequest as error:
            if not is_open:
                raise BadRequest(f"step {name}: {error.message}") from error
            # It may be the value that stands for one that is not known yet.
    commands = {}
    for step in plan.steps:
        if step.kind == COMMAND and not any(True for _ in step.used()):
            try:
                within = await command_place(db, user, step.config, place.project_id)
                launch = launch_of(step.config, None, within, layers)
                commands[step.name] = (launch, await launching.prepare(launch, settings))
            except BadRequest as error:
                raise BadRequest(f"step {step.name}: {error.message}") from error
    again = repeating.read_again(plan)
    text = orjson.dumps(plan.to_json()).decode()
    return PreparedPipeline(plan, text, known, complete, commands, again, place)


def _read(given: dict[str, Any]) -> tuple[PipelinePlan, dict[str, tuple[str, bool]]]:
    try:
        draft = read(Document(given, ""))
        check(draft, MOST_ITEMS)
    except ConfigError as error:
        raise BadRequest(str(error)) from error
    return draft.plan, {
        step.name: (orjson.dumps(example.config).decode(), bool(example.open_paths))
        for step, example in some_examples(draft)
    }


async def check_against(
    conn: AsyncConnection, prepared: PreparedPipeline, settings: Settings, user: Principal
) -> list[str]:
    """Checks the steps against the database; what is not heeded of them where they will run, in words.

    Raises BadRequest, Forbidden.
    """
    remarks: list[str] = []
    for step in prepared.plan.steps:
        try:
            if step.name in prepared.known:
                submission, ready = prepared.known[step.name]
                planned = await submit.plan(conn, submission, ready, settings, user.user_id)
                config, pool, text = planned.config, planned.resource_pool, submission.config
                more = planned.remarks
            elif step.name in prepared.examples:
                config, text = prepared.examples[step.name], ""
                within = prepared.place.workspace_id
                pool, _ = await check_slots(conn, config, settings.cluster, within)
                more = await require_rights(conn, config, pool, user.user_id, settings, within)
            else:
                if step.kind == PROMOTE:
                    of = step.config.get("comparison")
                    todo = step.config if of is None else prepared.plan.step(of).config["against"]
                    await promoting.check(conn, user, todo)
                if step.name in prepared.commands:
                    remarks += await _check_command(conn, prepared, step, settings, user)
                continue
            found = await surroundings.remarks(conn, config, pool, original=text)
            remarks += [f"step {step.name}: {one}" for one in (*found, *more)]
        except BadRequest as error:
            raise BadRequest(f"step {step.name}: {error.message}") from error
    return remarks


async def _check_command(
    conn: AsyncConnection,
    prepared: PreparedPipeline,
    step: PlannedStep,
    settings: Settings,
    user: Principal,
) -> list[str]:
    launch, ready = prepared.commands[step.name]
    planned = await launching.plan(conn, launch, ready, settings, user.user_id)
    return [f"step {step.name}: {one}" for one in (*planned.warnings, *planned.remarks)]


async def find(conn: AsyncConnection, owner_id: int, key: str | None) -> int | None:
    """The pipeline that a request with this key has made already."""
    if key is None:
        return None
    p = pipelines.c
    found = await conn.execute(
        sa.select(p.id).where(p.owner_id == owner_id, p.idempotency_key == key)
    )
    return found.scalar_one_or_none()


async def store(
    change: Change,
    prepared: PreparedPipeline,
    definitions: Mapping[str, ModelDefinition],
    owner_id: int,
    submitted_by: str | None,
    key: str | None,
    quotas: Quotas,
) -> int:
    """Writes the pipeline, which begins; its id. One with the same key is answered instead. Raises
    OverQuota."""
    conn = change.conn
    if key is not None:
        await hold_name(conn, f"{owner_id}/pipelines/{key}")
        if (known := await find(conn, owner_id, key)) is not None:
            return known
    await places.hold(conn, prepared.place)
    used = {step.code for step in prepared.plan.steps}
    is_new = False
    for name, definition in definitions.items():
        if name in used:
            is_new |= await store_definition(conn, definition, owner_id)
    pipeline_id = await rows.insert(
        change,
        [
            None if step.code is None else definitions[step.code].hash
            for step in prepared.plan.steps
        ],
        name=prepared.plan.name,
        owner_id=owner_id,
        workspace_id=prepared.place.workspace_id,
        project_id=prepared.place.project_id,
        submitted_by=submitted_by,
        plan=prepared.text,
        idempotency_key=key,
        **await repeating.columns(conn, prepared.again, owner_id),
    )
    if is_new:
        await require_room(conn, quotas, owner_id, "model_definition_bytes")
    return pipeline_id
