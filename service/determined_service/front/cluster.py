"""The cluster: pools, agents and their slots, the queue, use over time, and the service's log."""

from __future__ import annotations

import asyncio
import datetime
import zlib
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Query, Request
from starlette.responses import Response

from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.errors import ApiError, BadRequest
from determined_service.base.pages import FRONT_HOME
from determined_service.front.actions import FormAction, offer
from determined_service.front.experiments import PIECE
from determined_service.front.forms import Form, read_form
from determined_service.front.rendering import PageRouter, addresses, back, page
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

BASE = f"{FRONT_HOME}/cluster"
SCHEDULERS = {
    "SCHEDULER_TYPE_PRIORITY": "by priority",
    "SCHEDULER_TYPE_FAIR_SHARE": "fair share",
    "SCHEDULER_TYPE_ROUND_ROBIN": "round robin",
    "SCHEDULER_TYPE_UNSPECIFIED": "first in, first out",
}
FORECASTS = 1
"""How many waiting jobs of a page have a forecast: each costs dozens of decisions of the scheduler."""
FORECAST_JOBS = 500
"""In a longer queue none has: one job's page has its forecast."""
LINES = 500
"""Lines of the log on its page."""
DAYS, MONTHS = 30, 12
GROUPS = {
    "pool": ("Pool", "byResourcePool"),
    "user": ("User", "byUsername"),
    "label": ("Label of experiment", "byExperimentLabel"),
    "agent": ("Agent", "byAgentLabel"),
}


def _drain(form: Form) -> dict[str, bool]:
    return {"drain": form.text("drain", "") == "true"}


offer(
    router,
    {
        "agent.enable": FormAction(
            "POST", "/agents/{agent}/enable", "Agent {agent} gets work again."
        ),
        "agent.disable": FormAction(
            "POST", "/agents/{agent}/disable", "Agent {agent} gets no more work.", _drain
        ),
        "agent.remove": FormAction("DELETE", "/agents/{agent}", "Agent {agent} is removed."),
        "slot.enable": FormAction(
            "POST", "/agents/{agent}/slots/{slot}/enable", "Slot {slot} of {agent} gets work again."
        ),
        "slot.disable": FormAction(
            "POST",
            "/agents/{agent}/slots/{slot}/disable",
            "Slot {slot} of {agent} gets no more work.",
            _drain,
        ),
    },
)


def tabs(visit: Visit) -> list[tuple[str, str]]:
    """The parts of the cluster's page that the visitor may see."""
    log = [("log", "Log")] if visit.may(Action.READ, Kind.SERVICE_LOG) else []
    return [("", "Machines"), ("queue", "Queue"), ("use", "Use"), *log]


@router.get("/cluster", include_in_schema=False)
async def machines(request: Request, visit: Visitor, pool: str = "", agent: str = "") -> Response:
    """Pools with their agents. ``pool``: only this one; ``agent``: its slots one by one."""
    agents, pools, stats = await visit.all("/agents", "/resource-pools", "/job-queues/stats")
    found = [one for one in pools["resourcePools"] if pool in ("", one["name"])]
    counts = {one["resourcePool"]: one["stats"] for one in stats["results"]}
    return page(
        "cluster",
        request,
        visit,
        live="cluster",
        command="det agent list",
        tab="",
        tabs_shown=tabs(visit),
        base=BASE,
        pools=found,
        counts=counts,
        schedulers=SCHEDULERS,
        agents=_by_pool(agents["agents"], found),
        pool=pool,
        opened=agent,
        may=visit.may(Action.ADMINISTER, Kind.CLUSTER),
        address=_address_of("", pool=pool, agent=agent),
    )


