"""Finds, reads and renames experiments."""

# Parameters are named as in the API.
# ruff: noqa: N803
from __future__ import annotations

from operator import ge, gt, le, lt
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Query
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from determined.common.wire import limits
from determined_registry.database.tables import experiments, metrics, trials, users
from determined_service.access.dependencies import ExperimentReader, may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import (
    Count,
    Id,
    Labels,
    ManyIds,
    ManyNames,
    Name,
    Notes,
    Priority,
    Text,
    Weight,
)
from determined_service.base.errors import NotFound
from determined_service.base.json import JsonResponse
from determined_service.deleting.unknown_best import no_common_step
from determined_service.ingest.missing_metric import never_reported
from determined_service.ingest.values import finite
from determined_service.lifecycle import surroundings
from determined_service.lifecycle.details import describe, relabel, set_policy
from determined_service.scheduling.job_changes import set_resources
from determined_service.state.change import changing
from determined_service.views.experiment_columns import COLUMNS, as_key
from determined_service.views.experiment_columns import columns as named_columns
from determined_service.views.experiment_query import matches
from determined_service.views.experiments import (
    LIGHT_WEIGHT,
    SHOWN_STATE,
    SORT_KEYS,
    WEIGHT,
    among,
    get_experiment,
    in_project,
    light_json,
    require_experiment,
    select_experiments,
    select_ids,
)
from determined_service.views.experiments import experiment_json as to_json
from determined_service.views.lists import answer_list, be_patient, each_aside
from determined_service.views.paging import Limit, Offset, OrderBy, ordered
from determined_service.views.query_terms import QUERY_CHARS, read_query
from determined_service.views.values import moment, state_filter
from determined_service.web.router import Router
from determined_service.web.state import Db, QueueOf, SnapshotsOf, ViewerOf

router = Router("Experiments", "/api/v1")
Changer = Annotated[Principal, may(Action.CHANGE, Kind.EXPERIMENT)]

e = experiments.c
Many = Annotated[ManyNames, Query(default_factory=list)]
UserIds = Annotated[ManyIds, Query(default_factory=list)]


def _id_filter(name: str) -> Any:
    return Query(alias=f"experimentIdFilter.{name}")


@router.get("/experiments")
async def list_experiments(
    user: ExperimentReader,
    db: Db,
    viewer_of: ViewerOf,
    labels: Many,
    states: Many,
    usernames: Annotated[ManyNames, Query(default_factory=list, alias="users")],
    userIds: UserIds,
    columns: Annotated[list[Name], Query(default_factory=list, max_length=COLUMNS)],
    included: Annotated[ManyIds, Query(default_factory=list, alias="experimentIdFilter.incl")],
    excluded: Annotated[ManyIds, Query(default_factory=list, alias="experimentIdFilter.notIn")],
    offset: Offset = 0,
    limit: Limit = 0,
    sortBy: str = "SORT_BY_UNSPECIFIED",
    orderBy: OrderBy = "ORDER_BY_ASC",
    name: str | None = None,
    description: str | None = None,
    archived: bool | None = None,
    projectId: Id = 0,
    lower: Annotated[Id | None, _id_filter("gt")] = None,
    lowest: Annotated[Id | None, _id_filter("gte")] = None,
    upper: Annotated[Id | None, _id_filter("lt")] = None,
    highest: Annotated[Id | None, _id_filter("lte")] = None,
    query: Annotated[str, Query(max_length=QUERY_CHARS)] = "",
    light: bool = False,
) -> Response:
    """Experiments that match all the filters given; names and descriptions match in part.

    Ours: `query`, terms that must all hold, such as `resnet label:vision -state:error lr<0.01 metric<=0.1`.
    `light` leaves out configurations and notes. `columns` adds values of each experiment's best trial, by
    name: `hp.NAME` is a hyperparameter, `GROUP.NAME` a metric; `sortBy` takes one of these names too.
    """
    wanted: list[sa.ColumnElement[bool]] = [in_project(projectId)]
    if name:
        wanted.append(e.name.icontains(name, autoescape=True))
    if description:
        wanted.append(e.description.icontains(description, autoescape=True))
    if archived is not None:
        wanted.append(e.archived == archived)
    if labels:
        wanted.append(e.labels.contains(labels))
    if states:
        wanted.append(state_filter(e.state, SHOWN_STATE, states))
    if usernames:
        wanted.append(e.owner_id.in_(sa.select(users.c.id).where(users.c.username.in_(usernames))))
    if userIds:
        wanted.append(e.owner_id.in_(userIds))
    if included:
        wanted.append(e.id.in_(included))
    if excluded:
        wanted.append(e.id.not_in(excluded))
    for bound, outside in ((lower, le), (lowest, lt), (upper, ge), (highest, gt)):
        if bound is not None:
            wanted.append(sa.not_(outside(e.id, bound)))
    terms = matches(read_query(query))
    more = named_columns(columns)
    of_column = named_columns([sortBy]) if "." in sortBy else {}
    sorts = SORT_KEYS | {name: as_key(column) for name, column in of_column.items()}
    order = ordered(sorts, sortBy, orderBy, e.id)
    if terms:
        # Found once: the count and the page of ids would look through all trials twice.
        async with db.tx() as conn:
            await be_patient(conn, limits.SEARCH_S)
            rows = await conn.execute(select_ids().where(*wanted, *terms))
            wanted = [among(list(rows.scalars()))]
    statement = select_experiments(light=light).order_by(*order)
    statement = statement.where(*([] if terms else wanted)).add_columns(
        *(column.label(f"column_{place}") for place, column in enumerate(more.values()))
    )
    by_best = sortBy == "SORT_BY_SEARCHER_METRIC_VAL" or bool(of_column)
    keys = select_ids(by_user=sortBy == "SORT_BY_USER", by_best=by_best)
    viewer = viewer_of(user)

    def made(row: sa.Row[Any]) -> dict[str, Any]:
        found = light_json(row) if light else to_json(row, viewer)
        if more:
            found["columns"] = {
                name: getattr(row, f"column_{place}") for place, name in enumerate(more)
            }
        return found

    return await answer_list(
        db,
        "experiments",
        statement,
        e.id,
        LIGHT_WEIGHT if light else WEIGHT,
        each_aside(made, lambda row: 0 if light else len(row.original_config)),
        offset=offset,
        limit=limit,
        keys=keys.where(*wanted).order_by(*order),
        counted=select_ids().where(*wanted),
        patience_s=limits.SEARCH_S if of_column else 0,
    )


