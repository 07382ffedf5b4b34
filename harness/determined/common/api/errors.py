"""Failures of a call to the service.

APIException
├── BadRequestException         400, 409 and other refusals of what was sent
│   ├── NotFoundException       404
│   └── ConflictException       409: the state does not allow it
├── ForbiddenException          403
├── UnauthenticatedException    401
│   └── InvalidCredentialsException
├── BadResponseException        an answer that is not what the service sends
└── MasterNotFoundException     nothing answers at the address
"""

from __future__ import annotations


class APIException(Exception):
    """``message`` is meant for the user; ``status_code`` is None when no answer came."""

    def __init__(self, message: str, status_code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status_code = status_code


class BadRequestException(APIException):
    """The service refused what was sent."""


class NotFoundException(BadRequestException):
    """The requested object does not exist."""


class ConflictException(BadRequestException):
    """The object's state does not allow the request. For a training process: its allocation has ended."""


class ForbiddenException(APIException):
    """The user may not do this."""


class UnauthenticatedException(APIException):
    """The credentials are missing or no longer valid."""


class InvalidCredentialsException(UnauthenticatedException):
    """Wrong user name or password."""


class BadResponseException(APIException):
    """The answer does not come from the service, or cannot be read."""


class MasterNotFoundException(APIException):
    """Nothing answers at the address."""


class DeleteFailedException(APIException):
    """A deletion was refused or did not finish."""


class EmptyResultException(APIException):
    """An answer without a result."""


def from_status(status_code: int, message: str) -> APIException:
    """The exception for an HTTP error status."""
    kinds: dict[int, type[APIException]] = {
        401: UnauthenticatedException,
        403: ForbiddenException,
        404: NotFoundException,
        409: ConflictException,
    }
    default = BadRequestException if 400 <= status_code < 500 else APIException
    return kinds.get(status_code, default)(message, status_code)


def of_answer(
    status_code: int, body: bytes, content_type: str = "", address: str = ""
) -> APIException:
    """The exception for an error answer: the one place where refusals of the service are read.

    The message is the text of ``{"error": {"error": …}}`` or ``{"message": …}``, else the body. A page for
    browsers with a status 4xx comes from another program at ``address``: the service answers programs with
    JSON.
    """
    is_page = content_type.startswith("text/html")
    if is_page and 400 <= status_code < 500:
        return BadResponseException(
            f"another program than the service answers at {address}: HTTP {status_code} with a page for"
            " browsers; check the port of the address",
            status_code,
        )
    return from_status(status_code, _message(status_code, body, is_page))


def _message(status_code: int, body: bytes, is_page: bool) -> str:
    import orjson

    text = body.decode(errors="replace")
    try:
        document = orjson.loads(body)
    except ValueError:
        # A page for browsers is not repeated.
        return f"HTTP {status_code}" if is_page else text.strip() or f"HTTP {status_code}"
    if isinstance(document, dict):
        error = document.get("error")
        if isinstance(error, dict):
            error = error.get("error") or error.get("message") or error.get("reason")
        found = error or document.get("message") or document.get("detail")
        if found:
            return str(found)
    return text
