"""The message of the cluster to all its users: docs/operate/users.md."""

# Fields are named as in the API.
# ruff: noqa: N815
from __future__ import annotations

import datetime
import re
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from determined.common.wire import limits
from determined.common.wire.checks import show
from determined.expconf.durations import seconds
from determined_service.access.dependencies import ClusterReader, may
from determined_service.access.principal import USER, Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Name, Text
from determined_service.base.checks import check_text, check_time
from determined_service.base.errors import BadRequest
from determined_service.base.json import JsonResponse
from determined_service.lifecycle import cluster_message
from determined_service.lifecycle.cluster_message import ClusterMessage, MessageBoard
from determined_service.state.change import changing
from determined_service.views.values import moment, parse_time
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Cluster", "/api/v1/master/cluster_message")

Setter = Annotated[Principal, may(Action.ADMINISTER, Kind.CLUSTER, "set the message of")]
_DAYS = {"d": 1, "w": 7}


def board(request: Request) -> MessageBoard:
    """The message that this process knows."""
    found: MessageBoard = request.app.state.message_board
    return found


BoardOf = Annotated[MessageBoard, Depends(board)]


class NewMessage(BaseModel):
    """``v1SetClusterMessageRequest``."""

    message: Text = Field(
        description=f"Not blank, at most {limits.CLUSTER_MESSAGE_CHARS} characters."
    )
    startTime: Name | None = Field(
        default=None, description="RFC 3339; users see it from then on. Default: now."
    )
    endTime: Name | None = Field(
        default=None, description="RFC 3339; users see it no more. Default: it stays."
    )
    duration: Name | None = Field(
        default=None,
        description="In place of `endTime`: the time from `startTime` on, such as `1h30m`, `5d` or `2w`.",
    )

    def read(self, now: datetime.datetime) -> ClusterMessage:
        """The checked message. Raises BadRequest."""
        text = check_text(self.message.strip(), "message", limits.CLUSTER_MESSAGE_CHARS)
        if not text:
            raise BadRequest("message: it is blank: DELETE takes the message away")
        start = parse_time(self.startTime, "startTime") if self.startTime else now
        end = parse_time(self.endTime, "endTime") if self.endTime else None
        if self.duration:
            if end is not None:
                raise BadRequest("duration: give it or endTime, not both")
            end = _later(start, self.duration)
        if end is not None and end <= max(start, now):
            what = "startTime" if end <= start else "now"
            raise BadRequest(f"endTime: {moment(end)} is not after {what}: nobody would see it")
        return ClusterMessage(text, start, end, now)


def _later(start: datetime.datetime, duration: str) -> datetime.datetime:
    """``start`` and that time. Raises BadRequest."""
    whole = re.fullmatch("([0-9]{1,5})([dw])", duration)
    try:
        if whole is not None:
            length = datetime.timedelta(days=int(whole[1]) * _DAYS[whole[2]])
        else:
            length = datetime.timedelta(seconds=seconds(duration))
        return check_time(start + length, "duration")
    except (ValueError, OverflowError):
        raise BadRequest(
            f"duration: expected a duration such as 1h30m, 5d or 2w, found {show(duration)}"
        ) from None


def message_json(message: ClusterMessage) -> dict[str, Any]:
    """``v1ClusterMessage``."""
    return {
        "message": message.text,
        "startTime": moment(message.start),
        "endTime": moment(message.end),
        "createdTime": moment(message.created),
    }


@router.get("")
async def read_message(user: ClusterReader, messages: BoardOf) -> Response:
    """The message that users see now; administrators also read one that begins later. `null`: there is
    none."""
    found = messages.find(coming=user.admin and user.kind == USER)
    return JsonResponse({"clusterMessage": None if found is None else message_json(found)})


@router.put("")
async def put_message(given: NewMessage, user: Setter, db: Db, messages: BoardOf) -> Response:
    """Sets the message, in place of the one before."""
    message = given.read(datetime.datetime.now(datetime.UTC))
    async with changing(db) as change:
        await cluster_message.put(change, message)
    await messages.load(db)
    return JsonResponse({})


@router.delete("")
async def delete_message(user: Setter, db: Db, messages: BoardOf) -> Response:
    """Takes the message away; may be repeated."""
    async with changing(db) as change:
        await cluster_message.put(change, None)
    await messages.load(db)
    return JsonResponse({})
