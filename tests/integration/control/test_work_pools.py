"""Work pools in Prefect follow the resource pools."""

from __future__ import annotations

import uuid
from typing import Any

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolUpdate

from determined.common.cluster_config import ClusterConfig, read_text
from determined_service.base.settings import Settings
from determined_service.lifecycle import configuration
from determined_service.prefect import job_template
from determined_service.prefect.gateway import FLOWS, PrefectGateway
from determined_service.prefect.work_pools import WorkPools
from tests.integration.control.prefect_server import AUTH
from tests.integration.control.world import World


async def test_work_pools(
    world: World, settings: Settings, prefect_url: str, client: PrefectClient
) -> None:
    first, second, third = (f"{name}-{uuid.uuid4().hex[:6]}" for name in ("a", "b", "c"))
    made: list[Any] = []
    for name in FLOWS:
        flow = await client.create_flow_from_name(name)
        made.append(await client.create_deployment(flow_id=flow, name=name))
    db, mine = (
        world.app.state.db,
        Settings(**{**settings.model_dump(), "prefect_api_url": prefect_url, "prefect_auth": AUTH}),
    )

    async def apply(text: str) -> ClusterConfig:
        given, _ = read_text(text)
        await configuration.put(db, given, mine)
        mine.put_in_force(given)
        return given

    def file(*names: str) -> str:
        listed = ", ".join(f"{{pool_name: {name}, description: pool {name}}}" for name in names)
        defaults = (
            f"default_compute_resource_pool: {names[0]}, default_aux_resource_pool: {names[0]}"
        )
        return f"resource_manager: {{{defaults}}}\nresource_pools: [{listed}]\n"

    async def paused(*names: str) -> list[bool]:
        return [(await client.read_work_pool(name)).is_paused for name in names]

    async def homes() -> set[str | None]:
        return {(await client.read_deployment(one)).work_pool_name for one in made}

    try:
        async with PrefectGateway(mine) as gateway:
            side = WorkPools(db, gateway, mine)
            await apply(file(first, second, third))
            assert await side.run_pass()
            found = await client.read_work_pool(first)
            assert (found.type, found.description) == ("determined-process", f"pool {first}")
            assert found.base_job_template == job_template.TEMPLATE
            assert await homes() == {first}
            # Somebody pauses one pool; another one leaves the file, and so does the flows' home.
            await client.update_work_pool(second, WorkPoolUpdate(is_paused=True))
            await apply(file(second))
            assert await side.run_pass()
            assert await paused(first, second, third) == [True, True, True]
            assert await homes() == {second}
            # A work pool that comes back resumes, unless somebody paused it.
            await apply(file(first, second, third))
            assert await side.run_pass()
            assert await paused(first, second, third) == [False, True, False]
            await client.delete_deployment(made.pop())
            assert not await side.run_pass()
    finally:
        for one in made:
            await client.delete_deployment(one)
