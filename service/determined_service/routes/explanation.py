"""Why an experiment is as it is."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from determined_service.api.state import Db, SettingsOf
from determined_service.auth import CurrentUser
from determined_service.control.explanation import explain

router = APIRouter(prefix="/api/v1/experiments", tags=["Experiments"])


@router.get("/{experiment_id}/explanation")
async def get_explanation(
    experiment_id: int, user: CurrentUser, db: Db, settings: SettingsOf
) -> dict[str, Any]:
    """Every leg of its trials with the reason in words, and what waits for what."""
    async with db.tx() as conn:
        return await explain(conn, experiment_id, settings.agent_timeout_s)
