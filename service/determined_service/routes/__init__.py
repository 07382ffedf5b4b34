"""Routes that change states: experiments, trials, allocations, agents, the search."""

from __future__ import annotations

from fastapi import APIRouter

from determined_service.routes import (
    agents,
    allocations,
    custom_search,
    experiments,
    search,
    trials,
)


def routers() -> list[APIRouter]:
    """Every router of this package."""
    return [
        experiments.router,
        trials.router,
        allocations.router,
        allocations.internal,
        agents.router,
        search.router,
        custom_search.router,
        custom_search.internal,
    ]
