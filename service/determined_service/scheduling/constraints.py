"""``resources.placement`` as a scheduler's :class:`~.snapshot.Constraint`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from determined_service.scheduling.snapshot import Constraint


def constraint_of(placement: Mapping[str, Any] | None) -> Constraint | None:
    """What the section of a complete configuration asks for; None: any agent will do."""
    if not placement:
        return None
    agents = frozenset(placement.get("agents") or ())
    labels = tuple(
        (key, frozenset(values)) for key, values in sorted((placement.get("labels") or {}).items())
    )
    return Constraint(agents, labels) if agents or labels else None
