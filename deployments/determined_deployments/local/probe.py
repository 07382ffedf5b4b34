"""Asks a component over HTTP whether it works."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import httpx


@functools.cache
def _client() -> httpx.Client:
    # One client: making one costs more than a request. trust_env=False: a proxy must not stand
    # before a loopback address. No keep-alive: an idle connection would hold up a server's shutdown.
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.Client(trust_env=False, verify=False, limits=limits)


def get(
    url: str, *, token: str | None = None, login: str | None = None, timeout: float = 1.0
) -> Any | None:
    """The JSON of a 200 answer; None for anything else, including no answer in ``timeout`` s.

    ``token``: a bearer token; ``login``: ``user:password``.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    auth = httpx.BasicAuth(*login.split(":", 1)) if login else None
    return _json(lambda: _client().get(url, headers=headers, auth=auth, timeout=timeout))


def post(url: str, body: Mapping[str, Any], *, token: str, timeout: float) -> Any | None:
    """As :func:`get`, with a JSON body."""
    headers = {"Authorization": f"Bearer {token}"}
    return _json(lambda: _client().post(url, json=body, headers=headers, timeout=timeout))


def _json(request: Callable[[], httpx.Response]) -> Any | None:
    try:
        response = request()
        return response.json() if response.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None


def is_ok(url: str) -> bool:
    """True if ``url`` answers with status 200."""
    return get(url) is not None
