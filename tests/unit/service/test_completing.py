"""The cache of completed submissions: equal to a new completion, bounded, and immutable."""

from __future__ import annotations

from typing import Any

import pytest

from determined import expconf
from determined_service.base.errors import BadRequest
from determined_service.base.recent import Recent
from determined_service.base.settings import Settings
from determined_service.submission import completing
from determined_service.submission.completing import complete_config

OPEN = """
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: 3}
hyperparameters: {depth: 2, sizes: [1, 2]}
"""
FIXED = f"{OPEN}name: mine\nreproducibility: {{experiment_seed: 5}}\n"


def settings(path: str = "/one") -> Settings:
    storage = {"type": "shared_fs", "host_path": path}
    return Settings.model_validate(
        {"db_url": "postgresql://", "agent_token": "x", "default_checkpoint_storage": storage}
    )


@pytest.fixture(autouse=True)
def completions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One item for each configuration that is completed, not remembered."""
    monkeypatch.setattr(completing, "_recent", Recent(3))
    made: list[Any] = []
    complete = expconf.complete

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return complete(*args, **kwargs)

    monkeypatch.setattr(completing.expconf, "complete", counted)
    return made


def test_the_same_text_is_completed_once(completions: list[Any]) -> None:
    assert complete_config(FIXED, settings()) == complete_config(FIXED, settings())
    assert len(completions) == 1


def test_a_name_and_a_seed_that_the_text_leaves_open_are_made_anew(
    completions: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = complete_config(OPEN, settings())
    monkeypatch.setattr(completing, "experiment_name", lambda: "another-name-here")
    monkeypatch.setattr(completing.time, "time", lambda: 123.9)
    second = complete_config(OPEN, settings())
    assert len(completions) == 1
    assert second["name"] == "another-name-here"
    assert second["reproducibility"]["experiment_seed"] == 123
    first |= {"name": second["name"], "reproducibility": second["reproducibility"]}
    assert first == second


def test_a_name_and_a_seed_of_the_text_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    complete_config(FIXED, settings())
    monkeypatch.setattr(completing, "experiment_name", lambda: "another-name-here")
    again = complete_config(FIXED, settings())
    assert (again["name"], again["reproducibility"]["experiment_seed"]) == ("mine", 5)


def test_a_changed_configuration_is_private() -> None:
    first = complete_config(FIXED, settings())
    first["hyperparameters"]["sizes"].append(3)
    second = complete_config(FIXED, settings())
    second["hyperparameters"]["sizes"].append(4)
    assert complete_config(FIXED, settings())["hyperparameters"]["sizes"] == [1, 2]


def test_other_defaults_and_unmanaged_experiments_are_told_apart(completions: list[Any]) -> None:
    paths = [
        complete_config(FIXED, settings(path))["checkpoint_storage"]["host_path"]
        for path in ("/one", "/two", "/one")
    ]
    assert paths == ["/one", "/two", "/one"]
    without = FIXED.replace("entrypoint: python3 train.py\n", "")
    complete_config(without, settings(), unmanaged=True)
    with pytest.raises(BadRequest, match="entrypoint"):
        complete_config(without, settings())
    assert len(completions) == 4


def test_mistakes_are_found_each_time() -> None:
    for _ in range(2):
        with pytest.raises(BadRequest, match="max_lengths"):
            complete_config(FIXED.replace("max_length", "max_lengths"), settings())


def test_long_texts_are_not_remembered(completions: list[Any]) -> None:
    comment = f"{FIXED}# {'x' * completing.REMEMBERED_CHARACTERS}\n"
    for _ in range(2):
        complete_config(comment, settings())
    assert len(completions) == 2


def test_recent_keeps_the_last_read_values() -> None:
    recent: Recent[int, str] = Recent(2)
    recent.put(1, "one")
    recent.put(2, "two")
    assert recent.get(1) == "one"
    recent.put(3, "three")
    assert [recent.get(key) for key in (1, 2, 3)] == ["one", None, "three"]
