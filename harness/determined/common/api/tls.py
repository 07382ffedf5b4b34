"""HTTPS to a service whose certificate the system does not trust."""

from __future__ import annotations

import httpx

from determined.common.api.certs import Cert


class TlsTransport(httpx.HTTPTransport):
    """Checks the service's certificate as ``cert`` says. Raises OSError when that is no certificate."""

    def __init__(self, cert: Cert) -> None:
        super().__init__(verify=cert.context(), trust_env=False)
        self._name = cert.name

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self._name:
            request.extensions = {**request.extensions, "sni_hostname": self._name}
        return super().handle_request(request)
