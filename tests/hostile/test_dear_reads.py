"""A user stores data that is expensive to read, and reads it many times at once, to starve all others.

`benchmarks/dear_reads.py` measures the time and memory; these tests check the mechanisms that bound both.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import psutil
import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from determined.common.wire import limits
from determined_registry.database.tables import checkpoints, task_logs
from determined_service.base import shares
from determined_service.base.aside import Lane
from determined_service.base.db import Database
from determined_service.base.refusals import BadRequest, TooManyRequests, Unavailable
from determined_service.base.shares import ASKER, SENDING, InFlight, Requests, Share
from determined_service.base.streams import Stream
from determined_service.proxy import lobby
from determined_service.search import previewing
from determined_service.views import lists
from determined_service.web import sending
from determined_service.web.bounds import Bounds
from tests.hostile.servers import serving
from tests.integration.conftest import client_of
from tests.integration.service_api.test_checkpoints import store
from tests.integration.service_api.world import World, report
from tests.waiting import TIMEOUT_S, until_async


async def test_a_long_list_has_the_same_form_as_a_short_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every list that a user can make large: in one piece, and in pieces of a row or two."""
    leg = await world.leg()
    for step in range(7):
        await leg.store(report(step, loss=step / 7), report(step, "validation", loss=step / 9))
        await store(leg, step, resources={f"file-{n}": n for n in range(step * 3)})
    of_experiment, of_trial = f"experiments/{leg.experiment_id}", f"trials/{leg.trial_id}"
    paths = [
        f"{of_experiment}/checkpoints?limit=-1",
        f"{of_experiment}/checkpoints?limit=3&offset=-5&sortByAttr=SORT_BY_BATCH_NUMBER",
        f"{of_experiment}/checkpoints?limit=-2",
        f"{of_trial}/checkpoints?sortByAttr=SORT_BY_SEARCHER_METRIC&limit=5",
        f"/{of_experiment}/preview_gc",
        f"{of_experiment}/trials",
        f"{of_trial}/workloads?limit=-1",
        f"{of_trial}/workloads?limit=6&offset=4&orderBy=ORDER_BY_DESC&includeBatchMetrics=true",
        f"trials/time-series?trialIds={leg.trial_id}&maxDatapoints=3",
        "experiments",
        "models",
        "commands",
    ]
    whole = [await _read(leg.client, path) for path in paths]
    monkeypatch.setattr(limits, "ANSWER_PIECE_BYTES", 1500)
    monkeypatch.setattr(lists, "KEYS", 2)
    assert [await _read(leg.client, path) for path in paths] == whole
    assert len(whole[0]["checkpoints"]) == 7


ROWS = [
    "INSERT INTO models (name, owner_id) SELECT 'm' || n, 1 FROM generate_series(1, 7) n",
    """INSERT INTO retrainings (model_id, owner_id, plan, config)
    SELECT id, 1, jsonb_build_object('labels', repeat(name, 500)), '{}' FROM models""",
    """INSERT INTO retraining_runs (retraining_id, state, cause, reason)
    SELECT (SELECT min(id) FROM retrainings), 'FAILED', 'schedule', repeat('x' || n, 500)
    FROM generate_series(1, 7) n""",
    """INSERT INTO live_metrics (retraining_id, name, value)
    SELECT (SELECT min(id) FROM retrainings), repeat('m' || n, 500), n FROM generate_series(1, 7) n""",
    """INSERT INTO pipelines (name, owner_id, plan, state)
    SELECT repeat('p' || n, 500), 1, '{}', 'COMPLETED' FROM generate_series(1, 7) n""",
]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("retrainings?limit=-1", "retrainings"),
        ("models/m1/retraining/runs?limit=3&offset=2", "runs"),
        ("models/m1/retraining/live-metrics", "liveMetrics"),
        ("pipelines?orderBy=ORDER_BY_ASC", "pipelines"),
    ],
)
async def test_lists_beside_experiments_are_read_in_pieces_too(
    world: World, user: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str, name: str
) -> None:
    """Gains: as with other lists, by many plans of retrainings and many runs."""
    db: Database = world.app.state.db
    async with db.tx() as conn:
        for row in ROWS:
            await conn.execute(sa.text(row))
    whole = await _read(user, path)
    assert len(whole[name]) == (3 if name == "runs" else 7)
    held: list[int] = []
    hold = InFlight.hold

    def watched(self: InFlight, size: int) -> Any:
        held.append(size)
        return hold(self, size)

    monkeypatch.setattr(InFlight, "hold", watched)
    monkeypatch.setattr(limits, "ANSWER_PIECE_BYTES", 1500)
    monkeypatch.setattr(lists, "KEYS", 2)
    assert await _read(user, path) == whole
    assert len(held) >= 3


