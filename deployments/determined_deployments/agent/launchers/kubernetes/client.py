"""A thin layer over kubernetes_asyncio: objects are JSON as the API server has it, not models.

One connection pool, one limit on the rate of requests, the same rules for tries after a failure everywhere.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self, TypeAlias

import aiohttp
from kubernetes_asyncio import config as kube_config
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.config import ConfigException
from kubernetes_asyncio.stream import WsApiClient

from determined.common.backoff import Backoff
from determined_deployments.agent.launchers.kubernetes.features import Features
from determined_deployments.agent.outage import Outage

logger = logging.getLogger(__name__)

Json: TypeAlias = dict[str, Any]

RETRY_SECONDS = (0.2, 10.0)
REQUEST_SECONDS = 30.0
"""Of one request that is no watch: a server that accepts it and says nothing counts as away."""
WATCH_SECONDS = 240
"""After so long the server ends a watch, which goes on at once with the next request."""
PAGE = 500
TOO_MANY, GONE, CONFLICT, FORBIDDEN, NOT_FOUND, UNAUTHORIZED = 429, 410, 409, 403, 404, 401
RELOAD_SECONDS = 30.0
"""Between two readings of credentials that the server no longer takes."""
BATCH, CORE = "/apis/batch/v1", "/api/v1"
KUBECONFIG = "KUBECONFIG"
OUTPUT = (1, 2)
"""The channels of a command's output; :data:`RESULT` is that of its exit code."""
RESULT = 3
MOST_OUTPUT = 4096


class Unconfigured(Exception):
    """There is no cluster to talk to; the message says what to set."""


class Unreachable(Exception):
    """The API server did not answer, or asked to come again later."""


