"""Who used which slots, when: made-up allocations, summed by days and months, as JSON and CSV."""

from __future__ import annotations

import csv
import datetime
import io
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from determined.common.wire import limits
from determined_registry.database.tables import allocation_resources, allocations, tasks, users
from determined_service.deleting import erasure
from determined_service.state.change import changing
from determined_service.views import usage
from tests.integration.service_api.world import World

DAY = 86_400
DAILY = "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_DAILY"
MONTHLY = "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_MONTHLY"


def at(text: str) -> datetime.datetime:
    """ "03-01 12:00" of a year long ago."""
    return datetime.datetime.fromisoformat(f"2021-{text}+00:00")


async def used(
    world: World,
    experiment_id: int,
    began: str | None,
    ended: str | None,
    *,
    slots: int = 1,
    agent: str = "a1",
    pool: str = "default",
    gang: dict[str, int] | None = None,
) -> str:
    """An allocation of a new trial of the experiment."""
    trial_id, request_id = await world.trial(experiment_id)
    task_id = f"{experiment_id}.{request_id}"
    row = {
        "id": f"{task_id}.1",
        "task_id": task_id,
        "experiment_id": experiment_id,
        "trial_id": trial_id,
        "state": "TERMINATED" if ended else "RUNNING" if began else "REQUESTED",
        "resource_pool": pool,
        "slots": slots,
        "agent_id": agent if began else None,
        "requested_at": at("01-01 00:00"),
        "assigned_at": at(began) if began else None,
        "ended_at": at(ended) if ended else None,
    }
    async with world.db.tx() as conn:
        await conn.execute(sa.insert(allocations).values(row))
        for name, count in (gang or {}).items():
            part = {"allocation_id": row["id"], "id": f"{row['id']}.{name}", "agent_id": name}
            await conn.execute(
                sa.insert(allocation_resources).values(part | {"slot_ids": list(range(count))})
            )
    return str(row["id"])


async def of_user(world: World, name: str) -> int:
    async with world.db.tx() as conn:
        made = sa.insert(users).values(username=name, password_hash="").returning(users.c.id)
        return int((await conn.execute(made)).scalar_one())


async def give(world: World, experiment_id: int, user_id: int) -> None:
    async with world.db.tx() as conn:
        await conn.execute(
            sa.update(tasks).where(tasks.c.id.like(f"{experiment_id}.%")).values(owner_id=user_id)
        )


async def entries(client: httpx.AsyncClient, what: str, **params: str) -> list[dict[str, Any]]:
    answer = await client.get(f"/api/v1/resources/allocation/{what}", params=params)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["resourceEntries"])


async def table(client: httpx.AsyncClient, what: str, **params: str) -> list[dict[str, str]]:
    answer = await client.get(f"/resources/allocation/{what}", params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.text)))


async def fill(world: World) -> tuple[int, int]:
    """Ann's experiment with two labels, another's with none; what ends and begins at midnight."""
    ann = await world.experiment(labels=["vision", "q1"])
    other = await world.experiment()
    # 6 h of March 1, all of March 2, 3 h of March 3: two slots.
    await used(world, ann, "03-01 18:00", "03-03 03:00", slots=2)
    # The whole of March 2, exactly.
    await used(world, other, "03-02 00:00", "03-03 00:00", agent="a2", pool="big")
    # A gang on two agents over the end of the month.
    await used(world, ann, "03-31 23:00", "04-01 01:00", slots=3, gang={"a1": 1, "a2": 2})
    await used(world, ann, None, None)  # waits for slots
    await used(world, other, "03-02 10:00", "03-02 11:00", slots=0)
    await give(world, ann, await of_user(world, "ann"))
    return ann, other


async def test_sums_by_day(world: World, user: httpx.AsyncClient) -> None:
    await fill(world)
    days = await entries(
        user, "aggregated", startDate="2021-03-01", endDate="2021-03-04", period=DAILY
    )
    hour = 3600.0
    assert [entry["periodStart"] for entry in days] == [f"2021-03-0{n}" for n in (1, 2, 3, 4)]
    assert [entry["seconds"] for entry in days] == [12 * hour, 72 * hour, 6 * hour, 0]
    assert days[1] == {
        "period": DAILY,
        "periodStart": "2021-03-02",
        "seconds": 72 * hour,
        "byUsername": {"ann": 48 * hour, "determined": 24 * hour},
        "byExperimentLabel": {"vision": 48 * hour, "q1": 48 * hour},
        "byResourcePool": {"default": 48 * hour, "big": 24 * hour},
        "byAgentLabel": {"a1": 48 * hour, "a2": 24 * hour},
    }
    assert days[3]["byUsername"] == {}


