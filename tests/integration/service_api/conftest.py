"""A world of rows around the service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from determined.experimental import Determined
from tests.integration.service_api.pipeline_requests import Pipelines
from tests.integration.service_api.world import World


@pytest.fixture
async def world(service_app: FastAPI) -> AsyncIterator[World]:
    """See :class:`World`."""
    found = World(service_app)
    yield found
    await found.close()


@pytest.fixture
def own(service_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Determined:
    """The SDK of the user `determined`; `det` in this process logs in as that user, too."""
    monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(tmp_path / "config"))
    monkeypatch.setenv("DET_MASTER", service_url)
    monkeypatch.setenv("DET_USER", "determined")
    monkeypatch.setenv("DET_PASS", "")
    return Determined(service_url, "determined", "")


@pytest.fixture
def pipes(world: World, user: httpx.AsyncClient, agent: httpx.AsyncClient) -> Pipelines:
    """See :class:`Pipelines`."""
    return Pipelines(world, user, agent)
