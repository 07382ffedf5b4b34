"""A world of rows around the service."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI

from tests.integration.service_api.world import World


@pytest.fixture
async def world(service_app: FastAPI) -> AsyncIterator[World]:
    """See :class:`World`."""
    found = World(service_app)
    yield found
    for client in found.clients:
        await client.aclose()
