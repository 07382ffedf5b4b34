"""Whose word about visitors counts: the same for the service (uvicorn) and for the proxy's process."""

from __future__ import annotations

import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from determined_service.base.trusted_proxies import TrustedProxies


@pytest.mark.parametrize(
    ("given", "peer", "is_trusted"),
    [
        (["10.0.0.3"], "10.0.0.3", True),
        (["10.0.0.3"], "10.0.0.4", False),
        (["10.0.0.0/24"], "10.0.0.4", True),
        (["10.0.0.0/24"], "10.0.1.4", False),
        (["fd00::/64", "10.0.0.3"], "fd00::7", True),
        (["fd00::/64"], "10.0.0.3", False),
        (["*"], "192.0.2.1", True),
        ([], "10.0.0.3", False),
        (["10.0.0.1/24"], "10.0.0.1", False),  # host bits are set: not a network
        (["proxy"], "proxy", True),
        (["10.0.0.0/24"], "", False),
    ],
)
def test_both_processes_trust_the_same(given: list[str], peer: str, is_trusted: bool) -> None:
    assert (peer in TrustedProxies(given)) is is_trusted
    uvicorns = ProxyHeadersMiddleware(lambda *_: None, given).trusted_hosts  # type: ignore[arg-type]
    assert (peer in uvicorns) is is_trusted
