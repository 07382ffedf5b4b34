"""The resource pool of a planned submission, and its slots. Nothing is submitted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from determined.cli.state import State
from determined.cli.submission import bring_up

if TYPE_CHECKING:
    from determined.experimental._submission import Submission


def ask(planned: Submission, resources: dict[str, Any], shared: State) -> dict[str, Any]:
    """The cluster's answer about a submission, as JSON. Raises APIException.

    If no cluster answers, or the user is not logged in to it, ``note`` is the reason, and
    ``started_when_run`` tells whether `det flow run` would start a cluster. ``refusal`` is the reason
    for which the cluster would refuse the submission. ``slots`` and ``free_slots`` are the pool's.
    ``trials_at_once`` is how many trials fit side by side if all slots are free; it is None if trials
    need no slots or the pool is not known.
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
    reason = bring_up.reason_to_start(shared)
    if reason is not None:
        return {**found, "note": reason, "started_when_run": True}
    if not bring_up.answers(shared):
        return {**found, "note": f"no cluster answers at {url}"}
    if not bring_up.knows_us(shared):
        return {**found, "note": f"not logged in to the cluster at {url} (`det user login`)"}
    return {**found, "refusal": _refusal(planned, shared), **_slots(resources, shared)}


def _refusal(planned: Submission, shared: State) -> str | None:
    from determined.common.api import errors

    try:
        planned.validate(shared.session)
    except errors.BadRequestException as error:
        return error.message
    return None


def _slots(resources: dict[str, Any], shared: State) -> dict[str, Any]:
    pool = resources["resource_pool"]
    if not pool:
        pools = shared.cluster.list_resource_pools()
        pool = next((one["name"] for one in pools if one.get("defaultComputePool")), "default")
    sizes = list(_machines(pool, shared))
    each = resources["slots_per_trial"]
    return {
        "resource_pool": pool,
        "slots": sum(total for total, _ in sizes),
        "free_slots": sum(free for _, free in sizes),
        # A trial has all its slots on one machine.
        "trials_at_once": sum(total // each for total, _ in sizes) if each else None,
    }


def _machines(pool: str, shared: State) -> Iterator[tuple[int, int]]:
    """The number of slots and of free slots of each agent of the pool that takes work, or of each machine of
    one that stands for several."""
    for agent in (one.document for one in shared.cluster.list_agents()):
        if pool not in (agent.get("resourcePools") or ()) or agent.get("draining"):
            continue
        if agent.get("state") != "STATE_ALIVE":
            continue
        usable: dict[str | None, list[dict[str, Any]]] = {None: []}
        for slot in (agent.get("slots") or {}).values():
            if slot.get("enabled") and not slot.get("draining"):
                usable.setdefault(slot.get("machine"), []).append(slot)
        for slots in usable.values():
            yield len(slots), sum(not slot.get("container") for slot in slots)
