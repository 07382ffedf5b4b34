"""The cluster as a whole."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from determined import expconf
from determined.__version__ import __version__
from determined.common import cluster_config
from determined.common.wire import limits
from determined_service.access.dependencies import may
from determined_service.access.looking_again import LookAgain, look_again_for
from determined_service.access.principal import Principal
from determined_service.access.rules import Action, authorise
from determined_service.access.targets import Kind, Target
from determined_service.base import topics
from determined_service.base.bounds import BigCount
from determined_service.base.db import Database
from determined_service.base.errors import ApiError, Unavailable, ndjson_error
from determined_service.base.hub import Hub, wait_at_most
from determined_service.base.json import ndjson
from determined_service.base.own_log import LoggedLine, OwnLog
from determined_service.base.streams import Stream
from determined_service.public.cluster_message import BoardOf, message_json
from determined_service.views.values import moment
from determined_service.web.router import Router
from determined_service.web.state import Db, HubOf, SettingsOf

router = Router("Cluster")

CHUNK = 500
RECHECK_S = 30.0
_LEVELS = frozenset({"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"})

DETERMINED = "0.38.1"
"""The release of Determined whose interfaces these are. Its `det` compares this with its own version at every
call, and says so when the two differ."""


@router.get("/api/v1/master")
async def get_master(settings: SettingsOf, messages: BoardOf) -> dict[str, Any]:
    """Version and identity; needs no token, because clients ask before they log in. `clusterMessage`: what
    administrators tell all users now. `passwordMinChars`, ours: what clients, which send only hashes, ask of
    a new password."""
    message = messages.find()
    return {
        **({} if message is None else {"clusterMessage": message_json(message)}),
        "version": __version__,
        "masterId": settings.cluster_id,
        "clusterId": settings.cluster_id,
        "clusterName": settings.cluster_name,
        "telemetryEnabled": False,
        "ssoProviders": [],
        "externalLoginUri": "",
        "externalLogoutUri": "",
        "branding": "determined",
        "rbacEnabled": settings.cluster.has_roles,
        "product": "PRODUCT_COMMUNITY",
        "userManagementEnabled": True,
        "passwordMinChars": limits.PASSWORD_MIN_CHARS if settings.is_reachable else 0,
        "featureSwitches": [],
        "strictJobQueueControl": False,
        "hasCustomLogo": False,
    }


@router.get("/api/v1/master/telemetry")
async def get_telemetry() -> dict[str, Any]:
    """Says that telemetry is off: nothing is ever sent anywhere."""
    return {"enabled": False}


@router.get("/api/v1/master/config")
async def get_config(
    user: Annotated[Principal, may(Action.READ, Kind.CONFIGURATION)],
    settings: SettingsOf,
) -> dict[str, Any]:
    """The cluster configuration in force, every default filled in, secrets masked, with `feature_switches`:
    there are none, but Determined's clients look which are on.

    ``refusal``: why the configuration file is not in force; empty if it is.
    """
    config = cluster_config.masked(settings.cluster)
    if settings.checkpoint_storage is not None and "checkpoint_storage" not in config:
        config |= expconf.masked_to_share({"checkpoint_storage": settings.checkpoint_storage})
    return {"config": {**config, "feature_switches": []}, "refusal": settings.cluster_refusal}


@router.get("/api/v1/master/logs")
async def read_logs(
    user: Annotated[Principal, may(Action.READ, Kind.SERVICE_LOG)],
    request: Request,
    db: Db,
    hub: HubOf,
    offset: Annotated[
        int,
        Query(ge=-limits.INT64, le=limits.INT64, description="below 0: as many lines from the end"),
    ] = 0,
    limit: Annotated[BigCount, Query(description="The most lines to return; 0: all.")] = 0,
    follow: bool = False,
) -> Response:
    """The log of the service process that answers, each line as `{"result": {"logEntry": …}}`: what it still
    has in memory, 1 MiB, and with `follow` what comes. `id` counts lines since the process began."""
    own_log: OwnLog = request.app.state.own_log
    first = offset if offset >= 0 else own_log.before_end(-offset)
    rows = _followed(own_log, db, hub, first, limit, look_again_for(request, user), follow=follow)
    return Stream(rows, media_type="application/x-ndjson")


async def _followed(
    own_log: OwnLog,
    db: Database,
    hub: Hub,
    first: int,
    limit: int,
    look_again: LookAgain | None,
    *,
    follow: bool,
) -> AsyncIterator[bytes]:
    left = limit or limits.INT64
    try:
        changes = () if look_again is None else look_again.topics
        with hub.subscribe([topics.SERVICE_LOG, *changes]) as event:
            while True:
                event.clear()
                while left and (found := own_log.lines(first, min(left, CHUNK))):
                    async with db.answers.hold(sum(len(line.message) for line in found)):
                        yield b"".join(ndjson({"logEntry": _entry(line)}) for line in found)
                    left -= len(found)
                    first = found[-1].number + 1
                if not (follow and left):
                    return
                if hub.closed:
                    raise Unavailable("the service is stopping: follow its log again in a moment")
                await wait_at_most(event, RECHECK_S)
                if look_again is not None:
                    authorise(await look_again.look(), Action.READ, Target(Kind.SERVICE_LOG))
    except ApiError as error:
        # The answer has begun; its last line is how it can still fail.
        yield ndjson_error(error)


def _entry(line: LoggedLine) -> dict[str, Any]:
    """``v1LogEntry``."""
    level = line.level if line.level in _LEVELS else "UNSPECIFIED"
    at = datetime.datetime.fromtimestamp(line.time, datetime.UTC)
    return {
        "id": line.number,
        "timestamp": moment(at),
        "level": f"LOG_LEVEL_{level}",
        "message": line.message,
    }


@router.get("/info")
async def get_info(settings: SettingsOf) -> dict[str, Any]:
    """Identity, in the form that Determined's `det` requests first to compare versions: `version` is that of
    Determined's release whose interfaces these are, `service_version` this service's own."""
    return {
        "version": DETERMINED,
        "service_version": __version__,
        "master_id": settings.cluster_id,
        "cluster_id": settings.cluster_id,
        "cluster_name": settings.cluster_name,
        "telemetry": {"enabled": False},
        "sso_providers": [],
    }
