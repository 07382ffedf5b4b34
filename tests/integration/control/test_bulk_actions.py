"""One action on many experiments."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import World, ok


async def results(world: World, path: str, **body: Any) -> dict[int, str]:
    answer = ok(await world.user.post(f"/api/v1/{path}", json=body))
    return {one["id"]: one["error"] for one in answer["results"]}


async def states(world: World) -> list[str]:
    rows = await world.rows("SELECT state FROM experiments ORDER BY id")
    return [row["state"] for row in rows]


async def test_each_experiment_has_its_own_result(world: World) -> None:
    first, second, third = [await world.submit(SINGLE) for _ in range(3)]
    ok(await world.act(second, "kill"))
    for _ in range(2):  # sent twice, it does no more than once
        found = await results(
            world, "experiments/pause", experimentIds=[first, second, third, 999], projectId=1
        )
        assert (found[first], found[third]) == ("", "")
        assert "CANCELED" in found[second]
        assert found[999] == "not found: experiment 999 does not exist"
        assert await states(world) == ["PAUSED", "CANCELED", "PAUSED"]
    assert await results(world, "projects/1/experiments/activate", experimentIds=[first]) == {
        first: ""
    }
    assert await states(world) == ["ACTIVE", "CANCELED", "PAUSED"]


async def test_an_experiment_of_another_project_is_left_alone(world: World) -> None:
    experiment = await world.submit(SINGLE)
    found = await results(world, "projects/7/experiments/kill", experimentIds=[experiment])
    assert found == {experiment: f"experiment {experiment} is not in project 7"}
    assert await states(world) == ["ACTIVE"]


async def test_minus_one_means_all_projects(world: World) -> None:
    first, second = [await world.submit(SINGLE) for _ in range(2)]
    found = await results(world, "projects/-1/experiments/pause", experimentIds=[first])
    assert found == {first: ""}
    everywhere: dict[str, Any] = {"filters": {"projectId": -1}, "projectId": -1}
    assert await results(world, "experiments/kill", **everywhere) == {first: "", second: ""}
    listed = ok(await world.user.get("/api/v1/experiments", params={"projectId": -1}))
    assert [one["id"] for one in listed["experiments"]] == [first, second]


async def test_a_filter_chooses_only_changeable_experiments(world: World) -> None:
    first, second, third = [await world.submit(SINGLE) for _ in range(3)]
    ok(await world.act(second, "kill"))
    patched = await world.user.patch(f"/api/v1/experiments/{third}", json={"labels": ["keep"]})
    ok(patched)
    assert await results(
        world, "experiments/kill", experimentIds=[], filters={"excludedExperimentIds": [third]}
    ) == {first: ""}
    assert await results(world, "experiments/cancel", filters={"labels": ["other"]}) == {}
    ended = {"labels": ["keep"], "states": ["STATE_COMPLETED"]}
    assert await results(world, "experiments/cancel", filters=ended) == {}
    active = {"labels": ["keep"], "states": ["STATE_ACTIVE"]}
    assert await results(world, "experiments/cancel", filters=active) == {third: ""}
    assert await results(world, "experiments/archive", filters={"archived": False}) == {
        first: "", second: "", third: "",
    }  # fmt: skip
    assert await results(world, "experiments/archive", filters={}) == {}
    assert await results(world, "experiments/unarchive", filters={"name": "SCRIPT"}) == {
        first: "", second: "", third: "",
    }  # fmt: skip


@pytest.mark.parametrize("body", [{}, {"experimentIds": []}, {"experimentIds": ["x"]}])
async def test_nothing_chosen_is_refused(world: World, body: dict[str, Any]) -> None:
    answer = await world.user.post("/api/v1/experiments/kill", json=body)
    assert answer.status_code == 400
    assert "experimentIds" in answer.text or "experiment_ids" in answer.text
