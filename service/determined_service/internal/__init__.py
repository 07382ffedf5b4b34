"""Routes for agents, flows and supervisors under ``/internal/v1``; not for users."""

from __future__ import annotations

from fastapi import FastAPI

from determined_service.internal import (
    agents,
    allocations,
    cluster,
    custom_search,
    pipelines,
    retraining,
    search,
    storage,
)
from determined_service.lifecycle.agents import Heartbeats, Reminders
from determined_service.search.drivers import Drivers
from determined_service.web.router import Router


def routers() -> list[Router]:
    """Every router of this package."""
    return [
        allocations.router,
        agents.router,
        cluster.router,
        search.router,
        storage.router,
        custom_search.router,
        retraining.router,
        pipelines.router,
    ]


def start(app: FastAPI) -> None:
    """Make the objects that the routes keep between requests."""
    app.state.heartbeats = Heartbeats()
    app.state.reminders = Reminders()
    app.state.drivers = Drivers()
