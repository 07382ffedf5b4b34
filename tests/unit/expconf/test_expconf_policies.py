"""Config policies: what may stand in one."""

from __future__ import annotations

import pytest

from determined import expconf


def check(text: str, *, of_tasks: bool = False) -> dict[str, object]:
    return expconf.check_policy(expconf.load_yaml(text, "p.yaml"), of_tasks=of_tasks)


def problem(text: str, *, of_tasks: bool = False) -> str:
    with pytest.raises(expconf.ConfigError) as caught:
        check(text, of_tasks=of_tasks)
    return str(caught.value)


def test_a_policy_is_kept_as_it_was_written() -> None:
    text = """
invariant_config: {resources: {slots_per_trial: 2}, searcher: {max_trials: 3}}
constraints: {resources: {max_slots: 4}, priority_limit: 10}
"""
    assert check(text) == {
        "invariant_config": {"resources": {"slots_per_trial": 2}, "searcher": {"max_trials": 3}},
        "constraints": {"resources": {"max_slots": 4}, "priority_limit": 10},
    }
    # JSON is YAML.
    assert check('{"constraints": {"priority_limit": 1}}') == {"constraints": {"priority_limit": 1}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("constrains: {}\n", "p.yaml:1: constrains: unknown field; did you mean 'constraints'?"),
        (
            "constraints:\n  resources: {max_slot: 1}\n",
            "p.yaml:2: constraints.resources.max_slot: unknown field; did you mean 'max_slots'?",
        ),
        (
            "\nconstraints: {priority_limit: 100}\n",
            "p.yaml:2: constraints.priority_limit: must be at most 99, found 100",
        ),
        ("priority_limit: 3\n", "did you mean 'constraints.priority_limit'?"),
        (
            "invariant_config:\n  resources:\n    prioritee: 3\n",
            "p.yaml:3: invariant_config.resources.prioritee: unknown field; did you mean 'priority'?",
        ),
        ("invariant_config: {max_restarts: many}\n", "expected an integer, found 'many'"),
        ("invariant_config: [1]\n", "invariant_config: expected a mapping, found a list"),
        ("invariant_config: {workspace: a}\n", "a policy cannot say where things go"),
        ("constraints: {}\n", "the policy says nothing"),
        (
            "constraints: {resources: {max_slots: 4}}\ninvariant_config: {resources: {max_slots: 5}}\n",
            "invariant_config.resources.max_slots: must be at most 4",
        ),
        (
            "invariant_config: {checkpoint_storage: {type: s3, bucket: b, secret_key: '********'}}\n",
            "invariant_config.checkpoint_storage.secret_key",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(text: str, words: str) -> None:
    assert words in problem(text)


def test_of_tasks_each_kinds_fields_are_known() -> None:
    text = "invariant_config: {idle_timeout: 5m, tensorboard_args: [a], resources: {slots: 1}}\n"
    assert check(text, of_tasks=True)
    assert "idle_timeout: unknown field" in problem(text)
    misspelt = "invariant_config:\n  work_dirr: /x\n"
    assert "p.yaml:2: invariant_config.work_dirr" in problem(misspelt, of_tasks=True)
    too_much = (
        "invariant_config: {resources: {slots: 5}}\nconstraints: {resources: {max_slots: 4}}\n"
    )
    assert "must be at most 4" in problem(too_much, of_tasks=True)


def test_values_above_win_and_lists_are_merged() -> None:
    text = """
name: mine
entrypoint: python3 train.py
max_restarts: 9
labels: [mine]
searcher: {name: single, metric: loss, max_length: {batches: 5}}
"""
    above = {"max_restarts": 1, "labels": ["ours"]}
    storage = {"checkpoint_storage": {"type": "directory", "container_path": "/x"}}
    found = expconf.complete(expconf.load_yaml(text), defaults=storage, above=above)
    assert found["max_restarts"] == 1
    assert sorted(found["labels"]) == ["mine", "ours"]
