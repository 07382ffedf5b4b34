"""Reads checkpoints: a single one, its metrics, and the lists of experiments and trials."""

# Parameters are named as in the API.
# ruff: noqa: N803
from __future__ import annotations

from typing import Annotated

import sqlalchemy as sa
from fastapi import Depends, Query
from starlette.responses import Response

from determined.common.wire import limits
from determined_registry.database.tables import checkpoints, metrics
from determined_service.access.dependencies import CheckpointReader
from determined_service.base.bounds import Count, Id
from determined_service.base.db import Database
from determined_service.base.ids import parse_uuid, uuids_beginning
from determined_service.base.json import JsonResponse
from determined_service.views.checkpoints import (
    FIRST_OF_EQUALS,
    SEARCHER_LOSS,
    SORT_KEYS,
    WEIGHT,
    checkpoint_json,
    get_checkpoint,
    metric_value,
    select_checkpoints,
    weight_of_some,
)
from determined_service.views.experiments import require_experiment
from determined_service.views.lists import answer_list, each
from determined_service.views.metrics import WEIGHT as REPORT_WEIGHT
from determined_service.views.metrics import report_json
from determined_service.views.models import versions_of_checkpoint
from determined_service.views.paging import Limit, Offset, OrderBy, ordered
from determined_service.views.secrets import Viewer
from determined_service.views.trials import require_trial
from determined_service.views.values import state_names
from determined_service.web.router import Router
from determined_service.web.state import Db, ViewerOf

router = Router("Checkpoints", "/api/v1")

c = checkpoints.c


@router.get("/checkpoints")
async def list_beginning(
    user: CheckpointReader,
    db: Db,
    uuidBeginning: Annotated[str, Query(min_length=4, max_length=36)],
    limit: Annotated[int, Query(ge=1, le=100)] = 10,
) -> dict[str, list[str]]:
    """Ours: the UUIDs that begin with `uuidBeginning`, the first `limit` of them, sorted: at least four
    hexadecimal digits, with the hyphens of the UUID."""
    lowest, highest = uuids_beginning(uuidBeginning, "uuidBeginning")
    wanted = sa.select(c.uuid).where(c.uuid.between(lowest, highest)).order_by(c.uuid).limit(limit)
    async with db.tx() as conn:
        return {"uuids": [str(one) for one in await conn.scalars(wanted)]}


@router.get("/checkpoints/{uuid}")
async def read_checkpoint(
    uuid: str, user: CheckpointReader, db: Db, viewer_of: ViewerOf
) -> Response:
    """One checkpoint, and the versions of models that it is (`modelVersions`). Secrets of its storage and
    configuration are masked, unless the owner or an administrator asks."""
    wanted = parse_uuid(uuid, "checkpoint")
    async with db.tx() as conn:
        found = await get_checkpoint(conn, wanted, viewer_of(user))
        found["modelVersions"] = await versions_of_checkpoint(conn, wanted)
    return JsonResponse({"checkpoint": found})


@router.get("/checkpoints/{uuid}/metrics")
async def read_metrics(
    uuid: str,
    user: CheckpointReader,
    db: Db,
    viewer_of: ViewerOf,
    metricGroup: str | None = None,
) -> Response:
    """The metrics that the trial reported at the checkpoint's step."""
    wanted = parse_uuid(uuid, "checkpoint")
    async with db.tx() as conn:
        await get_checkpoint(conn, wanted, viewer_of(user))
        statement = (
            sa.select(metrics)
            .join(
                checkpoints,
                (c.trial_id == metrics.c.trial_id)
                & (c.steps_completed == metrics.c.steps_completed),
            )
            .where(c.uuid == wanted, ~metrics.c.archived)
            .order_by(metrics.c.id)
        )
        if metricGroup:
            statement = statement.where(metrics.c.group_name == metricGroup)
    return await answer_list(
        db, "metrics", statement, metrics.c.id, REPORT_WEIGHT, each(report_json), offset=0, limit=-1
    )


class _Listing:
    """The query of both lists: which checkpoints of an experiment or trial, and in which order."""

    def __init__(
        self,
        states: Annotated[list[str], Query(default_factory=list)],
        offset: Offset = 0,
        limit: Limit = 0,
        sortByAttr: str = "SORT_BY_UNSPECIFIED",
        sortByMetric: str | None = None,
        orderBy: OrderBy = "ORDER_BY_UNSPECIFIED",
        mostFiles: Annotated[
            Count | None,
            Query(
                le=limits.MANY_IDS,
                description="Of each checkpoint the first files by their paths, without directories, "
                "checksums and programs; `fileCount` and `size` are those of all. Default: all files.",
            ),
        ] = None,
    ) -> None:
        self.states = states
        self.offset, self.limit = offset, limit
        self.most_files = mostFiles
        self.sort_by_attr, self.sort_by_metric, self.order_by = sortByAttr, sortByMetric, orderBy


Listing = Annotated[_Listing, Depends()]


@router.get("/experiments/{experiment_id}/checkpoints")
async def list_of_experiment(
    experiment_id: Id,
    user: CheckpointReader,
    db: Db,
    listing: Listing,
    viewer_of: ViewerOf,
) -> Response:
    """An experiment's checkpoints. Without `orderBy` they are sorted by the searcher's metric, the best
    first.
    """
    async with db.tx() as conn:
        await require_experiment(conn, experiment_id)
    return await _list(db, c.experiment_id == experiment_id, listing, viewer_of(user))


@router.get("/trials/{trial_id}/checkpoints")
async def list_of_trial(
    trial_id: Id,
    user: CheckpointReader,
    db: Db,
    listing: Listing,
    viewer_of: ViewerOf,
) -> Response:
    """A trial's checkpoints. Without `orderBy` they are sorted by the searcher's metric, the best first."""
    async with db.tx() as conn:
        await require_trial(conn, trial_id)
    return await _list(db, c.trial_id == trial_id, listing, viewer_of(user))


async def _list(
    db: Database, of: sa.ColumnElement[bool], listing: _Listing, viewer: Viewer
) -> Response:
    by_attribute, order_by = listing.sort_by_attr, listing.order_by
    keys = SORT_KEYS
    if listing.sort_by_metric:
        keys = {"METRIC": metric_value(sa.literal(listing.sort_by_metric))}
        by_attribute = "SORT_BY_METRIC"
    elif by_attribute == "SORT_BY_SEARCHER_METRIC" and order_by == "ORDER_BY_UNSPECIFIED":
        keys = {"SEARCHER_METRIC": SEARCHER_LOSS}
    order = ordered(keys, by_attribute, order_by, c.uuid)
    if listing.sort_by_metric or by_attribute == "SORT_BY_SEARCHER_METRIC":
        order[1:] = FIRST_OF_EQUALS
    some = listing.most_files
    wanted = [of, *([c.state.in_(state_names(listing.states))] if listing.states else [])]
    return await answer_list(
        db,
        "checkpoints",
        select_checkpoints(some).where(*wanted).order_by(*order),
        c.uuid,
        WEIGHT if some is None else weight_of_some(some),
        each(lambda row: checkpoint_json(row, viewer)),
        offset=listing.offset,
        limit=listing.limit,
        counted=sa.select(c.uuid).where(*wanted),
    )
