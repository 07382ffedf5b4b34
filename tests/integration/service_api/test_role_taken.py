"""A role is taken from a user whose notebook is open, and whose trial trains."""

from __future__ import annotations

import httpx

from determined_service.lifecycle import configuration
from tests.integration.roles import RBAC, give, take
from tests.integration.service_api.test_proxy import Proxied, echo, proxied, service, serving
from tests.integration.service_api.world import report
from tests.waiting import until_async

__all__ = ["proxied", "service"]

CONFIG = "{name: another, entrypoint: x, searcher: {name: custom, metric: loss, unit: epochs}}"


async def test_a_role_is_taken(proxied: Proxied) -> None:
    app = proxied.world.app
    await give(app, "determined", "Editor", 1)
    await configuration.put(proxied.world.db, RBAC, proxied.app.state.settings)
    async with serving(echo([])) as port:
        leg = await proxied.task(port)
        page = f"/proxy/{leg.task_id}/"
        own = {"Authorization": f"Bearer token-of-{leg.allocation_id}"}
        submitted = {"config": CONFIG, "unmanaged": True}
        async with httpx.AsyncClient(base_url=proxied.url, timeout=60) as client:

            async def visit() -> httpx.Response:
                return await client.get(page, headers=proxied.headers)

            async def send(steps: int) -> int:
                body = {"run_id": leg.run_id, "reports": [report(steps, loss=0.5)]}
                path = f"/api/v1/trials/{leg.trial_id}/metrics/batch"
                return (await client.post(path, json=body, headers=own)).status_code

            async def submit() -> httpx.Response:
                return await client.post("/api/v1/experiments", json=submitted, headers=own)

            async def is_open() -> bool:
                return (await visit()).status_code == 200

            await until_async("the roles hold, and the page is open", is_open)
            assert await send(1) == 200
            assert (await submit()).status_code == 200

            await take(app, "determined")

            async def is_gone() -> bool:
                return (await visit()).status_code == 404

            await until_async("the page is not found", is_gone)
            assert f"task {leg.task_id} does not exist" in (await visit()).text
            # The trial goes on to its end, and begins nothing.
            assert await send(2) == 200
            checkpoint = await client.post(
                "/api/v1/checkpoints",
                json={
                    "uuid": "5f1b1f5c-5b54-4b8c-9d7a-2f6d4f0b3c11",
                    "allocationId": leg.allocation_id,
                },
                headers=own,
            )
            assert checkpoint.status_code == 200, checkpoint.text
            refused = await submit()
            assert refused.status_code == 403
            assert "that needs the role Editor" in refused.json()["message"]

            # Nor does the user, who is still logged in.
            mine = await client.get("/api/v1/me", headers=proxied.headers)
            assert mine.status_code == 200
            paused = await client.post(
                f"/api/v1/experiments/{leg.experiment_id}/pause", headers=proxied.headers
            )
            assert paused.status_code == 404
