"""Decides which requests to Prefect's server people may send through the service, by their rights here.

Prefect knows one password, whose owner rules the machine: a run executes any command with the agent's
account. So administrators may ask for everything, and everybody else looks at runs, their logs, artifacts,
queues and limits. Objects into which a flow's owner may have put secrets are not shown to others: blocks,
variables, automations, what is given to paused runs, parameters, and variables of jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from determined_service.base.errors import Unavailable
from determined_service.base.settings import Settings

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
TIMEOUT = httpx.Timeout(60.0, connect=5.0)
CONNECTIONS = 32
_NOUNS = (
    r"api/(?:ui/)?(?:flows|flow_runs|flow_run_states|task_runs|task_run_states|deployments|artifacts|events"
    r"|work_pools|work_queues|task_workers|concurrency_limits|v2/concurrency_limits|saved_searches|logs)"
)
_SEES = re.compile(
    rf"{_NOUNS}(?:/.*)?|api/(?:health|ready|hello|version|csrf-token|admin/version|admin/settings)"
    r"|api/(?:block_types|block_schemas|block_capabilities|collections)(?:/.*)?"
)
_HIDDEN = re.compile(r"(?:^|/)(?:input|block_documents)(?:/|$)")
_ASKS = re.compile(
    rf"{_NOUNS}/(?:[\w-]+/){{0,3}}(?:filter|count|history|lateness|paginate|concurrency_status|next-runs"
    r"|counts|count-task-runs|count-deployments|count-by/[a-z-]+)"
    r"|api/(?:block_types|block_schemas)/filter",
    re.ASCII,
)
_SECRET = frozenset(
    {
        "parameters",
        "job_variables",
        "infra_overrides",
        "infrastructure_overrides",
        "base_job_template",
        "pull_steps",
        "parameter_openapi_schema",
    }
)
_SETTINGS = "ui-settings"
_SENT = ("accept", "accept-encoding", "content-type", "user-agent", "x-prefect-api-version")
_SENT_IF_FILE = ("if-modified-since", "if-none-match")
_RETURNED = (
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-length",
    "content-type",
    "etag",
    "last-modified",
)
# Prefect's page loads from no other host; its code view and its charts make styles and workers.
_PAGE = "; ".join(
    (
        *("default-src 'self'", "script-src 'self' 'unsafe-inline' 'wasm-unsafe-eval' blob:"),
        *("worker-src 'self' blob:", "style-src 'self' 'unsafe-inline'", "connect-src 'self'"),
        *("img-src 'self' data: blob:", "font-src 'self' data:", "object-src 'none'"),
        *("base-uri 'self'", "form-action 'none'", "frame-ancestors 'none'"),
    )
)


def is_page(path: str) -> bool:
    """True if ``path`` (without a slash at its beginning) is one of the page's own files, not the API's."""
    return path != "api" and not path.startswith("api/")


def is_for_all(method: str, path: str) -> bool:
    """True for files that a browser requests without the visitor's login: icons and the page's manifest."""
    return method == "GET" and path.startswith(("ico/", "v2/ico/", "favicon.ico"))


def is_plain(path: str, raw: str) -> bool:
    """True if the address has only one reading: no ``..`` and no fragment."""
    return ".." not in path and "//" not in f"/{path}" and "#" not in raw and "\\" not in path


def may_look(method: str, path: str) -> bool:
    """True if the request changes nothing and reads nothing private. ``path``: decoded, as Prefect's server
    will decode it."""
    if is_page(path):
        return method in ("GET", "HEAD")
    plain = path.rstrip("/")
    if _HIDDEN.search(plain):
        return False
    if method in ("GET", "HEAD"):
        return _SEES.fullmatch(plain) is not None
    return method == "POST" and _ASKS.fullmatch(plain) is not None


def without_secrets(found: Any) -> Any:
    """An answer for a user without administrator's rights: fields that may hold secrets are emptied."""
    if isinstance(found, list):
        return [without_secrets(one) for one in found]
    if isinstance(found, dict):
        return {
            name: type(value)() if name in _SECRET and isinstance(value, dict | list)
            else without_secrets(value)
            for name, value in found.items()
        }  # fmt: skip
    return found


def page_settings(found: dict[str, Any], own: str) -> dict[str, Any]:
    """The settings of Prefect's page: the address of its API, and that the browser has logged in. ``own``:
    the page's address."""
    return {**found, "api_url": f"{own}/api", "auth": None}


def is_settings(path: str) -> bool:
    """True if the page requests its settings."""
    return path == _SETTINGS


def sent(headers: Mapping[str, str], path: str) -> dict[str, str]:
    """The client's headers that Prefect gets: nobody's password, no cookie."""
    names = (*_SENT, *_SENT_IF_FILE) if is_page(path) and not is_settings(path) else _SENT
    # Otherwise our own client would name the encodings that it can unpack.
    found = {"accept-encoding": "identity"}
    return found | {name: headers[name] for name in names if name in headers}


def returned(headers: Mapping[str, str]) -> dict[str, str]:
    """Prefect's headers that the client gets."""
    found = {name: headers[name] for name in _RETURNED if name in headers}
    if "location" in headers:
        # Within the page, and never to the address that only the service knows.
        to = urlsplit(headers["location"])
        found["location"] = to.path + (f"?{to.query}" if to.query else "")
    found |= {
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }
    if headers.get("content-type", "").startswith("text/html"):
        found["Content-Security-Policy"] = _PAGE
    return found


class PrefectServer:
    """Asks Prefect's server with the cluster's password."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: httpx.AsyncClient | None = None
        self._making = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def ask(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None
    ) -> AsyncIterator[httpx.Response]:
        """Its answer, whose body is not read yet. ``path``: escaped, with its query.

        Raises Unavailable when Prefect does not answer.
        """
        client = await self._opened()
        try:
            asked = client.build_request(method, f"/{path}", headers=headers, content=body)
            answer = await client.send(asked, stream=True)
        except httpx.TransportError as error:
            raise Unavailable(
                f"Prefect's server does not answer: {type(error).__name__}; try again"
            ) from error
        try:
            yield answer
        finally:
            await answer.aclose()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _opened(self) -> httpx.AsyncClient:
        async with self._making:
            if self._client is None:
                url = self._settings.prefect_api_url
                assert url is not None
                given = self._settings.prefect_auth
                user, _, password = (given.get_secret_value() if given else "").partition(":")
                # It reads the system's certificates, which takes a moment.
                self._client = await asyncio.to_thread(
                    httpx.AsyncClient,
                    base_url=url.rstrip("/").removesuffix("/api"),
                    auth=(user, password) if given else None,
                    timeout=TIMEOUT,
                    limits=httpx.Limits(max_connections=CONNECTIONS),
                    trust_env=False,
                )
        return self._client
