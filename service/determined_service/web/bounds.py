"""The first look at every request: the size of its body, its address and parameters.

:class:`Bounds` goes around the whole application. A body is counted as it arrives, with or without a
Content-Length; a larger one is refused with 413 before it is parsed. Bodies that models parse are checked
here too, because they are parsed before the route checks the rights. And the last look: the answer leaves by
:mod:`~determined_service.web.sending`.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from fastapi import Request
from fastapi.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from determined.common.wire import limits, paths
from determined.common.wire.checks import text_problem
from determined.common.wire.kinds import TaskKind
from determined_service.access.tokens import bearer_token
from determined_service.base import errors
from determined_service.base.checks import check_shape
from determined_service.base.db import ASKED, SEEN
from determined_service.base.errors import ApiError, BadRequest, TooLarge, Unauthenticated
from determined_service.base.shares import COUNTED, SENDING
from determined_service.web.request import check_body
from determined_service.web.sending import PacedAnswer, while_wanted

# The routes that take larger bodies; they read these themselves after authentication.
_LARGER = (
    (re.compile(r"/api/v1/experiments(/by-external-id/.*)?"), limits.SUBMISSION_BYTES),
    (re.compile(r"/api/v1/models/[^/]+/retraining"), limits.SUBMISSION_BYTES),
    (re.compile(r"/api/v1/pipelines"), limits.SUBMISSION_BYTES),
    (
        re.compile(f"/api/v1/({'|'.join(kind.plural for kind in TaskKind)}|generic-tasks)"),
        limits.SUBMISSION_BYTES,
    ),
    (
        re.compile(r"/api/v1/trials/[^/]+/(metrics|metrics/batch|(training|validation)_metrics)"),
        limits.METRICS_BYTES,
    ),
    (re.compile(r"/api/v1/task/logs|/task-logs"), limits.CHECKPOINT_BYTES),
    (re.compile(r"/api/v1/checkpoints"), limits.CHECKPOINT_BYTES),
    (
        re.compile(r"/mlflow/(ajax-)?api/2\.0/mlflow-artifacts/artifacts/.*"),
        limits.MLFLOW_FILE_BYTES,
    ),
    (
        re.compile(r"/mlflow/(ajax-)?api/2\.0/mlflow/upload-artifact"),
        limits.MLFLOW_PAGE_FILE_BYTES,
    ),
    # MLflow's own limit for its clients is 1 MB, and JSON of Python's is longer than it must be.
    (re.compile(r"/mlflow/.+|/api/v1/mlflow/runs/[^/]+/batch"), limits.METRICS_BYTES),
)
# A log is searched for any bytes.
_ANY_TEXT = re.compile(rb"(^|&)searchText=[^&]*")


class Bounds:
    """ASGI middleware; see the module's docstring."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = PacedAnswer(send)
        SENDING.set(answer)
        try:
            most = _admit(scope)
            receiving = _counted(receive, most)
            if most == limits.BODY_BYTES:
                receiving = await _whole(receiving)
                await while_wanted(
                    scope, receive, answer, lambda: self.app(scope, receiving, answer.send)
                )
            else:
                await self.app(scope, receiving, answer.send)
        except ApiError as refusal:
            await errors.refuse(refusal)(scope, receive, send)
        except Exception as error:
            if answer.is_unwanted:
                return
            if answer.has_begun:
                raise
            await errors.unforeseen(Request(scope), error)(scope, receive, send)
        finally:
            # What follows in this task is not the request's.
            SEEN.set(None)
            ASKED.set(None)
            asker = scope.get(COUNTED)
            if asker is not None:
                scope["app"].state.requests.end(asker)


def _admit(scope: Scope) -> int:
    """The bytes that the request's body may have. Raises BadRequest, TooLarge."""
    problem = text_problem(scope["path"])
    if problem:
        raise BadRequest(f"the address {problem}")
    query: bytes = scope["query_string"]
    if query.count(b"&") >= limits.QUERY_PARAMETERS:
        raise BadRequest(
            f"the address has {query.count(b'&') + 1} parameters; "
            f"at most {limits.QUERY_PARAMETERS} are allowed"
        )
    if b"%00" in query and b"\0" in unquote_to_bytes(_ANY_TEXT.sub(b"", query)):
        raise BadRequest("a parameter of the address holds the character NUL")
    headers = dict(scope["headers"])
    if headers.get(b"content-encoding", b"identity").lower() not in (b"identity", b""):
        raise BadRequest("Content-Encoding: compressed bodies are not taken; send it as it is")
    most = _most(scope)
    length = headers.get(b"content-length", b"")
    if length.isdigit() and (len(length) > 15 or int(length) > most):
        raise _too_large(int(length[:15]), most)
    return most


def _most(scope: Scope) -> int:
    path: str = scope["path"]
    if path.startswith(f"{paths.PREFIX}/"):
        return limits.LOGS_BYTES if _is_platform(scope) else limits.BODY_BYTES
    if scope["method"] in ("POST", "PUT", "PATCH"):
        for pattern, most in _LARGER:
            if pattern.fullmatch(path):
                return most
    return limits.BODY_BYTES


def _is_platform(scope: Scope) -> bool:
    request = Request(scope)
    auth = getattr(request.app.state, "auth", None)
    try:
        return auth is not None and bool(auth.is_platform(bearer_token(request.headers)))
    except Unauthenticated:
        return False


def _too_large(found: int, most: int) -> TooLarge:
    return TooLarge(f"the request's body has {found} bytes; at most {most} are allowed here")


def _counted(receive: Receive, most: int) -> Receive:
    seen = 0

    async def receiving() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > most:
                refusal = _too_large(seen, most)
                # FastAPI lets only its own kind through while it reads a body.
                raise HTTPException(refusal.status, refusal.message)
        return message

    return receiving


async def _whole(receive: Receive) -> Receive:
    """Waits for the whole body, looks at its shape and gives it on. Raises TooLarge."""
    parts: list[Message] = []
    while True:
        try:
            message = await receive()
        except HTTPException as error:
            raise TooLarge(str(error.detail)) from None
        parts.append(message)
        if message["type"] != "http.request" or not message.get("more_body"):
            break
    raw = b"".join(message.get("body", b"") for message in parts)
    check_shape(raw)
    if message["type"] == "http.request":
        parts = [{"type": "http.request", "body": raw, "more_body": False}]

    async def receiving() -> Message:
        return parts.pop(0) if parts else await receive()

    return receiving


async def check_model_body(request: Request) -> None:
    """A dependency of every route: the JSON of a body that a model is about to read is in bounds."""
    # FastAPI has parsed it by now, if the route has a model.
    if hasattr(request, "_json"):
        await check_body(request, await request.json())
