"""One connection to the service: base URL, bearer token, retries, errors.

The seam where the network is: pass ``transport=httpx.MockTransport(handler)`` and no socket is opened.
"""

from __future__ import annotations

import codecs
import contextlib
import copy
import logging
import re
import time
from collections.abc import Collection, Iterator, Mapping
from email.message import Message
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import orjson

from determined.common.api import errors, no_answer
from determined.common.api.transport import (
    AnyTransport,
    HttpRequest,
    HttpTransport,
    NoAnswerError,
    Response,
    adapted,
)
from determined.common.backoff import Backoff

if TYPE_CHECKING:
    from determined.common.api.certs import Cert

RETRY_STATUSES = frozenset({502, 503, 504})
RETRY_SECONDS = (0.1, 5.0)
STREAM_SILENCE_S = 180.0
"""A stream of bytes may pause so long, for example while the service reads from a slow storage."""
SAID_AFTER = 7
"""After this many retries (some ten seconds), say why the request still waits."""

logger = logging.getLogger("determined.api")


_NOT_TEXT = re.compile(r"[^'\"]{0,60}\\ud[89a-f][0-9a-f]{2}[^'\"]{0,60}")


def _encoded(content: Any) -> bytes:
    """Raises BadRequestException for what is not text, as of a file's name or a word of the command line."""
    try:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        found = _NOT_TEXT.search(repr(content))
        if found is None:
            raise
        # Python's "\\udcfc" stands for the byte fc.
        shown = found[0].replace("\\udc", "\\x")
        raise errors.BadRequestException(
            f"nothing was sent: {shown} is not UTF-8; rename or rewrite it"
        ) from None


def _streamed_error(error: Any) -> errors.APIException:
    """The exception for the last line of a streamed answer that broke off."""
    if not isinstance(error, dict):
        return errors.APIException(str(error))
    message = str(error.get("message", error))
    if error.get("httpCode") in RETRY_STATUSES:
        return errors.MasterNotFoundException(message)
    return errors.APIException(message)


class Answer(dict[str, Any]):
    """A JSON object of the service. Published scripts ask for it with ``session.get(path).json()``."""

    status_code = 200
    ok = True

    def json(self) -> dict[str, Any]:
        """The object itself."""
        return self

    def raise_for_status(self) -> None:
        """Does nothing: a refusal has been raised already."""


def _with_query(path: str, params: Mapping[str, Any] | None) -> str:
    if not params:
        return path
    pairs = [(name, _in_query(value)) for name, value in params.items()]
    return f"{path}{'&' if '?' in path else '?'}{urlencode(pairs, doseq=True)}"


def _in_query(value: Any) -> Any:
    if isinstance(value, list | tuple | set):
        return [_in_query(one) for one in value]
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else value


def _token(given: Any) -> str | None:
    asked = getattr(given, "get_session_token", None)
    token = given if asked is None else str(asked())
    if token and not (token.isascii() and token.isprintable()):
        raise errors.UnauthenticatedException(
            "the token (DET_USER_TOKEN, or an argument) has characters that no token has: copy it again"
        )
    return token


def _number(retries: Any) -> int:
    """``max_retries`` as a number; urllib3's Retry has it as ``total``."""
    return int(getattr(retries, "total", retries))


def _results(lines: bytes) -> Iterator[list[Any]]:
    """The results of whole lines in one list, if there are any; raises the error that a line reports."""
    filled = [line for line in lines.split(b"\n") if line.strip()]
    if not filled:
        return
    # One call of the parser: half the time of a call per line.
    items = orjson.loads(b"[" + b",".join(filled) + b"]")
    error = next((number for number, item in enumerate(items) if "error" in item), None)
    results = [item.get("result", item) for item in items[:error]]
    if results:
        yield results
    if error is not None:
        raise _streamed_error(items[error]["error"])


