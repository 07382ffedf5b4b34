"""The reading of the engine's answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import requests

from determined_deployments.agent.launchers.docker import launcher
from determined_tasks.containers import engine
from determined_tasks.containers.engine import EngineUnavailable

docker = pytest.importorskip("docker")


def client_that_answers(status: int) -> Any:
    answer = requests.Response()
    answer.status_code = status
    answer.url = "http+docker://localhost/containers/c1"
    answer._content = b'{"message": "device or resource busy"}' if status >= 300 else b""
    raise_for_status = docker.api.client.APIClient._raise_for_status
    return SimpleNamespace(
        base_url="http+docker://localhost",
        api_version="1.44",
        request=lambda method, url, **options: answer,
        _raise_for_status=lambda given: raise_for_status(None, given),
    )


@pytest.mark.parametrize("status", [204, 404, 409])
def test_a_container_that_goes_is_removed(status: int) -> None:
    engine.remove(client_that_answers(status), "c1")


def test_a_removal_that_fails_in_the_engine_is_tried_again() -> None:
    with pytest.raises(EngineUnavailable, match=r"did not remove c1.*device or resource busy"):
        engine.remove(client_that_answers(500), "c1")


def test_other_refusals_are_errors() -> None:
    with pytest.raises(docker.errors.APIError):
        engine.remove(client_that_answers(400), "c1")


async def test_the_agent_asks_until_the_engine_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "RETRY_SECONDS", 0)
    tries = []

    def ask() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise EngineUnavailable("it is away")
        return "done"

    assert await launcher._insist(ask) == "done"
    assert len(tries) == 3
