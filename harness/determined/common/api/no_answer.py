"""Why no answer came: the cause of a failed connection, in words for a person."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator

import httpx

# OpenSSL's numbers for a certificate of another host name, or address.
_OTHER_NAME = (62, 64)
_UNREACHABLE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN}


def why(error: httpx.TransportError | OSError) -> str:
    """One phrase: the name does not resolve, the connection is refused, it takes too long, TLS fails,
    or another program answers."""
    url = _url(error)
    if isinstance(error, httpx.TimeoutException):
        return _timeout(error)
    for cause in _causes(error):
        if isinstance(cause, socket.gaierror):
            named = f"the host name {url.host!r}" if url else "the host name"
            return f"{named} does not resolve ({cause.strerror})"
        if isinstance(cause, ssl.SSLError):
            return _tls(cause)
        if isinstance(cause, ConnectionRefusedError):
            return "the connection is refused: no program listens on that port"
        if isinstance(cause, ConnectionResetError):
            return "the connection is cut off"
        if isinstance(cause, OSError) and cause.errno in _UNREACHABLE:
            return f"the host cannot be reached ({cause.strerror})"
    if isinstance(error, httpx.RemoteProtocolError):
        if "complete message body" in str(error) or "incomplete chunked read" in str(error):
            return "the answer broke off"
        return _not_http(url, error)
    return str(error) or type(error).__name__


def _url(error: httpx.TransportError | OSError) -> httpx.URL | None:
    try:
        return None if isinstance(error, OSError) else error.request.url
    except RuntimeError:  # it has no request
        return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exceptions behind ``error``, nearest first."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _timeout(error: httpx.TimeoutException) -> str:
    waited = ""
    try:
        kind = "connect" if isinstance(error, httpx.ConnectTimeout) else "read"
        seconds = error.request.extensions["timeout"][kind]
        waited = f" within {seconds:g} s"
    except (RuntimeError, KeyError, TypeError, ValueError):
        pass  # a transport of a test, or no limit of its own
    if isinstance(error, httpx.ConnectTimeout):
        return f"timeout: no connection{waited}; a firewall may drop it, or the host is off"
    return f"timeout: it does not answer{waited}"


def _tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        name = f"TLS: its certificate is not trusted ({error.verify_message.rstrip('.')})"
        if error.verify_code in _OTHER_NAME:
            return f"{name}; say with DET_MASTER_CERT_NAME which name it has"
        return f"{name}; name it with DET_MASTER_CERT_FILE"
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return "TLS: what answers there speaks no TLS; try http:// instead of https://"
    return f"TLS: {error.reason or error}"


def _not_http(url: httpx.URL | None, error: httpx.RemoteProtocolError) -> str:
    if url is not None and url.scheme == "http":
        return f"what answers there does not speak HTTP, or wants https:// ({error})"
    return f"what answers there does not speak HTTP ({error})"
