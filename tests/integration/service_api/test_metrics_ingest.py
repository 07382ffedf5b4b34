"""Metrics in: stored once, summarised, fenced."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from determined.common.cluster_config import Quotas
from determined.common.wire import limits
from determined_registry.database.tables import metrics, search_events, trials
from tests.integration.service_api.world import Leg, World, report


async def _trial(leg: Leg) -> dict[str, Any]:
    answer = await leg.client.get(f"/api/v1/trials/{leg.trial_id}")
    found: dict[str, Any] = answer.json()["trial"]
    return found


async def _count(world: World) -> int:
    ((count,),) = await world.rows(sa.select(sa.func.count()).select_from(metrics))
    return int(count)


async def test_same_batch_five_times_at_once_is_stored_once(world: World) -> None:
    leg = await world.leg()
    stream = str(uuid.uuid4())
    batch = [report(step, loss=1.0) for step in range(10)]
    answers = await asyncio.gather(*(leg.report(*batch, stream=stream, seq=0) for _ in range(5)))
    assert sorted(answer.json()["stored"] for answer in answers) == [0, 0, 0, 0, 10]
    assert await _count(world) == 10
    assert (await _trial(leg))["summaryMetrics"]["avg_metrics"]["loss"]["count"] == 10


async def test_same_batch_at_two_service_processes_is_stored_once(
    world: World, user: httpx.AsyncClient
) -> None:
    from determined_service.ingest.metrics import MetricsWriter
    from determined_service.ingest.reports import read_batch

    leg = await world.leg()
    body = {"stream": str(uuid.uuid4()), "seq": 3, "run_id": 1, "reports": [report(1, loss=1.0)]}

    async def other_process() -> Any:
        async with world.db.tx() as conn:
            found = await MetricsWriter(Quotas).write(conn, [read_batch(leg.trial_id, body)])
            await asyncio.sleep(0.05)
            return found[0]

    path = f"/api/v1/trials/{leg.trial_id}/metrics/batch"
    theirs, ours = await asyncio.gather(other_process(), user.post(path, json=body))
    assert sorted([theirs, ours.json()["stored"]]) == [0, 1]
    assert await _count(world) == 1


async def test_a_stream_goes_on_and_another_one_is_its_own(world: World) -> None:
    leg = await world.leg()
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    for stream, seq, stored in ((first, 0, 1), (first, 1, 1), (second, 0, 1), (first, 1, 0)):
        answer = await leg.report(report(1, loss=1.0), stream=stream, seq=seq)
        assert answer.json() == {"stored": stored}


async def test_names_of_metrics_are_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METRIC_NAMES", 4)
    monkeypatch.setattr(limits, "METRIC_GROUPS", 2)
    leg, other = await world.leg(), await world.leg()
    await leg.store(report(1, a=1, b=1), report(1, "validation", a=1))
    # One name too many, beside a batch of another trial, which is stored.
    bad, good = await asyncio.gather(
        leg.report(report(2, a=2, made_up_1=1, made_up_2=1)), other.report(report(1, a=1))
    )
    assert good.json() == {"stored": 1}
    assert bad.status_code == 400
    assert bad.json()["message"] == (
        f"metrics: trial {leg.trial_id} would have 5 different names of metrics, at most 4 are allowed; "
        "nothing of this batch was stored, in which 'made_up_1' is new"
    )
    assert (await _trial(leg))["summaryMetrics"]["avg_metrics"]["a"]["count"] == 1
    # Names that are known go on.
    await leg.store(report(3, a=3))
    third = await leg.report(report(4, "one more", a=3))
    assert third.status_code == 400
    assert "would have 3 different groups of metrics, at most 2" in third.json()["message"]


async def test_summary_of_every_kind_of_value(world: World) -> None:
    leg = await world.leg()
    await leg.store(
        report(1, loss=2.0, name="a", flag=True, mixed=1, nothing=None, many=[1, 2]),
        report(2, loss="NaN", name="b", flag=False, mixed="x"),
        report(3, loss="-Infinity"),
    )
    await leg.store(report(4, loss=-1), report(5, loss=4.5))
    found = (await _trial(leg))["summaryMetrics"]["avg_metrics"]
    assert found["loss"] == {
        "type": "number",
        "count": 5,
        "last": 4.5,
        "sum": 5.5,
        "min": -1.0,
        "max": 4.5,
        "mean": 5.5 / 3,
    }
    assert found["name"] == {"type": "string", "count": 2, "last": "b"}
    assert found["flag"] == {"type": "boolean", "count": 2, "last": False}
    assert found["mixed"]["type"] == "string"
    assert found["nothing"] == {"type": "null", "count": 1, "last": None}
    assert found["many"] == {"type": "array", "count": 1, "last": [1, 2]}
    assert (await _trial(leg))["totalBatchesProcessed"] == 5


async def test_nan_is_kept_as_it_came(world: World) -> None:
    leg = await world.leg()
    await leg.store(report(1, loss="NaN", up="Infinity"))
    raw = (
        b'{"run_id": 1, "reports": [{"group": "training", "steps_completed": 2,'
        b' "metrics": {"loss": NaN, "big": 1e999}}]}'
    )
    answer = await leg.client.post(f"/api/v1/trials/{leg.trial_id}/metrics/batch", content=raw)
    assert answer.json() == {"stored": 1}
    rows = await world.rows(sa.select(metrics.c.metrics).order_by(metrics.c.id))
    assert [row.metrics for row in rows] == [
        {"loss": "NaN", "up": "Infinity"},
        {"loss": "NaN", "big": "Infinity"},
    ]
    summary = (await _trial(leg))["summaryMetrics"]["avg_metrics"]["loss"]
    assert summary == {"type": "number", "count": 2, "last": "NaN"}


async def test_a_sum_that_overflows_becomes_infinite(world: World) -> None:
    leg = await world.leg()
    for step in (1, 2):
        await leg.store(report(step, big=1.7e308, small=-1.7e308))
    found = (await _trial(leg))["summaryMetrics"]["avg_metrics"]
    assert (found["big"]["sum"], found["small"]["sum"]) == ("Infinity", "-Infinity")
    assert found["big"]["max"] == 1.7e308


async def test_awkward_names_and_values_survive(world: World) -> None:
    leg = await world.leg()
    values = {'tab\t"quote"\\n': 1.0, "nul\0": "a\0b", "ünï": "\\N", "nested": {"a": ["\n"]}}
    answer = await leg.report(
        {"group": "odd\tgroup\\", "steps_completed": 1, "metrics": values, "end_time": None}
    )
    assert answer.json() == {"stored": 1}
    ((stored, group),) = await world.rows(sa.select(metrics.c.metrics, metrics.c.group_name))
    assert group == "odd\tgroup\\"
    assert stored == {
        'tab\t"quote"\\n': 1.0,
        "nul\ufffd": "a\ufffdb",
        "ünï": "\\N",
        "nested": {"a": ["\n"]},
    }


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"steps_completed": "ten"}, "steps_completed must be a whole number from 0 on, not 'ten'"),
        ({"steps_completed": -1}, "steps_completed must be a whole number from 0 on, not -1"),
        ({"group": ""}, "group must be a name, not ''"),
        ({"metrics": [1]}, "metrics must be an object of names and values, not a list of 1"),
        ({"end_time": "soon"}, "end_time must be an ISO 8601 time, not 'soon'"),
    ],
)
async def test_bad_reports_are_refused_whole(
    world: World, change: dict[str, Any], complaint: str
) -> None:
    leg = await world.leg()
    answer = await leg.report(report(1, loss=1.0), report(2, loss=1.0) | change)
    assert answer.status_code == 400
    assert answer.json()["error"]["error"] == complaint
    assert await _count(world) == 0


async def test_a_bad_batch_costs_its_neighbours_nothing(
    world: World, user: httpx.AsyncClient
) -> None:
    leg = await world.leg()
    bad = {"run_id": 1, "reports": [report(1, loss=1.0)]}
    answers = await asyncio.gather(
        user.post("/api/v1/trials/999999/metrics/batch", json=bad),
        *(leg.report(report(step, loss=1.0)) for step in range(5)),
    )
    assert [answer.status_code for answer in answers] == [404, 200, 200, 200, 200, 200]
    assert await _count(world) == 5


async def test_another_run_of_the_trial_is_fenced(world: World) -> None:
    leg = await world.leg()
    answer = await leg.report(report(1, loss=1.0), run_id=2)
    assert answer.status_code == 409


async def test_best_and_latest_validation(world: World) -> None:
    leg = await world.leg()
    path = f"/api/v1/experiments/{leg.experiment_id}"
    none = await leg.client.get(f"{path}/searcher/best_searcher_validation_metric")
    assert none.status_code == 404
    assert "has reported a validation yet" in none.json()["error"]["error"]
    for step, loss in ((1, 0.9), (2, 0.3), (3, "NaN"), (4, 0.5), (5, "-Infinity")):
        await leg.store(report(step, "validation", loss=loss, accuracy=0.1))
    found = await _trial(leg)
    assert found["searcherMetricValue"] == 0.3
    assert found["bestValidation"]["totalBatches"] == 2
    assert found["latestValidation"]["totalBatches"] == 5
    best = await leg.client.get(f"{path}/searcher/best_searcher_validation_metric")
    assert best.json() == {"metric": 0.3}
    history = (await leg.client.get(f"{path}/validation-history")).json()["validationHistory"]
    assert [one["searcherMetric"] for one in history] == [0.9, 0.3]


async def test_larger_is_better(world: World) -> None:
    leg = await world.leg(searcher={"metric": "accuracy", "smaller_is_better": False})
    await leg.store(*(report(i, "validation", accuracy=a) for i, a in enumerate([0.1, 0.9, 0.5])))
    assert (await _trial(leg))["searcherMetricValue"] == 0.9
    experiment = (await leg.client.get(f"/api/v1/experiments/{leg.experiment_id}")).json()
    assert experiment["experiment"]["bestTrialId"] == leg.trial_id


async def test_the_search_hears_of_reports_when_it_goes_by_them(world: World) -> None:
    leg = await world.leg(searcher={"time_metric": "epoch", "max_time": 9})
    await leg.store(
        report(10, "validation", loss=0.5, epoch=1),
        report(20, "validation", accuracy=0.5),
        report(30, "training", loss=0.5, epoch=3),
    )
    await leg.store(report(40, "validation", loss="NaN", epoch=4))
    rows = await world.rows(sa.select(search_events.c.event).order_by(search_events.c.id))
    assert [row.event for row in rows] == [
        {
            "type": "trial_reported",
            "request_id": leg.request_id,
            "time": 1.0,
            "metric": 0.5,
            "step": 10,
        },
        {
            "type": "trial_reported",
            "request_id": leg.request_id,
            "time": 4.0,
            "metric": None,
            "step": 40,
        },
    ]


async def test_operations_form_makes_no_events_of_reports(world: World) -> None:
    leg = await world.leg()
    await leg.store(report(10, "validation", loss=0.5))
    assert await world.rows(sa.select(search_events)) == []


async def test_a_restarted_leg_replaces_later_reports(world: World) -> None:
    first = await world.leg()
    await first.store(*(report(step, loss=step / 10) for step in range(1, 9)))
    await first.store(*(report(step, "validation", loss=1 / step) for step in (2, 4, 8)))
    await first.store(report(0, "gpu", util=50))
    await world.end(first)
    second = await world.start(first.experiment_id, first.trial_id, first.request_id, run_id=2)
    await second.store(report(5, loss=5.0), report(6, loss=6.0))
    await second.store(report(5, "validation", loss=0.4), report(0, "gpu", util=60))
    found = await _trial(second)
    summary = found["summaryMetrics"]
    assert summary["avg_metrics"]["loss"]["count"] == 6
    assert summary["avg_metrics"]["loss"]["sum"] == pytest.approx(0.1 + 0.2 + 0.3 + 0.4 + 11)
    assert summary["avg_metrics"]["loss"]["last"] == 6.0
    assert summary["validation_metrics"]["loss"]["count"] == 3
    assert summary["gpu"]["util"]["count"] == 2
    assert found["searcherMetricValue"] == 0.25
    assert found["bestValidation"]["totalBatches"] == 4
    assert found["latestValidation"]["totalBatches"] == 5
    ((kept,),) = await world.rows(sa.select(sa.func.count()).where(metrics.c.archived))
    assert kept == 4 + 1


async def test_reports_in_any_order_archive_nothing(world: World) -> None:
    leg = await world.leg()
    await leg.store(report(5, loss=1.0), report(2, loss=1.0), report(5, loss=2.0))
    await leg.store(report(3, loss=3.0))
    summary = (await _trial(leg))["summaryMetrics"]["avg_metrics"]["loss"]
    assert (summary["count"], summary["last"]) == (4, 2.0)


@pytest.mark.parametrize(
    ("path", "group"), [("training_metrics", "training"), ("validation_metrics", "validation")]
)
async def test_reports_of_older_harnesses(world: World, path: str, group: str) -> None:
    leg = await world.leg()
    body = {
        "trialId": leg.trial_id,
        "trialRunId": 1,
        "stepsCompleted": 7,
        "metrics": {"avgMetrics": {"loss": 0.5}, "batchMetrics": [{"loss": 0.4}, {"loss": 0.6}]},
    }
    answer = await leg.client.post(f"/api/v1/trials/{leg.trial_id}/{path}", json=body)
    assert answer.status_code == 200
    (row,) = await world.rows(sa.select(metrics))
    assert (row.group_name, row.steps_completed, row.metrics) == (group, 7, {"loss": 0.5})
    assert row.batch_metrics == [{"loss": 0.4}, {"loss": 0.6}]


async def test_reports_of_the_last_harness(world: World) -> None:
    leg = await world.leg()
    body = {
        "group": "inference",
        "metrics": {
            "trialId": leg.trial_id,
            "trialRunId": 1,
            "stepsCompleted": 7,
            "reportTime": "2026-11-21T13:00:00.5Z",
            "metrics": {"avgMetrics": {"loss": 0.5}},
        },
    }
    answer = await leg.client.post(f"/api/v1/trials/{leg.trial_id}/metrics", json=body)
    assert answer.json() == {}
    (row,) = await world.rows(sa.select(metrics))
    assert (row.group_name, row.run_id, row.end_time.microsecond) == ("inference", 1, 500_000)


async def test_ingest_waits_out_a_locked_trial(world: World) -> None:
    leg = await world.leg()
    async with world.db.tx() as conn:
        await conn.execute(
            sa.select(trials.c.id).where(trials.c.id == leg.trial_id).with_for_update()
        )
        pending = asyncio.create_task(leg.report(report(1, "validation", loss=1.0)))
        await asyncio.sleep(0.1)
        assert not pending.done()
    assert (await pending).json() == {"stored": 1}
