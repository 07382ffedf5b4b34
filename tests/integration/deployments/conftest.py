"""A real Prefect server with work pools, without other components."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from tests.integration.control.prefect_server import AUTH, prefect_server


@pytest.fixture(scope="session")
def prefect_url(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with prefect_server(postgres_server, tmp_path_factory.mktemp("prefect-deploy")) as url:
        yield url


@pytest.fixture
async def client(prefect_url: str) -> AsyncIterator[PrefectClient]:
    """A client of the server; Prefect's functions use the same server."""
    settings = {PREFECT_API_URL: prefect_url, PREFECT_API_AUTH_STRING: AUTH}
    with temporary_settings(settings):
        async with PrefectClient(prefect_url, auth_string=AUTH) as made:
            with contextlib.suppress(ObjectAlreadyExists):
                await made.create_work_pool(WorkPoolCreate(name="default", type="process"))
            yield made
