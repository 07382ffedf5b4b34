"""Images that a registry has, with and without a password."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from tests import container_engine
from tests.integration.containers.conftest import ContainerLegs
from tests.integration.containers.registry import Registry

AUTH = base64.b64encode(b"ann:open sesame").decode()


@pytest.fixture
def registry(engine: None) -> Iterator[Registry]:
    made = Registry("ann:open sesame")
    yield made
    container_engine.remove_image(f"{made.address}/own:1")
    made.close()


@pytest.mark.parametrize(
    ("auth", "said"),
    [
        (None, "asks for a login: set environment.registry_auth"),
        ({"username": "ann", "password": "wrong"}, "does not accept environment.registry_auth"),
        (
            {"auth": "not base64"},
            "environment.registry_auth.auth: expected base64 of user:password",
        ),
    ],
)
async def test_a_refused_pull_names_registry_auth(
    legs: ContainerLegs, registry: Registry, auth: dict[str, str] | None, said: str
) -> None:
    config = {"environment": {"image": f"{registry.address}/own:1", "registry_auth": auth}}
    ended = await legs.run({}, config, entrypoint=["/hello"])
    assert ended["kind"] == "failed_to_start"
    assert said in ended["reason"]
    assert registry.pulls == 0


async def test_an_image_is_pulled_once_and_again_by_force(
    legs: ContainerLegs, registry: Registry
) -> None:
    image = f"{registry.address}/own:1"
    config = {"image": image, "registry_auth": {"auth": AUTH}}
    for number, force in ((1, False), (2, False), (3, True)):
        settings = {"environment": {**config, "force_pull_image": force}}
        ended = await legs.run({}, settings, entrypoint=["/hello"], allocation_id=f"7.abc.{number}")
        # The image has one file, which is not a program.
        assert "entrypoint not found in image" in ended["reason"], ended
        assert image in ended["reason"]
    assert legs.words().count(f"pulling image {image}\n") == 2
    assert legs.words().count(f"pulled image {image} in") == 2


async def test_a_tag_that_the_registry_does_not_have_is_not_tried_again(
    legs: ContainerLegs, registry: Registry
) -> None:
    image = f"{registry.address}/own:2"
    config = {"environment": {"image": image, "registry_auth": {"auth": AUTH}}}
    ended = await legs.run({}, config, entrypoint=["/hello"])
    assert ended["kind"] == "failed_to_start"
    assert f"image {image} does not exist: check environment.image" in ended["reason"]


async def test_an_unreachable_registry_is_not_the_trainings_fault(legs: ContainerLegs) -> None:
    registry = Registry()
    image = f"{registry.address}/own:1"
    registry.close()
    ended = await legs.run({}, {"environment": {"image": image}}, entrypoint=["/hello"])
    assert ended["kind"] == "infrastructure"
    assert f"image {image} cannot be pulled" in ended["reason"]
