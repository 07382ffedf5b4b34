"""JSON that leaves the service."""

from __future__ import annotations

import json

from determined_service.base.json import by_name


def test_hyperparameters_are_sorted_by_name_at_every_level() -> None:
    # JSONB's own order: by length first.
    stored = {
        "a": 1,
        "lr": 2,
        "Zeta": [{"bb": 1, "abc": None}, "x"],
        "group": {"y": 1, "model": {}},
    }
    assert json.dumps(by_name(stored)) == (
        '{"Zeta": [{"abc": null, "bb": 1}, "x"], "a": 1, "group": {"model": {}, "y": 1}, "lr": 2}'
    )
    assert by_name(stored) == stored
    assert by_name({}) == {}