@router.get("/experiment/labels")
async def list_labels(user: ExperimentReader, db: Db) -> dict[str, Any]:
    """Every label in use, the most used first."""
    labels = (
        sa.func.jsonb_array_elements_text(e.labels)
        .table_valued("label", joins_implicitly=True)
        .render_derived()
    )
    label = labels.c.label
    async with db.tx() as conn:
        rows = await conn.execute(
            sa.select(label)
            .select_from(experiments, labels)
            .group_by(label)
            .order_by(sa.func.count().desc(), label)
        )
        return {"labels": list(rows.scalars())}


async def remarks_on(conn: AsyncConnection, experiment: dict[str, Any]) -> list[str]:
    """Remarks on an experiment (its JSON), for its readers."""
    config, text = experiment["config"], experiment["originalConfig"]
    if experiment["unmanaged"]:
        return surroundings.remarks_outside(config, text)
    pool = experiment["resourcePool"]
    found = await surroundings.remarks(conn, config, pool, original=text)
    never = await never_reported(conn, experiment["id"])
    apart = await no_common_step(conn, experiment["id"])
    return [*found, *(words for words in (never, apart) if words is not None)]


@router.get("/experiments/{experiment_id}")
async def read_experiment(
    experiment_id: Id,
    user: ExperimentReader,
    db: Db,
    queue: QueueOf,
    viewer_of: ViewerOf,
    remarks: bool = False,
) -> Response:
    """One experiment, and its place in the queue. Secrets of its configuration are masked, unless its owner
    or an administrator asks. Ours: with `remarks`, sentences on fields that are ignored where it runs, and on
    a metric that no trial reports."""
    more = {}
    async with db.tx() as conn:
        found = await get_experiment(conn, experiment_id, viewer_of(user))
        if remarks:
            more["remarks"] = await remarks_on(conn, found)
    job = await queue.job_summary(found)
    return JsonResponse({"experiment": found, "config": found["config"], "jobSummary": job, **more})


