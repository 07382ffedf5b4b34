"""One trial: what it reports, its legs and why they ended, its checkpoints, its profiler."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Query, Request
from starlette.responses import Response

from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base import topics
from determined_service.base.bounds import BigCount, Id
from determined_service.base.errors import ApiError, NotFound
from determined_service.base.json import dumps
from determined_service.base.pages import FRONT_HOME
from determined_service.front.actions import FormAction, offer
from determined_service.front.experiments import PIECE
from determined_service.front.forms import read_form
from determined_service.front.rendering import PageRouter, back, page, state
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

TABS = [
    ("", "Overview"),
    ("checkpoints", "Checkpoints"),
    ("profiler", "Profiler"),
    ("logs", "Logs"),
]
LEGS = 100
"""The newest legs, which the table shows."""
DRAWN_LEGS = 1000
"""The newest legs, which the timeline shows."""
FILES = 100
"""Files of a checkpoint that a page lists."""
MODELS = 100
"""Models among which a reader chooses without typing the name."""
MANY_POINTS = 20_000
"""Longer curves are drawn with some points first."""
PROFILED = ("cpu", "memory", "disk", "network", "gpu")
"""The groups of metrics that the profiler reports."""
_GROUPS = {"avg_metrics": "training", "validation_metrics": "validation"}
_WIDTH = 1000.0

offer(
    router,
    {
        "trial.kill": FormAction(
            "POST",
            "/trials/{id}/kill",
            "Trial {id} is killed: its processes end at once. The search goes on without it.",
        )
    },
)


async def head(visit: Visit, trial_id: int, tab: str = "") -> dict[str, Any]:
    """What the head of each of the trial's pages shows: the trial, its experiment, what its reader may do."""
    trial = (await visit.get(f"/trials/{trial_id}"))["trial"]
    runs = state(trial["state"]) == "RUNNING"
    experiment, may, may_enter = await asyncio.gather(
        visit.get(f"/experiments/{trial['experimentId']}"),
        visit.permitted(Action.CHANGE, Kind.TRIAL, [trial_id]),
        visit.permitted(Action.ENTER, Kind.TASK, [trial["taskId"]] if runs else []),
    )
    found = experiment["experiment"]
    return {
        "trial": trial,
        "experiment": found,
        "tab": tab,
        "tabs_shown": TABS,
        "base": f"{FRONT_HOME}/trials/{trial_id}",
        "may_kill": bool(may) and not trial.get("endTime") and not found["unmanaged"],
        "may_dump": bool(may_enter) and not found["unmanaged"],
        "may_open": visit.may(Action.CREATE, Kind.TASK) and not found["unmanaged"],
        "live": "" if trial.get("endTime") else topics.trial(trial_id),
        "command": f"det trial describe {trial_id}",
    }


@router.get("/trials/{trial_id}", include_in_schema=False)
async def overview(
    request: Request,
    visit: Visitor,
    trial_id: Id,
    metric: str = "",
    x: str = "steps",
    scale: str = "linear",
    smooth: Annotated[float, Query(ge=0, le=0.95, allow_inf_nan=False)] = 0,
    low: BigCount | None = None,
    high: BigCount | None = None,
) -> Response:
    """Its state and reason, curves, hyperparameters, metrics, legs. ``low`` and ``high``: the first and the
    last step of the curve that is shown; both, or all are."""
    shown = await head(visit, trial_id)
    trial = shown["trial"]
    metrics = list(_metrics(trial))
    drawn = [one for one in metrics if one["drawn"]]
    waits = await _waits(visit, trial, shown["experiment"])
    legs = trial["legs"]
    return page(
        "trial",
        request,
        visit,
        metrics=metrics,
        drawn=drawn,
        chosen=metric or _first_drawn(drawn, shown["experiment"]),
        axes=sorted({one["name"] for one in drawn if "epoch" in one["name"].lower()}),
        x=x,
        scale=scale,
        smooth=smooth,
        low=low,
        high=high,
        is_long=any(one["count"] > MANY_POINTS for one in drawn),
        hparams=list(_flat(trial["hparams"])),
        waits=waits,
        legs=legs[-LEGS:][::-1],
        leg_count=len(legs),
        timeline=_timeline(legs[-DRAWN_LEGS:]),
        **shown,
    )


