"""Every sort and order of the SDK's lists of checkpoints, with a real service."""

from __future__ import annotations

import asyncio
import types
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined.experimental import Determined
from determined.experimental.client import Checkpoint, CheckpointSortBy, OrderBy
from determined_registry.database.tables import checkpoints, metrics
from determined_service.base.db import Database
from tests.integration.service_api.world import World

START = datetime(2026, 1, 1, tzinfo=UTC)
# By trial: steps, searcher's metric, another metric (None: not reported), state. Steps, times and states have
# equals among them; the best of the first trial is not its last.
POINTS: list[list[tuple[int, Any, float | None, str]]] = [
    [
        (10, 0.5, 3.0, "COMPLETED"),
        (20, 0.1, None, "COMPLETED"),
        (30, 0.3, 7.0, "PARTIALLY_DELETED"),
    ],
    [(10, 0.2, 1.0, "COMPLETED"), (20, "NaN", 5.0, "COMPLETED"), (30, 0.05, 2.0, "DELETED")],
    [(10, 0.9, -4.0, "COMPLETED"), (20, None, None, "COMPLETED"), (30, 0.2, 6.0, "COMPLETED")],
]


async def make_rows(database_url: str, smaller_is_better: bool) -> tuple[int, list[int]]:
    db = Database(database_url)
    world = World(cast(FastAPI, types.SimpleNamespace(state=types.SimpleNamespace(db=db))))
    searcher = {"name": "random", "metric": "m", "smaller_is_better": smaller_is_better}
    experiment_id = await world.experiment(
        "sorted", config={"searcher": searcher}, state="COMPLETED"
    )
    trial_ids = []
    for number, points in enumerate(POINTS):
        trial_id, _ = await world.trial(experiment_id, state="COMPLETED")
        trial_ids.append(trial_id)
        for steps, metric, other, state in points:
            moment = START + timedelta(seconds=steps % 30 + number)
            values = {"m": metric, "other": other}
            async with db.tx() as conn:
                await conn.execute(
                    sa.insert(checkpoints).values(
                        uuid=uuid.uuid4(),
                        state=state,
                        experiment_id=experiment_id,
                        trial_id=trial_id,
                        steps_completed=steps,
                        report_time=moment,
                        resources={"weights": 1},
                        user_metadata={"steps_completed": steps},
                    )
                )
                await conn.execute(
                    sa.insert(metrics).values(
                        trial_id=trial_id,
                        run_id=1,
                        group_name="validation",
                        steps_completed=steps,
                        end_time=moment,
                        metrics={
                            name: value for name, value in values.items() if value is not None
                        },
                    )
                )
    await db.close()
    return experiment_id, trial_ids


def number(value: Any) -> float | None:
    return value if isinstance(value, float) else None


def of_searcher(one: Checkpoint) -> float | None:
    assert one.training is not None
    return number(one.training.validation_metrics["avgMetrics"].get("m"))


def of_other(one: Checkpoint) -> float | None:
    assert one.training is not None
    return number(one.training.validation_metrics["avgMetrics"].get("other"))


KEYS: dict[str | CheckpointSortBy, Callable[[Checkpoint], Any]] = {
    CheckpointSortBy.UUID: lambda one: one.uuid,
    CheckpointSortBy.TRIAL_ID: lambda one: one.trial_id,
    CheckpointSortBy.BATCH_NUMBER: lambda one: one.metadata["steps_completed"],
    CheckpointSortBy.END_TIME: lambda one: one.report_time,
    CheckpointSortBy.STATE: lambda one: one.state.name,
    CheckpointSortBy.SEARCHER_METRIC: of_searcher,
    "m": of_searcher,
    "other": of_other,
    "unknown": lambda one: None,
}


@pytest.mark.parametrize("smaller_is_better", [True, False])
def test_every_sort_and_order(
    service_url: str,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    smaller_is_better: bool,
) -> None:
    monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(tmp_path / "config"))
    experiment_id, trial_ids = asyncio.run(make_rows(database_url, smaller_is_better))
    own = Determined(service_url, "determined", "")
    experiment = own.get_experiment(experiment_id)
    lists: list[tuple[Any, int]] = [
        (experiment, 9),
        *((own.get_trial(one), 3) for one in trial_ids),
    ]
    for whose, count in lists:
        for sort_by, key in KEYS.items():
            for order in OrderBy:
                found = whose.list_checkpoints(sort_by, order)
                values = [key(one) for one in found]
                known = [value for value in values if value is not None]
                # Checkpoints without the metric come last in both orders.
                assert values[: len(known)] == known
                assert known == sorted(known, reverse=order is OrderBy.DESC), (sort_by, order)
                assert len({one.uuid for one in found}) == count
                # Pages are parts of the same order.
                assert [one.uuid for one in whose.list_checkpoints(sort_by, order, 2)] == [
                    one.uuid for one in found[:2]
                ]
            if isinstance(sort_by, str):
                with pytest.raises(ValueError, match="also needs order_by"):
                    whose.list_checkpoints(sort_by)
        best_first = OrderBy.ASC if smaller_is_better else OrderBy.DESC
        wanted = [
            one.uuid for one in whose.list_checkpoints(CheckpointSortBy.SEARCHER_METRIC, best_first)
        ]
        assert [one.uuid for one in whose.list_checkpoints()] == wanted
        assert [one.uuid for one in whose.list_checkpoints(max_results=2)] == wanted[:2]

    def top(limit: int, *given: Any) -> list[tuple[int, int]]:
        found = experiment.top_n_checkpoints(limit, *given)
        return [(trial_ids.index(one.trial_id), one.metadata["steps_completed"]) for one in found]

    # Only those with all their files, one of each trial.
    by_metric = [(0, 20), (1, 10), (2, 30)] if smaller_is_better else [(2, 10), (0, 10), (1, 10)]
    assert top(9) == by_metric and top(2) == by_metric[:2]
    assert top(9, "other", True) == [(2, 10), (1, 10), (0, 10)]
    assert top(9, "other", False) == [(2, 30), (1, 20), (0, 10)]
    assert experiment.top_checkpoint().uuid == experiment.top_n_checkpoints(1)[0].uuid
