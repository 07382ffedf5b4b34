"""The published `det preview-search` against this service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.compat.upstream_client import UpstreamClient

# The first test may have to install the client.
pytestmark = pytest.mark.timeout(900)

CONFIGS = Path(__file__).parents[1] / "fixtures/preview"


def rows(printed: str) -> list[tuple[int, str]]:
    """The table below the configuration."""
    _, _, table = printed.partition("Training Time")
    lines = [line.split("|") for line in table.splitlines() if "|" in line]
    return [(int(count), words.strip()) for count, words in lines]


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "adaptive_asha": [
            (9, "train for 62 batches"),
            (5, "train for 250 batches"),
            (2, "train for 1000 batches"),
        ],
        # Refused by the published service; ours keeps this searcher.
        "async_halving": [
            (11, "train for 1 epochs"),
            (4, "train for 3 epochs"),
            (1, "train for 9 epochs"),
        ],
        "nested_grid": [(12, "train for 4 epochs")],
        "time_metric": [
            (9, "train for 62 batches"),
            (5, "train for 250 batches"),
            (2, "train for 1000 batches"),
        ],
    }.items(),
)
def test_the_table(upstream: UpstreamClient, name: str, expected: list[tuple[int, str]]) -> None:
    printed = upstream.det("preview-search", str(CONFIGS / f"{name}.yaml")).stdout
    assert rows(printed) == expected
    head, _, _ = printed.partition("Trials |")
    shown = yaml.safe_load(head.partition("Using search configuration:")[2])
    assert (
        shown["name"] == yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())["searcher"]["name"]
    )
    assert None not in shown.values()


def test_trials_that_train_to_completion(upstream: UpstreamClient, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        json.dumps(
            {"searcher": {"name": "random", "metric": "x", "max_trials": 3}, "entrypoint": "t"}
        )
    )
    assert rows(upstream.det("preview-search", str(path)).stdout) == [(3, "train to completion")]


def test_a_mistake_is_named(upstream: UpstreamClient, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({"searcher": {"name": "random", "metric": "x", "max_trials": 0}}))
    said = upstream.det("preview-search", str(path), code=1).stderr
    assert "searcher.max_trials: must be at least 1, found 0" in said
