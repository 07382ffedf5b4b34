"""Passwords as the database kept them before Argon2id."""

from __future__ import annotations

import base64
import hashlib

SALT = b"salt of 16 bytes"


def scrypt_of(sent: str) -> str:
    """The stored hash of ``sent``."""
    digest = hashlib.scrypt(sent.encode(), salt=SALT, n=2**14, r=8, p=1)
    return f"scrypt${base64.b64encode(SALT).decode()}${base64.b64encode(digest).decode()}"
