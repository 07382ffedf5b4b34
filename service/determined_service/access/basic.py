"""Users who send their name and password with each request (HTTP's Basic scheme).

A browser keeps the user's input for the one origin that asked, port included, while it sends a cookie to
every port of the host name. It is for pages with which an administrator rules the machine, and for programs
that know no other way.

A password is hashed once: a right one is cached in memory as a hash with a key of this process, beside the
token of the session that it opened, which counts from then on. It is asked for again when that session has
ended, by a logout, a new password or a user's deactivation.
"""

# Without `from __future__ import annotations`: FastAPI reads the annotations of `__call__` as they are.

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from fastapi import Depends, Request
from pydantic import ValidationError

from determined_service.access.authenticator import Authenticator
from determined_service.access.browser import require_own_page
from determined_service.access.dependencies import Bearer, Rule, asker, count
from determined_service.access.logins import Login, log_in
from determined_service.access.principal import Principal
from determined_service.access.rules import Action, authorise
from determined_service.access.targets import Kind, Target
from determined_service.base.errors import BadRequest, Unauthenticated

REMEMBERED = 1_000


@dataclass(slots=True)
class _Known:
    token: str = ""
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Passwords:
    """The right passwords of one process; the longest unused is dropped first."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, _Known] = OrderedDict()

    async def principal(self, request: Request, sent: str) -> Principal:
        """The user with the name and password ``sent``, as the header holds them.

        Raises Unauthenticated, Forbidden, TooManyRequests, BadRequest.
        """
        login = _read(sent)
        state = request.app.state
        auth: Authenticator = state.auth
        name = hmac.digest(self._key, sent.encode(), hashlib.sha256)
        known = self._known.setdefault(name, _Known())
        self._known.move_to_end(name)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        # A page sends many requests at once: one login serves them all.
        async with known.asking:
            if known.token:
                try:
                    return await auth.principal(known.token)
                except Unauthenticated:
                    known.token = ""
            try:
                known.token, _ = await log_in(
                    login, request, state.db, state.settings, state.login_throttle
                )
            except BaseException:
                self._known.pop(name, None)
                raise
            return await auth.principal(known.token)


def _read(sent: str) -> Login:
    try:
        name, colon, password = base64.b64decode(sent, validate=True).decode().partition(":")
        if not colon:
            raise ValueError
        return Login(username=name, password=password)
    except (binascii.Error, ValueError, ValidationError):
        raise BadRequest(
            "Authorization: Basic is followed by user:password in base64 (RFC 7617)"
        ) from None


class MayByPassword(Rule):
    """As :class:`~determined_service.access.dependencies.May`, also for a name and password; None: nobody is
    logged in."""

    async def __call__(self, request: Request, _: Bearer = None) -> Principal | None:
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        try:
            if scheme.lower() != "basic":
                subject = await asker(request)
            else:
                # A program says neither; a browser says it with every request that could change something.
                if any(name in request.headers for name in ("origin", "sec-fetch-site")):
                    require_own_page(request)
                passwords: Passwords = request.app.state.passwords
                subject = await passwords.principal(request, sent.strip())
                count(request, subject)
        except Unauthenticated:
            return None
        authorise(subject, self.action, Target(self.kind), self.verb)
        return subject


def may_by_password(action: Action, kind: Kind, verb: str = "") -> Any:
    """For ``Annotated[Principal | None, may_by_password(…)]``."""
    return Depends(MayByPassword(action, kind, verb))