async def _read(client: httpx.AsyncClient, path: str) -> Any:
    answer = await client.get(path if path.startswith("/") else f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text
    # The trial still runs.
    return json.loads(re.sub(r'"(wallClockTime|duration)":[0-9.]+', '"took":0', answer.text))


async def test_a_checkpoint_has_a_limit_of_files(world: World) -> None:
    """Gains: six of 600,000 names held the service up for 46 s."""
    leg = await world.leg()
    many = {f"f{n}": 1 for n in range(limits.CHECKPOINT_FILES + 1)}
    for field in ("resources", "checksums"):
        body = {"uuid": "3f0d8a52-7c0f-4c5c-9a57-0d1f0e9a1b11", "taskId": leg.task_id, field: many}
        answer = await leg.client.post("/api/v1/checkpoints", json=body)
        assert answer.status_code == 400
        assert f"{field}: 100001 files found, at most 100000 are allowed" in answer.text


async def test_lines_of_a_megabyte_are_read_one_by_one(
    world: World, service_app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gains: eight readers of 168 such lines took 4 GB."""
    leg = await world.leg()
    db: Database = service_app.state.db
    async with db.tx() as conn:
        line = sa.func.convert_to(sa.func.repeat("ab", limits.MIB // 2 - 1), "UTF8")
        new = sa.insert(task_logs).values(task_id=leg.task_id, timestamp=sa.func.now(), log=line)
        for _ in range(5):
            await conn.execute(new)
    held: list[int] = []
    hold = InFlight.hold

    def watched(self: InFlight, size: int) -> Any:
        held.append(size)
        return hold(self, size)

    monkeypatch.setattr(InFlight, "hold", watched)
    for path in (f"tasks/{leg.task_id}/logs", f"trials/{leg.trial_id}/logs"):
        for order in ("ORDER_BY_ASC", "ORDER_BY_DESC"):
            held.clear()
            answer = await leg.client.get(f"/api/v1/{path}?orderBy={order}")
            assert answer.text.count('"result"') == 5
            assert 0 < max(held) <= 2 * limits.MIB
            assert len(held) >= 3


async def test_pieces_of_answers_have_a_bound_for_each_and_for_all() -> None:
    """Gains: unlimited memory, without reading."""
    mib = limits.MIB
    places = InFlight(4 * mib, 2 * mib, patience_s=0.05)

    async def hold(asker: str, size: int, until: asyncio.Event) -> None:
        ASKER.set(asker)
        async with places.hold(size):
            await until.wait()

    done = asyncio.Event()
    a = asyncio.create_task(hold("a", 2 * mib, done))
    await asyncio.sleep(0)
    # A request larger than a share takes the whole share.
    b = asyncio.create_task(hold("b", 100 * mib, done))
    await asyncio.sleep(0)
    for asker in ("a", "b", "c"):
        with pytest.raises(Unavailable):
            await asyncio.create_task(hold(asker, mib, done))
    # A small request does not wait.
    await asyncio.wait_for(_held(places, "a", 1000), 10)
    done.set()
    await asyncio.gather(a, b)
    await asyncio.create_task(hold("c", 2 * mib, done))


async def test_one_answer_at_a_time_makes_a_step_and_others_have_their_turn() -> None:
    """Gains: log lines of a megabyte that are not UTF-8, read eight times, hold up everybody's requests for
    seconds."""
    places = InFlight(limits.MIB, limits.MIB, patience_s=TIMEOUT_S)
    done: list[str] = []

    def steps(name: str) -> Iterator[bytes]:
        for _ in range(5):
            done.append(name)
            yield name.encode()

    async def make(name: str) -> bytes:
        return b"".join([piece async for piece in places.made(steps(name))])

    async def other() -> None:
        while True:
            done.append("other")
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    assert await asyncio.gather(*map(make, "abcd")) == [name.encode() * 5 for name in "abcd"]
    beside.cancel()
    made = "".join(name[:1] for name in done).strip("o")
    # Between two steps the rest of the service goes on, and no answer makes two while another waits.
    assert not re.search("[a-d][a-d]", made)
    assert made.replace("o", "") == "abcd" * 5


async def test_slow_clients_make_room_for_waiting_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gains: the place for all large answers, by a few users who take theirs slowly."""
    monkeypatch.setattr(shares, "LEAST_S", 0.0)
    monkeypatch.setattr(shares, "LEAST_BYTES_PER_S", 1000 * limits.MIB)
    monkeypatch.setattr(shares, "LOOK_S", 0.01)
    places = InFlight(4 * limits.MIB, 2 * limits.MIB, patience_s=TIMEOUT_S)
    given_up: list[str] = []

    class Slow:
        def __init__(self, name: str) -> None:
            self.name, self.end = name, asyncio.Event()

        def give_up(self) -> None:
            given_up.append(self.name)
            self.end.set()

    async def take(asker: str, slow: Slow) -> None:
        ASKER.set(asker)
        SENDING.set(slow)
        async with places.hold(2 * limits.MIB):
            await slow.end.wait()

    first, second = Slow("first"), Slow("second")
    tasks = [asyncio.create_task(take("a", first)), asyncio.create_task(take("b", second))]
    await asyncio.sleep(0.1)
    assert given_up == []
    # Whose own answers fill its share waits for these.
    own = asyncio.create_task(take("a", Slow("own")))
    await asyncio.sleep(0.1)
    assert given_up == []
    own.cancel()
    await asyncio.create_task(_held(places, "c", 2 * limits.MIB))
    assert given_up == ["first"]
    second.end.set()
    await asyncio.gather(*tasks)


async def test_readers_who_begin_again_have_less_time_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gains: others wait for half a minute for each piece of a large answer."""
    monkeypatch.setattr(shares, "LEAST_S", 0.08)
    monkeypatch.setattr(shares, "LEAST_BYTES_PER_S", float("inf"))
    monkeypatch.setattr(shares, "LOOK_S", 0.01)
    places = InFlight(limits.MIB, limits.MIB, patience_s=TIMEOUT_S)
    given: list[tuple[str, float]] = []
    time_for = InFlight._time_for

    def watched(self: InFlight, asker: str, size: int) -> float:
        given.append((asker, time_for(self, asker, size)))
        return given[-1][1]

    monkeypatch.setattr(InFlight, "_time_for", watched)

    class Slow:
        def __init__(self) -> None:
            self.end = asyncio.Event()

        def give_up(self) -> None:
            self.end.set()

    async def take() -> None:
        ASKER.set("slow")
        SENDING.set(slow := Slow())
        async with places.hold(limits.MIB):
            await slow.end.wait()

    async def begin_again() -> None:
        taking = asyncio.create_task(take())
        await until_async("it has the place", lambda: places._held == limits.MIB)
        await asyncio.create_task(_held(places, "other", limits.MIB))
        await taking

    for _ in range(3):
        await begin_again()
    assert given[::2] == [("slow", 0.08), ("slow", 0.04), ("slow", 0.02)]
    # Nobody else's time, and that of the slow one only for a while.
    assert given[1::2] == [("other", 0.08)] * 3
    monkeypatch.setattr(shares, "REMEMBER_S", -1.0)
    await begin_again()
    await begin_again()
    assert given[-4:] == [("slow", 0.01), ("other", 0.08), ("slow", 0.08), ("other", 0.08)]


async def _held(places: InFlight, asker: str, size: int) -> None:
    ASKER.set(asker)
    async with places.hold(size):
        pass


async def test_work_of_one_waits_while_that_of_others_passes() -> None:
    """Gains: the one thread for long work, for as long as the attacker likes."""
    lane = Lane("of-a-test")
    begun: list[str] = []
    go_on = threading.Event()

    def wait(asker: str) -> None:
        begun.append(asker)
        go_on.wait()

    async def work(asker: str) -> None:
        ASKER.set(asker)
        await lane.run(wait, asker)

    of_attacker = [asyncio.create_task(work("attacker")) for _ in range(10)]
    await until_async("the first", lambda: begun == ["attacker"])
    other = asyncio.create_task(work("other"))
    await asyncio.sleep(0)
    go_on.set()
    await other
    assert begun.index("other") <= 1
    # Their clients have gone, so these reads do not begin.
    for task in of_attacker:
        task.cancel()
    await asyncio.gather(*of_attacker, return_exceptions=True)


async def test_too_many_waiting_requests_are_refused() -> None:
    share = Share(1, "a thing", waiting=2)
    done = asyncio.Event()

    async def use(asker: str) -> None:
        ASKER.set(asker)
        # Within a share a request does not wait again.
        async with share.one(), share.one():
            await done.wait()

    uses = [asyncio.create_task(use("a")) for _ in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests, match="3 of your requests wait for a thing"):
        await uses[3]
    done.set()
    await asyncio.gather(*uses[:3])
    await asyncio.create_task(use("b"))


async def test_a_user_has_a_limit_of_requests_under_way(
    service_app: FastAPI, user: httpx.AsyncClient
) -> None:
    """Gains: every connection, with long polls."""
    login = {"username": "admin", "password": "", "isHashed": True}
    token = (await user.post("/api/v1/auth/login", json=login)).json()["token"]
    service_app.state.requests = Requests(3)
    name = (await user.get("/api/v1/me")).json()["user"]["id"]
    for _ in range(3):
        service_app.state.requests.begin(str(name))
    answer = await user.get("/api/v1/me")
    assert answer.status_code == 429
    assert "3 of your requests are under way" in answer.text
    async with client_of(service_app, token) as admin:
        assert (await admin.get("/api/v1/me")).status_code == 200
    service_app.state.requests.end(str(name))
    for _ in range(9):
        assert (await user.get("/api/v1/me")).status_code == 200


async def test_a_preview_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gains: a core for minutes, and a gigabyte, for a request that is long gone."""
    program = "import sys, time; time.sleep(100_000)  # in place of a preview"
    monkeypatch.setattr(previewing, "_COMMAND", (sys.executable, "-c", program))
    asking = asyncio.create_task(previewing.simulated({}, 0))
    own = psutil.Process()

    def previews() -> list[psutil.Process]:
        return [one for one in own.children() if program in _command(one)]

    (process,) = await until_async("its process", previews)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    assert not process.is_running()


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


async def test_a_preview_has_so_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gains: all of the machine's memory and time."""
    searcher = {"name": "random", "metric": "loss", "max_trials": 90_000, "max_length": 5}
    ranges = {f"x{n}": {"type": "const", "val": n} for n in range(3000)}
    with pytest.raises(BadRequest, match="more than 1 GiB of memory or 60 seconds"):
        await previewing.simulated({"searcher": searcher, "hyperparameters": ranges}, 0)


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """A server as the service is one, whose clients have half a second."""
    monkeypatch.setattr(sending, "PIECE_S", 0.5)
    monkeypatch.setattr(sending, "LOOK_S", 0.05)
    monkeypatch.setattr(lobby, "UNTAKEN_S", 1)
    async with serving(served, monkeypatch) as found:
        yield found


served = FastAPI()
served.add_middleware(Bounds)
SEEN: list[str] = []


@served.get("/long")
async def long(request: Request) -> Response:
    """Never done."""
    SEEN.append("begun")
    try:
        await asyncio.Event().wait()
    finally:
        SEEN.append("ended")
    return Response()


@served.get("/large")
async def large(request: Request) -> Response:
    """More than the system's buffers hold."""
    return Response(b"x" * 50_000_000)


PLACES: list[InFlight] = []


@served.get("/held")
async def held_by(asker: str) -> Response:
    """A large answer, in pieces that have their place."""

    async def body() -> AsyncIterator[bytes]:
        ASKER.set(asker)
        try:
            async with PLACES[0].hold(16 * limits.MIB):
                yield b"x" * 16 * limits.MIB
        finally:
            SEEN.append(f"{asker} ended")

    return Stream(body())


@served.get("/pieces")
async def pieces(request: Request) -> Response:
    """The same in pieces."""

    async def body() -> AsyncIterator[bytes]:
        try:
            for _ in range(50):
                yield b"x" * 1_000_000
        finally:
            SEEN.append("ended")

    return Stream(body())


async def test_a_read_ends_with_its_client(port: int) -> None:
    SEEN.clear()
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n")
    await until_async("the request", lambda: SEEN == ["begun"])
    writer.close()
    await until_async("its end", lambda: SEEN == ["begun", "ended"])


@pytest.mark.parametrize("path", ["large", "pieces"])
async def test_a_stalled_reader_loses_its_answer(port: int, path: str) -> None:
    """Gains: the memory of every answer that is asked for and not read."""
    SEEN.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
    writer.write(f"GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    if path == "pieces":
        await until_async("its end", lambda: SEEN == ["ended"])
    mine = writer.get_extra_info("sockname")
    own = psutil.Process()

    def is_open() -> bool:
        return any(one.raddr == mine for one in own.net_connections() if one.raddr)

    await until_async("the connection's end", lambda: not is_open())
    with contextlib.suppress(ConnectionError):
        assert len(await reader.read()) < 50_000_000
    writer.close()


async def test_a_slow_reader_loses_its_answer_too(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gains: as before, with a client that reads a little."""
    monkeypatch.setattr(lobby, "UNTAKEN_S", 3600)
    SEEN.clear()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        client.sendall(b"GET /pieces HTTP/1.1\r\nHost: a\r\n\r\n")

        def has_ended() -> bool:
            with contextlib.suppress(BlockingIOError):
                client.recv(2000)
            return SEEN == ["ended"]

        await until_async("its end", has_ended)


async def test_slow_clients_lose_their_answers_to_one_that_waits(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gains: no other user gets a large answer, for as long as the attackers like."""
    monkeypatch.setattr(sending, "PIECE_S", 3600.0)
    monkeypatch.setattr(lobby, "UNTAKEN_S", 3600)
    monkeypatch.setattr(shares, "LEAST_S", 0.1)
    monkeypatch.setattr(shares, "LOOK_S", 0.05)
    monkeypatch.setattr(shares, "LEAST_BYTES_PER_S", 1000 * limits.MIB)
    PLACES[:] = [InFlight(32 * limits.MIB, 16 * limits.MIB, patience_s=20)]
    SEEN.clear()
    with contextlib.ExitStack() as stack:
        for name in "ab":
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            slow.sendall(f"GET /held?asker={name} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        await until_async("both", lambda: PLACES[0]._held == 32 * limits.MIB)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            answer = await client.get("/held?asker=c")
            assert len(answer.content) == 16 * limits.MIB
        assert SEEN == ["a ended", "c ended"]
    await until_async("the other's end", lambda: SEEN[2:] == ["b ended"])


async def test_a_reader_gets_everything(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for path in ("/large", "/pieces"):
            assert (await client.get(path)).content == b"x" * 50_000_000


async def test_a_summary_leaves_long_values_to_the_reports(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gains: an answer of 640 MB, made in one go: 10,000 names, and 64 KiB for the last value of each."""
    leg = await world.leg()
    await leg.store(report(1, loss=0.5, short="a" * 1000, long="b" * 2000, list=["c" * 2000]))
    path = f"trials/{leg.trial_id}"
    whole = await _read(leg.client, path)
    found = whole["trial"]["summaryMetrics"]["avg_metrics"]
    assert found["loss"]["last"] == 0.5 and found["short"]["last"] == "a" * 1000
    for name in ("long", "list"):
        assert found[name]["last"] is None and found[name]["lastIsLong"] is True
    assert "lastIsLong" not in found["short"]
    held: list[int] = []
    hold = InFlight.hold

    def watched(self: InFlight, size: int) -> Any:
        held.append(size)
        return hold(self, size)

    monkeypatch.setattr(InFlight, "hold", watched)
    monkeypatch.setattr(limits, "ANSWER_PIECE_BYTES", 500)
    assert await _read(leg.client, path) == whole
    assert held and held[0] > 500


async def test_an_earlier_releases_files_are_read_in_pieces(
    world: World, service_app: FastAPI
) -> None:
    leg = await world.leg()
    name = await store(leg, 1)
    db: Database = service_app.state.db
    names = sa.text("SELECT jsonb_object_agg('file-' || n, n) FROM generate_series(1, 150000) AS n")
    async with db.tx() as conn:
        found = (await conn.execute(names)).scalar_one()
        where = checkpoints.c.uuid == name
        await conn.execute(sa.update(checkpoints).where(where).values(resources=found))
    listed = await _read(leg.client, f"trials/{leg.trial_id}/checkpoints")
    (one,) = listed["checkpoints"]
    assert one["resources"]["file-150000"] == "150000"
    assert (await _read(leg.client, f"checkpoints/{name}"))["checkpoint"]["resources"] == one[
        "resources"
    ]
