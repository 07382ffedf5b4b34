"""What passes between a client and MLflow's server: which addresses, and which headers."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from urllib.parse import unquote

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_API = r"(?:ajax-)?api/[\d.]+"
# What runs commands or code, spends money or reaches other hosts in the cluster's name.
_CLOSED = re.compile(
    rf"{_API}/(?:mlflow/)?(?:assistant|gateway-proxy|jobs|demo|prompt-optimization|genai|workspaces)(?:/|$)"
    rf"|{_API}/mlflow/(?:runs/create-promptlab-run|(?:issues|scorer|genai/evaluate)/invoke)(?:/|$)"
    r"|gateway(?:/|$)",
    re.IGNORECASE,
)
# What may be looked at, and is empty.
_CLOSED_TO_CHANGES = re.compile(
    rf"{_API}/(?:mlflow/)?(?:gateway|webhooks|mcp[^/]*|ui-telemetry|scorers)(?:/|$)",
    re.IGNORECASE,
)
CLOSED = (
    "MLflow's assistant, gateway, jobs, workspaces, webhooks, MCP servers and scorers are closed on this "
    "cluster: use a tracking server of MLflow's own for them"
)
_FILES = re.compile(
    rf"{_API}/mlflow-artifacts/artifacts/|(?:model-versions/)?get-artifact"
    rf"|{_API}/mlflow/(?:get-trace-artifact|logged-models/[^/]+/artifacts/files)"
)
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
    """Whether the request is not passed on: MLflow's assistant, gateway, jobs; changes of its webhooks."""
    # As the server will read it.
    plain = posixpath.normpath("/" + unquote(path)).lstrip("/")
    changes = method not in ("GET", "HEAD")
    return bool(_CLOSED.match(plain) or (changes and _CLOSED_TO_CHANGES.match(plain)))


def is_file(path: str) -> bool:
    """Whether the answer is somebody's file, whose scripts must not run."""
    return _FILES.match(path) is not None


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
    return found
