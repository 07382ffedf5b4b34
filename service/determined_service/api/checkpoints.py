"""Checkpoints: what training processes have stored, and where one finds it."""

# Parameters are named as in the API.
# ruff: noqa: N803
from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Query, Request
from sqlalchemy.dialects.postgresql import insert
from starlette.responses import Response

from determined_registry.tables import allocations, checkpoints, metrics, trials
from determined_service import auth
from determined_service.api.state import Db
from determined_service.auth import AllocationOrUser, CurrentUser, Principal
from determined_service.control import unmanaged
from determined_service.control.damage import forget_latest, lock_users
from determined_service.errors import BadRequest, NotFound
from determined_service.hub import notify
from determined_service.ingest.values import replace_nul
from determined_service.json import JsonResponse
from determined_service.request import body, json_example, parse_uuid
from determined_service.views.checkpoints import (
    SEARCHER_LOSS,
    SORT_KEYS,
    checkpoint_json,
    get_checkpoint,
    metric_value,
    select_checkpoints,
)
from determined_service.views.experiments import require_experiment
from determined_service.views.metrics import report_json
from determined_service.views.paging import Limit, Offset, OrderBy, fetch_page, ordered
from determined_service.views.trials import require_trial
from determined_service.views.values import parse_time, state_names

router = APIRouter(prefix="/api/v1", tags=["Checkpoints"])

c = checkpoints.c
STATES = frozenset({"ACTIVE", "COMPLETED", "ERROR", "DELETED", "PARTIALLY_DELETED"})


STORED = ("ACTIVE", "COMPLETED")


def _given_up(uuid: UUID) -> sa.Exists:
    """Whether the checkpoint is known and nothing may start from it any more."""
    usable = c.state.in_(STORED) & c.deletion_id.is_(None)
    return sa.exists(sa.select(c.uuid).where(c.uuid == uuid, ~usable))


