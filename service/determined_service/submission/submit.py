"""Creates a new experiment. All errors of a submission are reported here, before anything is stored."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import Quotas
from determined_registry.database.tables import experiments
from determined_searchers import SearcherError
from determined_service.base import topics
from determined_service.base.aside import LONG_BYTES, aside
from determined_service.base.db import as_asker, hold_name
from determined_service.base.errors import BadRequest, Conflict
from determined_service.base.policy import EXPERIMENT
from determined_service.base.settings import Settings
from determined_service.lifecycle import places
from determined_service.lifecycle.config_policies import limited
from determined_service.lifecycle.experiments import run_name
from determined_service.lifecycle.places import FIRST_PLACE, Place
from determined_service.lifecycle.pools import require_pool
from determined_service.lifecycle.quotas import require_room
from determined_service.scheduling.capacity import check_slots
from determined_service.scheduling.container_rights import require_rights
from determined_service.search import beginning
from determined_service.search.warm_start import find_warm_start
from determined_service.state import prefect_states, run_records, states
from determined_service.state.change import Change
from determined_service.submission.completing import (
    Complete,
    check_patterns,
    complete_by_policies,
    complete_config,
)
from determined_service.submission.definition_store import store_definition
from determined_service.submission.model_definition import ModelDefinition, content_size, pack
from determined_service.submission.templates import Layers

# Made once: SQLAlchemy takes longer to build a statement than to run it.
_INSERT = sa.insert(experiments).returning(
    experiments.c.id,
    experiments.c.state,
    experiments.c.resource_pool,
    experiments.c.config["searcher"].label("searcher"),
)


@dataclass(frozen=True, slots=True)
class SubmissionRequest:
    """The request of a submission (upstream's ``CreateExperimentRequest``, plus ``flow_run_id``)."""

    config: str
    model_definition: Sequence[Mapping[str, Any]] = ()
    definition: ModelDefinition | None = None
    """The model definition, if it is packed already."""
    activate: bool = True
    parent_id: int | None = None
    project_id: int | None = None
    layers: Layers = ()
    flow_run_id: uuid.UUID | None = None
    idempotency_key: str | None = None
    """Of a submission that may be sent again: one experiment for each key of an owner."""


@dataclass(frozen=True, slots=True)
class PreparedExperiment:
    """The checked parts of a submission that need no database."""

    config: dict[str, Any]
    beginning: beginning.SearchBeginning
    definition: ModelDefinition | None
    place: Place = FIRST_PLACE
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SubmissionPlan:
    """A submission that passed every check: what :func:`store` writes."""

    config: dict[str, Any]
    original_config: str
    resource_pool: str
    model_definition: ModelDefinition | None
    model_def_hash: str | None
    warnings: tuple[str, ...]
    remarks: tuple[str, ...]
    """Sentences."""
    beginning: beginning.SearchBeginning
    quotas: Quotas
    place: Place = FIRST_PLACE


async def prepare(
    submission: SubmissionRequest, settings: Settings, place: Place = FIRST_PLACE
) -> PreparedExperiment:
    """The checks without the database, which take most of the time. Raises BadRequest with all errors."""
    text = submission.config
    files = () if submission.definition is not None else submission.model_definition
    small = len(text) + content_size(files) <= LONG_BYTES
    complete, begun, definition = await aside(
        len(text), _prepare, text, settings, submission.layers, files if small else (), place
    )
    await check_patterns(complete.config)
    if not small:
        definition = await asyncio.to_thread(pack, files)
    return PreparedExperiment(
        complete.config, begun, submission.definition or definition, place, complete.remarks
    )


def _prepare(
    text: str,
    settings: Settings,
    layers: Layers,
    files: Sequence[Mapping[str, Any]],
    place: Place,
) -> tuple[Complete, beginning.SearchBeginning, ModelDefinition | None]:
    found = complete_by_policies(text, settings, layers, place=place)
    try:
        begun = beginning.begin(found.config)
    except SearcherError as error:
        raise BadRequest(str(error)) from error
    return found, begun, pack(files)


async def plan(
    conn: AsyncConnection,
    submission: SubmissionRequest,
    prepared: PreparedExperiment,
    settings: Settings,
    owner_id: int,
) -> SubmissionPlan:
    """Checks the rest against the database, changes nothing. Raises BadRequest."""
    config, definition, cluster = prepared.config, prepared.definition, settings.cluster
    within = prepared.place.workspace_id
    pool, warnings = await check_slots(conn, config, cluster, within)
    place = prepared.place
    held = settings.policies.of(EXPERIMENT, within, place.workspace)
    config, remarks = await limited(conn, config, pool, held, cluster)
    remarks = [*prepared.remarks, *remarks]
    remarks += await require_rights(conn, config, pool, owner_id, settings, within)
    async with as_asker(conn):
        model_def_hash = await _of_parent(conn, submission)
        await find_warm_start(conn, config["searcher"])
    if definition is not None:
        model_def_hash = definition.hash
    return SubmissionPlan(
        config,
        submission.config,
        pool,
        definition,
        model_def_hash,
        warnings,
        tuple(remarks),
        prepared.beginning,
        cluster.quotas,
        prepared.place,
    )


async def completed(
    text: str,
    settings: Settings,
    layers: Layers = (),
    *,
    unmanaged: bool = False,
    place: Place = FIRST_PLACE,
) -> dict[str, Any]:
    """As :func:`complete_config`, away from the event loop."""
    config = await aside(
        len(text), complete_config, text, settings, layers, unmanaged=unmanaged, place=place
    )
    await check_patterns(config)
    return config


async def _of_parent(conn: AsyncConnection, submission: SubmissionRequest) -> str | None:
    """The parent's model definition: a fork that brings none has that. Raises BadRequest."""
    parent = submission.parent_id
    if parent is None:
        return None
    found = await conn.execute(
        sa.select(experiments.c.model_def_hash).where(experiments.c.id == parent)
    )
    row = found.first()
    if row is None:
        raise BadRequest(f"parentId: experiment {parent} does not exist")
    model_def_hash: str | None = row.model_def_hash
    return model_def_hash


async def find_submitted(
    conn: AsyncConnection, submission: SubmissionRequest, owner_id: int
) -> int | None:
    """The experiment that this submission has made already: that of its Prefect run, or of its key."""
    if submission.flow_run_id is not None:
        wanted: sa.ColumnElement[bool] = experiments.c.id.in_(
            sa.select(run_records.EXPERIMENT).where(
                run_records.r.flow_run_id == submission.flow_run_id
            )
        )
    elif submission.idempotency_key is not None:
        wanted = sa.and_(
            experiments.c.owner_id == owner_id,
            experiments.c.idempotency_key == submission.idempotency_key,
        )
    else:
        return None
    found = await conn.execute(sa.select(experiments.c.id).where(wanted))
    return found.scalar_one_or_none()


async def _once(conn: AsyncConnection, submission: SubmissionRequest, owner_id: int) -> None:
    """Two requests of one submission are one experiment: the second waits here, then raises Conflict."""
    key = submission.idempotency_key and f"{owner_id}/{submission.idempotency_key}"
    one = submission.flow_run_id or key
    if one is None:
        return
    await hold_name(conn, str(one))
    if await find_submitted(conn, submission, owner_id) is not None:
        raise Conflict(f"{one} has submitted its experiment already")


async def store(
    change: Change,
    plan: SubmissionPlan,
    submission: SubmissionRequest,
    owner_id: int,
    submitted_by: str | None = None,
) -> int:
    """Writes the experiment with its first trials and, unless it is paused, asks for its Prefect run.

    ``submitted_by``: the task whose process submits it.

    Returns its id. Raises Conflict when the same submission has made an experiment meanwhile, or its project
    was archived, BadRequest when the resource pool has gone, OverQuota. The search may then create any
    number of trials.
    """
    conn, place = change.conn, plan.place
    await places.hold(conn, place)
    # Again: it may have left the cluster configuration meanwhile.
    await require_pool(conn, plan.resource_pool, "resources.resource_pool", place.workspace_id)
    definition = plan.model_definition
    counted = [
        "experiments",
        "trials",
        "stored_experiments",
        "stored_trials",
        "metric_bytes",
        "package_bytes",
    ]
    if definition is not None and await store_definition(conn, definition, owner_id):
        counted.append("model_definition_bytes")
    await _once(conn, submission, owner_id)
    config = plan.config
    found = await conn.execute(
        _INSERT,
        {
            "state": states.ACTIVE if submission.activate else states.PAUSED,
            "name": config["name"],
            "description": config.get("description") or "",
            "labels": list(config.get("labels") or []),
            "config": config,
            "original_config": plan.original_config,
            "model_def_hash": plan.model_def_hash,
            "owner_id": owner_id,
            "submitted_by": submitted_by,
            "parent_id": submission.parent_id,
            "project_id": place.project_id,
            "resource_pool": plan.resource_pool,
            "idempotency_key": submission.idempotency_key,
            "progress": plan.beginning.progress,
            "trials_asked_for": len(plan.beginning.batch.created()),
        },
    )
    experiment = found.one()
    experiment_id: int = experiment.id
    await beginning.store(change, experiment, plan.beginning)
    change.notify(topics.experiment(experiment_id))
    if submission.flow_run_id is not None:
        run_id = submission.flow_run_id
        await run_records.taken(
            conn, run_records.EXPERIMENT, experiment_id, run_id, run_records.QUIET_S
        )
        entity = prefect_states.experiment_entity(experiment_id)
        named = run_name(config["name"], experiment_id)
        prefect_states.name_run(change, experiment_id, named, place.tags)
        prefect_states.show_page(change, entity)
    elif submission.activate:
        await run_records.want(change, run_records.EXPERIMENT, experiment_id)
    await require_room(conn, plan.quotas, owner_id, *counted)
    return experiment_id
