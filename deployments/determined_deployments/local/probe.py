"""Asks a component over HTTP whether it works."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from determined.common.api import Session, errors


def get(
    url: str, *, token: str | None = None, login: str | None = None, timeout: float = 1.0
) -> Any | None:
    """The JSON of a 200 answer; None for anything else, including no answer in ``timeout`` s.

    ``token``: a bearer token; ``login``: ``user:password``.
    """
    basic = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
    return _ask("GET", url, token, timeout, headers=basic)


def post(url: str, body: Mapping[str, Any], *, token: str, timeout: float) -> Any | None:
    """As :func:`get`, with a JSON body."""
    return _ask("POST", url, token, timeout, json=body)


def _ask(method: str, url: str, token: str | None, timeout: float, **options: Any) -> Any | None:
    parts = urlsplit(url)
    # An idle connection would hold up a server's shutdown.
    with Session(
        f"{parts.scheme}://{parts.netloc}", token, timeout=timeout, max_retries=0
    ) as session:
        try:
            answer = session.request(method, parts.path, **options)
            return answer.json() if answer.status_code == 200 else None
        except (errors.APIException, ValueError):
            return None


def is_ok(url: str) -> bool:
    """True if ``url`` answers with status 200."""
    return get(url) is not None
