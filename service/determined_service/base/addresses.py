"""Addresses of clients and of the service: which machine, and whether it is this one."""

from __future__ import annotations

import ipaddress

from starlette.requests import Request

LOOPBACK = "127.0.0.1"
LONGEST = 60
"""Characters that are kept of an address that is none."""


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


def network(address: str) -> str:
    """The address, or of IPv6 the /64 in which one machine chooses freely. Names stay as they are."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:LONGEST]
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


def is_loopback(address: str) -> bool:
    """True if the address is this machine's own; of names, only ``localhost`` counts."""
    if address == "localhost":
        return True
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
