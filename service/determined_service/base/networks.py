"""What an address stands for: a network, this machine; without Starlette, because the proxy's process imports
it."""

from __future__ import annotations

import ipaddress

LONGEST = 60
"""Characters that are kept of an address that is none."""


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
