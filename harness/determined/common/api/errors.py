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
