"""Logging in: which credentials are used, and the tokens that are kept between commands.

The order, first match wins:

1. a user and password given by the caller;
2. ``$DET_USER_TOKEN``, unless the caller named a user;
3. ``$DET_USER`` and ``$DET_PASS``;
4. ``$DET_SESSION_TOKEN`` of the task we run in, when it belongs to this service;
5. the token kept from an earlier login to this service (of the user named, else the active one),
   if the service still takes it;
6. the passwords in the local cluster's record, when that is what is asked (of the user named, else
   ``determined``);
7. a password prompt, if the program is interactive.

What the environment gives counts for this program only: it is not kept. The token of a user who is named
(``user``) is kept, but does not change whose token the next program uses if none is named.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from determined.common import master as master_address
from determined.common.api import errors
from determined.common.api.certs import Cert
from determined.common.api.session import Session
from determined.common.api.token_store import TokenStore
from determined.common.api.transport import AnyTransport, HttpTransport
from determined.common.master import MasterAddress

DEFAULT_USER = "determined"

# Every published client hides a password behind this salt before it sends it.
_SALT = "GubPEmmotfiK9TMD6Zdw"

# Somebody waits for the answer: a service that is not there is said soon.
_RETRIES = 2
_CONNECT_SECONDS = 5.0

# The parameters of published functions hide the module's name.
_canonical, _find = master_address.canonical, master_address.find

AskPassword = Callable[[str], str]
"""Called with a user name; returns the password that was typed."""


def salt_and_hash(password: str) -> str:
    """The form in which a password is sent; a blank password stays blank."""
    if not password:
        return ""
    return hashlib.sha512((_SALT + password).encode()).hexdigest()


def shortest_password(session: Session) -> int:
    """The characters that a new password needs at least; 0: it may be blank."""
    return int(session.get("/api/v1/master").get("passwordMinChars") or 0)


def check_new_password(session: Session, password: str) -> str:
    """``password`` in the form in which it is sent. Only its typer's machine knows its length.

    Raises BadRequestException for one that is too short.
    """
    least = shortest_password(session)
    if len(password) < least:
        raise errors.BadRequestException(short(password, least))
    return salt_and_hash(password)


def short(password: str, least: int) -> str:
    """The sentence that refuses a password that is too short."""
    return (
        f"the password has {len(password)} characters, and a new one needs at least {least}, because other "
        "machines reach the service"
    )


def new_token(url: str, user: str, password: str, *, transport: AnyTransport | None = None) -> str:
    """Logs ``user`` in at ``url``; the token.

    Raises InvalidCredentialsException, and what :class:`Session` raises.
    """
    body = {"username": user, "password": salt_and_hash(password), "isHashed": True}
    with _quick(url, None, transport) as session:
        try:
            answer = session.post("/api/v1/auth/login", json=body)
        except (errors.UnauthenticatedException, errors.ForbiddenException) as error:
            raise errors.InvalidCredentialsException(
                f"cannot log in to {url} as {user}: {error.message}", error.status_code
            ) from error
        except errors.NotFoundException as error:
            raise not_the_service(url) from error
    if not isinstance(answer, dict) or "token" not in answer:
        raise not_the_service(url)
    return str(answer["token"])


def connect(
    address: MasterAddress | str | None = None,
    user: str | None = None,
    password: str | None = None,
    *,
    ask: AskPassword | None = None,
    store: TokenStore | None = None,
    transport: AnyTransport | None = None,
) -> Session:
    """A session with the service at ``address``, logged in; see the module for how.

    Raises:
        ValueError: ``address`` is not an address. UnauthenticatedException: there are no
        credentials, or they are refused. MasterNotFoundException: nothing answers.
        BadResponseException: another program answers.
    """
    if not isinstance(address, MasterAddress):
        address = master_address.find(address)
    store = store or TokenStore()
    token = _token(address, user, password, ask, store, transport)
    return Session(address.url, token, transport=transport, connect_timeout=_CONNECT_SECONDS)


def check_service(address: MasterAddress, transport: AnyTransport | None = None) -> dict[str, Any]:
    """The service's public description of itself.

    Raises MasterNotFoundException if nothing answers, BadResponseException if another program does.
    """
    with _quick(address.url, None, transport) as session:
        try:
            found = session.get("/api/v1/master")
        except (errors.BadRequestException, errors.UnauthenticatedException) as error:
            # The service describes itself to everybody.
            raise not_the_service(address.url) from error
    if not isinstance(found, dict) or "clusterId" not in found:
        raise not_the_service(address.url)
    return found


def not_the_service(url: str) -> errors.BadResponseException:
    """The exception for an answer of another program."""
    return errors.BadResponseException(
        f"another program than the service answers at {url}; check the port of the address"
    )


@contextlib.contextmanager
def _quick(url: str, token: str | None, transport: AnyTransport | None) -> Iterator[Session]:
    """A session for one short request, which leaves the caller's transport open."""
    session = Session(
        url,
        token,
        transport=transport,
        max_retries=_RETRIES,
        connect_timeout=_CONNECT_SECONDS,
    )
    try:
        yield session
    finally:
        if transport is None:
            session.close()


