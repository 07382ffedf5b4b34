"""The address from which a request comes, and whether that is this machine."""

from __future__ import annotations

from starlette.requests import Request

from determined_service.base.networks import is_loopback

LOOPBACK = "127.0.0.1"


def client_address(request: Request) -> str:
    """The address that asks. Behind a proxy it is the proxy's, unless FORWARDED_ALLOW_IPS names that."""
    return request.client.host if request.client is not None else ""


def reached_at(request: Request) -> str:
    """The address at which this service reaches the client: as :func:`client_address`, loopback for this
    machine."""
    asker, own = client_address(request), request.scope.get("server") or ("",)
    return LOOPBACK if asker == own[0] or is_loopback(asker) else asker


def is_from_here(request: Request) -> bool:
    """True if the request comes from this machine, and shows no sign of a proxy."""
    return is_loopback(client_address(request)) and not any(
        name in request.headers for name in ("forwarded", "x-forwarded-for")
    )
