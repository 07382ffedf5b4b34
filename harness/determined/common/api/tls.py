"""HTTPS to a service whose certificate the system does not trust."""

from __future__ import annotations

import ssl

import httpx


class TlsTransport(httpx.HTTPTransport):
    """A context that trusts the PEM file ``cert_path`` (or the text ``cert_pem``) and expects ``cert_name``
    in the certificate (default: the host of the address), or that trusts any certificate (``noverify``).
    """

    def __init__(
        self,
        cert_path: str | None = None,
        cert_name: str | None = None,
        noverify: bool = False,
        cert_pem: str | None = None,
    ) -> None:
        context = ssl.create_default_context(cafile=cert_path, cadata=cert_pem)
        if noverify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        super().__init__(verify=context, trust_env=False)
        self._name = cert_name

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self._name:
            request.extensions = {**request.extensions, "sni_hostname": self._name}
        return super().handle_request(request)
