"""The agent's calls to the service."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import orjson

from determined.common.api import errors
from determined.common.api.session import error_message

logger = logging.getLogger(__name__)

RETRY_SECONDS = (0.1, 5.0)
# The service answers a work request after this long at the latest: it is the heartbeat.
WORK_SECONDS = 5.0


class ServiceClient:
    """``/internal/v1`` with the agent token. Each call is one try unless said otherwise.

    Raises (all methods): the tree in :mod:`determined.common.api.errors`.
    """

    def __init__(
        self, url: str, token: str, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=30.0,
            transport=transport,
            verify=self.url.startswith("https:"),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = await self._client.request(method, path, **options)
        except httpx.TransportError as error:
            raise errors.MasterNotFoundException(
                f"no answer from the service at {self.url}: {error or type(error).__name__}"
            ) from error
        if answer.status_code >= 400:
            raise errors.from_status(answer.status_code, error_message(answer))
        return answer

    async def get_bytes(self, path: str) -> bytes:
        return (await self._request("GET", path)).content

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        answer = await self._request("POST", path, content=orjson.dumps(body), headers=headers)
        try:
            return orjson.loads(answer.content) if answer.content else {}
        except ValueError as error:
            raise errors.BadResponseException(
                f"{path}: the answer is not JSON; is {self.url} the service's address?"
            ) from error

    async def post_until_taken(self, path: str, body: dict[str, Any]) -> None:
        """Repeats until the service has it or no longer wants it."""
        delay, longest = RETRY_SECONDS
        while True:
            try:
                await self.post(path, body)
                return
            except errors.BadRequestException as error:
                logger.info("%s: %s", path, error)
                return
            except errors.APIException as error:
                logger.debug("%s waits: %s", path, error)
            await asyncio.sleep(delay)
            delay = min(delay * 2, longest)

    async def register(self, agent_id: str, body: dict[str, Any]) -> Any:
        return await self.post(f"/internal/v1/agents/{agent_id}/register", body)

    async def work(
        self, agent_id: str, session: str, running: list[str], prefect_poll_seq: int
    ) -> Any:
        """Long poll for what is to be started and killed."""
        return await self.post(
            f"/internal/v1/agents/{agent_id}/work",
            {
                "session": session,
                "running": running,
                "prefect_poll_seq": prefect_poll_seq,
                "timeout_s": WORK_SECONDS,
            },
        )
