"""Bearer tokens: making them, storing them, and reading them from a request."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping

from determined_service.base.errors import Unauthenticated

# Determined's harness sends its allocation's token under the second name.
TOKEN_HEADERS = ("Authorization", "Grpc-Metadata-x-allocation-token")


def new_token() -> str:
    """A fresh bearer token."""
    return secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    """The hash of a token that the tables keep."""
    return hashlib.sha256(token.encode()).hexdigest()


def bearer_token(headers: Mapping[str, str]) -> str:
    """The token that was sent. Only headers count: a cookie would let any web page act for the user.

    Raises Unauthenticated when there is none.
    """
    for header in TOKEN_HEADERS:
        scheme, _, token = headers.get(header, "").partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            return token.strip()
    raise Unauthenticated("not logged in: send `Authorization: Bearer <token>`")
