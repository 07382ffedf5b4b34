"""What `det retrain list` says."""

from __future__ import annotations

from typing import Any

import pytest

from determined.cli.retrain import _events


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, None),
        ([], None),
        ([{"new_data": {"every_s": 600.0}, "alias": None}], "new data (every 600 s)"),
        (
            [{"live_metric": {"metric": "loss", "below": None, "above": 0.9, "last": 5}}],
            "loss above 0.9 (mean of 5)",
        ),
        (
            [
                {"alias": {"model": "base", "alias": "champion", "cooldown_s": 0.0}},
                {"experiment": {"id": 12, "label": None, "name": None, "best": True}},
            ],
            "champion of base; best of experiment 12",
        ),
        (
            [{"experiment": {"id": None, "label": "nightly", "name": None, "best": False}}],
            "end of an experiment with the label nightly",
        ),
    ],
)
def test_events_in_words(given: list[dict[str, Any]] | None, words: str | None) -> None:
    assert _events(given) == words
