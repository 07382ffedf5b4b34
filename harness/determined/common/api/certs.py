"""Certificates of services that the system does not trust, as published scripts name them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl


class Cert:
    """The checks of a service's certificate.

    Args:
        cert_pem: trust the certificates in this PEM text, and no others. noverify: trust any certificate.
        name: expect this name in the certificate in place of the address' host.
    """

    def __init__(
        self, cert_pem: str | None = None, noverify: bool = False, name: str | None = None
    ) -> None:
        self.pem = cert_pem
        self.noverify = noverify
        self._name = name

    @property
    def name(self) -> str | None:
        """The name that the certificate must have; None: the address' host."""
        return self._name


def default_load(
    master_url: str,
    explicit_path: str | os.PathLike[str] | None = None,
    explicit_cert_name: str | None = None,
    explicit_noverify: bool = False,
) -> Cert:
    """The arguments, else what ``$DET_MASTER_CERT_FILE`` (a PEM file, or ``noverify``) and
    ``$DET_MASTER_CERT_NAME`` say. Without either the system's certificates count. Raises OSError.
    """
    path = explicit_path or os.environ.get("DET_MASTER_CERT_FILE") or None
    name = explicit_cert_name or os.environ.get("DET_MASTER_CERT_NAME") or None
    noverify = explicit_noverify or str(path).lower() == "noverify"
    pem = None if noverify or path is None else Path(path).read_text()
    return Cert(pem, noverify, name)


class Tls(NamedTuple):
    """How a connection is secured."""

    context: ssl.SSLContext
    name: str | None
    """The name that the certificate must have; None: the address' host."""


def tls_for(url: str, cert: Cert | None = None) -> Tls | None:
    """What checks the certificate of the service at ``url``: ``cert``, else :func:`default_load`, else the
    system's certificates; None for an address without TLS.

    Raises MasterNotFoundException when the certificates to trust cannot be read.
    """
    if not url.startswith("https:"):
        return None
    import ssl

    try:
        cert = cert or default_load(url)
        context = ssl.create_default_context(cadata=cert.pem)
    except OSError as error:
        from determined.common.api.errors import MasterNotFoundException

        raise MasterNotFoundException(
            f"TLS: the certificates to trust cannot be read ({error}); DET_MASTER_CERT_FILE names a PEM file,"
            " or is noverify"
        ) from error
    if cert.noverify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return Tls(context, cert.name)


cli_cert: Cert | None = None
"""Published scripts set it; nothing here reads it."""
