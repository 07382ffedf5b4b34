"""Passwords: the form that clients send, and the hash that the database stores.

Determined's clients never send a password as typed: they send the hex SHA-512 of a fixed salt and the
password (``isHashed: true``). The salt only hides the text, so the database stores an Argon2id hash of the
value sent.

The functions are slow on purpose (about 40 ms and 19 MiB): call them by :func:`in_thread`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from determined.common.wire import limits

# The constant in every published client.
CLIENT_SALT = "GubPEmmotfiK9TMD6Zdw"
_BLANK_HASHED = hashlib.sha512(CLIENT_SALT.encode()).hexdigest()

# As slow as the scrypt before it; OWASP asks for two passes over this memory at least.
_HASHER = PasswordHasher(time_cost=4, memory_cost=19 * 1024, parallelism=1)

# A hash that no password has: users that do not exist cost as much time as wrong passwords.
_NOBODY = (
    f"$argon2id$v=19$m={_HASHER.memory_cost},t={_HASHER.time_cost},p={_HASHER.parallelism}"
    f"${'A' * 22}${'A' * 43}"
)

_SCRYPT = "scrypt"

# Separate threads: many logins at once must not hold up other work that needs a thread.
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="passwords")
T = TypeVar("T")


async def in_thread(function: Callable[..., T], *given: Any) -> T:
    """Calls one of the slow functions below without holding up the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, function, *given)


def is_blank(sent: str) -> bool:
    """True if ``sent`` is the blank password: blank, or its hash, which some clients send."""
    return sent in ("", _BLANK_HASHED)


def too_short(password: str) -> str:
    """The sentence that refuses a typed password where other machines reach the service; blank: it is long
    enough."""
    if len(password) >= limits.PASSWORD_MIN_CHARS:
        return ""
    return (
        f"password: {len(password)} characters found, at least {limits.PASSWORD_MIN_CHARS} are needed, "
        "because other machines reach the service"
    )


def as_sent(password: str) -> str:
    """The form in which a client sends ``password``; a blank one is sent blank."""
    if not password:
        return ""
    return hashlib.sha512((CLIENT_SALT + password).encode()).hexdigest()


def store(sent: str) -> str:
    """The hash to store for ``sent``."""
    return _HASHER.hash(sent)


def matches(sent: str, kept: str | None) -> bool:
    """True if ``kept`` was stored for the password ``sent``; never for None.

    Takes as long for None as for a hash.
    """
    if kept is not None and kept.startswith(f"{_SCRYPT}$"):
        return _matches_scrypt(sent, kept)
    try:
        return _HASHER.verify(kept or _NOBODY, sent) and kept is not None
    except (VerificationError, InvalidHashError):
        return False


def is_outdated(kept: str) -> bool:
    """True if ``kept`` has an older format or other costs than :func:`store` uses now."""
    return kept.startswith(f"{_SCRYPT}$") or _HASHER.check_needs_rehash(kept)


def _matches_scrypt(sent: str, kept: str) -> bool:
    """The format before Argon2id: scrypt with N = 2**14, r = 8, p = 1."""
    _, salt, digest = kept.split("$")
    found = hashlib.scrypt(sent.encode(), salt=base64.b64decode(salt), n=2**14, r=8, p=1)
    return hmac.compare_digest(found, base64.b64decode(digest))
