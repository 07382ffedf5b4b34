"""Launch commands, notebooks, shells, TensorBoards and generic tasks: everything is checked before anything
is stored.

:func:`prepare` needs no database, :func:`plan` checks the rest against it, :func:`store` writes.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined import expconf
from determined.common.wire import limits
from determined.expconf.names import experiment_name
from determined.expconf.tasks import with_template
from determined_registry.database.tables import tasks
from determined_service.base import policies
from determined_service.base.aside import LONG_BYTES, aside
from determined_service.base.checks import check_text
from determined_service.base.db import hold_name
from determined_service.base.errors import BadRequest, Conflict
from determined_service.base.policy import TASKS
from determined_service.base.settings import Settings
from determined_service.lifecycle import allocations as allocating
from determined_service.lifecycle import places
from determined_service.lifecycle import tasks as tasking
from determined_service.lifecycle.config_policies import limited
from determined_service.lifecycle.kinds.launched import LaunchContext, LaunchedKind, LaunchFields
from determined_service.lifecycle.places import FIRST_WORKSPACE, Place
from determined_service.lifecycle.pools import require_pool
from determined_service.lifecycle.quotas import require_room
from determined_service.scheduling.capacity import check_task_slots
from determined_service.scheduling.container_rights import require_rights
from determined_service.state import prefect_states
from determined_service.state.change import Change
from determined_service.submission.definition_store import store_definition
from determined_service.submission.model_definition import ModelDefinition, content_size, pack
from determined_service.submission.templates import StoredTemplate


@dataclass(frozen=True, slots=True)
class Launch:
    """The request of a launch. ``config``: a mapping, or YAML text. ``files``: of the context directory,
    unless ``definition`` has them packed already. ``asked``: the kind's own fields."""

    kind: LaunchedKind[Any]
    config: Mapping[str, Any] | str
    files: Sequence[Mapping[str, Any]] = ()
    definition: ModelDefinition | None = None
    template: StoredTemplate | None = None
    place: Place = FIRST_WORKSPACE
    asked: LaunchFields = field(default_factory=LaunchFields)
    written: Mapping[str, Any] | None = None
    """The configuration as its owner wrote it, if ``config`` is another task's complete one."""
    parent_id: str | None = None
    forked_from: str | None = None
    model_def_hash: str | None = None
    """Of files that are stored already."""
    idempotency_key: str | None = None
    """Another launch of the same user with this key is the same task."""


@dataclass(frozen=True, slots=True)
class PreparedLaunch:
    """The checked parts of a launch that need no database."""

    given: dict[str, Any]
    """The configuration before it was completed."""
    config: dict[str, Any]
    definition: ModelDefinition | None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A launch that passed every check: what :func:`store` writes."""

    config: dict[str, Any]
    definition: ModelDefinition | None
    warnings: tuple[str, ...]
    remarks: tuple[str, ...]
    """Sentences."""
    data: dict[str, Any] | None


async def prepare(launch: Launch, settings: Settings) -> PreparedLaunch:
    """Completes the configuration and packs the files. Raises BadRequest with all errors."""
    given = launch.config
    size = len(given) if isinstance(given, str) else len(await aside(0, orjson.dumps, given))
    if size > limits.CONFIG_BYTES:
        raise BadRequest(
            f"config: {size} bytes found, at most {limits.CONFIG_BYTES} are allowed: files belong into the "
            "context directory"
        )
    given_config, config, remarks = await aside(size, complete, launch, settings)
    definition = launch.definition
    if definition is None:
        files = content_size(launch.files)
        if files <= LONG_BYTES:
            definition = await aside(files, pack, launch.files)
        else:
            definition = await asyncio.to_thread(pack, launch.files)
    if config["work_dir"] is not None and (definition or launch.model_def_hash):
        raise BadRequest(
            "work_dir: cannot be given together with a context directory, in which the task would start: "
            "leave one of them out"
        )
    return PreparedLaunch(given_config, config, definition, tuple(remarks))


def complete(
    launch: Launch, settings: Settings
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The configuration as it was given, and completed; remarks on what config policies have changed. Raises
    BadRequest."""
    kind, cluster, place = launch.kind, settings.cluster, launch.place
    held = settings.policies.of(TASKS, place.workspace_id, place.workspace)
    try:
        document = (
            expconf.load_yaml(launch.config)
            if isinstance(launch.config, str)
            else expconf.Document(dict(launch.config))
        )
        template = {} if launch.template is None else launch.template.config
        above = policies.above(held)
        slots, pool = _asked((template, document.data, above), kind)
        own = None if pool else launch.place.default_pool(slots)
        name = pool or own or cluster.default_pool(slots) or ""
        defaults = cluster.container_defaults_of(name).for_experiment(slots)
        config = expconf.complete_task(
            document, kind.config_class, template=template, defaults=defaults, above=above
        )
    except expconf.ConfigError as error:
        raise BadRequest(policies.explained(held, str(error))) from error
    resources = config["resources"]
    if not resources["resource_pool"] and own is not None:
        resources["resource_pool"] = own
    check_text(resources["resource_pool"], "resources.resource_pool", limits.POOL_NAME_CHARS)
    if not config["description"]:
        words = experiment_name().partition("(")[2].rstrip(")")
        config["description"] = config.get("name") or f"{kind.title} ({words})"
    check_text(config["description"], "description", limits.NAME_CHARS)
    kind.settle(config, cluster)
    if kind.needs_entrypoint and not config["entrypoint"]:
        raise BadRequest(
            f"entrypoint: required field is missing: the program that the {kind.title.lower()} runs"
        )
    if not held:
        return document.data, config, []
    written = with_template(document.data, template)
    remarks = policies.overridden(held, written)
    config["resources"], more = policies.limit_slots(held, config["resources"])
    return document.data, config, remarks + more