def _by_pool(
    agents: list[dict[str, Any]], pools: list[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    shown = [_with_tasks(one) for one in agents]
    return {
        pool["name"]: [one for one in shown if pool["name"] in one["resourcePools"]]
        for pool in pools
    }


def _with_tasks(agent: dict[str, Any]) -> dict[str, Any]:
    """Each slot with ``task``: the task that holds it; None: nobody, or somebody who is not shown."""
    for slot in agent["slots"].values():
        held = slot["container"]
        task, _, run = ("" if held is None else held["parent"]).rpartition(".")
        is_named = bool(task) and run.isdecimal()
        slot["task"] = task if is_named else None
        slot["color"] = zlib.crc32(task.encode()) % 8 if is_named else None
    return agent


def _address_of(tab: str, **given: Any) -> Any:
    return addresses(f"{BASE}/{tab}" if tab else BASE, **given)


@router.get("/cluster/queue", include_in_schema=False)
async def queue(
    request: Request,
    visit: Visitor,
    pool: str = "",
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> Response:
    """The jobs in the order of service, with reasons, and what the visitor may change of them."""
    asked = {
        "limit": PIECE,
        "offset": offset,
        "reasons": "true",
        **({"resourcePool": pool} if pool else {}),
    }
    found, pools = await asyncio.gather(
        visit.get("/job-queues", asked), visit.get("/resource-pools")
    )
    jobs = found["jobs"]
    numbers = [int(job["entityId"]) for job in jobs if _is_experiment(job)]
    names = [job["entityId"] for job in jobs if not _is_experiment(job)]
    forecasts, experiments, tasks = await asyncio.gather(
        _forecasts(visit, jobs, found["pagination"]["total"]),
        visit.permitted(Action.CHANGE, Kind.EXPERIMENT, numbers),
        visit.permitted(Action.CHANGE, Kind.TASK, names),
    )
    mine = {str(one) for one in (*experiments, *tasks)}
    schedulers = {one["name"]: one["schedulerType"] for one in pools["resourcePools"]}
    rows = [
        {
            **job,
            "forecast": forecasts.get(job["entityId"], ""),
            "may": job["entityId"] in mine,
            "is_experiment": _is_experiment(job),
            "address": _address_of_job(job),
            "scheduler": schedulers.get(job["resourcePool"], ""),
        }
        for job in jobs
    ]
    _name_neighbours(rows)
    return page(
        "cluster_queue",
        request,
        visit,
        live="cluster",
        command=f"det job list {f'--resource-pool {pool}' if pool else ''}".strip(),
        tab="queue",
        tabs_shown=tabs(visit),
        base=BASE,
        jobs=rows,
        pagination=found["pagination"],
        pools=[one["name"] for one in pools["resourcePools"]],
        schedulers={one: SCHEDULERS.get(kind, "") for one, kind in schedulers.items()},
        pool=pool,
        address=_address_of("queue", pool=pool),
    )


def _is_experiment(job: Mapping[str, Any]) -> bool:
    return bool(job["type"] == "TYPE_EXPERIMENT")


def _address_of_job(job: Mapping[str, Any]) -> str:
    noun = "experiments" if _is_experiment(job) else "tasks"
    return f"{FRONT_HOME}/{noun}/{quote(job['entityId'], safe='')}"


def _name_neighbours(rows: list[dict[str, Any]]) -> None:
    """``before``, ``behind``: the experiments between which each one stands, for moves by one place."""
    last: dict[str, dict[str, Any]] = {}
    for row in rows:
        row["before"] = row["behind"] = ""
        if not row["is_experiment"]:
            continue
        other = last.get(row["resourcePool"])
        if other is not None:
            row["before"], other["behind"] = other["entityId"], row["entityId"]
        last[row["resourcePool"]] = row


async def _forecasts(visit: Visit, jobs: list[dict[str, Any]], total: int) -> dict[str, str]:
    """By job when the first of its requests starts, in words, of the first jobs that wait."""
    most = FORECASTS if total <= FORECAST_JOBS else 0
    waiting = [job for job in jobs if job["reason"]][:most]
    found = await asyncio.gather(
        *(visit.maybe(f"/job-queues/{job['jobId']}/explanation") for job in waiting)
    )
    return {
        job["entityId"]: one["waiting"][0]["forecast"] or ""
        for job, one in zip(waiting, found, strict=True)
        if one is not None and one["waiting"]
    }


@router.post("/actions/job.change", include_in_schema=False)
async def change_job(request: Request, visit: Visitor) -> Response:
    """One change of one job of the queue; the next page shows the service's remarks on it."""
    form = await read_form(visit)
    try:
        said = await _changed(visit, form)
    except ApiError as refusal:
        said = refusal.message
    return back(request, form.text("to", ""), said)


async def _changed(visit: Visit, form: Form) -> str:
    job, what, value = (form.text(name) for name in ("job", "what", "value"))
    if what == "maxSlots":
        most = None if value.strip() == "" else _number(value, "max_slots")
        await visit.send(
            "PATCH",
            f"/experiments/{quote(job, safe='')}",
            {"id": job, "resources": {"maxSlots": most}},
        )
        return (
            f"Job {job} runs on at most {most} slots."
            if most
            else f"Job {job} has no limit of slots."
        )
    change: dict[str, Any] = {"jobId": job}
    match what:
        case "priority":
            change["priority"] = _number(value, "priority")
            said = f"Job {job} has priority {value}."
        case "weight":
            change["weight"] = _fraction(value)
            said = f"Job {job} has weight {value}."
        case "resourcePool":
            change["resourcePool"] = value
            said = (
                f"Job {job} waits in pool {value}: what runs stores a checkpoint and goes on there."
            )
        case "aheadOf" | "behindOf":
            change[what] = value
            said = f"Job {job} is {'ahead of' if what == 'aheadOf' else 'behind'} job {value}."
        case _:
            raise BadRequest(f"what: {what[:40]!r} is no change of a job")
    answer = await visit.send("POST", "/job-queues", {"updates": [change]})
    return "\n".join([said, *answer["remarks"]])


def _number(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadRequest(f"{name}: give a whole number, not {text[:40]!r}") from None


def _fraction(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadRequest(f"weight: give a number, not {text[:40]!r}") from None


@router.get("/cluster/use", include_in_schema=False)
async def use(request: Request, visit: Visitor, by: str = "pool", period: str = "day") -> Response:
    """Hours of slots by day or month."""
    title, field = GROUPS.get(by, GROUPS["pool"])
    today = datetime.datetime.now(datetime.UTC).date()
    months = period == "month"
    first = today.replace(day=1) if months else today - datetime.timedelta(days=DAYS - 1)
    for _ in range(MONTHS - 1 if months else 0):
        first = (first - datetime.timedelta(days=1)).replace(day=1)
    unit = "MONTHLY" if months else "DAILY"
    found, stats = await asyncio.gather(
        visit.get(
            "/resources/allocation/aggregated",
            {
                "startDate": first.isoformat(),
                "endDate": today.isoformat(),
                "period": f"RESOURCE_ALLOCATION_AGGREGATION_PERIOD_{unit}",
            },
        ),
        visit.get("/job-queues/stats"),
    )
    entries = found["resourceEntries"]
    totals: dict[str, float] = {}
    for entry in entries:
        for name, seconds in entry[field].items():
            totals[name] = totals.get(name, 0.0) + seconds
    names = sorted(totals, key=lambda name: -totals[name])
    return page(
        "cluster_use",
        request,
        visit,
        command=f"det resources aggregated {first} {today}" + (" --monthly" if months else ""),
        tab="use",
        tabs_shown=tabs(visit),
        base=BASE,
        entries=entries,
        most=max((entry["seconds"] for entry in entries), default=0.0),
        waited=_waited(stats),
        field=field,
        title=title,
        names=names[:20],
        left_out=max(0, len(names) - 20),
        totals=totals,
        groups=GROUPS,
        by=by if by in GROUPS else "pool",
        period="month" if months else "day",
        address=_address_of("use", by=by, period=period),
    )


def _waited(stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """By pool the last days on which something waited, with the mean of its seconds."""
    return [
        {"pool": one["resourcePool"], "days": one["aggregates"][-7:]}
        for one in stats["results"]
        if one["aggregates"]
    ]


@router.get("/cluster/log", include_in_schema=False)
async def log(request: Request, visit: Visitor) -> Response:
    """The last lines of the service's log."""
    found = await visit.lines("/master/logs", {"offset": -LINES})
    return page(
        "cluster_log",
        request,
        visit,
        command="det master logs",
        tab="log",
        tabs_shown=tabs(visit),
        base=BASE,
        entries=[one["logEntry"] for one in found],
    )
