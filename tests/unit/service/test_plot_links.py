"""Links that open one page without a login, and no other page."""

from __future__ import annotations

from typing import Any

import pytest

from determined_service.base.settings import Settings
from determined_service.plots import links


def settings(**values: Any) -> Settings:
    given = {"db_url": "postgresql:///x", "agent_token": "secret", "cluster_id": "c-1", **values}
    return Settings.model_validate(given)


def test_a_key_opens_one_experiment_of_one_cluster() -> None:
    key = links.key_of(settings(), 7)
    assert links.is_key(settings(), 7, key)
    assert not links.is_key(settings(), 8, key)
    assert not links.is_key(settings(cluster_id="c-2"), 7, key)
    assert not links.is_key(settings(agent_token="other"), 7, key)
    for wrong in ("", key[:-1], f"{key}A", "é", key.swapcase()):
        assert not links.is_key(settings(), 7, wrong)


def test_a_key_does_not_hold_the_secret() -> None:
    key = links.key_of(settings(agent_token="a-long-agent-token"), 7)
    assert len(key) == 32
    assert "token" not in key


@pytest.mark.parametrize(
    ("values", "base"),
    [
        ({}, "http://127.0.0.1:8080"),
        ({"host": "0.0.0.0", "port": 81}, "http://127.0.0.1:81"),
        ({"host": "::"}, "http://127.0.0.1:8080"),
        ({"host": "fd00::1"}, "http://[fd00::1]:8080"),
        ({"host": "10.0.0.5"}, "http://10.0.0.5:8080"),
        ({"public_url": "https://det.example/"}, "https://det.example"),
    ],
)
def test_the_address_for_browsers(values: dict[str, Any], base: str) -> None:
    made = settings(**values)
    assert links.link(made, 3) == f"{base}/plots/experiments/3/{links.key_of(made, 3)}"
