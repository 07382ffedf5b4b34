"""Names the settings of a configuration that its resource pool's scheduler does not heed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ORDERS = {
    "priority": "by priority",
    "fair_share": "by fair shares",
    "round_robin": "in turns (round robin)",
    "first_in_first_out": "first in, first out",
}
"""How a pool serves, by the type of its scheduler."""
HEEDS_PRIORITY, HEEDS_WEIGHT = ("priority",), ("fair_share",)


def remarks(config: Mapping[str, Any], pool: str, scheduler: str) -> list[str]:
    """A sentence for each setting of the (complete) ``config`` that is stored but not heeded in ``pool``.

    ``scheduler``: the type of the pool's scheduler.
    """
    resources = config.get("resources") or {}
    found = []
    priority, weight = resources.get("priority"), resources.get("weight", 1.0)
    if priority is not None:
        found += remark("priority", priority, pool, scheduler)
    if weight != 1:
        found += remark("weight", weight, pool, scheduler)
    return found


def remarks_on_task(config: Mapping[str, Any], pool: str, scheduler: str) -> list[str]:
    """The same of what somebody launches.

    A fair share is at least the slots of one allocation, and never more than what is wanted: a task, which
    is one allocation, has all of its slots or waits for them, whatever its weight.
    """
    resources = config.get("resources") or {}
    weight = resources.get("weight", 1.0)
    found = remarks({"resources": {**resources, "weight": 1.0}}, pool, scheduler)
    if weight != 1:
        found.append(
            f"resources.weight ({weight:g}) is stored but not heeded: a task has all of its slots or waits"
            " for them; weights share slots out among experiments"
        )
    return found


def remark(setting: str, value: float, pool: str, scheduler: str) -> list[str]:
    """The sentence that the setting is not heeded in the pool; empty when it is."""
    heeding = HEEDS_PRIORITY if setting == "priority" else HEEDS_WEIGHT
    if scheduler in heeding:
        return []
    return [
        f"resources.{setting} ({value:g}) is stored but not heeded: resource pool {pool!r} serves "
        f"{ORDERS[scheduler]}"
    ]