async def test_sums_by_month_and_as_csv(world: World, user: httpx.AsyncClient) -> None:
    await fill(world)
    whole = {"start_date": "2021-03", "end_date": "2021-04", "period": MONTHLY}
    rows = await table(user, "aggregated", **whole)
    found = {
        (row["aggregation_type"], row["aggregation_key"], row["date"]): float(row["seconds"])
        for row in rows
    }
    hour = 3600.0
    assert found["total", "total", "2021-03"] == (12 + 72 + 6 + 3) * hour
    assert found["total", "total", "2021-04"] == 3 * hour
    # Of the gang's hour in each month, one slot is a1's and two are a2's.
    assert found["agent", "a1", "2021-03"] == (12 + 48 + 6 + 1) * hour
    assert found["agent", "a2", "2021-03"] == (24 + 2) * hour
    assert found["agent", "a2", "2021-04"] == 2 * hour
    assert found["experiment_label", "vision", "2021-04"] == 3 * hour
    assert ("username", "determined", "2021-04") not in found
    # The same by days.
    days = await entries(user, "aggregated", start_date="2021-03-01", end_date="2021-04-30")
    assert sum(day["seconds"] for day in days) == sum(
        seconds for (kind, *_), seconds in found.items() if kind == "total"
    )


async def test_raw_is_cut_at_the_range(world: World, user: httpx.AsyncClient) -> None:
    ann, other = await fill(world)
    # From within the first allocation to the moment at which no third has begun.
    times = {"timestamp_after": "2021-03-02T00:00:00Z", "timestamp_before": "2021-03-02T12:00:00Z"}
    rows = await table(user, "raw", **times)
    assert [(row["experiment_id"], row["slots"], row["seconds"]) for row in rows] == [
        (str(ann), "2", "43200.0"),
        (str(other), "1", "43200.0"),
        (str(other), "0", "3600.0"),
    ]
    assert rows[0] == {
        "experiment_id": str(ann),
        "kind": "TRIAL",
        "username": "ann",
        "labels": "vision,q1",
        "slots": "2",
        "start_time": "2021-03-01T18:00:00.000000Z",
        "end_time": "2021-03-03T03:00:00.000000Z",
        "seconds": "43200.0",
        "resource_pool": "default",
        "agents": "a1",
    }
    same = await entries(
        user, "raw", timestampAfter="2021-03-02", timestampBefore="2021-03-02 12:00"
    )
    assert [entry["experimentId"] for entry in same] == [ann, other, other]
    assert same[0]["labels"] == ["vision", "q1"]
    gang = {"timestamp_after": "2021-03-31T23:30:00+00:00", "timestamp_before": "2021-05-01"}
    (row,) = await table(user, "allocations-csv", **gang)
    assert (row["agents"], row["slots"], row["seconds"]) == ("a1,a2", "3", "5400.0")
    assert float(row["slot_hours"]) == 4.5
    assert row["allocation_id"].startswith(f"{ann}.")
    assert row["workspace_name"] == "Uncategorized"


async def test_running_allocations_count_until_now(world: World, user: httpx.AsyncClient) -> None:
    experiment = await world.experiment()
    key = await used(world, experiment, "03-01 00:00", None)
    now = datetime.datetime.now(datetime.UTC)
    async with world.db.tx() as conn:
        await conn.execute(
            sa.update(allocations)
            .where(allocations.c.id == key)
            .values(assigned_at=now - datetime.timedelta(hours=2))
        )
    later = {"timestampAfter": (now - datetime.timedelta(hours=1)).isoformat()}
    later["timestampBefore"] = (now + datetime.timedelta(days=5)).isoformat()
    (entry,) = await entries(user, "raw", **later)
    assert entry["endTime"] is None
    assert 3600 <= entry["seconds"] < 7000
    ended = {"timestampAfter": "2021-01-01", "timestampBefore": "2021-06-01"}
    assert await entries(user, "raw", **ended) == []


