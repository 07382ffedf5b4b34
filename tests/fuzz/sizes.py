"""``python -m tests.fuzz.sizes``: how long each large body takes, and ``/health`` meanwhile."""

from __future__ import annotations

import asyncio
import time

import httpx

from tests.fuzz.guests import AGENT_TOKEN, Service, a_service, guests_of
from tests.fuzz.health import Watch
from tests.fuzz.heavy import bodies
from tests.fuzz.test_fuzz import send_heavy


async def _run(service: Service) -> None:
    async with guests_of(service) as guests, httpx.AsyncClient(base_url=service.url) as client:
        client.headers["Authorization"] = f"Bearer {AGENT_TOKEN}"
        client.timeout = httpx.Timeout(300)
        for heavy in bodies(guests.own_trial):
            with Watch(service.host, service.port) as watch:
                begun = time.perf_counter()
                answers = await asyncio.gather(*(send_heavy(client, heavy) for _ in range(3)))
                taken = time.perf_counter() - begun
            print(
                f"{heavy.what} ({len(heavy.body) / 2**20:.1f} MiB, three at once): "
                f"{answers[0].status_code} in {taken:.2f} s\n    {watch.found}\n    idle: {watch.idle}",
                flush=True,
            )


if __name__ == "__main__":
    with a_service() as running:
        asyncio.run(_run(running))
