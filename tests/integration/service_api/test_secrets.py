"""Secrets of configurations: every route that reads, asked by everybody."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
import yaml

from determined.expconf.problems import MASK
from determined_registry.database.tables import experiments
from determined_service.access.rules import Action
from determined_service.reference import declared_rules
from tests.integration.service_api.test_checkpoints import store
from tests.integration.service_api.test_who_may import (
    API,
    Mine,
    People,
    _Anything,
    mine_in,
    model_of,
    people,
)
from tests.integration.service_api.world import SEARCHER, World

__all__ = ["people"]

KEY, PASSWORD, VARIABLE, IN_ADDRESS = "s3-key-of-mine", "hunter2-of-mine", "v-of-mine", "u-of-mine"
SECRETS = (KEY, PASSWORD, VARIABLE, IN_ADDRESS)
STORAGE = {"type": "s3", "bucket": "b", "access_key": "id-of-mine", "secret_key": KEY}
CONFIG: dict[str, Any] = {
    "name": "mine",
    "entrypoint": "python3 train.py",
    "searcher": SEARCHER | {"max_trials": 1, "max_length": {"batches": 1}},
    "hyperparameters": {},
    "checkpoint_storage": STORAGE,
    "environment": {
        "registry_auth": {"username": "me", "password": PASSWORD},
        "environment_variables": [f"ANY_NAME={VARIABLE}"],
    },
    "data": {"url": f"postgresql://me:{IN_ADDRESS}@db/x"},
}


async def secretive(world: World) -> Mine:
    """A running leg of an experiment with secrets, and a checkpoint with a different storage."""
    original = "# a note with hunter2-of-mine\n" + yaml.safe_dump(CONFIG)
    leg = await world.leg(config=CONFIG, original_config=original)
    checkpoint = await store(leg, 1, storage=STORAGE)
    async with world.db.tx() as conn:
        owner = await conn.execute(
            sa.select(experiments.c.owner_id).where(experiments.c.id == leg.experiment_id)
        )
    owner_id = owner.scalar_one()
    model = await model_of(world, leg, owner_id, storage=STORAGE)
    return Mine(leg, checkpoint, owner_id, model)


def held(answer: httpx.Response) -> list[str]:
    """The secrets in the answer."""
    return [secret for secret in SECRETS if secret in answer.text]


async def reads(client: httpx.AsyncClient, mine: Mine) -> dict[str, list[str]]:
    """By route, the secrets in its answer, for every reading route and the object ``mine``."""
    values = _Anything(mine.path | {"task_id": mine.leg.task_id})
    found = {}
    for (method, path), rules in declared_rules().items():
        if not rules or rules[0].action != Action.READ:
            continue
        answer = await client.request(
            method, path.format_map(values), params={"timeout_s": 0}, json={}
        )
        if secrets := held(answer):
            found[f"{method} {path}"] = secrets
    return found


SHOW = {
    f"GET {API}/experiments": [*SECRETS],
    f"GET {API}/experiments/{{experiment_id}}": [*SECRETS],
    f"GET {API}/experiments/{{experiment_id}}/checkpoints": [*SECRETS],
    f"GET {API}/trials/{{trial_id}}/checkpoints": [*SECRETS],
    f"GET {API}/checkpoints/{{uuid}}": [*SECRETS],
    f"GET {API}/tasks/{{task_id}}": [*SECRETS],
    f"GET {API}/tasks/{{task_id}}/config": [*SECRETS],
    f"GET {API}/models/{{model_name}}/versions": [*SECRETS],
    f"GET {API}/models/{{model_name}}/versions/{{version}}": [*SECRETS],
    f"GET {API}/models/{{model_name}}/aliases/{{alias}}": [*SECRETS],
}
"""What shows secrets to those who may see them. A new route in this list asks `views/secrets.py`."""
CHECKPOINTS = [route for route in SHOW if "checkpoint" in route or "models" in route]


async def test_the_owner_and_administrators_see_secrets_and_others_none(
    world: World, people: People
) -> None:
    mine = await secretive(world)
    assert await reads(people.owner, mine) == SHOW
    assert await reads(people.admin, mine) == SHOW
    assert await reads(mine.leg.client, mine) == SHOW
    assert await reads(people.stranger, mine) == {}


async def test_another_trial_of_the_owner_sees_the_storage_of_checkpoints_only(
    world: World, people: People
) -> None:
    mine, other = await secretive(world), await world.leg()
    assert await reads(other.client, mine) == {route: [KEY] for route in CHECKPOINTS}
    submitted = await world.leg(config=CONFIG, submitted_by=other.task_id)
    answer = await other.client.get(f"{API}/experiments/{submitted.experiment_id}")
    assert held(answer) == [*SECRETS]


async def test_a_stranger_gets_the_rest(world: World, people: People) -> None:
    mine = await secretive(world)
    path = f"{API}/experiments/{mine.leg.experiment_id}"
    answer = (await people.stranger.get(path)).json()
    config = answer["config"]
    assert config["checkpoint_storage"] == STORAGE | {"access_key": MASK, "secret_key": MASK}
    assert config["environment"] == {
        "registry_auth": {"username": "me", "password": MASK},
        "environment_variables": [f"ANY_NAME={MASK}"],
    }
    assert config["data"] == {"url": f"postgresql://me:{MASK}@db/x"}
    assert config["searcher"] == CONFIG["searcher"]
    assert yaml.safe_load(answer["experiment"]["originalConfig"]) == config
    checkpoint = (await people.stranger.get(f"{API}/checkpoints/{mine.checkpoint}")).json()
    assert checkpoint["checkpoint"]["storage"]["secret_key"] == MASK


async def test_answers_to_changes_show_no_more(world: World, people: People) -> None:
    """Another user's experiment, found by a submission's key, is masked."""
    body = {"config": yaml.safe_dump(CONFIG), "unmanaged": True}
    address = f"{API}/experiments/by-external-id/mine"
    assert held(await people.owner.put(address, json=body)) == [*SECRETS]
    body["config"] = "{name: theirs, searcher: {name: custom, metric: loss}}"
    answer = await people.stranger.put(address, json=body)
    assert (answer.status_code, held(answer)) == (200, [])


async def test_a_masked_configuration_is_not_submitted(world: World, people: People) -> None:
    mine = await secretive(world)
    shown = (await people.stranger.get(f"{API}/experiments/{mine.leg.experiment_id}")).json()
    for text in (json.dumps(shown["config"]), shown["experiment"]["originalConfig"]):
        answer = await people.stranger.post(
            f"{API}/experiments", json={"config": text, "parentId": mine.leg.experiment_id}
        )
        assert answer.status_code == 400
        for field in (
            "checkpoint_storage.secret_key",
            "environment.registry_auth.password",
            "environment.environment_variables[0]",
            "data.url",
        ):
            assert f"{field}: holds {MASK}, which stands for a secret" in answer.text, answer.text


async def test_the_clusters_default_storage_is_known_to_all(world: World, people: People) -> None:
    mine = await mine_in(world)
    settings = world.app.state.settings
    config = CONFIG | {"checkpoint_storage": STORAGE}
    theirs = await world.leg(config=config)
    world.app.state.settings = settings.model_copy(update={"default_checkpoint_storage": STORAGE})
    answer = await people.stranger.get(f"{API}/experiments/{theirs.experiment_id}")
    assert held(answer) == [KEY]
    assert (
        mine.checkpoint in (await people.stranger.get(f"{API}/checkpoints/{mine.checkpoint}")).text
    )


@pytest.mark.parametrize("text", ["{a: [}", "- 1", "&a [*a]", "!!python/object:os.system {}", "7"])
async def test_texts_that_are_not_a_configuration_are_not_shown(
    world: World, people: People, text: str
) -> None:
    leg = await world.leg(config=CONFIG, original_config=text)
    answer = await people.stranger.get(f"{API}/experiments/{leg.experiment_id}")
    assert answer.json()["experiment"]["originalConfig"] == ""
