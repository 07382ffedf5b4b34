"""The way in to a task's host name: a visitor brings a ticket, and gets the login's cookie."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, quote

from determined_service.proxy import passing
from determined_service.proxy.names import Key

ENTER = b"/.determined/enter"
"""The path at each task's host name to which the service sends a visitor with a ticket."""


@dataclass(frozen=True, slots=True)
class TicketShown:
    """A request for :data:`ENTER`. ``next_path``: where the visitor goes on to, at the same host name."""

    key: Key
    ticket: str
    next_path: str
    is_encrypted: bool

    def cookie_line(self, cookie: str) -> str:
        """The header that sets ``cookie``."""
        name = passing.SECURE_COOKIE if self.is_encrypted else passing.COOKIE
        secure = "; Secure" if self.is_encrypted else ""
        return f"Set-Cookie: {name.decode()}={cookie}; Path=/; HttpOnly; SameSite=Lax{secure}\r\n"


def read(key: Key, query: bytes, scheme: bytes) -> TicketShown:
    """``scheme``: of the visitor's way. A next path that leads elsewhere is replaced by ``/``."""
    given = parse_qs(query.decode("latin-1"))
    ticket = given.get("ticket", [""])[0]
    where = given.get("next", ["/"])[0]
    if not is_path(where):
        where = "/"
    return TicketShown(
        key, ticket, quote(where, safe="/?&=%:;,@!$'()*+~-._#[]"), scheme == b"https"
    )


def is_path(where: str) -> bool:
    """True if the address leads to the same host name: in every browser's reading it must be a path."""
    return (
        where.startswith("/")
        and not where.startswith(("//", "/\\"))
        and all(" " < character < "\x7f" and character != "\\" for character in where)
    )