def logged_in(url: str, token: str, transport: AnyTransport | None) -> bool:
    """True if the service accepts ``token``."""
    with _quick(url, token, transport) as session:
        try:
            session.get("/api/v1/me")
        except errors.UnauthenticatedException:
            return False
    return True


def _runs_at(address: MasterAddress, transport: AnyTransport | None = None) -> bool:
    """Whether the right cluster answers there: any cluster, or for a local address exactly the recorded
    one.

    While the local cluster is down, another user's cluster may have taken its port.
    """
    return address.is_meant(check_service(address, transport))


class _Login(NamedTuple):
    """A name and password to log in with.

    ``kept``: whether the token is stored; ``active``: whether it is used from now on where no name is given;
    ``last``: whether a refusal ends the search.
    """

    user: str
    password: str
    kept: bool = True
    active: bool = False
    last: bool = True


def _token(
    address: MasterAddress,
    user: str | None,
    password: str | None,
    ask: AskPassword | None,
    store: TokenStore,
    transport: AnyTransport | None,
) -> str:
    """The first of the credentials that there are."""
    for found in _credentials(address, user, password, ask, store, transport):
        if isinstance(found, str):
            return found
        try:
            token = new_token(address.url, found.user, found.password, transport=transport)
        except errors.InvalidCredentialsException:
            if found.last:
                raise
            continue
        if found.kept:
            store.set_token(address.url, found.user, token, activate=found.active)
        return token
    # Here $DET_USER alone has named the user.
    name = user or os.environ.get("DET_USER")
    who, command = (
        (f" as {name}", f"det user login {shlex.quote(name)}") if name else ("", "det user login")
    )
    raise errors.UnauthenticatedException(
        f"not logged in to {address.url}{who}: run `{command}`, or set DET_USER and DET_PASS,"
        " or DET_USER_TOKEN"
    )