class ApiError(Exception):
    """The API server refused a request: ``words`` are its own, ``reason`` its name for the refusal."""

    def __init__(self, status: int, reason: str, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.reason = reason
        self.words = words

    @classmethod
    def of(cls, status: int, body: str) -> ApiError:
        try:
            told = json.loads(body)
            return cls(status, str(told.get("reason") or ""), str(told.get("message") or body))
        except (ValueError, AttributeError):
            return cls(status, "", body[:MOST_OUTPUT] or f"HTTP status {status}")


class Bucket:
    """``rate`` requests a second on average, ``burst`` of them at once."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = time.monotonic()
        self._turn = asyncio.Lock()

    async def take(self, count: int = 1) -> None:
        """Returns when ``count`` requests may begin; first come, first served."""
        async with self._turn:
            while True:
                now = time.monotonic()
                self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
                self._at = now
                if self._tokens >= min(count, self._burst):
                    self._tokens -= count
                    return
                await asyncio.sleep((min(count, self._burst) - self._tokens) / self._rate)


class Client:
    """Requests to one API server. Enter it before use."""

    def __init__(
        self, kubeconfig: str | None, context: str | None, requests_per_second: float
    ) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self.bucket = Bucket(requests_per_second, 2 * requests_per_second)
        self.outage = Outage("the API server of Kubernetes", logger)
        self._loaded_at = 0.0

    async def __aenter__(self) -> Self:
        """Raises Unconfigured."""
        self._configuration = await self._load()
        self._loaded_at = time.monotonic()
        self._api = ApiClient(self._configuration)
        self._streams = WsApiClient(self._configuration, heartbeat=REQUEST_SECONDS)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._api.close()
        await self._streams.close()

    async def _load(self) -> Configuration:
        """The address and credentials: of the kubeconfig that is named, else of the pod that this is, else of
        the user's own kubeconfig."""
        found = Configuration()
        path = self._kubeconfig or os.environ.get(KUBECONFIG)
        try:
            if path is None and "KUBERNETES_SERVICE_HOST" in os.environ:
                kube_config.load_incluster_config(client_configuration=found)
            else:
                await kube_config.load_kube_config(
                    path, self._context, client_configuration=found, persist_config=False
                )
        except (ConfigException, OSError, TypeError, ValueError) as error:
            raise Unconfigured(
                f"kubernetes: no cluster is known: {error}; set kubernetes.kubeconfig (and"
                " kubernetes.context) to a file that kubectl takes, or start the agent in a pod"
            ) from error
        return found

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Json | None = None,
        within: float | None = None,
        paid: bool = False,
    ) -> Json:
        """The answer. Tries again while the server is away, for ``within`` seconds; None: for ever.

        ``paid``: its share of the rate was taken before. A PATCH merges. Raises ApiError and Unreachable.
        """
        backoff = Backoff(*RETRY_SECONDS)
        deadline = None if within is None else time.monotonic() + within
        while True:
            if not paid:
                await self.bucket.take()
            try:
                found = await self._once(method, path, query, body)
            except Unreachable as error:
                self.outage.failed(error)
                if deadline is not None and time.monotonic() >= deadline:
                    raise
            else:
                self.outage.over()
                return found
            await asyncio.sleep(backoff.next_delay())

    async def _once(
        self, method: str, path: str, query: Mapping[str, Any] | None, body: Json | None
    ) -> Json:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        response = await self._open(method, path, query, body, kind, timeout)
        try:
            text = await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(_words(error)) from error
        finally:
            response.release()
        self._check(response.status, text)
        try:
            found = json.loads(text)
        except ValueError:
            # A pod's log is text.
            return {"text": text}
        return found if isinstance(found, dict) else {"text": text}

    def _check(self, status: int, text: str) -> None:
        if status < 400:
            return
        refused = ApiError.of(status, text)
        if status in (UNAUTHORIZED, TOO_MANY) or status >= 500:
            raise Unreachable(f"{status} {refused.reason}: {refused.words}")
        raise refused

    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: Json | None,
        kind: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        try:
            response: aiohttp.ClientResponse = await self._api.call_api(
                path,
                method,
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json", "Content-Type": kind},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=timeout,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(_words(error)) from error
        except ApiException as error:
            raise ApiError(error.status, "", str(error.reason)) from error
        if response.status == UNAUTHORIZED:
            await self._reload()
        return response

    async def _reload(self) -> None:
        """Reads the credentials again: those that a program or a login gave may have run out."""
        if time.monotonic() - self._loaded_at < RELOAD_SECONDS:
            return
        self._loaded_at = time.monotonic()
        try:
            fresh = await self._load()
        except Unconfigured as error:
            logger.warning("%s", error)
            return
        self._configuration.api_key = fresh.api_key
        self._api.configuration.api_key = self._streams.configuration.api_key = fresh.api_key

    async def features(self) -> Features:
        """What the server can do; asks until it answers."""
        told = await self.request("GET", "/version")
        return Features.of(f"{told.get('major')}.{told.get('minor')}")

    async def list(self, path: str, query: Mapping[str, Any]) -> tuple[list[Json], str]:
        """All objects, page by page, and the version from which a watch goes on. Raises ApiError."""
        found: list[Json] = []
        more: Json = {"limit": PAGE}
        while True:
            page = await self.request("GET", path, query={**query, **more})
            found += page.get("items") or []
            told = page.get("metadata") or {}
            if not told.get("continue"):
                return found, str(told.get("resourceVersion") or "")
            more["continue"] = told["continue"]

    async def watch(
        self, path: str, query: Mapping[str, Any], version: str
    ) -> AsyncIterator[tuple[str, Json]]:
        """What happens after ``version``: kinds (ADDED, MODIFIED, DELETED, BOOKMARK) and objects, until the
        server ends it. Raises ApiError (:data:`GONE`: list again) and Unreachable."""
        await self.bucket.take()
        asked = {
            **query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": WATCH_SECONDS,
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_read=WATCH_SECONDS + REQUEST_SECONDS)
        response = await self._open("GET", path, asked, None, "application/json", timeout)
        try:
            if response.status >= 400:
                self._check(response.status, await response.text())
            self.outage.over()
            while line := await response.content.readline():
                if not line.endswith(b"\n"):
                    raise Unreachable("the connection ended in the middle of an event")
                event = json.loads(line)
                if event["type"] == "ERROR":
                    told = event["object"]
                    raise ApiError(
                        int(told.get("code") or GONE),
                        str(told.get("reason") or ""),
                        str(told.get("message") or ""),
                    )
                yield event["type"], event["object"]
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError) as error:
            raise Unreachable(_words(error)) from error
        finally:
            response.close()

    async def run(
        self, namespace: str, pod: str, container: str, command: Sequence[str]
    ) -> tuple[int, str]:
        """Runs a command in a container: its exit code and the beginning of its output.

        Raises ApiError and Unreachable; there is one try.
        """
        await self.bucket.take()
        query: list[tuple[str, Any]] = [("command", list(command)), ("container", container)]
        query += [("stdout", "true"), ("stderr", "true"), ("stdin", "false"), ("tty", "false")]
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                opened = await self._streams.call_api(
                    f"{CORE}/namespaces/{namespace}/pods/{pod}/exec",
                    "GET",
                    query_params=query,
                    header_params={"Accept": "*/*"},
                    auth_settings=["BearerToken"],
                    _preload_content=False,
                )
                async with opened as stream:
                    return await _result(stream)
        except aiohttp.WSServerHandshakeError as error:
            self._check(error.status, json.dumps({"message": error.message}))
            raise Unreachable(_words(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Unreachable(_words(error)) from error


async def _result(stream: aiohttp.ClientWebSocketResponse) -> tuple[int, str]:
    """Raises Unreachable when the stream ends without the command's exit code."""
    output = b""
    code: int | None = None
    # Up to its end: to close a stream that the server is about to close takes ten seconds.
    async for message in stream:
        data = message.data.encode() if isinstance(message.data, str) else bytes(message.data)
        channel, data = (data[0], data[1:]) if data else (0, b"")
        if channel in OUTPUT and len(output) < MOST_OUTPUT:
            output += data
        elif channel == RESULT:
            code = _exit_code(json.loads(data))
    if code is None:
        raise Unreachable("the command's stream ended without its exit code")
    return code, output[:MOST_OUTPUT].decode(errors="replace")


def _exit_code(status: Json) -> int:
    """From the Status with which a stream ends; raises Unreachable if the command was not run."""
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or []:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise Unreachable(str(status.get("message") or "the command was not run"))


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
