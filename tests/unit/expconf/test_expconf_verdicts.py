"""Our models accept and refuse the same configurations as Determined's schema."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from expconf_examples import STORAGE

from determined.expconf import ConfigError, complete, load_yaml
from tests.expconf_verdicts import REFUSED, TAKEN

BASE = {"entrypoint": "x", "searcher": {"name": "single", "metric": "loss"}}


def _complete(piece: dict[str, Any]) -> dict[str, Any]:
    return complete(load_yaml(yaml.safe_dump(BASE | piece)), defaults=STORAGE)


@pytest.mark.parametrize("piece", TAKEN, ids=str)
def test_taken(piece: dict[str, Any]) -> None:
    image = _complete(piece)["environment"]["image"]
    assert all(name.startswith("determinedai/environments:") for name in image.values())


@pytest.mark.parametrize("piece", REFUSED, ids=str)
def test_refused(piece: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        _complete(piece)


def test_a_users_own_image() -> None:
    images = _complete({"environment": {"image": {"cuda": "mine"}}})["environment"]["image"]
    assert images["cuda"] == "mine"
    assert images["cpu"].startswith("determinedai/environments:")
