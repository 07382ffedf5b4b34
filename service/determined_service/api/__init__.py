"""The REST API that users, the SDK and training processes speak."""

from __future__ import annotations

import asyncio
import contextlib

from fastapi import APIRouter, FastAPI

from determined_service.api import (
    agents,
    checkpoints,
    deletions,
    experiments,
    health,
    health_report,
    login,
    master,
    metrics,
    model_definitions,
    plots,
    reports,
    search_preview,
    task_logs,
    tasks,
    trials,
    users,
)
from determined_service.ingest.group_commit import GroupCommit
from determined_service.ingest.logs import LogLines, LogsWriter
from determined_service.ingest.metrics import MetricsWriter
from determined_service.ingest.reports import Batch

TAGS = [
    {"name": "Authentication", "description": "Sessions and their tokens."},
    {"name": "Users", "description": "Who may log in."},
    {"name": "Cluster", "description": "The cluster, its agents, slots and resource pools."},
    {"name": "Experiments", "description": "Searches: what was submitted, and how far it is."},
    {"name": "Trials", "description": "One hyperparameter setting each."},
    {"name": "Metrics", "description": "What trials report."},
    {"name": "Checkpoints", "description": "What trials have stored."},
    {"name": "Logs", "description": "What tasks have printed."},
    {"name": "Tasks", "description": "What has allocations and logs."},
    {"name": "Health", "description": "Whether the service is up, and ready."},
]


def routers() -> list[APIRouter]:
    """Every router of this package; of two routes that match, the first one answers."""
    modules = (
        health,
        health_report,
        login,
        users,
        master,
        agents,
        experiments,
        model_definitions,
        metrics,
        trials,
        reports,
        search_preview,
        plots,
        checkpoints,
        deletions,
        tasks,
        task_logs,
    )
    return [module.router for module in modules]


async def start(app: FastAPI, stack: contextlib.AsyncExitStack) -> None:
    """Starts the ingest queues (``app.state.metrics_queue`` and ``logs_queue``); ``stack`` ends them."""
    app.state.metrics_queue = GroupCommit[Batch](app.state.db, MetricsWriter().write)
    # Log lines may be a megabyte each: fewer at once.
    app.state.logs_queue = GroupCommit[LogLines](app.state.db, LogsWriter().write, max_items=64)
    tasks_running = [
        asyncio.create_task(app.state.metrics_queue.run(), name="metrics"),
        asyncio.create_task(app.state.logs_queue.run(), name="logs"),
    ]

    async def stop() -> None:
        for task in tasks_running:
            task.cancel()
        await asyncio.gather(*tasks_running, return_exceptions=True)

    stack.push_async_callback(stop)