def _asked(layers: Sequence[Mapping[str, Any]], kind: LaunchedKind[Any]) -> tuple[int, str]:
    """The slots and the pool in layers of a configuration, the upper ones last, which may be wrong."""
    found = (layer.get("resources") for layer in layers)
    section: dict[str, Any] = {}
    for resources in found:
        section |= resources if isinstance(resources, dict) else {}
    default = kind.config_class().resources.slots
    slots, pool = section.get("slots"), section.get("resource_pool")
    return (
        slots if isinstance(slots, int) else default,
        pool if isinstance(pool, str) else "",
    )


def remarks(config: Mapping[str, Any]) -> list[str]:
    """Remarks on a complete configuration that is valid, but may be a mistake."""
    if config["entrypoint"]:
        return []
    return ["entrypoint is not given: only startup hooks run, and then the task ends"]


async def find_launched(conn: AsyncConnection, launch: Launch, owner_id: int) -> str | None:
    """The task that this launch has made already; another launch with its key waits until the end of this
    transaction. Raises Conflict when the task is of another kind."""
    if launch.idempotency_key is None:
        return None
    await hold_name(conn, f"{owner_id}/launch/{launch.idempotency_key}")
    found = await conn.execute(
        sa.select(tasks.c.id, tasks.c.kind).where(
            tasks.c.owner_id == owner_id, tasks.c.idempotency_key == launch.idempotency_key
        )
    )
    row = found.first()
    if row is None:
        return None
    if row.kind != launch.kind.name:
        raise Conflict(
            f"idempotencyKey {launch.idempotency_key!r} is that of task {row.id}, a {row.kind.lower()}: "
            "give another key"
        )
    task_id: str = row.id
    return task_id


async def plan(
    conn: AsyncConnection,
    launch: Launch,
    prepared: PreparedLaunch,
    settings: Settings,
    owner_id: int,
) -> LaunchPlan:
    """Check slots, pool and the kind's own fields, without changes. Raises BadRequest, NotFound."""
    within = launch.place.workspace_id
    resources = prepared.config["resources"]
    pool, warnings = await check_task_slots(conn, resources, settings.cluster, within)
    config = dict(prepared.config)
    config["resources"] = {**config["resources"], "resource_pool": pool}
    held = settings.policies.of(TASKS, within, launch.place.workspace)
    config, more = await limited(conn, config, pool, held, settings.cluster)
    remarks = [*prepared.remarks, *more]
    remarks += await require_rights(conn, config, pool, owner_id, settings, within)
    written = prepared.given if launch.written is None else launch.written
    context = LaunchContext(owner_id, settings.checkpoint_storage, written)
    data = await launch.kind.remember(conn, launch.asked, config, context)
    return LaunchPlan(config, prepared.definition, warnings, tuple(remarks), data)


async def store(
    change: Change,
    launch: Launch,
    planned: LaunchPlan,
    settings: Settings,
    owner_id: int,
    submitted_by: str | None,
) -> str:
    """Writes the task, puts it into the queue and has its run made in Prefect; its id.

    ``submitted_by``: the task whose process launches it. Raises BadRequest when the resource pool has gone,
    OverQuota; Conflict when its workspace was archived meanwhile.
    """
    kind, config, resources = launch.kind, planned.config, planned.config["resources"]
    place, pool = launch.place, resources["resource_pool"]
    await places.hold(change.conn, place)
    await require_pool(change.conn, pool, "resources.resource_pool", place.workspace_id)
    definition = planned.definition
    counted = ["tasks", "package_bytes"]
    if definition is not None and await store_definition(change.conn, definition, owner_id):
        counted.append("model_definition_bytes")
    task_id = str(uuid.uuid4())
    await tasking.create(
        change,
        task_id,
        kind.name,
        owner_id=owner_id,
        name=config["description"],
        config=config,
        project_id=place.project_id,
        workspace_id=place.workspace_id,
        job_id=uuid.uuid4(),
        model_def_hash=launch.model_def_hash if definition is None else definition.hash,
        submitted_by=submitted_by,
        data=planned.data,
        parent_id=launch.parent_id,
        forked_from=launch.forked_from,
        idle_timeout_s=kind.idle_timeout_s(config, settings.cluster),
        idempotency_key=launch.idempotency_key,
    )
    await allocating.request(
        change,
        task_id,
        pool=pool,
        slots=resources["slots"],
        priority=resources["priority"],
    )
    name = config["description"]
    prefect_states.create_task_run(change, task_id, kind.noun, name, pool, place.tags)
    await require_room(change.conn, settings.cluster.quotas, owner_id, *counted)
    return task_id
