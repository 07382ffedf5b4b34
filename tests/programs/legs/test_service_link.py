"""The legs' connection to the service."""

from __future__ import annotations

import socket
import threading

import pytest

from determined.common.api import errors
from determined.common.service_link import ServiceLink
from tests.programs.legs.fake_service import FakeService
from tests.waiting import TIMEOUT_S


def test_errors_are_those_of_the_client(service: FakeService) -> None:
    refusals = {
        "a": (409, {"error": {"error": "has ended"}}),
        "b": (404, "gone"),
        "c": (503, {}),
    }
    for name, refusal in refusals.items():
        service.answers[name] = lambda body, refusal=refusal: refusal  # type: ignore[misc]
    with ServiceLink(service.url, "token") as link:
        with pytest.raises(errors.ConflictException, match="has ended"):
            link.post("/internal/v1/a", {})
        with pytest.raises(errors.NotFoundException, match="gone"):
            link.post("/internal/v1/b", {})
        with pytest.raises(errors.APIException) as caught:
            link.post("/internal/v1/c", {})
        assert not isinstance(caught.value, errors.BadRequestException)
        link.post("/internal/v1/d", {"x": 1})
    assert service.paths() == ["/internal/v1/d"]


def test_nothing_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with (
        ServiceLink(f"http://127.0.0.1:{port}", "token") as link,
        pytest.raises(errors.MasterNotFoundException, match="no answer from the service"),
    ):
        link.post("/x", {})


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
        with ServiceLink(f"http://127.0.0.1:{server.getsockname()[1]}", "token") as link:
            assert link.get("/a") == b"{}"
            assert link.get("/b") == b"{}"
        thread.join(TIMEOUT_S)
    assert served == 2


def test_address_with_a_path(service: FakeService) -> None:
    with ServiceLink(f"{service.url}/base", "token") as link:
        link.post("/internal/v1/d", {})
    assert service.paths() == ["/base/internal/v1/d"]
