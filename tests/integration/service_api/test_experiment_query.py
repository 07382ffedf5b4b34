"""The query of the list of experiments, its light form, and its columns."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from determined_registry.database.tables import experiments
from tests.integration.service_api.world import World, report


async def ask(user: httpx.AsyncClient, query: str, **more: Any) -> list[dict[str, Any]]:
    answer = await user.get("/api/v1/experiments", params={"query": query, **more})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["experiments"]
    return found


async def names(user: httpx.AsyncClient, query: str) -> list[str]:
    return [one["name"] for one in await ask(user, query)]


@pytest.fixture
async def three(world: World) -> list[int]:
    """A search that is done (a), one without a trial (b), and one whose metric is to be large (c)."""
    hparams = {"lr": 0.001, "optimizer": "adam", "net": {"width": 64}, "deep": True, 'a"b': 1}
    a = await world.experiment(
        "a resnet", labels=["vision", "two words"], description="of 100% pictures"
    )
    leg = await world.start(a, *await world.trial(a, hparams=hparams))
    await leg.store(
        report(1, "validation", loss=0.5, acc=0.1), report(2, "validation", loss=0.2, acc=0.9)
    )
    await leg.store(report(2, "training", loss=0.01))
    b = await world.experiment(
        "b bert",
        state="COMPLETED",
        labels=["text"],
        resource_pool="gpus",
        config={
            "searcher": {"name": "asha", "metric": "loss"},
            "hyperparameters": {"lr": {"type": "const", "val": 0.1}, "net": {"depth": {"val": 3}}},
        },
    )
    c = await world.experiment(
        "c resnet", state="PAUSED", searcher={"metric": "acc", "smaller_is_better": False}
    )
    leg = await world.start(c, *await world.trial(c, hparams={"lr": 1, "optimizer": "sgd"}))
    await leg.store(report(1, "validation", acc=0.7), report(2, "validation", acc="NaN"))
    return [a, b, c]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", "abc"),
        ("resnet", "ac"),
        ("RESNET -vision", "c"),
        ("-resnet", "b"),
        ("vision", "a"),
        ('"two words"', "a"),
        ('", "', ""),
        ("100%", "a"),
        ("determined", "abc"),
        ("label:vision,text", "ab"),
        ("-label:vision", "bc"),
        ("owner:determined,x", "abc"),
        ("owner:x", ""),
        ("state:paused,COMPLETED", "bc"),
        ("state:running", "a"),
        ("pool:gpus", "b"),
        ("searcher:asha", "b"),
        ("project:Uncategorized workspace:Uncategorized", "abc"),
        ("description:pictures", "a"),
        ("name:bert", "b"),
        ("lr<0.01", "a"),
        ("lr<=0.1", "ab"),
        ("lr=1", "c"),
        ("-lr<0.01", "bc"),
        ("hp.optimizer=adam", "a"),
        ("optimizer=adam", "a"),
        ("net.width=64", "a"),
        ("net.depth>2", "b"),
        ("deep=true", "a"),
        ('hp."a\\"b"=1', "a"),
        ("metric<0.3", "a"),
        ("metric>0.3", "c"),
        ("-metric<0.3", "bc"),
        ("loss<=0.01", "a"),
        ("validation.loss<=0.01", ""),
        ("acc>0.8", "a"),
        ("acc>=0.7", "ac"),
        ("validation.acc=0.9", "a"),
        ("loss<0.3 lr<0.01 vision", "a"),
        ("loss<0.3 lr>0.01", ""),
    ],
)
async def test_terms_find_experiments(
    three: list[int], user: httpx.AsyncClient, query: str, found: str
) -> None:
    assert "".join(name[0] for name in await names(user, query)) == found


async def test_ids(three: list[int], user: httpx.AsyncClient) -> None:
    a, b, c = three
    assert await names(user, f"id:{a},{c}") == ["a resnet", "c resnet"]
    assert await names(user, f"id:{b}..") == ["b bert", "c resnet"]
    assert await names(user, f"id:..{b}") == ["a resnet", "b bert"]
    assert "b bert" in await names(user, str(b))


async def test_refusals(user: httpx.AsyncClient) -> None:
    for query, said in (
        ("state:lost", "there is no state 'lost'; choose active, queued"),
        ("id:x", "give id:7, id:7..20"),
        ("metric=best", "metric is compared with a number"),
        ("x" * 1001, "1000"),
        ("owner:\0", "NUL"),
    ):
        answer = await user.get("/api/v1/experiments", params={"query": query})
        assert (answer.status_code, said in answer.text) == (400, True), answer.text


async def test_hostile_names_are_values(three: list[int], user: httpx.AsyncClient) -> None:
    for query in (
        "hp.x'); DROP TABLE experiments; --=1",
        'hp."$..*"=1',
        "a\\b",
        "_%",
        'hp."\\"\\u0000"=1',
        "\U0001f600<1",
        "metrics->>'x'=1",
        "lr<1e999",
    ):
        answer = await user.get("/api/v1/experiments", params={"query": query})
        assert answer.status_code in (200, 400), (query, answer.text)
    assert len(await names(user, "")) == 3


async def test_light_experiments_lack_what_is_heavy(
    three: list[int], user: httpx.AsyncClient
) -> None:
    whole, light = await ask(user, ""), await ask(user, "", light=True)
    for one, few in zip(whole, light, strict=True):
        lacking = {"config", "originalConfig", "notes", "hyperparameters"}
        assert one.keys() - few.keys() == lacking
        assert few.pop("smallerIsBetter") == (one["name"] != "c resnet")
        assert {**few, "duration": 0} == {**{key: one[key] for key in few}, "duration": 0}


async def test_columns_are_those_of_the_best_trial(
    world: World, three: list[int], user: httpx.AsyncClient
) -> None:
    worse = await world.trial(three[0], hparams={"lr": 9})
    leg = await world.start(three[0], *worse)
    await leg.store(report(1, "validation", loss=3.0, acc=0.95))
    columns = ["hp.lr", "hp.net.width", "validation.acc", "training.loss", "validation.none"]
    found = await ask(user, "", light=True, columns=columns)
    assert [list(one["columns"].values()) for one in found] == [
        [0.001, 64, 0.9, 0.01, None],
        [0.1, None, None, None, None],
        [1, None, 0.7, None, None],
    ]
    for by, order in (("hp.lr", "abc"), ("validation.acc", "cab")):
        listed = await ask(user, "", sortBy=by)
        assert "".join(one["name"][0] for one in listed) == order
    for given, said in (
        ({"columns": "lr"}, "'lr' is neither hp.NAME nor GROUP.NAME"),
        ({"columns": ["hp.x"] * 13}, "12"),
        ({"sortBy": "hp."}, "'hp.' is neither"),
    ):
        answer = await user.get("/api/v1/experiments", params=given)
        assert (answer.status_code, said in answer.text) == (400, True), answer.text


async def test_a_query_that_takes_too_long_is_stopped(
    world: World, three: list[int], user: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from determined_service.views import experiment_query

    slow = sa.func.pg_sleep(60).is_not(None)
    monkeypatch.setitem(experiment_query._FIELDS, "name", lambda values: slow)
    monkeypatch.setattr("determined.common.wire.limits.SEARCH_S", 0.2)
    answer = await user.get("/api/v1/experiments", params={"query": "name:x"})
    assert (answer.status_code, "took too long" in answer.text) == (400, True), answer.text


async def test_the_searcher_beside_the_configuration_follows_it(
    world: World, three: list[int]
) -> None:
    changed = {"searcher": {"name": "grid", "smaller_is_better": False}, "hyperparameters": {}}
    async with world.db.tx() as conn:
        row = (
            await conn.execute(
                sa.update(experiments)
                .where(experiments.c.id == three[0])
                .values(config=changed)
                .returning(experiments.c.searcher_name, experiments.c.larger_is_better)
            )
        ).one()
    assert tuple(row) == ("grid", True)