def _sizes(given: Any) -> dict[str, int]:
    try:
        return {replace_nul(path): int(size) for path, size in (given or {}).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise BadRequest(f"resources must be paths and their sizes in bytes: {error}") from error


async def _sender(
    conn: Any, principal: Principal, allocation_id: str | None, task_id: str | None
) -> sa.Row[Any] | None:
    """Whose checkpoint it is: an allocation's trial, or an unmanaged trial, which has none.

    Raises NotFound, Conflict for an unmanaged trial whose script has started again since.
    """
    found = await conn.execute(
        sa.select(
            allocations.c.id,
            allocations.c.task_id,
            allocations.c.experiment_id,
            allocations.c.trial_id,
            allocations.c.state,
        ).where(allocations.c.id == allocation_id)
    )
    row: sa.Row[Any] | None = found.first()
    if row is None and task_id is not None:
        row = await unmanaged.find_sender(conn, task_id, principal)
    if row is None and allocation_id is not None:
        raise NotFound(f"allocation {allocation_id!r} does not exist")
    return row


_CHECKPOINT = {
    "uuid": "3f0d8a52-7c0f-4c5c-9a57-0d1f0e9a1b11",
    "taskId": "1.2f6c7d2e",
    "allocationId": "1.2f6c7d2e.1",
    "reportTime": "2026-11-21T13:00:00.000000Z",
    "resources": {"model.pt": "1000"},
    "checksums": {"model.pt": "sha256:<hex>"},
    "metadata": {"steps_completed": 100},
    "state": "STATE_COMPLETED",
}


@router.post("/checkpoints", openapi_extra=json_example(_CHECKPOINT))
async def report_checkpoint(request: Request, principal: AllocationOrUser, db: Db) -> Response:
    """Notes a checkpoint whose files are in storage (`v1Checkpoint`, and besides `checksums`, and
    `storage` when it is not the experiment's).

    May be repeated. Of a trial's allocation it becomes the trial's latest checkpoint, from which the
    next leg starts.
    """
    given = await body(request)
    if not isinstance(given, dict) or "uuid" not in given:
        raise BadRequest("a checkpoint must be an object with a uuid")
    own = principal.allocation
    allocation_id = given.get("allocationId") or (own.id if own is not None else None)
    if allocation_id is not None:
        principal.require_allocation(allocation_id)
    metadata = replace_nul(given.get("metadata") or {})
    steps = metadata.get("steps_completed", 0)
    if type(steps) is not int or steps < 0:
        raise BadRequest(f"metadata.steps_completed must be a whole number, not {steps!r}")
    state = str(given.get("state") or "STATE_COMPLETED").removeprefix("STATE_")
    if state not in STATES:
        raise BadRequest(f"unknown state {given['state']!r}")
    resources = _sizes(given.get("resources"))
    storage = given.get("storage")
    if storage is not None and not isinstance(storage, dict):
        raise BadRequest(f"storage must be a checkpoint_storage section, not {storage!r}")
    uuid = parse_uuid(str(given["uuid"]), "checkpoint")
    async with db.tx() as conn:
        if own is not None and own.trial_id is not None:
            # Whoever ends the allocation holds this lock, so what is seen of it below stays true.
            await conn.execute(
                sa.select(trials.c.id)
                .where(trials.c.id == own.trial_id)
                .with_for_update(key_share=True)
            )
        sender = await _sender(conn, principal, allocation_id, given.get("taskId"))
        if sender is not None and sender.state == "TERMINATED" and own is not None:
            raise auth.ended(sender.id)
        trial_id = sender.trial_id if sender is not None else None
        experiment_id = sender.experiment_id if sender is not None else None
        values = {
            "uuid": uuid,
            "state": state,
            "task_id": sender.task_id if sender is not None else given.get("taskId"),
            "allocation_id": sender.id if sender is not None else None,
            "experiment_id": experiment_id,
            "trial_id": trial_id,
            "steps_completed": steps,
            "resources": resources,
            "size": sum(resources.values()),
            "checksums": given.get("checksums") or {},
            "user_metadata": metadata,
            "storage": storage,
        }
        if given.get("reportTime"):
            values["report_time"] = parse_time(given["reportTime"], "reportTime")
        if trial_id is not None and state == "COMPLETED":
            # Before the checkpoint's row: locks in the service's order.
            await conn.execute(
                sa.update(trials)
                .where(trials.c.id == trial_id, ~_given_up(uuid))
                .values(latest_checkpoint=uuid, steps_completed=steps)
            )
        statement = insert(checkpoints).values(
            {checkpoints.c[name]: value for name, value in values.items()}
        )
        await conn.execute(
            statement.on_conflict_do_update(
                index_elements=[c.uuid],
                # A late repetition brings nothing back that was found damaged or deleted.
                where=c.state.in_(STORED) & c.deletion_id.is_(None),
                set_={
                    checkpoints.c[name]: value for name, value in values.items() if name != "uuid"
                },
            )
        )
        if trial_id is not None:
            await notify(conn, f"trial:{trial_id}", f"experiment:{experiment_id}")
    return JsonResponse({})


@router.patch("/checkpoints")
async def patch_checkpoints(request: Request, user: CurrentUser, db: Db) -> Response:
    """Files were deleted: `{"checkpoints": [{"uuid", "resources": {"resources": {path: size}}}]}`.

    Without resources left the checkpoint is DELETED, with fewer than before PARTIALLY_DELETED; then no
    leg starts from it any more, but from the latest one that is whole.
    """
    given = await body(request)
    async with db.tx() as conn:
        for one in given.get("checkpoints", []):
            uuid = parse_uuid(str(one.get("uuid")), "checkpoint")
            await lock_users(conn, uuid)
            row = (
                await conn.execute(
                    sa.select(c.resources, c.state).where(c.uuid == uuid).with_for_update()
                )
            ).first()
            if row is None:
                raise NotFound(f"checkpoint {uuid} does not exist")
            if one.get("resources") is None:
                continue
            left = _sizes(one["resources"].get("resources"))
            state = row.state
            if not left:
                state = "DELETED"
            elif left.keys() < row.resources.keys():
                state = "PARTIALLY_DELETED"
            await conn.execute(
                sa.update(checkpoints)
                .where(c.uuid == uuid)
                .values(resources=left, size=sum(left.values()), state=state)
            )
            if state != "COMPLETED":
                await forget_latest(conn, uuid)
    return JsonResponse({})


@router.post("/checkpoints/{uuid}/metadata")
async def replace_metadata(uuid: str, request: Request, user: CurrentUser, db: Db) -> Response:
    """`{"checkpoint": {"metadata": {…}}}` takes the place of the metadata."""
    given = (await body(request)).get("checkpoint") or {}
    metadata = given.get("metadata")
    if not isinstance(metadata, dict):
        raise BadRequest("checkpoint.metadata must be an object")
    wanted = parse_uuid(uuid, "checkpoint")
    async with db.tx() as conn:
        await conn.execute(
            sa.update(checkpoints)
            .where(c.uuid == wanted)
            .values({c.user_metadata: replace_nul(metadata)})
        )
        return JsonResponse({"checkpoint": await get_checkpoint(conn, wanted)})


@router.get("/checkpoints/{uuid}")
async def read_checkpoint(uuid: str, user: CurrentUser, db: Db) -> Response:
    """One checkpoint."""
    wanted = parse_uuid(uuid, "checkpoint")
    async with db.tx() as conn:
        return JsonResponse({"checkpoint": await get_checkpoint(conn, wanted)})


@router.get("/checkpoints/{uuid}/metrics")
async def read_metrics(
    uuid: str, user: CurrentUser, db: Db, metricGroup: str | None = None
) -> Response:
    """What the trial reported at the checkpoint's step."""
    wanted = parse_uuid(uuid, "checkpoint")
    async with db.tx() as conn:
        await get_checkpoint(conn, wanted)
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
        rows = (await conn.execute(statement)).all()
    return JsonResponse({"metrics": [report_json(row) for row in rows]})


class _Listing:
    """Which checkpoints of an experiment or trial, and in which order: the query of both lists."""

    def __init__(
        self,
        states: Annotated[list[str], Query(default_factory=list)],
        offset: Offset = 0,
        limit: Limit = 0,
        sortByAttr: str = "SORT_BY_UNSPECIFIED",
        sortByMetric: str | None = None,
        orderBy: OrderBy = "ORDER_BY_UNSPECIFIED",
    ) -> None:
        self.states = states
        self.offset, self.limit = offset, limit
        self.sort_by_attr, self.sort_by_metric, self.order_by = sortByAttr, sortByMetric, orderBy


Listing = Annotated[_Listing, Depends()]


@router.get("/experiments/{experiment_id}/checkpoints")
async def list_of_experiment(
    experiment_id: int,
    user: CurrentUser,
    db: Db,
    listing: Listing,
) -> Response:
    """An experiment's checkpoints. By the searcher's metric without an `orderBy`: the best first."""
    async with db.tx() as conn:
        await require_experiment(conn, experiment_id)
        return await _page(
            conn,
            c.experiment_id == experiment_id,
            states=listing.states,
            sort=(listing.sort_by_attr, listing.sort_by_metric, listing.order_by),
            window=(listing.offset, listing.limit),
        )


@router.get("/trials/{trial_id}/checkpoints")
async def list_of_trial(
    trial_id: int,
    user: CurrentUser,
    db: Db,
    listing: Listing,
) -> Response:
    """A trial's checkpoints. By the searcher's metric without an `orderBy`: the best first."""
    async with db.tx() as conn:
        await require_trial(conn, trial_id)
        return await _page(
            conn,
            c.trial_id == trial_id,
            states=listing.states,
            sort=(listing.sort_by_attr, listing.sort_by_metric, listing.order_by),
            window=(listing.offset, listing.limit),
        )


async def _page(
    conn: Any,
    of: sa.ColumnElement[bool],
    *,
    states: list[str],
    sort: tuple[str, str | None, str],
    window: tuple[int, int],
) -> Response:
    by_attribute, by_metric, order_by = sort
    keys = SORT_KEYS
    if by_metric:
        keys = {"METRIC": metric_value(sa.literal(by_metric))}
        by_attribute = "SORT_BY_METRIC"
    elif by_attribute == "SORT_BY_SEARCHER_METRIC" and order_by == "ORDER_BY_UNSPECIFIED":
        keys = {"SEARCHER_METRIC": SEARCHER_LOSS}
    statement = (
        select_checkpoints().where(of).order_by(*ordered(keys, by_attribute, order_by, c.uuid))
    )
    if states:
        statement = statement.where(c.state.in_(state_names(states)))
    rows, pages = await fetch_page(conn, statement, *window)
    return JsonResponse(
        {"checkpoints": [checkpoint_json(row) for row in rows], "pagination": pages}
    )
