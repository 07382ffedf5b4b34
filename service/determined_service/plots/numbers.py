"""The numbers behind two figures: the importance of hyperparameters, and the trials at each rung."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from determined_service.plots.importance import hyperparameter_importance
from determined_service.plots.model import Search
from determined_service.plots.occupancy import occupancy


def numbers(search: Search) -> dict[str, Any]:
    """``importance``: hyperparameters with their shares of 1, the largest first; ``notes``: sentences on it;
    ``rungs``: by bracket, how many trials were measured at each length; ``unit``: of lengths."""
    section, shares = hyperparameter_importance(search)
    return {
        "importance": [
            {"name": name, "share": share}
            for name, share in sorted(shares.items(), key=lambda item: -item[1])
        ],
        "notes": section.notes,
        "rungs": [asdict(table) for table in occupancy(search) if table.rungs],
        "unit": search.unit,
    }
