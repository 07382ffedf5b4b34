"""The answers to failed requests: always the same JSON, and never with SQL.

A refusal (:mod:`~determined_service.base.refusals`) has its own message. Unforeseen errors end here too: a
value that the database cannot store is a BadRequest, and any other fault a 500 with an id, under which the
service's log has the details.
"""

from __future__ import annotations

import logging
import secrets
import traceback

import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError, StatementError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from determined.common.printable import one_line
from determined_service.base import full_disk
from determined_service.base.absent import advice
from determined_service.base.json import JsonResponse, dumps
from determined_service.base.refusals import ApiError as ApiError
from determined_service.base.refusals import BadRequest as BadRequest
from determined_service.base.refusals import Conflict as Conflict
from determined_service.base.refusals import Forbidden as Forbidden
from determined_service.base.refusals import NotFound as NotFound
from determined_service.base.refusals import OverQuota as OverQuota
from determined_service.base.refusals import TooLarge as TooLarge
from determined_service.base.refusals import TooManyRequests as TooManyRequests
from determined_service.base.refusals import Unauthenticated as Unauthenticated
from determined_service.base.refusals import Unavailable as Unavailable
from determined_service.base.settings import Settings

logger = logging.getLogger(__name__)


_KINDS: dict[int, type[ApiError]] = {
    kind.status: kind
    for kind in (
        BadRequest,
        Unauthenticated,
        Forbidden,
        NotFound,
        Conflict,
        TooLarge,
        TooManyRequests,
        Unavailable,
    )
}

MESSAGE_CHARS = 20_000
NO_ANSWER = "the database does not answer; try again"

# Classes of SQLSTATE that say "this value": data, integrity, a limit of the format (a row of an index).
_BAD_VALUE = ("22", "23", "54")


def of_answer(status: int, message: str) -> ApiError:
    """The refusal behind an answer of our REST API."""
    refusal = _KINDS.get(status, ApiError)("")
    refusal.message = message
    return refusal


def of_database(error: BaseException) -> ApiError | None:
    """The refusal for an error of the database or its driver, without its SQL; None: a fault of ours."""
    cause = error.orig if isinstance(error, StatementError) else error
    if isinstance(cause, psycopg.Error):
        state = cause.sqlstate or ""
        if state[:2] in _BAD_VALUE or (not state and isinstance(cause, psycopg.DataError)):
            return BadRequest(f"a value cannot be stored: {_first_line(cause)}")
        if state == "57014":
            return BadRequest("the request took too long and was stopped: ask for less")
        if isinstance(cause, psycopg.errors.DiskFull):
            return Unavailable(
                "the disk of the database is full: free some space there, then try again (`det cluster"
                " doctor` says how much is left)"
            )
        if isinstance(cause, psycopg.OperationalError):
            return Unavailable(NO_ANSWER)
        return None
    if isinstance(error, SQLAlchemyError) and isinstance(cause, (ValueError, OverflowError)):
        return BadRequest(f"a value cannot be stored: {_first_line(cause)}")
    return None


async def with_cause(refusal: ApiError, request: Request) -> ApiError:
    """The same refusal; of a database that does not answer, with the cause if that is the full disk of
    the service's directory."""
    if refusal.message != NO_ANSWER:
        return refusal
    settings: Settings = request.app.state.settings
    if why := await full_disk.hint(settings.data_dir):
        return Unavailable(NO_ANSWER.partition(";")[0] + why)
    return refusal


def _first_line(error: BaseException) -> str:
    """The first line of Postgres's message; the others hold the row, or the statement."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return error.diag.message_primary
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _log_line(text: str) -> str:
    """``text`` with line ends and control characters as text, so that nobody forges lines of a log."""
    return one_line(text, breaks=(r"\n", r"\t"))


def response(status: int, code: int, reason: str, message: str) -> Response:
    """The error JSON that all clients read."""
    message = message.encode("utf-8", "backslashreplace").decode()
    if len(message) > MESSAGE_CHARS:
        message = f"{message[:MESSAGE_CHARS]}…"
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
    for problem in error.errors()[:MOST_PROBLEMS]:
        where = ".".join(str(part)[:SHOWN] for part in problem["loc"] if part != "body")
        found = problem.get("input")
        what = str(problem["msg"]).removeprefix("Value error, ")  # pydantic's own words
        if problem["type"] != "missing" and isinstance(found, (str, int, float, bool)):
            what += f", found {_shown(found)}"
        lines.append(f"{where}: {what}" if where else what)
    more = len(error.errors()) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more > 0 else "")


MOST_PROBLEMS = 20
SHOWN = 80


def _shown(value: object) -> str:
    # Python refuses to print numbers of more than 4300 digits.
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    text = repr(value[: SHOWN + 1] if isinstance(value, str) else value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def refuse(refusal: ApiError) -> Response:
    """The answer that a refusal becomes."""
    answer = response(refusal.status, refusal.code, refusal.reason, refusal.message)
    if isinstance(refusal, TooManyRequests):
        answer.headers["Retry-After"] = str(refusal.retry_after_s)
    return answer


def unforeseen(request: Request, error: Exception) -> Response:
    """500 with an id, under which the log has the traceback."""
    found = secrets.token_hex(4)
    logger.error("%s failed, %s:\n%s", _asked(request), found, _quoted(error, found))
    message = f"internal error {found}: the service's log has the details under this id"
    return response(ApiError.status, ApiError.code, ApiError.reason, message)


def install(app: FastAPI) -> None:
    """Every way a request can fail ends in the same JSON."""

    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return refuse(await with_cause(error, request))

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return response(400, BadRequest.code, BadRequest.reason, _explain(error))

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kind = _KINDS.get(error.status_code, ApiError)
        message = str(error.detail)
        if error.status_code == 404 and message == "Not Found":
            asked, instead = f"{request.method} {request.url.path}", advice(request.url.path)
            message = f"not found: there is no {asked} here{instead}"
        return response(error.status_code, kind.code, kind.reason, message)

    async def database_error(request: Request, error: Exception) -> Response:
        refusal = of_database(error)
        if refusal is None:
            return await fault(request, error)
        cause = error.orig if isinstance(error, StatementError) else error
        logger.warning("%s: %s", _asked(request), _log_line(str(cause)))
        return refuse(await with_cause(refusal, request))

    async def fault(request: Request, error: Exception) -> Response:
        return unforeseen(request, error)

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(SQLAlchemyError, database_error)
    app.add_exception_handler(psycopg.Error, database_error)
    app.add_exception_handler(Exception, fault)


def _asked(request: Request) -> str:
    return f"{request.method} {_log_line(request.url.path[:500])}"


def _quoted(error: Exception, found: str) -> str:
    """The traceback, each line with the id before it: the message may hold a user's input."""
    text = "".join(traceback.format_exception(error))
    return "\n".join(f"{found} | {_log_line(line)}" for line in text.splitlines())
