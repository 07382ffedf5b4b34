"""A connection to the service in as little code as possible.

A forked process pays for the pages that code touches: :class:`determined.common.api.Session` costs a
supervisor 14 ms of CPU for its three requests, the standard library's client 6; and a program that is started
anew, such as a shell's, pays for its import, which takes longer than the rest of its start. TLS is left to
Session.
"""

from __future__ import annotations

import http.client
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

if TYPE_CHECKING:
    from determined.common.api import Session, errors

TIMEOUT_SECONDS = 30.0
_BYTES = "application/octet-stream"


def _session(url: str, token: str) -> Session:
    from determined.common.api import Session

    return Session(url, token)


class ServiceLink:
    """One connection, for one thread at a time; every request may be repeated.

    Raises (all methods): the tree in :mod:`determined.common.api.errors`, each call after one try.
    """

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        parts = urlsplit(self._url)
        self._prefix = parts.path
        self._headers = {"Authorization": f"Bearer {token}"}
        self._session = _session(url, token) if parts.scheme == "https" else None
        self._connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=TIMEOUT_SECONDS
        )

    def __enter__(self) -> ServiceLink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._connection.close()
        if self._session is not None:
            self._session.close()

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        """POST of JSON; the answer as it is."""
        return self._request("POST", path, orjson.dumps(body))

    def get(self, path: str) -> bytes:
        """GET; the answer as it is."""
        return self._request("GET", path, None)

    def put(self, path: str, content: bytes | dict[str, Any]) -> bytes:
        """PUT of bytes or of JSON; the answer as it is."""
        if isinstance(content, bytes):
            return self._request("PUT", path, content, _BYTES)
        return self._request("PUT", path, orjson.dumps(content))

    def _request(
        self, method: str, path: str, content: bytes | None, kind: str = "application/json"
    ) -> bytes:
        if self._session is not None:
            headers = {} if content is None else {"Content-Type": kind}
            answered = self._session.request(
                method, path, content=content, headers=headers, max_retries=0
            )
            return answered.content
        # A connection that was idle for some seconds may have been closed by the service.
        is_used = self._connection.sock is not None
        try:
            status, answer = self._try(method, path, content, kind)
        except (ConnectionError, http.client.BadStatusLine) as error:
            if not is_used:
                raise self._away(error) from error
            try:
                status, answer = self._try(method, path, content, kind)
            except (OSError, http.client.HTTPException) as again:
                raise self._away(again) from again
        except (OSError, http.client.HTTPException) as error:
            raise self._away(error) from error
        if status >= 400:
            from determined.common.api import errors

            raise errors.of_answer(status, answer)
        return answer

    def _try(self, method: str, path: str, content: bytes | None, kind: str) -> tuple[int, bytes]:
        headers = self._headers
        if content is not None:
            headers = {**headers, "Content-Type": kind}
        try:
            self._connection.request(method, self._prefix + path, body=content, headers=headers)
            response = self._connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise

    def _away(self, error: Exception) -> errors.MasterNotFoundException:
        from determined.common.api import errors

        return errors.MasterNotFoundException(
            f"no answer from the service at {self._url}: {error or type(error).__name__}"
        )
