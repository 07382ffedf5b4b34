"""The REST API for users, the SDK and training processes."""

from __future__ import annotations

import asyncio
import contextlib

from fastapi import FastAPI

from determined_service.access.basic import Passwords
from determined_service.downloads.readers import Readers
from determined_service.ingest.group_commit import GroupCommit
from determined_service.ingest.logs import LogsQueue
from determined_service.ingest.metrics import MetricsWriter
from determined_service.ingest.reports import ReportBatch
from determined_service.lifecycle.progress import ProgressEvents
from determined_service.mlflow.process import MlflowServer
from determined_service.prefect.visitors import PrefectServer
from determined_service.proxy.decisions import Decisions
from determined_service.proxy.process import ProxyProcess
from determined_service.public import (
    access_tokens,
    agents,
    allocations,
    bulk,
    checkpoint_reports,
    checkpoints,
    cluster_message,
    config_policies,
    custom_search,
    deletions,
    doors,
    downloads,
    entrance,
    experiment_actions,
    experiments,
    explanation,
    gangs,
    generic_tasks,
    groups,
    health,
    health_report,
    jobs,
    launched,
    lineage,
    login,
    master,
    metrics,
    mlflow_changes,
    mlflow_pages,
    model_definitions,
    model_versions,
    models,
    notebook_files,
    page_tickets,
    pipelines,
    plots,
    pool_bindings,
    prefect_page,
    project_visits,
    projects,
    reports,
    resource_pools,
    resources,
    retraining,
    returned_files,
    roles,
    runs,
    search_preview,
    shells,
    task_logs,
    task_visits,
    tasks,
    templates,
    tensorboards,
    trial_actions,
    trials,
    unmanaged,
    user_defaults,
    user_settings,
    users,
    workspaces,
)
from determined_service.public.storage_check import CloudChecks
from determined_service.scheduling.queue import Queue
from determined_service.scheduling.waiting_times import WaitingTimes
from determined_service.web.router import Router

TAGS = [
    {"name": "Authentication", "description": "Sessions and their tokens."},
    {"name": "Users", "description": "The accounts that may log in."},
    {"name": "Cluster", "description": "The cluster, its agents, slots and resource pools."},
    {"name": "Experiments", "description": "Searches: their configurations, states and progress."},
    {"name": "Jobs", "description": "The queue for slots: places, priorities, reasons."},
    {"name": "Trials", "description": "Trainings with one hyperparameter setting each."},
    {"name": "Allocations", "description": "Runs of a task: when to stop, and how gangs meet."},
    {"name": "Metrics", "description": "The metrics that trials report."},
    {"name": "Checkpoints", "description": "The checkpoints that trials have stored."},
    {"name": "Models", "description": "The model registry: models, versions, aliases."},
    {"name": "Pipelines", "description": "Experiments that take what earlier ones have found."},
    {"name": "Access tokens", "description": "What programs send in users' names."},
    {"name": "Workspaces", "description": "Workspaces and projects, and what they may use."},
    {"name": "Templates", "description": "Values that several configurations share, by a name."},
    {"name": "Logs", "description": "The output of tasks."},
    {"name": "Tasks", "description": "Everything that has allocations and logs."},
    {"name": "MLflow", "description": "What MLflow's clients change, and MLflow's own pages."},
    {"name": "Health", "description": "Whether the service is up, and ready."},
]


def routers() -> list[Router]:
    """Every router of this package. If two routes match, the first one answers."""
    modules = (
        # What is asked most comes first: routes are tried in order.
        experiment_actions,
        bulk,
        explanation,
        templates,
        access_tokens,
        trial_actions,
        allocations,
        gangs,
        unmanaged,
        custom_search,
        entrance,
        health,
        health_report,
        login,
        groups,
        roles,
        project_visits,
        user_defaults,
        user_settings,
        users,
        master,
        agents,
        jobs,
        resource_pools,
        resources,
        experiments,
        lineage,
        model_definitions,
        metrics,
        trials,
        reports,
        search_preview,
        plots,
        checkpoint_reports,
        checkpoints,
        cluster_message,
        downloads,
        deletions,
        models,
        model_versions,
        retraining,
        pipelines,
        # Before the tasks: "/tasks/count" must not be read as a task's id.
        launched,
        notebook_files,
        shells,
        tensorboards,
        doors,
        returned_files,
        tasks,
        generic_tasks,
        workspaces,
        runs,
        projects,
        config_policies,
        pool_bindings,
        task_logs,
        task_visits,
        page_tickets,
        mlflow_changes,
        # Last: their addresses have a part for everything.
        mlflow_pages,
        prefect_page,
    )
    return [module.router for module in modules]


async def start(app: FastAPI, stack: contextlib.AsyncExitStack) -> None:
    """Start the ingest queues (``app.state.metrics_queue`` and ``logs_queue``), which ``stack`` ends, and
    make the objects that routes keep between requests."""
    app.state.progress_events = ProgressEvents()
    app.state.readers = Readers()
    app.state.cloud_checks = CloudChecks()
    stack.push_async_callback(app.state.readers.close)
    app.state.queue = Queue(app.state.db, app.state.snapshots)
    app.state.waiting_times = WaitingTimes(app.state.db)
    settings = app.state.settings
    metrics = MetricsWriter(lambda: settings.cluster.quotas)
    app.state.metrics_queue = GroupCommit[ReportBatch](app.state.db, metrics.write)
    app.state.logs_queue = LogsQueue(app.state.db, lambda: settings.cluster.quotas)
    app.state.proxy = ProxyProcess(
        app.state.settings,
        Decisions(app.state.db, app.state.auth, app.state.queue, app.state.settings),
    )
    stack.push_async_callback(app.state.proxy.close)
    app.state.passwords = Passwords()
    app.state.prefect_server = PrefectServer(settings)
    stack.push_async_callback(app.state.prefect_server.close)
    app.state.mlflow = MlflowServer(app.state.settings)
    stack.push_async_callback(app.state.mlflow.close)
    idle = app.state.mlflow.end_when_idle(app.state.settings.mlflow_idle_s)
    tasks_running = [
        asyncio.create_task(app.state.metrics_queue.run(), name="metrics"),
        asyncio.create_task(app.state.logs_queue.run(), name="logs"),
        asyncio.create_task(idle, name="mlflow"),
    ]

    async def stop() -> None:
        for task in tasks_running:
            task.cancel()
        await asyncio.gather(*tasks_running, return_exceptions=True)

    stack.push_async_callback(stop)
