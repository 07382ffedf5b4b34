"""The world of the control tests."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from fastapi import FastAPI
from prefect.client.orchestration import PrefectClient

from tests.integration.control.prefect_server import AUTH, prefect_server
from tests.integration.control.world import World


@pytest.fixture
async def world(
    service_app: FastAPI, user: httpx.AsyncClient, agent: httpx.AsyncClient
) -> AsyncIterator[World]:
    made = World(service_app, user, agent)
    yield made
    await made.close()


@pytest.fixture(scope="session")
def prefect_url(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with prefect_server(postgres_server, tmp_path_factory.mktemp("prefect")) as url:
        yield url


@pytest.fixture
async def client(prefect_url: str) -> AsyncIterator[PrefectClient]:
    async with PrefectClient(prefect_url, auth_string=AUTH) as made:
        yield made


@pytest.fixture
async def deployments(client: PrefectClient) -> AsyncIterator[dict[str, uuid.UUID]]:
    """Both deployments, as ``prefect deploy`` would make them."""
    made = {}
    for name in ("experiment", "trial"):
        flow = await client.create_flow_from_name(name)
        made[name] = await client.create_deployment(flow_id=flow, name=name)
    yield made
    for deployment in made.values():
        await client.delete_deployment(deployment)
