"""The service's own pages, below ``/det`` (docs/inside/front.md).

A page asks the REST API in its visitor's name (:mod:`~determined_service.front.visits`) and shows the answer
by a template. It reads no table and has no rule of access of its own.
"""

from __future__ import annotations

from determined_service.front import (
    assets,
    checkpoint_files,
    chosen,
    cluster,
    compare,
    curves,
    enter,
    experiment,
    experiment_about,
    experiment_analysis,
    experiment_checkpoints,
    experiment_code,
    experiment_configuration,
    experiment_start,
    experiments,
    home,
    login,
    logs,
    models,
    people,
    pipelines,
    report,
    settings,
    stream,
    tasks,
    terminal,
    trial,
    workspaces,
)
from determined_service.web.router import Router


def routers() -> list[Router]:
    """Every router of this package."""
    modules = (
        login,
        enter,
        assets,
        stream,
        home,
        experiments,
        chosen,
        # Before the others: "new" is no experiment's number.
        experiment_start,
        experiment,
        experiment_about,
        experiment_analysis,
        experiment_checkpoints,
        experiment_code,
        experiment_configuration,
        compare,
        trial,
        checkpoint_files,
        logs,
        curves,
        models,
        pipelines,
        workspaces,
        people,
        settings,
        cluster,
        tasks,
        terminal,
    )
    return [report.rest, report.router, *(module.router for module in modules)]
