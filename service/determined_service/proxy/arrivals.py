"""Reads from a request's head which port of which task it is for, with which login, and how it goes on.

No connection is touched here: :func:`read` and :func:`onward` are functions of the head and the route.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from determined_service.base import hosts
from determined_service.base.trusted_proxies import TrustedProxies
from determined_service.proxy import answers, entering, http1, names, passing
from determined_service.proxy.answers import Refusal
from determined_service.proxy.entering import TicketShown
from determined_service.proxy.http1 import RequestHead
from determined_service.proxy.passing import Way
from determined_service.proxy.questions import Ask, Route


@dataclass(frozen=True, slots=True)
class OwnAddresses:
    """The addresses of this cluster's tasks.

    ``host``: tasks' host names end with it; empty: tasks have none. ``base``: their address with a star, if
    the configuration gives one. ``trusted``: servers before this one, whose X-Forwarded headers are believed.
    """

    host: str
    base: str
    trusted: TrustedProxies


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request for a port of a task. ``target``: its path and query without the port's prefix."""

    ask: Ask
    way: Way
    target: bytes


@dataclass(frozen=True, slots=True)
class TerminalAsked:
    """A page of the service's own asks for a door of a task. ``login``: the browser's login at these pages;
    ``ticket``: the page was given it for this connection."""

    key: names.Key
    login: str
    ticket: str
    way: Way

    def arrival(self, cookie: str) -> Arrival:
        """The request of the visitor for whom ``cookie`` stands."""
        return Arrival(Ask(self.key, "", (cookie,)), self.way, b"/")


@dataclass(frozen=True, slots=True)
class Redirect:
    """The visitor is sent to another address."""

    where: str


def read(
    request: RequestHead, own: OwnAddresses, peer: str
) -> Arrival | TerminalAsked | TicketShown | Redirect | Refusal | None:
    """None: the request is for the service itself. ``peer``: the address at the other end."""
    path, _, query = request.target.partition(b"?")
    label = _label(request, own.host)
    if path.startswith(names.TERMINALS) and label in (None, hosts.FRONT):
        return _terminal(request, own, peer, path)
    if (label is None or label in hosts.PAGES) and not path.startswith(names.PREFIX):
        return None
    found = names.of_path(path)
    key = found[0] if found else None
    if label is not None:
        key = names.of_label(label)
    if key is None:
        return Refusal(404, "no task has this address: it is /proxy/<task> or /proxy/<task>:<port>")
    scheme, peers = _way_here(request, own.trusted, peer)
    if label is not None and path == entering.ENTER:
        return entering.read(key, query, scheme)
    own_host = label is not None
    logins, _ = passing.cookies(request.headers)
    bearer = _bearer(request, own_host, bool(logins))
    is_read = request.method in (b"GET", b"HEAD")
    if not own_host:
        logins = []
        if request.get(b"service-worker"):
            return Refusal(403, "a task's page has no service worker at the service's address")
        if not bearer and is_read and answers.wants_page(request):
            base = names.own_address(key, own.host, own.base, request.host)
            if base is not None:
                return Redirect(base + request.target.decode("latin-1"))
    elif logins and passing.is_from_elsewhere(request, scheme):
        return Refusal(
            403, "this request comes from another site's page, which may not use your login here"
        )
    target = request.target
    if found is not None and found[0] == key:
        rest = found[1]
        if not rest and not own_host and not request.upgrade and is_read:
            # Links of a page are read from the folder on.
            return Redirect(key.path + "/" + (f"?{query.decode('latin-1')}" if query else ""))
        target = (rest or b"/") + (b"?" + query if query else b"")
    way = Way(own_host, key.path.encode(), scheme, peers, bool(bearer))
    return Arrival(Ask(key, bearer, tuple(logins[:4])), way, target)


@dataclass(frozen=True, slots=True)
class Onward:
    """An admitted request goes to the task, with ``target`` in its first line."""

    way: Way
    target: bytes


@dataclass(frozen=True, slots=True)
class ForTunnel:
    """An admitted request asks for the bytes of the port. ``subprotocol``: the one to agree to."""

    subprotocol: str | None


def onward(
    request: RequestHead, arrival: Arrival, route: Route
) -> Onward | ForTunnel | Redirect | Refusal:
    """How the request goes on to the port at ``route``."""
    if request.upgrade:
        offered = http1.words(request.headers, b"sec-websocket-protocol")
        ours = next(
            (one for one in (passing.TCP, passing.TERMINAL) if one.encode() in offered), None
        )
        if route.tcp or ours:
            return ForTunnel(ours)
    key, way = arrival.ask.key, arrival.way
    if route.tcp:
        return Refusal(
            400,
            "this port speaks no HTTP: reach it by a tunnel, "
            f"python -m determined.cli.tunnel MASTER {key}",
        )
    if route.keep_prefix and way.own_host and request.target == b"/":
        return Redirect(f"{key.path}/")
    if route.keep_prefix or way.own_host:
        way = replace(way, prefix=b"")
    return Onward(way, request.target if route.keep_prefix else arrival.target)


def _terminal(
    request: RequestHead, own: OwnAddresses, peer: str, path: bytes
) -> TerminalAsked | Refusal:
    found = names.of_path(path, names.TERMINALS)
    if found is None or found[1]:
        return Refusal(404, "no task has this address: open a terminal on the task's page")
    scheme, peers = _way_here(request, own.trusted, peer)
    offered = [one.strip() for one in request.get(b"sec-websocket-protocol").split(b",")]
    tickets = [one for one in offered if one.startswith(passing.TICKET.encode())]
    if not request.upgrade or passing.TERMINAL.encode() not in offered or len(tickets) != 1:
        return Refusal(400, "this is the way of a terminal: open it on the task's page")
    if passing.is_from_elsewhere(request, scheme):
        return Refusal(
            403, "this request comes from another site's page, which may not use your login here"
        )
    name = hosts.SECURE + hosts.FRONT_COOKIE if scheme == b"https" else hosts.FRONT_COOKIE
    login = passing.cookie(request.headers, name.encode())
    ticket = tickets[0].removeprefix(passing.TICKET.encode()).decode("latin-1")
    return TerminalAsked(found[0], login, ticket, Way(False, b"", scheme, peers, False))


def _label(request: RequestHead, suffix: str) -> str | None:
    """The first part of the host name, if the name is a task's."""
    if not suffix:
        return None
    name = request.host.partition(b":")[0].decode("latin-1")
    label, _, rest = name.partition(".")
    return label if rest == suffix else None


def _way_here(request: RequestHead, trusted: TrustedProxies, peer: str) -> tuple[bytes, bytes]:
    """The scheme of the visitor's way, and the addresses on it."""
    scheme = b"http"
    if peer in trusted:
        given = request.get(b"x-forwarded-proto").lower()
        scheme = given if given in (b"http", b"https") else scheme
        before = request.get(b"x-forwarded-for")
        peer = f"{before.decode('latin-1')}, {peer}" if before else peer
    return scheme, peer.encode("latin-1")


def _bearer(request: RequestHead, own_host: bool, has_logins: bool) -> str:
    """The token in the headers; empty if there is none for the proxy."""
    if not (own_host and has_logins):
        bearer = _token(request, b"authorization")
        if bearer:
            return bearer
    return "" if own_host else _token(request, b"grpc-metadata-x-allocation-token")


def _token(request: RequestHead, header: bytes) -> str:
    kind, _, given = request.get(header).partition(b" ")
    return given.strip().decode("latin-1") if kind.lower() == b"bearer" else ""
