"""Which reverse proxies are believed; without Starlette, because the proxy's process imports it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable


class TrustedProxies:
    """The reverse proxies whose word about visitors counts: addresses, networks (``10.0.0.0/8``), or ``*``.

    uvicorn reads the same list for the service's own requests.
    """

    def __init__(self, given: Iterable[str]) -> None:
        self._names = frozenset(given)
        self._networks = [
            ipaddress.ip_network(name) for name in self._names if "/" in name and _is_network(name)
        ]

    def __contains__(self, address: str) -> bool:
        if address in self._names or "*" in self._names:
            return True
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._networks)


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True