def _credentials(
    address: MasterAddress,
    user: str | None,
    password: str | None,
    ask: AskPassword | None,
    store: TokenStore,
    transport: AnyTransport | None,
) -> Iterator[str | _Login]:
    """Tokens that need no login, and logins, in the order in which they are used; see the module."""
    url = address.url
    named = user is not None
    if password is not None:
        active = store.active_user(url)
        yield _Login(user or active or DEFAULT_USER, password, active=active is None)
    if user is None:
        given = os.environ.get("DET_USER_TOKEN")
        if given:
            yield given
        user = os.environ.get("DET_USER")
    if user and user == os.environ.get("DET_USER") and "DET_PASS" in os.environ:
        yield _Login(user, os.environ["DET_PASS"], kept=False)
    if not named:  # in a task, $DET_USER is the owner, for whom the token acts
        task_token = _task_token(url)
        if task_token:
            yield task_token
    kept = store.token(url, user)
    if kept is not None:
        if logged_in(url, kept, transport):
            yield kept
        store.drop(url, user)
    # Whoever is named, by an option or a variable, is named for this program only.
    active_now = user is None
    local = address.local
    name = user or DEFAULT_USER
    if local is not None and name in local.passwords:
        if not _runs_at(address, transport):
            # Its password is not for others.
            raise errors.MasterNotFoundException(
                f"another cluster answers at {url}: the one in {local.data_dir} is not running; "
                "start it with `det deploy local cluster-up`"
            )
        # The password may have been changed since the cluster was made: then somebody is asked.
        yield _Login(name, local.passwords[name], active=active_now, last=ask is None)
    # Before a password is asked for: a login does not help if there is no service.
    check_service(address, transport)
    if ask is not None:
        name = user or store.active_user(url) or DEFAULT_USER
        yield _Login(name, ask(name), active=active_now)


def kept_token(address: MasterAddress, user: str | None = None) -> str | None:
    """The token that :func:`connect` would use without asking the service or anybody, if there is one."""
    if user is None and os.environ.get("DET_USER_TOKEN"):
        return os.environ["DET_USER_TOKEN"]
    name = user or os.environ.get("DET_USER")
    if user is None and not (name and "DET_PASS" in os.environ):
        task_token = _task_token(address.url)
        if task_token:
            return task_token
    return TokenStore().token(address.url, name)


def _task_token(url: str) -> str | None:
    """The token of the task we run in. It is sent only to the service that issued it."""
    token, home = os.environ.get("DET_SESSION_TOKEN"), os.environ.get("DET_MASTER")
    if not token or not home or master_address.canonical(home) != url:
        return None
    return token


def current_user(session: Session) -> dict[str, Any]:
    """The user behind the session's token, as the service describes it."""
    user: dict[str, Any] = session.get("/api/v1/me")["user"]
    return user


def logout(session: Session, user: str, store: TokenStore | None = None) -> None:
    """Ends the session at the service and forgets its token; a token already dead is not an error."""
    store = store or TokenStore()
    with contextlib.suppress(errors.UnauthenticatedException):
        session.post("/api/v1/auth/logout", json={})
    store.drop(session.master, user)


# What published scripts call.


def login(master_address: str, username: str, password: str, cert: Cert | None = None) -> Session:
    """A session of ``username`` at ``master_address``; nothing is kept on this machine.

    Raises InvalidCredentialsException, and what :class:`Session` raises.
    """
    url = _canonical(master_address)
    transport = HttpTransport(url, cert)
    token = new_token(url, username, password, transport=transport)
    return Session(url, token, username=username, transport=transport)


def login_with_cache(
    master_address: str | None = None,
    requested_user: str | None = None,
    password: str | None = None,
    cert: Cert | None = None,
) -> Session:
    """A session with the credentials that `det` would use there: see the module.

    Raises as :func:`connect`.
    """
    address = _find(master_address)
    return connect(address, requested_user, password, transport=HttpTransport(address.url, cert))


class Credentials(NamedTuple):
    """A user's name and password."""

    username: str
    password: str


class Authentication:
    """A login, as releases before 0.27 made it; ``Session(master, user, authentication, cert)`` takes it.

    Raises as :func:`connect`.
    """

    def __init__(
        self,
        master_address: str | None = None,
        requested_user: str | None = None,
        password: str | None = None,
        try_reauth: bool = False,
        cert: Cert | None = None,
    ) -> None:
        with login_with_cache(master_address, requested_user, password, cert) as session:
            self._token = session.token or ""
            self._user = requested_user or str(current_user(session)["username"])

    def get_session_token(self) -> str:
        """The token that requests are sent with."""
        return self._token

    def get_session_user(self) -> str:
        """The name of the user who is logged in."""
        return self._user


cli_auth: Authentication | None = None
"""Published scripts set it; nothing here reads it."""
