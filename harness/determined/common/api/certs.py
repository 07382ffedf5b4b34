"""Certificates of services that the system does not trust, as published scripts name them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    from determined.common.api.errors import MasterNotFoundException


class Cert:
    """What to check of a service's certificate.

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

    @property
    def is_usual(self) -> bool:
        """Whether the system's certificates count, for the address' host."""
        return self.pem is None and self.name is None and not self.noverify

    def context(self) -> ssl.SSLContext:
        """What checks the certificate. Raises OSError (SSLError) when the text is no PEM."""
        import ssl

        context = ssl.create_default_context(cadata=self.pem)
        if self.noverify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


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


def unusable(error: OSError) -> MasterNotFoundException:
    """What to say of a certificate that cannot be read."""
    from determined.common.api.errors import MasterNotFoundException

    return MasterNotFoundException(
        f"TLS: the certificates to trust cannot be read ({error}); DET_MASTER_CERT_FILE names a PEM file, or"
        " is noverify"
    )


cli_cert: Cert | None = None
"""Published scripts set it; nothing here reads it."""
