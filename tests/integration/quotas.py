"""Quotas of a service in the test's process."""

from __future__ import annotations

from fastapi import FastAPI

from determined.common.cluster_config import ClusterConfig, Quotas
from determined_service.base.settings import Settings
from determined_service.lifecycle import configuration
from tests.waiting import until_async


async def put_quotas(app: FastAPI, **quotas: int) -> None:
    """Puts them into force, as another process of the service would."""
    settings: Settings = app.state.settings
    wanted = ClusterConfig(quotas=Quotas(**quotas))
    await configuration.put(app.state.db, wanted, settings)

    async def are_in_force() -> bool:
        return settings.cluster == wanted

    await until_async("the quotas are in force", are_in_force)
