"""What a configuration asks of the scheduler in vain is said."""

from __future__ import annotations

from typing import Any

import pytest

from determined_service.scheduling.unheeded import remarks


@pytest.mark.parametrize(
    ("resources", "settings"),
    [
        ({}, []),
        ({"priority": None, "weight": 1.0}, []),
        ({"priority": 42}, ["resources.priority (42)"]),
        ({"weight": 2.5}, ["resources.weight (2.5)"]),
        ({"priority": 1, "weight": 0}, ["resources.priority (1)", "resources.weight (0)"]),
    ],
)
def test_settings_that_are_not_heeded(resources: dict[str, Any], settings: list[str]) -> None:
    found = remarks({"resources": resources})
    assert [words.split(" is stored")[0] for words in found] == settings
    assert all(words.endswith("first in, first out") for words in found)
