"""Refusals of a request: raise one anywhere below a route and the caller gets its JSON.

ApiError
├── BadRequest       400
├── Unauthenticated  401
├── Forbidden        403
├── NotFound         404
├── Conflict         409: the state does not allow it
├── TooManyRequests  429: try again after so many seconds
└── Unavailable      503: try again
"""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError, OperationalError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from determined_service.base.json import JsonResponse, dumps

logger = logging.getLogger(__name__)


class ApiError(Exception):
    """``message`` is for the user. ``code`` is gRPC's number, which clients of Determined expect."""

    status = 500
    code = 13
    reason = "Internal"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadRequest(ApiError):
    """What was sent cannot be used."""

    status, code, reason = 400, 3, "InvalidArgument"


class Unauthenticated(ApiError):
    """No token, or none that is (still) valid."""

    status, code, reason = 401, 16, "Unauthenticated"


class Forbidden(ApiError):
    """The user may not do this."""

    status, code, reason = 403, 7, "PermissionDenied"


class NotFound(ApiError):
    """What was asked for does not exist. The message has the words "not found", for which scripts look."""

    status, code, reason = 404, 5, "NotFound"

    def __init__(self, message: str) -> None:
        super().__init__(message if "not found" in message else f"not found: {message}")


class Conflict(ApiError):
    """The state does not allow it."""

    status, code, reason = 409, 9, "FailedPrecondition"


class TooManyRequests(ApiError):
    """Too often; ``retry_after_s`` says when the same request may succeed."""

    status, code, reason = 429, 8, "ResourceExhausted"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(ApiError):
    """Something the service needs does not answer; the same request may succeed later."""

    status, code, reason = 503, 14, "Unavailable"


_KINDS: dict[int, type[ApiError]] = {
    kind.status: kind
    for kind in (
        BadRequest,
        Unauthenticated,
        Forbidden,
        NotFound,
        Conflict,
        TooManyRequests,
        Unavailable,
    )
}


def response(status: int, code: int, reason: str, message: str) -> Response:
    """The error JSON that all clients read."""
    return JsonResponse(
        {"error": {"code": code, "reason": reason, "error": message}, "message": message},
        status_code=status,
    )


def ndjson_error(error: ApiError) -> bytes:
    """The last line of a streamed answer that cannot go on."""
    found = {"grpcCode": error.code, "httpCode": error.status, "message": error.message}
    return dumps({"error": found}) + b"\n"


def _explain(error: RequestValidationError) -> str:
    lines = []
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"] if part != "body")
        lines.append(f"{where}: {problem['msg']}" if where else str(problem["msg"]))
    return "; ".join(lines)


def install(app: FastAPI) -> None:
    """Every way a request can fail ends in the same JSON."""

    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        answer = response(error.status, error.code, error.reason, error.message)
        if isinstance(error, TooManyRequests):
            answer.headers["Retry-After"] = str(error.retry_after_s)
        return answer

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return response(400, BadRequest.code, BadRequest.reason, _explain(error))

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kind = _KINDS.get(error.status_code, ApiError)
        message = str(error.detail)
        if error.status_code == 404 and message == "Not Found":
            message = f"not found: there is no {request.method} {request.url.path} here"
        return response(error.status_code, kind.code, kind.reason, message)

    async def database_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, DBAPIError)
        if error.connection_invalidated or isinstance(error, OperationalError):
            logger.warning("%s %s: Postgres: %s", request.method, request.url.path, error.orig)
            message = "the database does not answer; try again"
            return response(503, Unavailable.code, Unavailable.reason, message)
        return await fault(request, error)

    async def fault(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return response(500, 13, "Internal", f"internal error: {type(error).__name__}: {error}")

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(DBAPIError, database_error)
    app.add_exception_handler(Exception, fault)
