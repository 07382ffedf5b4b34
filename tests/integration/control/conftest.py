"""The world of the control tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from tests.integration.control.world import World


@pytest.fixture
async def world(
    service_app: FastAPI, user: httpx.AsyncClient, agent: httpx.AsyncClient
) -> AsyncIterator[World]:
    made = World(service_app, user, agent)
    yield made
    await made.close()
