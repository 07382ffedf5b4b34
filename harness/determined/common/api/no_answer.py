"""Why no answer came: the cause of a failed connection, in words for a person."""

from __future__ import annotations

import errno
import http.client
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

from determined.common.api.transport import NoAnswerError

# OpenSSL's numbers for a certificate of another host name, or address.
_OTHER_NAME = (62, 64)
_UNREACHABLE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN}


def why(error: Exception, url: str) -> str:
    """One phrase: the name does not resolve, the connection is refused, it takes too long, TLS fails,
    or another program answers. ``error``: what came of a request to ``url``, by whichever library."""
    for cause in _causes(error):
        if isinstance(cause, socket.gaierror):
            return f"the host name {urlsplit(url).hostname!r} does not resolve ({cause.strerror})"
        if isinstance(cause, ssl.SSLError):
            return _tls(cause)
        if isinstance(cause, TimeoutError):
            return _timeout(error)
        if isinstance(cause, ConnectionRefusedError):
            return "the connection is refused: no program listens on that port"
        if isinstance(cause, ConnectionResetError):
            return "the connection is cut off"
        if isinstance(cause, OSError) and cause.errno in _UNREACHABLE:
            return f"the host cannot be reached ({cause.strerror})"
        if isinstance(cause, http.client.IncompleteRead):
            return "the answer broke off"
        if isinstance(cause, http.client.HTTPException):
            wanted = ", or wants https://" if url.startswith("http:") else ""
            said = str(cause).strip()[:80] or type(cause).__name__
            return f"what answers there does not speak HTTP{wanted} ({said})"
    return str(error) or type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exceptions behind ``error``, nearest first."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _timeout(error: Exception) -> str:
    known = isinstance(error, NoAnswerError) and error.seconds is not None
    waited = f" within {error.seconds:g} s" if known else ""  # type: ignore[attr-defined]
    if isinstance(error, NoAnswerError) and error.was_sent:
        return f"timeout: it does not answer{waited}"
    return f"timeout: no connection{waited}; a firewall may drop it, or the host is off"


def _tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        name = f"TLS: its certificate is not trusted ({error.verify_message.rstrip('.')})"
        if error.verify_code in _OTHER_NAME:
            return f"{name}; say with DET_MASTER_CERT_NAME which name it has"
        return f"{name}; name it with DET_MASTER_CERT_FILE"
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return "TLS: what answers there speaks no TLS; try http:// instead of https://"
    return f"TLS: {error.reason or error}"
