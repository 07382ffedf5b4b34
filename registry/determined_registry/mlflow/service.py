"""Changes: requests to the service, in the name of the user whose request asks for the change.

The service gives each request that it passes on a pass, a token that is good for that request's time alone
and means the same user. So the rules of access are the service's own, and this process holds nobody's token.
"""

from __future__ import annotations

import contextvars
import functools
from typing import Any, NoReturn

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import (
    INVALID_PARAMETER_VALUE,
    PERMISSION_DENIED,
    RESOURCE_ALREADY_EXISTS,
    RESOURCE_DOES_NOT_EXIST,
    TEMPORARILY_UNAVAILABLE,
)

from determined.common.api import Session, errors
from determined_registry.database.seen import Seen
from determined_registry.mlflow import configured

PASS_HEADER = "x-determined-pass"
USER_HEADER = "x-determined-user"
SERVICE_HEADER = "x-determined-service"
SEEN_HEADER = "x-determined-seen"
"""What the user who asks sees (:func:`determined_registry.database.seen.written`)."""
TIMEOUT_S = 60.0

pass_of_request: contextvars.ContextVar[str] = contextvars.ContextVar("pass", default="")
"""The pass of the request that is being answered; empty: there is none."""

user_of_request: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="")
"""The name of the user who asks; empty: nobody has said it."""

seen_of_request: contextvars.ContextVar[Seen | None] = contextvars.ContextVar("seen", default=None)
"""What the user who asks sees; None: everything."""

service_of_request: contextvars.ContextVar[str] = contextvars.ContextVar("service", default="")
"""The address of the service that has passed the request on."""

body_of_request: contextvars.ContextVar[str] = contextvars.ContextVar("body", default="")
"""The path of the file that is the request's body, and may be moved away; empty: the body is what it is."""

takes_path: contextvars.ContextVar[bool] = contextvars.ContextVar("takes_path", default=False)
"""True if the path of a file is enough of an answer."""

_CODES = {
    400: INVALID_PARAMETER_VALUE,
    401: PERMISSION_DENIED,
    403: PERMISSION_DENIED,
    404: RESOURCE_DOES_NOT_EXIST,
    # What another request has changed meanwhile, or an end that cannot be undone. INVALID_STATE would be a
    # 500, which clients try again for minutes.
    409: INVALID_PARAMETER_VALUE,
    413: INVALID_PARAMETER_VALUE,
    429: TEMPORARILY_UNAVAILABLE,
    503: TEMPORARILY_UNAVAILABLE,
}


def refuse(sentence: str) -> NoReturn:
    """Raise a refusal (403) for a call without meaning on this platform; ``sentence`` says what to do
    instead."""
    raise MlflowException(sentence, PERMISSION_DENIED)


def missing(what: str) -> MlflowException:
    """The answer (404) for a thing that does not exist."""
    # "not found" is what MLflow's own clients look for.
    return MlflowException(f"{what} not found: it does not exist", RESOURCE_DOES_NOT_EXIST)


def no_tag(key: str, of: str) -> MlflowException:
    """The refusal (404) of a tag that is not there, as MLflow's own stores put it."""
    return MlflowException(f"No tag with name: {key} in {of}", RESOURCE_DOES_NOT_EXIST)


def invalid(sentence: str) -> MlflowException:
    """The refusal (400) of a request."""
    return MlflowException(sentence, INVALID_PARAMETER_VALUE)


@functools.cache
def _session(address: str) -> Session:
    return Session(address, timeout=TIMEOUT_S, max_retries=0)


def ask(method: str, path: str, body: Any = None, *, taken: str = "") -> dict[str, Any]:
    """The service's JSON answer to a request with that body; ``{}`` for an empty one.

    Raises MlflowException with the service's own words. ``taken``: a conflict means that what is to be
    made is there already, and this is its name.
    """
    token = pass_of_request.get()
    if not configured.is_there() or not token:
        refuse(
            "this MLflow server reads the cluster's database and changes nothing: send changes to the "
            "cluster's service, whose address with /mlflow is the MLFLOW_TRACKING_URI"
        )
    try:
        headers = {"Authorization": f"Bearer {token}"}
        session = _session(service_of_request.get())
        found: dict[str, Any] = session.call(method, path, json=body, headers=headers)
        return found
    except errors.MasterNotFoundException as error:
        raise MlflowException(
            f"the cluster's service does not answer: {error.message}", TEMPORARILY_UNAVAILABLE
        ) from error
    except errors.APIException as error:
        if error.status_code == 409 and taken:
            raise MlflowException(error.message, RESOURCE_ALREADY_EXISTS) from error
        code = _CODES.get(error.status_code or 0, TEMPORARILY_UNAVAILABLE)
        raise MlflowException(error.message, code) from error
