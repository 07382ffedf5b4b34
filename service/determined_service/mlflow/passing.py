"""Decides which addresses and headers pass between a client and MLflow's server."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_API = r"(?:ajax-)?api/[\d.]+"
# Routes that run commands or code, spend money or reach other hosts in the cluster's name.
_CLOSED = re.compile(
    rf"{_API}/(?:mlflow/)?(?:assistant|gateway-proxy|jobs|demo|prompt-optimization|genai|workspaces)(?:/|$)"
    rf"|{_API}/mlflow/(?:runs/create-promptlab-run|(?:issues|scorer|genai/evaluate)/invoke)(?:/|$)"
    r"|gateway(?:/|$)",
    re.IGNORECASE,
)
# Routes that may be read, and are empty.
_CLOSED_TO_CHANGES = re.compile(
    rf"{_API}/(?:mlflow/)?(?:gateway|webhooks|mcp[^/]*|ui-telemetry|scorers)(?:/|$)",
    re.IGNORECASE,
)
# Requests that MLflow's pages send by themselves. A refusal would be an error on their console; these are the
# answers of a server without gateway, assistant and user management.
_NOTHING: tuple[tuple[re.Pattern[str], Any], ...] = tuple(
    (re.compile(pattern), answer)
    for pattern, answer in (
        (rf"{_API}/mlflow/gateway-proxy", {"endpoints": []}),
        (rf"{_API}/mlflow/assistant/config", {"providers": {}, "projects": {}}),
        (rf"{_API}/mlflow/assistant/providers", {"providers": [], "resolved": None}),
        (rf"{_API}/mlflow/users/current", {}),
    )
)
_SEARCHES = re.compile(rf"{_API}/mlflow/(?:[^/]+/)*search(?:-[a-z]+)?|graphql")
# MLflow's page of traces shows a film from MLflow's own host.
_PAGE = "media-src 'self' data: blob:; object-src 'none'; base-uri 'self'"
CLOSED = (
    "MLflow's assistant, gateway, jobs, workspaces, webhooks, MCP servers and scorers are closed on this "
    "cluster: use a tracking server of MLflow's own for them"
)
_FILES = re.compile(
    rf"{_API}/mlflow-artifacts/artifacts/|(?:model-versions/)?get-artifact"
    rf"|{_API}/mlflow/(?:get-trace-artifact|logged-models/[^/]+/artifacts/files)"
)
_ARTIFACT = re.compile(rf"{_API}/mlflow-artifacts/artifacts/.")
_SENT = (
    "accept",
    "accept-encoding",
    "accept-language",
    "content-length",
    "content-type",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "range",
    "user-agent",
)
_RETURNED = (
    "accept-ranges",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "etag",
    "last-modified",
    "x-content-type-options",
)


def is_closed(method: str, path: str) -> bool:
    """True if the request is not passed on: MLflow's assistant, gateway, jobs; changes of its webhooks."""
    # As the server will read it.
    plain = posixpath.normpath("/" + unquote(path)).lstrip("/")
    changes = method not in ("GET", "HEAD")
    return bool(_CLOSED.match(plain) or (changes and _CLOSED_TO_CHANGES.match(plain)))


def nothing(method: str, path: str) -> Any:
    """The answer of something that there is not here, whose absence MLflow's pages understand; None: it is
    nothing like that."""
    if method != "GET":
        return None
    return next((answer for pattern, answer in _NOTHING if pattern.fullmatch(path)), None)


def only_reads(method: str, path: str) -> bool:
    """True if the request changes nothing, and so may be sent twice."""
    return method in ("GET", "HEAD") or (method == "POST" and _SEARCHES.fullmatch(path) is not None)


def is_file(path: str) -> bool:
    """True if the answer is a user's file, whose scripts must not run."""
    return _FILES.match(path) is not None


def is_artifact(path: str) -> bool:
    """True if the address stands for one file, stored and returned as it is."""
    return _ARTIFACT.match(path) is not None


def sent(headers: Mapping[str, str]) -> dict[str, str]:
    """The client's headers that the server gets: nobody's token, no cookie."""
    return {name: headers[name] for name in _SENT if name in headers}


def returned(headers: Mapping[str, str], path: str) -> dict[str, str]:
    """The server's headers that the client gets."""
    found = {name: headers[name] for name in _RETURNED if name in headers}
    found |= {
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "SAMEORIGIN",
    }
    if is_file(path):
        found["Content-Security-Policy"] = (
            "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
        )
    elif headers.get("content-type", "").startswith("text/html"):
        found["Content-Security-Policy"] = _PAGE
    return found
