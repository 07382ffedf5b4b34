"""Up, and ready."""

from __future__ import annotations

import httpx


async def test_health_needs_no_token(anonymous: httpx.AsyncClient) -> None:
    assert (await anonymous.get("/health")).json() == {"status": "up"}


async def test_ready_when_migrated(anonymous: httpx.AsyncClient) -> None:
    answer = await anonymous.get("/ready")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
