"""Refusals of a request: raise one anywhere below a route and the caller gets its JSON.

ApiError
├── BadRequest       400
├── Unauthenticated  401
├── Forbidden        403
├── NotFound         404
├── Conflict         409: the state does not allow it
├── TooLarge         413: more than `determined.common.wire.limits` allows
├── TooManyRequests  429: try again after so many seconds
└── Unavailable      503: try again

Imports nothing: the process that reads large submissions has to start fast.
"""

from __future__ import annotations


class ApiError(Exception):
    """``message`` is for the user. ``code`` is gRPC's number, which clients of Determined expect."""

    status = 500
    code = 13
    reason = "Internal"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadRequest(ApiError):
    """The request is invalid."""

    status, code, reason = 400, 3, "InvalidArgument"


class Unauthenticated(ApiError):
    """No token, or none that is (still) valid."""

    status, code, reason = 401, 16, "Unauthenticated"


class Forbidden(ApiError):
    """The user may not do this."""

    status, code, reason = 403, 7, "PermissionDenied"


class OverQuota(Forbidden):
    """The user has as much as ``quotas`` of the cluster configuration allow. No 429: clients repeat that by
    themselves, and here a person has to act first."""

    code, reason = 8, "ResourceExhausted"


class NotFound(ApiError):
    """The requested object does not exist. The message has the words "not found", for which scripts look."""

    status, code, reason = 404, 5, "NotFound"

    def __init__(self, message: str) -> None:
        super().__init__(message if "not found" in message else f"not found: {message}")


class Conflict(ApiError):
    """The state does not allow it."""

    status, code, reason = 409, 9, "FailedPrecondition"


class TooLarge(ApiError):
    """More than is taken at once."""

    status, code, reason = 413, 8, "ResourceExhausted"


class TooManyRequests(ApiError):
    """Too often; ``retry_after_s`` says when the same request may succeed."""

    status, code, reason = 429, 8, "ResourceExhausted"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(ApiError):
    """Something the service needs does not answer; the same request may succeed later."""

    status, code, reason = 503, 14, "Unavailable"
