"""``resources.placement`` and ``resources.fallback``: their forms, and messages about mistakes."""

from typing import Any

import pytest
from expconf_examples import MINIMAL, STORAGE

from determined.expconf import ConfigError, complete, load_yaml


def resources(text: str) -> dict[str, Any]:
    found: dict[str, Any] = complete(load_yaml(f"{MINIMAL}resources: {text}\n"), defaults=STORAGE)[
        "resources"
    ]
    return found


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        complete(load_yaml(f"{MINIMAL}resources: {text}\n", "c.yaml"), defaults=STORAGE)
    return [line.partition(": ")[2] for line in str(caught.value).splitlines()]


def test_forms() -> None:
    found = resources("{placement: {agents: [a], labels: {gpu: a100, rack: 7, zone: [eu, us]}}}")
    assert found["placement"] == {
        "agents": ["a"],
        "labels": {"gpu": ["a100"], "rack": ["7"], "zone": ["eu", "us"]},
    }
    assert resources("{}")["placement"] is None
    for text, expected in (
        ("spot", {"pools": ["spot"], "after_seconds": 300}),
        ("[spot, large]", {"pools": ["spot", "large"], "after_seconds": 300}),
        ("{pools: [spot], after_seconds: 0}", {"pools": ["spot"], "after_seconds": 0}),
    ):
        assert resources(f"{{fallback: {text}}}")["fallback"] == expected
    # Completing a completed configuration changes nothing.
    again = complete({**load_yaml(MINIMAL).data, "resources": found}, defaults=STORAGE)
    assert again["resources"] == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "{placement: {label: {gpu: a}}}",
            "resources.placement.label: unknown field; did you mean 'labels'? (allowed: agents, labels)",
        ),
        ("{placement: {agents: a1}}", "resources.placement.agents: expected a list, found 'a1'"),
        (
            "{placement: {labels: {gpu: [a, 1.5]}}}",
            "resources.placement.labels.gpu[1]: expected text, found 1.5; put it in quotes: '1.5'",
        ),
        (
            "{placement: {labels: {gpu: []}}}",
            "resources.placement.labels.gpu: must not be empty",
        ),
        (
            "{resource_pool: a, fallback: [b, a]}",
            "resources.fallback[1]: 'a' is the pool that it leads away from: leave it out",
        ),
        (
            "{fallback: {after_seconds: 3}}",
            "resources.fallback.pools: required field is missing",
        ),
    ],
)
def test_mistakes(text: str, expected: str) -> None:
    assert problems(text) == [expected]
