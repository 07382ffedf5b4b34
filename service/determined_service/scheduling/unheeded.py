"""Names the settings of a configuration that the scheduler does not heed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_RULE = "this release serves the requests of a resource pool first in, first out"


def remarks(config: Mapping[str, Any]) -> list[str]:
    """A sentence for each setting of the (complete) ``config`` that is stored but not heeded."""
    resources = config.get("resources") or {}
    priority, weight = resources.get("priority"), resources.get("weight", 1.0)
    found = []
    if priority is not None:
        found.append(f"resources.priority ({priority}) is stored but not heeded: {_RULE}")
    if weight != 1:
        found.append(f"resources.weight ({weight:g}) is stored but not heeded: {_RULE}")
    return found