class Session:
    """Calls the service at ``master`` (``http://host:port``).

    ``max_retries`` is the number of repetitions after a connection failure or a 502, 503, 504, with waits
    that grow from 0.1 s to 5 s. POST is repeated too, because the platform's requests may be repeated
    safely. The only exception, creating an experiment, is sent with ``max_retries=0``. A DELETE that may have
    reached the service is done when its repetition finds nothing: its answer is empty (204). ``timeout`` and
    ``connect_timeout`` (default: the same) are seconds. Thread-safe. A forked process has connections of its
    own.

    Published scripts give a user and a certificate, too: ``Session(master, username, token, cert,
    max_retries)``, with an ``authentication.Authentication`` in place of the token before 0.27.

    Raises (all methods): the tree in :mod:`determined.common.api.errors`.
    """

    def __init__(
        self,
        master: str,
        *credentials: Any,
        username: str | None = None,
        token: str | None = None,
        cert: Cert | None = None,
        timeout: float = 30.0,
        connect_timeout: float | None = None,
        max_retries: Any = 5,
        cookies: Mapping[str, str] | None = None,
        transport: AnyTransport | None = None,
    ) -> None:
        if len(credentials) > 1:
            named: tuple[Any, ...] = (username, token, cert, max_retries)
            username, token, cert, max_retries = credentials + named[len(credentials) :]
        elif credentials:
            (token,) = credentials
        self.master = master.rstrip("/")
        self.username = username
        self.token = _token(token)
        self.max_retries = _number(max_retries)
        self._timeout = timeout
        self._connect_timeout = connect_timeout or timeout
        self._headers = {"Accept": "*/*"}
        if self.token:
            self._headers["Authorization"] = f"Bearer {self.token}"
        if cookies:
            self._headers["Cookie"] = "; ".join(f"{name}={cookies[name]}" for name in cookies)
        # No proxy is heeded: what is meant for the internet must not stand between a trial and its service.
        self._transport = (
            HttpTransport(self.master, cert)
            if transport is None
            else adapted(transport, self.master)
        )

    def close(self) -> None:
        self._transport.close()

    def with_retry(self, max_retries: Any) -> Session:
        """A session of the same user with other retries."""
        again = copy.copy(self)
        again.max_retries = _number(max_retries)
        return again

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        max_retries: int | None = None,
        answers: Collection[int] = (),
    ) -> Response:
        """One call; ``json`` is encoded with NaN refused (send such metrics as strings).

        ``answers``: statuses of errors that are answers all the same.
        """
        headers = {**self._headers, **(headers or {})}
        if json is not None:
            content = _encoded(json)
            headers["Content-Type"] = "application/json"
        asked = HttpRequest(
            method,
            _with_query(path, params),
            headers,
            content,
            timeout or self._connect_timeout,
            timeout or self._timeout,
        )
        retries = self.max_retries if max_retries is None else max_retries
        backoff = Backoff(*RETRY_SECONDS)
        # A request with a list of what to delete gets the same answer again.
        names_one = method == "DELETE" and content is None
        perhaps_done = False
        for attempt in range(retries + 1):
            last = attempt == retries
            try:
                response = self._transport.send(asked)
                found = response.content
            except NoAnswerError as error:
                if last:
                    raise errors.MasterNotFoundException(
                        f"no answer from the service at {self.master}: {no_answer.why(error, self.master)}"
                    ) from error
                perhaps_done |= error.was_sent
            else:
                if response.status_code < 400 or response.status_code in answers:
                    return response
                if names_one and perhaps_done and response.status_code == 404:
                    return Response(204, Message(), None)
                perhaps_done = True
                if last or response.status_code not in RETRY_STATUSES:
                    raise self._failure(response, found)
            if attempt == SAID_AFTER:
                logger.warning(
                    "no answer from the service at %s: trying again for some minutes", self.master
                )
            time.sleep(backoff.next_delay())
        raise AssertionError("unreachable")

    def _failure(self, response: Response, body: bytes) -> errors.APIException:
        """The exception for an error answer."""
        kind = response.headers.get("Content-Type", "")
        return errors.of_answer(response.status_code, body, kind, self.master)

    def call(self, method: str, path: str, **kwargs: Any) -> Any:
        """One call; the parsed JSON of the answer (an object as an :class:`Answer`)."""
        response = self.request(method, path, **kwargs)
        if not response.content:
            return Answer()
        try:
            found = orjson.loads(response.content)
        except ValueError as error:
            raise errors.BadResponseException(
                f"another program than the service answers at {self.master}: {method} {path} is not"
                " answered with JSON; check the port of the address"
            ) from error
        return Answer(found) if isinstance(found, dict) else found

    def get(self, path: str, **kwargs: Any) -> Any:
        """GET; the parsed JSON (an object as an :class:`Answer`). ``kwargs`` as for :meth:`request`."""
        return self.call("GET", path, **kwargs)

    def post(self, path: str, **kwargs: Any) -> Any:
        """POST; the parsed JSON."""
        return self.call("POST", path, **kwargs)

    def patch(self, path: str, **kwargs: Any) -> Any:
        """PATCH; the parsed JSON."""
        return self.call("PATCH", path, **kwargs)

    def put(self, path: str, **kwargs: Any) -> Any:
        """PUT; the parsed JSON."""
        return self.call("PUT", path, **kwargs)

    def delete(self, path: str, **kwargs: Any) -> Any:
        """DELETE; the parsed JSON."""
        return self.call("DELETE", path, **kwargs)

    @contextlib.contextmanager
    def _opened(
        self,
        path: str,
        *,
        read_s: float | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        away: Collection[int] = (),
    ) -> Iterator[Response]:
        """GET, whose answer the block reads as it arrives; it may be silent for ``read_s`` seconds.

        Raises what the status means; MasterNotFoundException for one of ``away``, and when the answer breaks
        off, also within the block.
        """
        asked = HttpRequest(
            "GET",
            _with_query(path, params),
            {**self._headers, **(headers or {})},
            None,
            30.0,
            read_s,
        )
        try:
            with contextlib.closing(self._transport.send(asked)) as response:
                if response.status_code >= 400:
                    refusal = self._failure(response, response.content)
                    if response.status_code in away:
                        raise errors.MasterNotFoundException(refusal.message)
                    raise refusal
                yield response
        except NoAnswerError as error:
            raise errors.MasterNotFoundException(
                f"lost the connection to the service at {self.master}:"
                f" {no_answer.why(error, self.master)}"
            ) from error

    def stream_text(self, path: str, *, params: Mapping[str, Any] | None = None) -> Iterator[str]:
        """GET of text, in pieces as it arrives. Raises MasterNotFoundException when it breaks off."""
        with self._opened(path, params=params) as response:
            yield from codecs.iterdecode(response.iter_bytes(), "utf-8", errors="replace")

    @contextlib.contextmanager
    def open(self, path: str, *, headers: Mapping[str, str] | None = None) -> Iterator[Response]:
        """GET of bytes, which the block reads as they arrive (``iter_bytes``).

        Asks once. Raises MasterNotFoundException when nothing answers, also within the block when the answer
        breaks off or the service asks for another try (503).
        """
        with self._opened(
            path, read_s=STREAM_SILENCE_S, headers=headers, away=RETRY_STATUSES
        ) as response:
            yield response

    def stream(self, path: str, *, params: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """GET of newline-delimited JSON, one parsed ``result`` at a time, as the lines arrive.

        Also raises MasterNotFoundException when the service ends in the middle of the answer.
        """
        for batch in self.stream_batches(path, params=params):
            yield from batch

    def stream_batches(
        self, path: str, *, params: Mapping[str, Any] | None = None
    ) -> Iterator[list[Any]]:
        """Like :meth:`stream`: each time the results that arrived together, so that a reader knows when
        there is nothing more for now."""
        with self._opened(path, params=params) as response:
            pieces: list[bytes] = []
            for chunk in response.iter_bytes():
                # Joined only at a line's end: a line may arrive in thousands of pieces.
                head, found, tail = chunk.rpartition(b"\n")
                if found:
                    yield from _results(b"".join([*pieces, head]))
                    pieces = [tail]
                else:
                    pieces.append(chunk)
            yield from _results(b"".join(pieces))
