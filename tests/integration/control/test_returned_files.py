"""Files that a task leaves behind, by the REST API: from its supervisor, for its owner, for some days."""

from __future__ import annotations

import httpx
import sqlalchemy as sa

from determined.common.api.errors import BadRequestException, from_status
from determined.common.wire import paths
from determined_service.loops.reconciler import Reconciler
from tests.integration.control.test_launched import another_user
from tests.integration.control.world import Trial, World, ok
from tests.integration.quotas import put_quotas


async def launch(world: World, **config: object) -> Trial:
    given = {"config": {"entrypoint": ["true"], "resources": {"slots": 0}, **config}}
    ok(await world.user.post("/api/v1/commands", json=given))
    return await world.launched()


async def send(world: World, leg: Trial, number: int, piece: bytes) -> httpx.Response:
    where = paths.TASK_FILE_PIECE.format(allocation_id=leg.allocation_id, number=number)
    return await world.agent.put(where, content=piece)


async def finish(world: World, leg: Trial, pieces: int, size: int) -> httpx.Response:
    where = paths.TASK_FILES.format(allocation_id=leg.allocation_id)
    report = {"pieces": pieces, "size": size, "remarks": ["big.bin does not come back"]}
    return await world.agent.post(where, json=report)


async def test_files_come_back_to_their_owner(world: World) -> None:
    await world.register(slots=1)
    leg = await launch(world, return_files=True)
    assert leg.spec["config"]["return_files"] is True
    where = f"/api/v1/tasks/{leg.spec['task_id']}/returned-files"
    ok(await leg.started())
    first = b"a" * (1 << 20)
    ok(await send(world, leg, 0, first))
    # An incomplete set is not shown, and the report is refused.
    assert (await finish(world, leg, 2, len(first) + 3)).status_code == 409
    assert ok(await world.user.get(where)) == {"ready": False, "size": 0, "remarks": []}
    assert (await world.user.get(f"{where}/archive")).status_code == 409
    for _ in range(2):  # a supervisor that heard no answer says it again
        ok(await send(world, leg, 1, b"end"))
        ok(await finish(world, leg, 2, len(first) + 3))
    assert (await send(world, leg, 2, first + b"1")).status_code == 400
    assert (await send(world, leg, 100_000, b"1")).status_code == 400
    ok(await leg.exited())
    assert (await send(world, leg, 1, b"END")).status_code == 409
    assert ok(await world.user.get(where))["remarks"] == ["big.bin does not come back"]
    assert (await world.user.get(f"{where}/archive")).content == first + b"end"

    eve = await another_user(world, "eve")
    for method, path in (("GET", where), ("GET", f"{where}/archive"), ("DELETE", where)):
        refused = await eve.request(method, path)
        assert refused.status_code == 403 and "may fetch the files of task" in refused.text
    for _ in range(2):
        ok(await world.user.delete(where))
    assert ok(await world.user.get(where))["ready"] is False
    assert await world.rows("SELECT number FROM task_file_pieces") == []


async def test_files_that_are_not_returned_or_not_fetched(world: World) -> None:
    await world.register(slots=1)
    other = await launch(world)
    ok(await other.started())
    assert (await send(world, other, 0, b"1")).status_code == 409
    leg = await launch(world, return_files=True)
    ok(await leg.started())
    ok(await send(world, leg, 0, b"1"))
    ok(await finish(world, leg, 1, 1))
    reconciler = Reconciler(world.app.state.db, None, 60.0)
    await reconciler.run_pass()
    assert len(await world.rows("SELECT task_id FROM task_files")) == 1
    async with world.app.state.db.tx() as conn:
        await conn.execute(sa.text("UPDATE task_files SET created_at = now() - interval '8 days'"))
    await reconciler.run_pass()
    assert await world.rows("SELECT task_id FROM task_files") == []


async def test_a_user_whose_kept_files_are_many_is_told_in_the_log(world: World) -> None:
    """Else every task of one user leaves 256 MiB in the database, for a week."""
    await world.register(slots=1)
    await put_quotas(world.app, returned_file_bytes=5)
    first = await launch(world, return_files=True)
    ok(await first.started())
    ok(await send(world, first, 0, b"123"))
    ok(await finish(world, first, 1, 3))
    ok(await first.exited())
    leg = await launch(world, return_files=True)
    ok(await leg.started())
    ok(await send(world, leg, 0, b"456"))
    refused = await finish(world, leg, 1, 3)
    # The supervisor does not retry these refusals for ever, but writes them to the task's log.
    assert isinstance(from_status(refused.status_code, refused.text), BadRequestException)
    assert "would have 6 bytes of files that came back" in refused.text
    assert "5 are allowed (quotas.returned_file_bytes): fetch those of earlier" in refused.text
    assert len(await world.rows("SELECT 1 FROM task_file_pieces")) == 1
    ok(await world.user.delete(f"/api/v1/tasks/{first.spec['task_id']}/returned-files"))
    ok(await send(world, leg, 0, b"456"))
    ok(await finish(world, leg, 1, 3))
