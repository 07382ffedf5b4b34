"""The resource pool that would take a submission, as the cluster sees it; nothing is submitted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from determined.cli import _bring_up
from determined.cli._state import State

if TYPE_CHECKING:
    from determined.experimental._submission import Submission

# An agent that was silent for so much longer than another is not counted on.
_SILENT = timedelta(minutes=5)


def ask(planned: Submission, resources: dict[str, Any], shared: State) -> dict[str, Any]:
    """What a cluster says, as JSON.

    Without one that answers and knows the user, ``note`` says why, and ``started_when_run`` whether
    `det flow run` would start one. ``refusal`` is what it has against the submission. Of the pool:
    ``slots``, ``free_slots``, and ``trials_at_once``, how many trials fit side by side when all are
    free (None: trials need no slots, or nothing is known). Raises APIException.
    """
    url = shared.address.url
    found: dict[str, Any] = {
        "master": url,
        "note": None,
        "started_when_run": False,
        "refusal": None,
        "resource_pool": resources["resource_pool"] or None,
        "slots": None,
        "free_slots": None,
        "trials_at_once": None,
    }
    reason = _bring_up.reason_to_start(shared)
    if reason is not None:
        return {**found, "note": reason, "started_when_run": True}
    if not _bring_up.answers(shared):
        return {**found, "note": f"no cluster answers at {url}"}
    if not _bring_up.knows_us(shared):
        return {**found, "note": f"not logged in to the cluster at {url} (`det user login`)"}
    return {**found, "refusal": _refusal(planned, shared), **_slots(resources, shared)}


def _refusal(planned: Submission, shared: State) -> str | None:
    from determined.common.api import errors

    # Without the files: what they are is known here, and they may be large.
    body = {name: value for name, value in planned.body().items() if name != "modelDefinition"}
    try:
        shared.session.post("/api/v1/experiments", json={**body, "validateOnly": True})
    except errors.BadRequestException as error:
        return error.message
    return None


def _slots(resources: dict[str, Any], shared: State) -> dict[str, Any]:
    from determined.common.api import pages

    pool = resources["resource_pool"]
    if not pool:
        pools = pages.read(shared.session, "/api/v1/resource-pools", "resourcePools")
        pool = next((one["name"] for one in pools if one.get("defaultComputePool")), "default")
    sizes = list(_agents(pool, shared))
    each = resources["slots_per_trial"]
    return {
        "resource_pool": pool,
        "slots": sum(total for total, _ in sizes),
        "free_slots": sum(free for _, free in sizes),
        # A trial has all its slots on one agent.
        "trials_at_once": sum(total // each for total, _ in sizes) if each else None,
    }


def _agents(pool: str, shared: State) -> Iterator[tuple[int, int]]:
    """Slots, and free slots, of each agent of the pool that is there."""
    from determined.common.api import pages

    agents = [
        (datetime.fromisoformat(agent["lastHeartbeat"]), agent)
        for agent in pages.read(shared.session, "/api/v1/agents", "agents")
        if pool in (agent.get("resourcePools") or ())
    ]
    # Compared with each other: this machine's clock may be wrong.
    latest = max((heard for heard, _ in agents), default=None)
    for heard, agent in agents:
        if latest is None or latest - heard > _SILENT or agent.get("draining"):
            continue
        usable = [slot for slot in (agent.get("slots") or {}).values() if slot.get("enabled")]
        yield len(usable), sum(not slot.get("container") for slot in usable)
