"""Group commit: together when possible, alone when needed, answered after the commit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg
import pytest

from determined_service.base.errors import BadRequest, NotFound, Unavailable
from determined_service.ingest.group_commit import GroupCommit
from tests.waiting import TIMEOUT_S


class FakeDatabase:
    """Keeps the writes of transactions that committed."""

    def __init__(self) -> None:
        self.committed: list[list[int]] = []
        self.before_commit: list[Exception] = []

    @contextlib.asynccontextmanager
    async def tx(self) -> AsyncIterator[list[int]]:
        written: list[int] = []
        yield written
        if self.before_commit:
            raise self.before_commit.pop(0)
        self.committed.append(written)


@contextlib.asynccontextmanager
async def running(write: Any, **more: Any) -> AsyncIterator[tuple[FakeDatabase, GroupCommit[int]]]:
    db = FakeDatabase()
    queue: GroupCommit[int] = GroupCommit(db, write, **more)  # type: ignore[arg-type]
    task = asyncio.create_task(queue.run())
    try:
        yield db, queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def store(conn: Any, items: Sequence[int]) -> list[int]:
    if 13 in items:
        raise psycopg.DataError("thirteen")
    conn.extend(items)
    await asyncio.sleep(0)
    return [item * 10 for item in items]


async def test_waiting_items_are_written_together() -> None:
    async with running(store) as (db, queue):
        answers = await asyncio.gather(*(queue.submit(item) for item in range(5)))
    assert answers == [0, 10, 20, 30, 40]
    assert db.committed == [[0, 1, 2, 3, 4]]


async def test_groups_have_a_limit_and_keep_the_order() -> None:
    async with running(store, max_items=2) as (db, queue):
        await asyncio.gather(*(queue.submit(item) for item in range(5)))
    assert db.committed == [[0, 1], [2, 3], [4]]


async def test_a_bad_item_fails_alone() -> None:
    async with running(store) as (db, queue):
        answers = await asyncio.gather(
            *(queue.submit(item) for item in (1, 13, 2)), return_exceptions=True
        )
    assert (answers[0], answers[2]) == (10, 20)
    assert isinstance(answers[1], BadRequest)
    assert db.committed == [[1], [2]]


async def test_a_refusal_goes_to_its_sender_only() -> None:
    async def refuse_odd(conn: Any, items: Sequence[int]) -> list[Any]:
        return [NotFound("odd") if item % 2 else item for item in items]

    async with running(refuse_odd) as (_, queue):
        answers = await asyncio.gather(
            *(queue.submit(item) for item in range(3)), return_exceptions=True
        )
    assert (answers[0], answers[2]) == (0, 2)
    assert isinstance(answers[1], NotFound)


async def test_a_deadlock_is_written_again() -> None:
    async with running(store) as (db, queue):
        db.before_commit = [psycopg.errors.DeadlockDetected("deadlock")]
        assert await queue.submit(1) == 10
    assert db.committed == [[1]]


async def test_a_database_that_is_away_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("determined_service.ingest.group_commit.ATTEMPTS", 2)
    async with running(store) as (db, queue):
        db.before_commit = [psycopg.OperationalError("gone")] * 2
        with pytest.raises(Unavailable):
            await queue.submit(1)
        assert await queue.submit(2) == 20


async def test_no_client_waits_for_ever_when_it_stops() -> None:
    started = asyncio.Event()

    async def hang(conn: Any, items: Sequence[int]) -> list[int]:
        started.set()
        await asyncio.sleep(60)
        return []

    async with running(hang) as (_, queue):
        first = asyncio.create_task(queue.submit(1))
        await started.wait()
        second = asyncio.create_task(queue.submit(2))
        await asyncio.sleep(0)
    answers = await asyncio.wait_for(
        asyncio.gather(first, second, return_exceptions=True), TIMEOUT_S
    )
    assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
