"""A search method in an experiment acts with its task's token."""

from __future__ import annotations

from typing import Any

import pytest

from determined.experimental import Determined
from determined.searcher._runner import login
from tests.unit.sdk.fake_service import URL, FakeService


def test_the_tasks_token_is_used_though_the_owner_is_named_in_the_environment(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = service.token_for("ann")
    task = {"DET_MASTER": URL, "DET_SESSION_TOKEN": token, "DET_USER": "ann"}
    for name, value in task.items():
        monkeypatch.setenv(name, value)
    client = Determined(transport=service.transport)
    assert client._session.token == token


def test_a_given_session_is_the_login(client: Any) -> None:
    assert login(client._session)._session is client._session