class ResourcesChange(BaseModel):
    """``null`` takes a priority or a limit away."""

    maxSlots: Count | None = None  # noqa: N815 - the name in the API
    priority: Priority | None = None
    weight: Weight | None = None

    def values(self) -> dict[str, Any]:
        """Those that are given, by their names in the configuration."""
        names = {"maxSlots": "max_slots", "priority": "priority", "weight": "weight"}
        found = {names[one]: getattr(self, one) for one in self.model_fields_set if one in names}
        return found if found.get("weight", 1) is not None else {**found, "weight": 1.0}


class ExperimentChange(BaseModel):
    """Changes of an experiment. Fields that are left out stay as they are."""

    name: Name | None = None
    description: Text | None = None
    notes: Notes | None = None
    labels: Labels | None = None
    resources: ResourcesChange | None = None
    checkpointStorage: dict[str, Any] | None = None  # noqa: N815 - the name in the API


@router.patch("/experiments/{experiment_id}")
async def patch_experiment(
    experiment_id: Id,
    given: ExperimentChange,
    user: Changer,
    db: Db,
    viewer_of: ViewerOf,
    snapshots: SnapshotsOf,
) -> Response:
    """Changes name, description, notes, labels, the policy that says which checkpoints are kept, or the
    resources (priority, weight, the most slots), which hold at once.

    Ours: `remarks`, sentences on resources that the pool ignores.
    """
    values = given.model_dump(exclude_none=True, exclude={"resources"})
    resources = {} if given.resources is None else given.resources.values()
    policy = values.pop("checkpointStorage", None)
    if "labels" in values:
        values["labels"] = sorted(set(values["labels"]))
    async with changing(db) as change:
        if policy is not None:
            await set_policy(change, experiment_id, policy)
        await describe(change, experiment_id, values)
        remarks: list[str] = []
        if resources:
            schedulers = snapshots.schedulers
            remarks = await set_resources(change, experiment_id, resources, schedulers)
        found = await get_experiment(change.conn, experiment_id, viewer_of(user))
        return JsonResponse({"experiment": found, "remarks": remarks})


@router.put("/experiments/{experiment_id}/labels/{label:path}")
async def add_label(experiment_id: Id, label: Name, user: Changer, db: Db) -> dict[str, Any]:
    """Adds a label, once."""
    async with changing(db) as change:
        return {"labels": await relabel(change, experiment_id, add=[label])}


@router.delete("/experiments/{experiment_id}/labels/{label:path}")
async def remove_label(experiment_id: Id, label: Name, user: Changer, db: Db) -> dict[str, Any]:
    """Removes a label if the experiment has it."""
    async with changing(db) as change:
        return {"labels": await relabel(change, experiment_id, remove=[label])}


@router.get("/experiments/{experiment_id}/searcher/best_searcher_validation_metric")
async def best_validation(
    experiment_id: Id, user: ExperimentReader, db: Db, viewer_of: ViewerOf
) -> dict[str, Any]:
    """The best searcher metric of any of its trials; 404 when there is none yet."""
    async with db.tx() as conn:
        best = (await get_experiment(conn, experiment_id, viewer_of(user)))[
            "bestTrialSearcherMetric"
        ]
    if best is None:
        raise NotFound(f"no trial of experiment {experiment_id} has reported a validation yet")
    return {"metric": best}


@router.get("/experiments/{experiment_id}/validation-history")
async def validation_history(experiment_id: Id, user: ExperimentReader, db: Db) -> Response:
    """The validations that were the experiment's best when they were made, in order."""
    async with db.tx() as conn:
        await require_experiment(conn, experiment_id)
        searcher = e.config["searcher"]
        rows = await conn.execute(
            sa.select(
                metrics.c.trial_id,
                metrics.c.end_time,
                metrics.c.metrics.op("->")(searcher["metric"].astext).label("metric"),
                searcher["smaller_is_better"].astext.label("smaller"),
            )
            .join(trials, trials.c.id == metrics.c.trial_id)
            .join(experiments, e.id == trials.c.experiment_id)
            .where(
                e.id == experiment_id,
                metrics.c.group_name == "validation",
                ~metrics.c.archived,
            )
            .order_by(metrics.c.end_time, metrics.c.id)
        )
        history: list[dict[str, Any]] = []
        best: float | None = None
        for row in rows:
            value = finite(row.metric)
            if value is None:
                continue
            if best is None or (value > best if row.smaller == "false" else value < best):
                best = value
                history.append(
                    {
                        "trialId": row.trial_id,
                        "endTime": moment(row.end_time),
                        "searcherMetric": value,
                    }
                )
    return JsonResponse({"validationHistory": history})
