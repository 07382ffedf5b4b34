"""The proxy's reading of heads: which port a request is for, with which login, and how it goes on."""

from __future__ import annotations

import pytest

from determined_service.base.trusted_proxies import TrustedProxies
from determined_service.proxy import arrivals, entering, http1, passing
from determined_service.proxy.answers import Refusal
from determined_service.proxy.arrivals import (
    Arrival,
    ForTunnel,
    Onward,
    OwnAddresses,
    Redirect,
    TerminalAsked,
)
from determined_service.proxy.entering import TicketShown
from determined_service.proxy.names import Key
from determined_service.proxy.questions import Route

HERE = OwnAddresses("here.test", "http://*.here.test", TrustedProxies(["10.0.0.2"]))
LOGIN = passing.COOKIE.decode()


def request(
    target: str, *lines: str, host: str = "service", method: str = "GET"
) -> http1.RequestHead:
    head = [f"{method} {target} HTTP/1.1", f"Host: {host}", *lines]
    return http1.read_request("\r\n".join(head).encode())


def arrival(target: str, *lines: str, host: str = "service", peer: str = "10.0.0.1") -> Arrival:
    found = arrivals.read(request(target, *lines, host=host), HERE, peer)
    assert isinstance(found, Arrival)
    return found


def route(*, tcp: bool = False, keep_prefix: bool = False) -> Route:
    return Route("10.0.0.9", 2600, tcp, keep_prefix, "a.1", 1)


@pytest.mark.parametrize(
    ("target", "host"), [("/api/v1/me", "service"), ("/", "mlflow.here.test"), ("/x", "a.b.test")]
)
def test_other_addresses_are_the_services(target: str, host: str) -> None:
    assert arrivals.read(request(target, host=host), HERE, "10.0.0.1") is None


def test_below_the_services_address_the_prefix_is_taken_off() -> None:
    found = arrival("/proxy/t:web/a?b=c", "Authorization: Bearer one")
    assert found.ask.key == Key("t", "web")
    assert (found.ask.bearer, found.ask.cookies) == ("one", ())
    assert (found.target, found.way.prefix) == (b"/a?b=c", b"/proxy/t:web")
    onward = arrivals.onward(request("/proxy/t:web/a?b=c"), found, route())
    assert onward == Onward(found.way, b"/a?b=c")


def test_a_server_that_knows_its_path_gets_the_whole_path() -> None:
    asked = request("/proxy/t/a", "Authorization: Bearer one")
    found = arrivals.read(asked, HERE, "10.0.0.1")
    assert isinstance(found, Arrival)
    onward = arrivals.onward(asked, found, route(keep_prefix=True))
    assert isinstance(onward, Onward)
    assert (onward.target, onward.way.prefix) == (b"/proxy/t/a", b"")


def test_a_page_without_a_slash_is_sent_to_its_folder() -> None:
    asked = request("/proxy/t?x=1", "Authorization: Bearer one")
    assert arrivals.read(asked, HERE, "10.0.0.1") == Redirect("/proxy/t/?x=1")


def test_a_browser_is_sent_to_the_tasks_host_name() -> None:
    asked = request("/proxy/t/a", "Accept: text/html", host="here.test")
    found = arrivals.read(asked, HERE, "10.0.0.1")
    assert isinstance(found, Redirect)
    assert "//t.here.test/" in found.where


def test_at_a_tasks_host_name_a_cookie_goes_before_a_token() -> None:
    found = arrival(
        "/a", f"Cookie: {LOGIN}=visit; own=1", "Authorization: Bearer task", host="t.here.test"
    )
    assert (found.ask.bearer, found.ask.cookies, found.target) == ("", ("visit",), b"/a")


def test_cookies_do_not_count_at_the_services_address() -> None:
    assert arrival("/proxy/t/a", f"Cookie: {LOGIN}=visit").ask.cookies == ()


def test_a_ticket_is_read_and_leads_to_no_other_host() -> None:
    target = f"{entering.ENTER.decode()}?ticket=abc&next=//evil.test/"
    found = arrivals.read(request(target, host="t.here.test"), HERE, "10.0.0.1")
    assert found == TicketShown(Key("t"), "abc", "/", False)
    assert "Secure" not in found.cookie_line("x")


