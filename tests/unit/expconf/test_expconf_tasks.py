"""Configurations of commands, notebooks, shells, TensorBoards and generic tasks."""

from __future__ import annotations

from typing import Any

import pytest

from determined.expconf import ConfigError, load_yaml
from determined.expconf.tasks import (
    CommandConfig,
    GenericConfig,
    NotebookConfig,
    ShellConfig,
    TaskConfig,
    TensorboardConfig,
    check_task,
    complete_task,
)

KINDS = [CommandConfig, NotebookConfig, ShellConfig, TensorboardConfig, GenericConfig]
DEFAULTS: dict[str, Any] = {
    "environment": {"image": "cluster:1", "environment_variables": ["A=cluster", "B=2"]},
    "resources": {"shm_size": "1G", "slots": 9},
    "bind_mounts": [{"host_path": "/data", "container_path": "/data"}],
    "log_policies": [],
    "preemption_timeout": 4,
}


def complete(text: str, root: type[TaskConfig] = CommandConfig, **more: Any) -> dict[str, Any]:
    return complete_task(load_yaml(text, "c.yaml"), root, **more)


def problems(text: str, root: type[TaskConfig] = CommandConfig) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        check_task(load_yaml(text, "c.yaml"), root)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("root", KINDS)
def test_complete_values_stay_as_they_are(root: type[TaskConfig]) -> None:
    found = complete("{resources: {slots: 2}}", root, defaults=DEFAULTS)
    assert complete_task(found, root, defaults=DEFAULTS) == found
    assert found["resources"]["slots"] == 2


@pytest.mark.parametrize(("root", "slots"), [(kind, 1) for kind in KINDS if kind is not TensorboardConfig]
                         + [(TensorboardConfig, 0)])  # fmt: skip
def test_slots_without_a_word_about_them(root: type[TaskConfig], slots: int) -> None:
    assert complete("{}", root)["resources"]["slots"] == slots


def test_the_clusters_defaults_are_beneath() -> None:
    given = "environment: {environment_variables: [A=own]}\nresources: {shm_size: 5}"
    found = complete(given, defaults=DEFAULTS)
    assert found["environment"]["image"]["cpu"] == "cluster:1"
    # The later one of a name counts.
    variables = dict(one.split("=") for one in found["environment"]["environment_variables"]["cpu"])
    assert variables == {"A": "own", "B": "2"}
    assert found["resources"]["shm_size"] == 5
    assert [mount["host_path"] for mount in found["bind_mounts"]] == ["/data"]
    # What only experiments, or generic tasks, have.
    assert "log_policies" not in found and "preemption_timeout" not in found
    assert complete("{}", GenericConfig, defaults=DEFAULTS)["preemption_timeout"] == 4


@pytest.mark.parametrize("root", [NotebookConfig, ShellConfig, TensorboardConfig])
def test_durations(root: type[TaskConfig]) -> None:
    assert complete("idle_timeout: 1h30m", root)["idle_timeout"] == "1h30m"
    assert problems("idle_timeout: 5", root) == [
        "c.yaml:1: idle_timeout: expected a duration with its unit, such as '5s' or '5m', found 5"
    ]
    assert problems("idle_timeout: '5'", root) == [
        "c.yaml:1: idle_timeout: expected a duration with its unit, such as '30s', '5m' or '1h30m', found '5'"
    ]


@pytest.mark.parametrize(
    ("text", "root", "expected"),
    [
        (
            "resources: {slots_per_trial: 2}",
            CommandConfig,
            "c.yaml:1: resources.slots_per_trial: unknown field; did you mean 'slots'? (a task has slots, "
            "trials have slots_per_trial)",
        ),
        (
            "entrypoint: 5",
            CommandConfig,
            "c.yaml:1: entrypoint: expected a command, as text or as a list of words, found 5",
        ),
        ("entrypoint: []", CommandConfig, "c.yaml:1: entrypoint: must not be empty"),
        (
            "resources: {slots: -1}",
            NotebookConfig,
            "c.yaml:1: resources.slots: must be at least 0, found -1",
        ),
        (
            "resources: {priority: 100}",
            ShellConfig,
            "c.yaml:1: resources.priority: must be at most 99, found 100",
        ),
        (
            "notebook_idle_type: never",
            NotebookConfig,
            "c.yaml:1: notebook_idle_type: found 'never' (allowed: kernels_or_terminals, "
            "kernel_connections, activity)",
        ),
        (
            "tensorboard_args: --x",
            TensorboardConfig,
            "c.yaml:1: tensorboard_args: expected a list, found '--x'",
        ),
        (
            "preemption_timeout: 0",
            GenericConfig,
            "c.yaml:1: preemption_timeout: must be at least 1, found 0",
        ),
    ],
)
def test_mistakes(text: str, root: type[TaskConfig], expected: str) -> None:
    assert problems(text, root) == [expected]


def test_all_mistakes_at_once_and_no_secret_among_them() -> None:
    text = "idle_timeout: 5\nenvironment: {environment_variables: [hunter2]}\nslots: 1\n"
    found = problems(text, ShellConfig)
    assert sorted(line.split(":")[2].strip() for line in found) == [
        "environment.environment_variables[0]",
        "idle_timeout",
        "slots",
    ]
    assert "hunter2" not in "".join(found)


def test_a_masked_secret_is_not_a_secret() -> None:
    (found,) = problems("environment: {environment_variables: ['A=********']}")
    assert "write the secret itself, or leave the field out" in found


@pytest.mark.parametrize("field", ["idle_timeout", "tensorboard_args", "preemption_timeout"])
def test_fields_of_other_kinds_are_unknown(field: str) -> None:
    (found,) = problems(f"{field}: 5m")
    assert found.startswith(f"c.yaml:1: {field}: unknown field")