async def test_a_deleted_experiment_keeps_its_usage(world: World, user: httpx.AsyncClient) -> None:
    ann, _ = await fill(world)
    march = {"startDate": "2021-03", "endDate": "2021-04", "period": MONTHLY}
    year = {"timestampAfter": "2021-01-01", "timestampBefore": "2021-12-31"}
    before = await entries(user, "aggregated", **march), await entries(user, "raw", **year)
    assert len(before[1]) == 4
    for _ in range(2):
        async with changing(world.db) as change:
            await erasure.erase(change, ann)
    async with world.db.tx() as conn:
        left = sa.select(sa.func.count()).where(allocations.c.experiment_id == ann)
        assert (await conn.execute(left)).scalar_one() == 0
    assert (
        await entries(user, "aggregated", **march),
        await entries(user, "raw", **year),
    ) == before


async def test_pages_lose_and_repeat_nothing(
    world: World, user: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = await world.experiment(labels=["=1+1", "two\nlines"])
    keys = [
        await used(world, experiment, f"03-0{1 + number // 3} 00:00", "03-09 00:00")
        for number in range(7)
    ]
    monkeypatch.setattr(usage, "PAGE", 2)
    year = {"timestamp_after": "2021-01-01", "timestamp_before": "2021-12-31"}
    rows = await table(user, "allocations-csv", **year)
    assert sorted(row["allocation_id"] for row in rows) == sorted(keys)
    assert [row["start_time"] for row in rows] == sorted(row["start_time"] for row in rows)
    # A spreadsheet shows it, and runs nothing.
    assert rows[0]["labels"] == "'=1+1,two\nlines"
    monkeypatch.setattr(limits, "USAGE_ENTRIES", 5)
    refused = await user.get("/api/v1/resources/allocation/raw", params=year)
    assert refused.status_code == 400
    assert "more than 5 allocations: ask for a shorter time, or for CSV" in refused.text


@pytest.mark.parametrize(
    ("path", "params", "words"),
    [
        ("raw", {}, "timestampAfter: it is missing"),
        ("raw", {"timestamp_after": "yesterday"}, "timestampBefore: it is missing"),
        (
            "raw",
            {"timestamp_after": "yesterday", "timestamp_before": "2021-01-01"},
            "timestampAfter: expected a time such as 2026-01-31T00:00:00Z, or a date, found 'yesterday'",
        ),
        (
            "raw",
            {"timestamp_after": "2021-01-02", "timestamp_before": "2021-01-01"},
            "timestampBefore: 2021-01-01 is before timestampAfter, 2021-01-02: exchange the two",
        ),
        (
            "raw",
            {"timestamp_after": "2019-01-02", "timestamp_before": "2021-01-01"},
            "730 days after timestampAfter, at most 366 are allowed",
        ),
        (
            "raw",
            {"timestamp_after": "0001-01-01T00:00:00+14:00", "timestamp_before": "2021-01-01"},
            "timestampAfter: expected a time from 1900 to 2999",
        ),
        (
            "aggregated",
            {"start_date": "2021-02-30", "end_date": "2021-03-01"},
            "startDate: expected a date such as 2026-01-31, found '2021-02-30'",
        ),
        (
            "aggregated",
            {"start_date": "2021-02", "end_date": "2021-03-01"},
            "startDate: expected a date such as 2026-01-31, found '2021-02'",
        ),
        (
            "aggregated",
            {"start_date": "2020-01-01", "end_date": "2021-01-01"},
            "endDate: 367 days from startDate on, at most 366 are allowed: ask for fewer, or for months",
        ),
        (
            "aggregated",
            {"start_date": "2010-01", "end_date": "2020-01", "period": MONTHLY},
            "endDate: 121 months from startDate on, at most 120 are allowed: ask for fewer",
        ),
        (
            "aggregated",
            {"start_date": "2021-01", "end_date": "2021-01", "period": "YEARLY"},
            f"period: expected {DAILY} or {MONTHLY}, found 'YEARLY'",
        ),
        (
            "aggregated",
            {"start_date": "2999-12-31", "end_date": "9999-12-31"},
            "endDate: expected a time from 1900 to 2999",
        ),
    ],
)
async def test_ranges_are_checked(
    user: httpx.AsyncClient, path: str, params: dict[str, str], words: str
) -> None:
    for prefix in ("/api/v1", ""):
        answer = await user.get(f"{prefix}/resources/allocation/{path}", params=params)
        assert answer.status_code == 400, answer.text
        message = answer.json()["message"]
        snake = words.replace("timestampAfter: it", "timestamp_after: it")
        snake = snake.replace("timestampBefore: it", "timestamp_before: it")
        assert words in message or snake in message


async def test_no_access_without_a_login(anonymous: httpx.AsyncClient) -> None:
    for path in ("raw", "aggregated", "allocations-csv"):
        assert (await anonymous.get(f"/resources/allocation/{path}")).status_code == 401
