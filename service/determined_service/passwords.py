"""Passwords: what clients send, and what the database keeps of it.

Determined's clients never send a password as typed: they send the hex SHA-512 of a fixed salt and
the password (``isHashed: true``). The salt hides the text, nothing more, so the database keeps a
scrypt of what was sent.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os

# The constant in every published client.
CLIENT_SALT = "GubPEmmotfiK9TMD6Zdw"
_N, _R, _P = 2**14, 8, 1


def as_sent(password: str) -> str:
    """The form in which a client sends ``password``; a blank one is sent blank."""
    if not password:
        return ""
    return hashlib.sha512((CLIENT_SALT + password).encode()).hexdigest()


def _scrypt(sent: str, salt: bytes) -> bytes:
    return hashlib.scrypt(sent.encode(), salt=salt, n=_N, r=_R, p=_P)


def store(sent: str) -> str:
    """What to keep of ``sent``."""
    salt = os.urandom(16)
    digest = _scrypt(sent, salt)
    return f"scrypt${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def matches(sent: str, kept: str | None) -> bool:
    """Whether ``sent`` is the password of which ``kept`` was stored; never for None."""
    if kept is None:
        return False
    kind, salt, digest = kept.split("$")
    if kind != "scrypt":
        return False
    return hmac.compare_digest(_scrypt(sent, base64.b64decode(salt)), base64.b64decode(digest))
