"""Requests and their answers: connections, streams of results, and how they break off."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from determined.common.api import Session, errors, transport
from tests.listening import answering
from tests.unit.sdk.fake_service import URL
from tests.waiting import TIMEOUT_S


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


class Echo(BaseHTTPRequestHandler):
    """Says which path was asked for."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        content = json.dumps({"path": self.path}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def serving() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


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

    connect = transport._Connection.connect

    def counted(connection: transport._Connection) -> None:
        opened.append(os.getpid())
        connect(connection)

    monkeypatch.setattr(transport._Connection, "connect", counted)
    with serving() as url, Session(url, max_retries=0) as asked:
        again = asked.with_retry(1)
        assert asked.get("/x") == {"path": "/x"}
        child = os.fork()
        if child == 0:
            found = [one.get("/y") for one in (asked, asked, again)]
            os._exit(0 if opened[1:] == [os.getpid()] and found == 3 * [{"path": "/y"}] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert asked.get("/x") == {"path": "/x"}
    assert opened == [os.getpid()]


def test_the_form_of_a_request() -> None:
    with serving() as url, Session(f"{url}/base/") as one:
        params = {"a": [1, 2], "b": True, "c": None, "d": "x y"}
        assert one.get("/p ä/%2F", params=params) == {
            "path": "/base/p%20%C3%A4/%2F?a=1&a=2&b=true&c=&d=x+y"
        }
        assert one.get("x?y=1", params={"z": 2}) == {"path": "/base/x?y=1&z=2"}


def test_connection_that_was_closed_while_idle_is_opened_again() -> None:
    """As uvicorn does after five seconds without a request."""
    served = 0

    def serve(server: socket.socket) -> None:
        nonlocal served
        for _ in range(2):
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                served += 1
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        with Session(f"http://127.0.0.1:{server.getsockname()[1]}") as one:
            assert (one.get("/a"), one.get("/b")) == ({}, {})
        thread.join(TIMEOUT_S)
    assert served == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
    ],
)
def test_half_an_answer_is_none(answer: bytes) -> None:
    with answering(answer) as port, Session(f"http://127.0.0.1:{port}", max_retries=0) as one:
        with pytest.raises(errors.MasterNotFoundException, match="the answer broke off"):
            one.get("/x")
        with pytest.raises(
            errors.MasterNotFoundException, match=r"lost the .*: the answer broke off"
        ):
            list(one.stream("/x"))


def test_closing_a_session_ends_the_request_of_another_thread() -> None:
    """As the core context does with the long poll for preemption."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = Session(f"http://127.0.0.1:{server.getsockname()[1]}", max_retries=0)
        raised: list[Exception] = []

        def ask() -> None:
            try:
                one.get("/x")
            except errors.APIException as error:
                raised.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            one.close()
            thread.join(TIMEOUT_S)
        assert [type(error) for error in raised] == [errors.MasterNotFoundException]
        with pytest.raises(RuntimeError, match="closed"):
            one.get("/x")


@pytest.mark.parametrize("token", ["caf\xe9", "a\nHost: evil", "a\x00"])
def test_a_token_that_no_header_can_carry(token: str) -> None:
    with pytest.raises(errors.UnauthenticatedException, match="copy it again"):
        Session("http://service", token)
