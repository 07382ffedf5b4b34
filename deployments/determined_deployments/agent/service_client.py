"""The agent's calls to the service."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import UUID

from determined_deployments.agent.lean_httpx import import_httpx

import_httpx()  # before anything below does

# ruff: noqa: E402
import httpx
import orjson

from determined.common.api import certs, errors, no_answer
from determined.common.backoff import Backoff
from determined.common.wire import paths
from determined.common.wire.agents import (
    AgentState,
    Registered,
    Registration,
    SignOff,
    Work,
    WorkRequest,
)
from determined.common.wire.message import Message

logger = logging.getLogger(__name__)

RETRY_SECONDS = (0.1, 5.0)


class ServiceClient:
    """``/internal/v1`` with the agent token. Each call is one try unless said otherwise.

    The service's certificate is checked as `det` checks it: as ``$DET_MASTER_CERT_FILE`` says, else by the
    system's certificates.

    Raises (all methods): the tree in :mod:`determined.common.api.errors`; WireError for an answer that is
    not the message it should be.
    """

    def __init__(
        self, url: str, token: str, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.url = url.rstrip("/")
        tls = certs.tls_for(self.url)
        self._extensions = {"sni_hostname": tls.name} if tls is not None and tls.name else {}
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=30.0,
            transport=transport,
            verify=False if tls is None else tls.context,
            trust_env=False,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = await self._client.request(
                method, path, extensions=self._extensions, **options
            )
        except httpx.TransportError as error:
            raise errors.MasterNotFoundException(
                f"no answer from the service at {self.url}: {no_answer.why(error, self.url)}"
            ) from error
        if answer.status_code >= 400:
            kind = answer.headers.get("Content-Type", "")
            raise errors.of_answer(answer.status_code, answer.content, kind, self.url)
        return answer

    async def get_bytes(self, path: str) -> bytes:
        return (await self._request("GET", path)).content

    async def post(self, path: str, message: Message) -> Any:
        headers = {"Content-Type": "application/json"}
        content = orjson.dumps(message.to_json())
        answer = await self._request("POST", path, content=content, headers=headers)
        try:
            return orjson.loads(answer.content) if answer.content else {}
        except ValueError as error:
            raise errors.BadResponseException(
                f"{path}: the answer is not JSON; is {self.url} the service's address?"
            ) from error

    async def post_until_taken(self, path: str, message: Message) -> None:
        """Repeats the request until the service has accepted or refused it."""
        backoff = Backoff(*RETRY_SECONDS)
        while True:
            try:
                await self.post(path, message)
                return
            except errors.BadRequestException as error:
                logger.info("%s: %s", path, error)
                return
            except errors.APIException as error:
                logger.debug("%s: not sent yet, trying again: %s", path, error)
            await asyncio.sleep(backoff.next_delay())

    async def register(self, agent_id: str, registration: Registration) -> Registered:
        path = paths.REGISTER.format(agent_id=agent_id)
        return Registered.from_json(await self.post(path, registration))

    async def work(self, agent_id: str, request: WorkRequest) -> Work:
        """Long poll for what is to be started and killed."""
        path = paths.WORK.format(agent_id=agent_id)
        return Work.from_json(await self.post(path, request))

    async def tell_state(self, agent_id: str, state: AgentState) -> None:
        await self.post(paths.AGENT_STATE.format(agent_id=agent_id), state)

    async def sign_off(self, agent_id: str, session: UUID) -> None:
        """The agent takes no more work."""
        await self.post(paths.SIGN_OFF.format(agent_id=agent_id), SignOff(session))