def _metrics(trial: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each metric that it has reported, with its summary."""
    for key, found in trial["summaryMetrics"].items():
        group = _GROUPS.get(key, key)
        if group in PROFILED:
            continue  # The profiler's page has them.
        for name, summary in found.items():
            yield {
                **summary,
                "group": group,
                "name": name,
                "drawn": "mean" in summary,
            }


def _first_drawn(drawn: list[dict[str, Any]], experiment: dict[str, Any]) -> str:
    """The searcher's metric, else a validation metric, else any."""
    names = [f"{one['group']}.{one['name']}" for one in drawn]
    searched = experiment["searcherMetric"]
    wanted = [f"validation.{searched}", f"training.{searched}"]
    wanted += [one for one in names if one.startswith("validation.")]
    return next((one for one in wanted if one in names), names[0] if names else "")


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Hyperparameters by their paths, ``optimizer.lr`` for example; values that are no texts as JSON."""
    if isinstance(value, dict) and value:
        for name, one in value.items():
            yield from _flat(one, f"{path}.{name}" if path else name)
    elif path:
        yield path, value if isinstance(value, str) else dumps(value).decode()


async def _waits(
    visit: Visit, trial: dict[str, Any], experiment: dict[str, Any]
) -> dict[str, Any] | None:
    """Why the trial does not train now: ``reason`` and, where slots decide, a ``forecast``. None: it trains,
    or has ended."""
    now = state(trial["state"])
    if trial.get("endTime") or now in ("RUNNING", "PULLING"):
        return None
    if state(experiment["state"]) == "PAUSED":
        return {"reason": experiment.get("reason") or "its experiment is paused", "forecast": None}
    found = await visit.maybe(f"/job-queues/{experiment['id']}/explanation")
    requests = [] if found is None else found["waiting"]
    mine = next((one for one in requests if one["trialId"] == trial["id"]), None)
    if mine is not None:
        return {"reason": mine["reason"], "forecast": mine["forecast"]}
    if now == "STARTING":
        return {"reason": "it has its slots, and its process is being started", "forecast": None}
    if now == "QUEUED":
        count = len(requests)
        before = (
            f"{count} requests of its experiment are before it" if count else "it waits for slots"
        )
        return {"reason": before, "forecast": None}
    return {
        "reason": "its searcher has not told it to go on: it waits for what other trials report",
        "forecast": None,
    }


def _timeline(legs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where each leg is drawn, on a line of 1000 units from the first one's start to the last one's end."""
    now = datetime.datetime.now(datetime.UTC)
    times = [
        (
            leg,
            datetime.datetime.fromisoformat(leg["startTime"]),
            datetime.datetime.fromisoformat(leg["endTime"]) if leg["endTime"] else now,
        )
        for leg in legs
        if leg["startTime"]
    ]
    if not times:
        return []
    begin = min(start for _, start, _ in times)
    whole = max((max(end for _, _, end in times) - begin).total_seconds(), 1.0)
    return [
        {
            "leg": leg,
            "x": round((start - begin).total_seconds() / whole * _WIDTH, 1),
            "width": max(round((end - start).total_seconds() / whole * _WIDTH, 1), 2.0),
            "took": (end - start).total_seconds(),
        }
        for leg, start, end in times
    ]


@router.get("/trials/{trial_id}/checkpoints", include_in_schema=False)
async def checkpoints(
    request: Request,
    visit: Visitor,
    trial_id: Id,
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> Response:
    """Its checkpoints with their files, the last one first."""
    shown, found = await asyncio.gather(
        head(visit, trial_id, tab="checkpoints"),
        visit.get(
            f"/trials/{trial_id}/checkpoints",
            {
                "sortByAttr": "SORT_BY_BATCH_NUMBER",
                "orderBy": "ORDER_BY_DESC",
                "limit": PIECE,
                "offset": offset,
                "mostFiles": FILES,
            },
        ),
    )
    whole = [
        uuid.UUID(one["uuid"]) for one in found["checkpoints"] if state(one["state"]) == "COMPLETED"
    ]
    mine = await visit.permitted(Action.REGISTER, Kind.CHECKPOINT, whole)
    models = None
    if mine:
        models = await visit.maybe("/models", {"limit": MODELS, "archived": "false"})
    best = shown["trial"].get("bestCheckpoint")
    return page(
        "trial_checkpoints",
        request,
        visit,
        checkpoints=[_with_files(one) for one in found["checkpoints"]],
        pagination=found["pagination"],
        address=lambda offset: f"{FRONT_HOME}/trials/{trial_id}/checkpoints?offset={offset}",
        best=None if best is None else best["uuid"],
        registered={str(one) for one in mine},
        models=[] if models is None else models["models"],
        **shown,
    )


def _with_files(checkpoint: dict[str, Any]) -> dict[str, Any]:
    sizes = sorted((checkpoint["resources"] or {}).items())
    return {**checkpoint, "files": [(path, size, quote(path)) for path, size in sizes]}


@router.get("/trials/{trial_id}/profiler", include_in_schema=False)
async def profiler(request: Request, visit: Visitor, trial_id: Id) -> Response:
    """What the profiler measured on the trial's machines."""
    shown = await head(visit, trial_id, tab="profiler")
    found = {
        (group, leaf)
        for group in PROFILED
        for summary in shown["trial"]["summaryMetrics"].get(group, {}).values()
        for leaf in _leaves(summary["last"])
    }
    order = {group: place for place, group in enumerate(PROFILED)}
    charts = sorted(found, key=lambda one: (order[one[0]], one[1]))
    return page("trial_profiler", request, visit, charts=charts, **shown)


def _leaves(value: Any) -> set[str]:
    """The names of the numbers in it, at any depth."""
    if not isinstance(value, dict):
        return set()
    inner = [_leaves(one) for one in value.values()]
    names = {name for name, one in value.items() if isinstance(one, int | float)}
    return names.union(*inner)


@router.post("/trials/{trial_id}/stacks", include_in_schema=False)
async def dump_stacks(request: Request, visit: Visitor, trial_id: Id) -> Response:
    """Where each of its Python processes is at this moment, on one of its machines."""
    form = await read_form(visit)
    shown = await head(visit, trial_id, tab="stacks")
    (node,) = form.numbers("node") or [0]
    task = quote(shown["trial"]["taskId"], safe="")
    found = await visit.send("POST", f"/tasks/{task}/stacks", {"node": node})
    shown |= {"live": "", "command": f"det trial dump {trial_id}"}
    return page("trial_stacks", request, visit, found=found, **shown)


@router.post("/trials/{trial_id}/tensorboard", include_in_schema=False)
async def open_tensorboard(request: Request, visit: Visitor, trial_id: Id) -> Response:
    """Launches a TensorBoard on the trial, and leads to its page."""
    form = await read_form(visit)
    try:
        made = await visit.send("POST", "/tensorboards", {"trialIds": [trial_id]})
    except ApiError as refusal:
        return back(request, form.text("to", ""), refusal.message)
    task = made["tensorboard"]["id"]
    said = f"TensorBoard {task} shows trial {trial_id} as soon as it runs."
    return back(request, f"{FRONT_HOME}/tasks/{quote(task)}", said)


@router.post("/trials/{trial_id}/register", include_in_schema=False)
async def register(request: Request, visit: Visitor, trial_id: Id) -> Response:
    """Makes a checkpoint the next version of a model, and the model if there is none of its name."""
    form = await read_form(visit)
    to, name = form.text("to", ""), form.text("model").strip()
    address = f"/models/{quote(name, safe='')}"
    try:
        try:
            await visit.get(address)
        except NotFound:
            await visit.send("POST", "/models", {"name": name})
        given = {"checkpointUuid": form.text("uuid")}
        made = await visit.send("POST", f"{address}/versions", given)
    except ApiError as refusal:
        return back(request, to, refusal.message)
    version = made["modelVersion"]["version"]
    said = f"The checkpoint is version {version} of model {name}."
    return back(request, to, said)
