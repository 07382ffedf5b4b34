"""The service: :func:`create_app`.

``app.state`` holds what routes need: ``settings``, ``db`` (:class:`~determined_service.base.db.Database`),
``hub`` (:class:`~determined_service.base.hub.Hub`), ``own_log``
(:class:`~determined_service.base.own_log.OwnLog`), ``auth`` and ``owners`` (who asks, and what belongs to
whom), ``login_throttle`` (who guesses passwords), ``requests`` (how many of each
user are under way), ``snapshots`` (what schedulers see, and which one serves which pool:
:class:`~determined_service.scheduling.reading.SnapshotReader`), the schedulers' ``queue``
(:class:`~determined_service.scheduling.queue.Queue`) and the two ingest queues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from fastapi import FastAPI
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from determined.__version__ import __version__
from determined.common.wire import limits
from determined_registry.database import migrate, mlflow_role
from determined_service import front, internal, public
from determined_service.access.authenticator import Authenticator
from determined_service.access.targets import Owners
from determined_service.access.throttle import LoginThrottle
from determined_service.base import errors, topics
from determined_service.base.db import Database
from determined_service.base.hub import Hub
from determined_service.base.own_log import OwnLog
from determined_service.base.settings import Settings
from determined_service.base.shares import Requests
from determined_service.bootstrap import bootstrap
from determined_service.lifecycle import config_policies, configuration
from determined_service.lifecycle.cluster_message import MessageBoard
from determined_service.loops import runtime
from determined_service.scheduling.pools import PoolSchedulers
from determined_service.scheduling.reading import SnapshotReader
from determined_service.web.bounds import Bounds
from determined_service.web.description import describe_aside
from determined_service.web.own_hosts import OwnHosts
from determined_service.web.router import mount

logger = logging.getLogger(__name__)


async def _stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _let_mlflow_read(settings: Settings) -> None:
    """The role of MLflow's server gets its rights: a migration may have brought tables that it shows."""
    if settings.mlflow_db_url is None:
        return
    role = make_url(settings.mlflow_db_url).username
    if not role or role == make_url(settings.db_url).username:
        return
    try:
        await asyncio.to_thread(mlflow_role.grant, settings.db_url, role)
    except SQLAlchemyError as error:
        # MLflow's pages say so then; the cluster works without them.
        logger.warning("the role %s of mlflow_db_url cannot be given its rights: %s", role, error)


def _wake_with(own_log: OwnLog, hub: Hub) -> None:
    """Wake the followers of the log at each line, which any thread may write."""
    loop = asyncio.get_running_loop()

    def tell() -> None:
        # At its end the loop is closed before everything is said.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(hub.wake, topics.SERVICE_LOG)

    own_log.tell = tell


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    own_log: OwnLog = app.state.own_log
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(own_log.installed())
        await asyncio.to_thread(migrate.upgrade, settings.db_url)
        await _let_mlflow_read(settings)
        db = Database(settings.db_url)
        hub = Hub(settings.db_url)
        _wake_with(own_log, hub)
        stack.push_async_callback(db.close)
        cluster_id = await bootstrap(db, settings)
        app.state.settings = settings.model_copy(update={"cluster_id": str(cluster_id)})
        await configuration.begin(db, settings)
        await config_policies.load(db, settings)
        board = MessageBoard()
        await board.load(db)
        app.state.message_board = board
        app.state.db = db
        app.state.hub = hub
        app.state.auth = Authenticator(db, hub, settings)
        app.state.owners = Owners(db)
        app.state.login_throttle = LoginThrottle()
        app.state.snapshots = SnapshotReader(
            PoolSchedulers(lambda: settings.cluster), settings.agent_timeout_s
        )
        stack.push_async_callback(_stop, [asyncio.create_task(hub.run(), name="hub")])
        following = configuration.follow(db, hub, settings)
        stack.push_async_callback(_stop, [asyncio.create_task(following, name="configuration")])
        policies = config_policies.follow(db, hub, settings)
        stack.push_async_callback(_stop, [asyncio.create_task(policies, name="policies")])
        messages = board.follow(db, hub)
        stack.push_async_callback(_stop, [asyncio.create_task(messages, name="cluster message")])
        internal.start(app)
        await public.start(app, stack)
        stack.push_async_callback(_stop, await runtime.start(app))
        app.state.started = True
        yield


def create_app(settings: Settings) -> FastAPI:
    """The application; migrates and bootstraps the database when it starts.

    Raises sqlalchemy.exc.OperationalError at start when the database does not answer.
    """
    app = FastAPI(
        title="Determined on Prefect",
        version=__version__,
        description="Determined's REST API: experiments, trials, metrics, checkpoints, logs.",
        lifespan=_lifespan,
        openapi_tags=public.TAGS,
    )
    app.state.settings = settings
    app.state.requests = Requests(limits.REQUESTS_AT_ONCE)
    app.state.own_log = OwnLog()
    app.state.started = False
    app.add_middleware(Bounds)
    app.add_middleware(OwnHosts, settings=settings)
    errors.install(app)
    describe_aside(app)
    mount(app, [*public.routers(), *internal.routers(), *front.routers()])
    return app
