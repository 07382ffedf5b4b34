"""Routes that change states: experiments, trials, allocations, agents, the search."""

from __future__ import annotations

from fastapi import APIRouter

from determined_service.routes import (
    agents,
    allocations,
    bulk,
    custom_search,
    experiments,
    explanation,
    gangs,
    search,
    storage,
    trials,
    unmanaged,
)


def routers() -> list[APIRouter]:
    """Every router of this package."""
    return [
        experiments.router,
        bulk.router,
        explanation.router,
        trials.router,
        allocations.router,
        allocations.internal,
        gangs.router,
        agents.router,
        search.router,
        storage.router,
        unmanaged.router,
        custom_search.router,
        custom_search.internal,
    ]
