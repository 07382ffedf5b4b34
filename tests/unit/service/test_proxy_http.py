"""The proxy's HTTP parser: strict, and independent of how the bytes are split."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from determined_service.proxy import http1, names, passing
from determined_service.proxy.entering import is_path
from determined_service.proxy.http1 import BadMessage, Body
from determined_service.proxy.http_protocol import is_for_task
from determined_service.proxy.names import Key
from determined_service.proxy.passing import Way

OWN = Way(True, b"", b"http", b"10.0.0.1", False)
BELOW = Way(False, b"/proxy/t", b"http", b"10.0.0.1", True)


def request(*lines: str, first: str = "GET / HTTP/1.1") -> http1.RequestHead:
    return http1.read_request("\r\n".join([first, "Host: here", *lines]).encode("latin-1"))


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1",  # no Host
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: a",
        b"GET / HTTP/1.1\r\nHost: a b",
        b"GET http://a/ HTTP/1.1\r\nHost: a",
        b"GET * HTTP/1.1\r\nHost: a",
        b"GET  / HTTP/1.1\r\nHost: a",
        b"GET / HTTP/2.0\r\nHost: a",
        b"GET /\tx HTTP/1.1\r\nHost: a",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2",
        b"GET / HTTP/1.1\r\nHost: a\r\nX : 1",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\nY: 2",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\0",
        b"GET / HTTP/1.1\r\nHost: a\r\n: 1",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x1",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked",
        b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked",
    ],
)
def test_ambiguous_requests_are_refused(head: bytes) -> None:
    with pytest.raises(BadMessage):
        http1.read_request(head)


LINES = [
    *("Content-Length: 3", "content-length:3", "Content-Length: 03", "Content-Length: -1"),
    *("Transfer-Encoding: chunked", "Transfer-Encoding: CHUNKED", "transfer-encoding: x"),
    *(
        "X: \u00e9",
        "X:",
        "Connection: close",
        " folded",
        "X\t: 1",
        "X: a\x0bb",
        "\x00: x",
        "x",
        "Host:b",
    ),
]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(
        ["GET / HTTP/1.1", "POST /a?b HTTP/1.1", "GET / HTTP/1.0", "GET /\u00e9 HTTP/1.1"]
    ),
    st.lists(st.sampled_from(LINES), max_size=4),
)
def test_taken_records_equal_another_readers(first: str, lines: list[str]) -> None:
    """h11, a strict parser, accepts everything that this parser accepts, with the same framing."""
    head = "\r\n".join([first, "Host: a", *lines]).encode("latin-1")
    try:
        found = http1.read_request(head)
    except BadMessage:
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(head + b"\r\n\r\n")
    event = connection.next_event()
    assert isinstance(event, h11.Request)
    assert (event.method, event.target) == (found.method, found.target)
    assert [name for name, _ in event.headers] == [name for name, _ in found.headers]
    rest = {0: b"", http1.CHUNKED: b"0\r\n\r\n"}.get(found.length, b"x" * found.length)
    connection.receive_data(rest)
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        assert isinstance(event, h11.Data)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    st.lists(st.integers(1, 30), max_size=40),
    st.booleans(),
)
def test_a_chunked_body_is_the_same_however_it_is_cut(
    parts: list[bytes], cuts: list[int], trailer: bool
) -> None:
    after = b"GET /next"
    sent = b"".join(b"%x;a=b\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n"
    sent += (b"X: 1\r\n" if trailer else b"") + b"\r\n" + after
    body, found, rest = Body(http1.CHUNKED), b"", b""
    for size in [*cuts, len(sent)]:
        piece, sent = sent[:size], sent[size:]
        if body.is_whole:
            rest += piece
            continue
        part, left = body.take(piece)
        found, rest = found + part, rest + left
    assert (found, rest, body.is_whole) == (b"".join(parts), after, True)


@pytest.mark.parametrize(
    "sent", [b"3\r\nabcd\r\n", b"-1\r\n", b"0x3\r\nabc\r\n", b"\r\n", b"3\nabc", b"0\r\nx\r\n"]
)
def test_a_chunk_that_lies_ends_it(sent: bytes) -> None:
    body = Body(http1.CHUNKED)
    with pytest.raises(BadMessage):
        body.take(sent)
        body.take(b"\r\n\r\n")


def test_names_of_ports_are_host_names_and_back() -> None:
    for key in (
        Key("7.3f2a4c66-9a3b-4d5e-8f00-0123456789ab-1", "8265"),
        Key("a", "notebook"),
        Key("5"),
    ):
        assert key.label is not None and len(key.label) <= 63
        assert names.of_label(key.label) == key
        assert names.of_path(f"{key.path}/x?".encode()) == (key, b"/x?")
    # No two tasks have one host name.
    assert Key("a--b").label is None and Key("A").label is None and Key("a-").label is None
    for path in (
        b"/proxy/",
        b"/proxy/..",
        b"/proxy/%2e%2e/x",
        b"/proxy/a%2Fb/",
        b"/other/a",
        b"/proxy/a:b:c/",
    ):
        assert names.of_path(path) is None


def test_the_way_on_stays_at_the_host_name() -> None:
    assert is_path("/lab?a=1#b")
    for hostile in (
        "//evil",
        "/\\evil",
        "https://evil",
        "\\\\evil",
        "/\t/evil",
        "/\n/evil",
        "evil",
        "",
    ):
        assert not is_path(hostile)


def test_answers_lead_below_the_prefix_and_set_nothing_at_the_services_address() -> None:
    asked = request()
    for where, shown in (
        (b"/login?next=%2F", b"/proxy/t/login?next=%2F"),
        (b"http://here/a", b"/proxy/t/a"),
        (b"/proxy/t/a", b"/proxy/t/a"),
        (b"a/b", b"a/b"),
        (b"https://other/", b"https://other/"),
    ):
        head = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nSet-Cookie: a=1\r\nLocation: " + where
        found = passing.answer_head(http1.read_answer(head, b"GET"), asked, BELOW, True)
        assert b"Location: " + shown + b"\r\n" in found
        assert b"Set-Cookie" not in found and b"sandbox" in found


def test_of_cookies_the_domain_goes_and_the_proxys_own_stay_secret() -> None:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nSet-Cookie: a=1; DOMAIN = .localhost; Path=/x; HttpOnly\r\n"
        b"Set-Cookie: determined-visit=2\r\nSet-Cookie: __HOST-Determined-Visit=3"
    )
    found = passing.answer_head(http1.read_answer(head, b"GET"), request(), OWN, True)
    assert b"Set-Cookie: a=1; Path=/x; HttpOnly\r\n" in found
    assert found.count(b"Set-Cookie") == 1
    asked = request(
        "Cookie: a=1; determined-visit=secret", "Cookie: b=2; __Host-determined-visit=more"
    )
    assert passing.cookies(asked.headers) == (["secret", "more"], b"a=1; b=2")
    sent = passing.request_head(asked, b"/", OWN)
    assert b"Cookie: a=1; b=2\r\n" in sent and b"secret" not in sent and b"more" not in sent


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], False),
        (["Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors"], False),
        (["Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate"], False),
        (
            ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"],
            False,
        ),
        (
            ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"],
            True,
        ),
        (["Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"], True),
        (["Origin: http://here"], False),
        (["Origin: http://there"], True),
        (["Origin: null"], True),
        (["Connection: Upgrade", "Upgrade: websocket", "Origin: http://here"], False),
        (["Connection: Upgrade", "Upgrade: websocket", "Origin: https://here"], True),
        (["Connection: Upgrade", "Upgrade: websocket", "Sec-Fetch-Site: same-origin"], True),
    ],
)
def test_another_pages_requests_do_not_have_the_visitors_login(
    lines: list[str], expected: bool
) -> None:
    assert passing.is_from_elsewhere(request(*lines), b"http") is expected


def test_a_form_of_another_page_changes_nothing() -> None:
    lines = ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"]
    asked = request(*lines, first="POST / HTTP/1.1")
    assert passing.is_from_elsewhere(asked, b"http")


def test_the_door_sees_tasks_by_path_and_by_host_name() -> None:
    own = b"localhost"
    for begin, expected in (
        (b"GET /proxy/a/ HTTP/1.1\r\n", True),
        (b"DELETE /proxy/", True),
        (b"GET /det/terminals/a:door-0 HTTP/1.1\r\n", True),
        (b"GET /det/terminals HTTP/1.1\r\nHost: localhost\r\n\r\n", False),
        (b"GET /det/tasks/a HTTP/1.1\r\nHost: localhost\r\n\r\n", False),
        (b"GET /pro", None),
        (b"GET /det/termin", None),
        (b"GET", None),
        (b"GET /proxies HTTP/1.1\r\nHost: localhost\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nHo", None),
        (b"GET / HTTP/1.1\r\nhost: a.LOCALHOST:80\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: localhost:80\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: a.localhost.evil\r\n", False),
        (b"GET / HTTP/1.0\r\nX: 1\r\n\r\n", False),
    ):
        assert is_for_task(begin, own) is expected, begin
    assert is_for_task(b"GET / HTTP/1.1\r\nHost: a.localhost\r\n", b"") is False
