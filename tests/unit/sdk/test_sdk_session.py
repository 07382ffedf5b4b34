"""Streams of results: in what portions they arrive, and how they break off."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from determined.common.api import Session, errors
from tests.unit.sdk.fake_service import URL


class Pieces(httpx.SyncByteStream):
    """An answer whose pieces arrive one after the other."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self.pieces


def session(*pieces: bytes, status: int = 200, kind: str = "application/json") -> Session:
    def answer(request: httpx.Request) -> httpx.Response:
        headers = {"Content-Type": kind}
        return httpx.Response(status, stream=Pieces(list(pieces)), headers=headers)

    return Session(URL, transport=httpx.MockTransport(answer), max_retries=0)


def test_results_that_arrive_together_are_one_batch() -> None:
    line = '{"result": {"log": "é"}}'.encode()
    cut = line.index("é".encode()) + 1  # in the middle of a character
    pieces = [b'{"result": 1}\n{"result": 2}\n', line[:cut], line[cut:] + b"\n\n", b'{"result": 3}']
    assert list(session(*pieces).stream_batches("/x")) == [[1, 2], [{"log": "é"}], [3]]
    assert list(session(*pieces).stream("/x")) == [1, 2, {"log": "é"}, 3]


def test_data_before_an_error_is_returned_first() -> None:
    error = b'{"error": {"message": "the service is stopping", "httpCode": 503}}\n'
    stream = session(b'{"result": 1}\n' + error).stream("/x")
    assert next(stream) == 1
    with pytest.raises(errors.MasterNotFoundException, match="is stopping"):
        next(stream)


def test_a_value_that_is_not_text_is_named_and_not_sent() -> None:
    for content in ({"a": ["x gr\udcfc.txt"]}, {"gr\udcfc.txt": 1}):
        with pytest.raises(errors.BadRequestException, match=r"sent: .*gr\\xfc\.txt is not UTF-8"):
            session().post("/x", json=content)
    with pytest.raises(TypeError):
        session().post("/x", json={"a": object()})


@pytest.mark.parametrize("path", ["/api/v1/me", "/logs"])
def test_a_page_for_browsers_is_not_the_services(path: str) -> None:
    other = session(b"<h1>no</h1>", status=404, kind="text/html; charset=utf-8")
    with pytest.raises(errors.BadResponseException, match=r"another program .* HTTP 404") as raised:
        list(other.stream(path)) if path == "/logs" else other.get(path)
    assert "<h1>" not in raised.value.message


def test_a_proxys_page_about_a_service_that_is_down_is_not_repeated() -> None:
    proxy = session(b"<h1>Bad Gateway</h1>", status=502, kind="text/html")
    with pytest.raises(errors.APIException, match=r"^HTTP 502$"):
        proxy.get("/api/v1/me")


@pytest.mark.parametrize(
    ("first", "body", "done"),
    [
        (httpx.ReadError("lost"), None, True),
        (503, None, True),
        (httpx.ConnectError("refused"), None, False),
        (httpx.ReadError("lost"), {"checkpointUuids": ["u"]}, False),
        (None, None, False),
    ],
)
def test_a_repeated_delete_that_finds_nothing_is_done(
    monkeypatch: pytest.MonkeyPatch, first: Exception | int | None, body: object, done: bool
) -> None:
    """Unless the service has not heard of the first one."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    answers = [first, 404] if first is not None else [404]

    def answer(request: httpx.Request) -> httpx.Response:
        given = answers.pop(0)
        if isinstance(given, Exception):
            raise given
        return httpx.Response(given or 500, json={"message": "not found: no such model"})

    one = Session(URL, transport=httpx.MockTransport(answer), max_retries=1)
    if done:
        assert one.delete("/api/v1/models/digits", json=body) == {}
    else:
        with pytest.raises(errors.NotFoundException, match="no such model"):
            one.delete("/api/v1/models/digits", json=body)
    assert answers == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_opens_new_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same connection two processes would read each other's answers."""
    opened: list[int] = []

    class Client(httpx.Client):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            opened.append(os.getpid())

    monkeypatch.setattr("determined.common.api.session.httpx.Client", Client)
    asked = session(b'{"a": 1}')
    again = asked.with_retry(1)
    assert asked.get("/x") == {"a": 1}
    child = os.fork()
    if child == 0:
        found = [one.get("/x") for one in (asked, asked, again)]
        os._exit(0 if opened[1:] == 2 * [os.getpid()] and found == 3 * [{"a": 1}] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert asked.get("/x") == {"a": 1}
    assert opened == [os.getpid()]
