"""Typed access to the objects that the application holds for its routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request

from determined_service.access.principal import Principal
from determined_service.access.targets import Owners
from determined_service.access.throttle import LoginThrottle
from determined_service.base.db import Database
from determined_service.base.hub import Hub
from determined_service.base.settings import Settings
from determined_service.ingest.group_commit import GroupCommit
from determined_service.ingest.logs import LogsQueue
from determined_service.ingest.reports import ReportBatch
from determined_service.scheduling.queue import Queue
from determined_service.scheduling.reading import SnapshotReader
from determined_service.scheduling.waiting_times import WaitingTimes
from determined_service.views.secrets import Viewer


async def _db(request: Request) -> Database:
    db: Database = request.app.state.db
    return db


async def _hub(request: Request) -> Hub:
    hub: Hub = request.app.state.hub
    return hub


async def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


async def _snapshots(request: Request) -> SnapshotReader:
    snapshots: SnapshotReader = request.app.state.snapshots
    return snapshots


async def _queue(request: Request) -> Queue:
    queue: Queue = request.app.state.queue
    return queue


async def _waiting_times(request: Request) -> WaitingTimes:
    waiting_times: WaitingTimes = request.app.state.waiting_times
    return waiting_times


def metrics_queue(request: Request) -> GroupCommit[ReportBatch]:
    """The queue for metric batches."""
    queue: GroupCommit[ReportBatch] = request.app.state.metrics_queue
    return queue


def logs_queue(request: Request) -> LogsQueue:
    """The queue for log lines."""
    queue: LogsQueue = request.app.state.logs_queue
    return queue


async def _throttle(request: Request) -> LoginThrottle:
    throttle: LoginThrottle = request.app.state.login_throttle
    return throttle


async def _viewing(
    settings: Annotated[Settings, Depends(_settings)],
) -> Callable[[Principal], Viewer]:
    return lambda subject: Viewer.of(subject, settings)


async def _owners(request: Request) -> Owners:
    owners: Owners = request.app.state.owners
    return owners


Db = Annotated[Database, Depends(_db)]
OwnersOf = Annotated[Owners, Depends(_owners)]
HubOf = Annotated[Hub, Depends(_hub)]
SettingsOf = Annotated[Settings, Depends(_settings)]
Throttle = Annotated[LoginThrottle, Depends(_throttle)]
ViewerOf = Annotated[Callable[[Principal], Viewer], Depends(_viewing)]
"""Makes the viewer of the subject that a route's rule has let through."""
SnapshotsOf = Annotated[SnapshotReader, Depends(_snapshots)]
QueueOf = Annotated[Queue, Depends(_queue)]
WaitingTimesOf = Annotated[WaitingTimes, Depends(_waiting_times)]