def test_only_trusted_servers_name_scheme_and_addresses() -> None:
    lines = ("X-Forwarded-Proto: https", "X-Forwarded-For: 1.2.3.4")
    assert arrival("/proxy/t/", *lines, peer="10.0.0.2").way.peer == b"1.2.3.4, 10.0.0.2"
    assert arrival("/proxy/t/", *lines, peer="10.0.0.2").way.scheme == b"https"
    stranger = arrival("/proxy/t/", *lines, peer="10.0.0.3").way
    assert (stranger.peer, stranger.scheme) == (b"10.0.0.3", b"http")


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request("/proxy//"), 404),
        (request("/proxy/t/sw.js", "Service-Worker: script"), 403),
        (
            request(
                "/a",
                f"Cookie: {LOGIN}=visit",
                "Origin: http://evil.test",
                host="t.here.test",
                method="POST",
            ),
            403,
        ),
    ],
)
def test_refused_heads(asked: http1.RequestHead, status: int) -> None:
    found = arrivals.read(asked, HERE, "10.0.0.1")
    assert isinstance(found, Refusal)
    assert found.status == status


def test_a_port_of_bytes_is_reached_by_a_tunnel_alone() -> None:
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Authorization: Bearer one")
    plain = arrival("/proxy/t:ssh/", "Authorization: Bearer one")
    refusal = arrivals.onward(request("/proxy/t:ssh/"), plain, route(tcp=True))
    assert isinstance(refusal, Refusal)
    assert refusal.status == 400
    asked = request("/proxy/t:ssh/", *upgrade)
    assert arrivals.onward(asked, plain, route(tcp=True)) == ForTunnel(None)
    ours = request("/proxy/t/", *upgrade, f"Sec-WebSocket-Protocol: {passing.TCP}")
    assert arrivals.onward(ours, plain, route()) == ForTunnel(passing.TCP)


PAGE = ("Upgrade: websocket", "Connection: Upgrade", "Origin: http://det.here.test")
TICKET = "Sec-WebSocket-Protocol: determined-terminal, ticket.aB-_1"


def test_a_page_with_a_terminal_shows_its_login_and_its_ticket() -> None:
    cookies = "Cookie: other=1; determined-front=of-pages; __Host-determined-front=secure"
    asked = request("/det/terminals/t:door-0", *PAGE, TICKET, cookies, host="det.here.test")
    found = arrivals.read(asked, HERE, "10.0.0.1")
    assert isinstance(found, TerminalAsked)
    assert (found.key, found.login, found.ticket) == (Key("t", "door-0"), "of-pages", "aB-_1")
    went_on = found.arrival("a-visit")
    assert (went_on.ask.bearer, went_on.ask.cookies) == ("", ("a-visit",))
    assert arrivals.onward(asked, went_on, route(tcp=True)) == ForTunnel(passing.TERMINAL)

    encrypted = (*PAGE[:2], "Origin: https://det.here.test", "X-Forwarded-Proto: https")
    asked = request("/det/terminals/t:door-0", *encrypted, TICKET, cookies, host="det.here.test")
    found = arrivals.read(asked, HERE, "10.0.0.2")
    assert isinstance(found, TerminalAsked) and found.login == "secure"


@pytest.mark.parametrize(
    ("target", "lines", "status"),
    [
        ("/det/terminals/t:door-0", (*PAGE[:2], TICKET), 403),
        ("/det/terminals/t:door-0", (*PAGE[:2], "Origin: http://evil.test", TICKET), 403),
        ("/det/terminals/t:door-0", (*PAGE[:2], "Origin: http://t.here.test", TICKET), 403),
        ("/det/terminals/t:door-0", (*PAGE[:2], "Origin: https://det.here.test", TICKET), 403),
        ("/det/terminals/t:door-0", PAGE, 400),
        ("/det/terminals/t:door-0", (*PAGE, TICKET.rpartition(",")[0]), 400),
        ("/det/terminals/t:door-0", (*PAGE, TICKET + ", ticket.two"), 400),
        ("/det/terminals/t:door-0", (PAGE[2], TICKET), 400),
        ("/det/terminals/t:door-0/more", (*PAGE, TICKET), 404),
    ],
)
def test_no_other_page_comes_to_a_door(target: str, lines: tuple[str, ...], status: int) -> None:
    found = arrivals.read(request(target, *lines, host="det.here.test"), HERE, "10.0.0.1")
    assert isinstance(found, Refusal) and found.status == status


def test_a_tasks_own_pages_may_have_the_address_of_terminals() -> None:
    found = arrival("/det/terminals/t:door-0", f"Cookie: {LOGIN}=visit", host="t.here.test")
    assert found.ask.key == Key("t")
