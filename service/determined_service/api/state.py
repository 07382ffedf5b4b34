"""What the application holds for its routes, typed."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from determined_service.db import Database
from determined_service.hub import Hub
from determined_service.ingest.group_commit import GroupCommit
from determined_service.ingest.logs import LogLines
from determined_service.ingest.reports import Batch
from determined_service.settings import Settings


async def _db(request: Request) -> Database:
    db: Database = request.app.state.db
    return db


async def _hub(request: Request) -> Hub:
    hub: Hub = request.app.state.hub
    return hub


async def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


def metrics_queue(request: Request) -> GroupCommit[Batch]:
    """Where metric batches are handed in."""
    queue: GroupCommit[Batch] = request.app.state.metrics_queue
    return queue


def logs_queue(request: Request) -> GroupCommit[LogLines]:
    """Where log lines are handed in."""
    queue: GroupCommit[LogLines] = request.app.state.logs_queue
    return queue


Db = Annotated[Database, Depends(_db)]
HubOf = Annotated[Hub, Depends(_hub)]
SettingsOf = Annotated[Settings, Depends(_settings)]
