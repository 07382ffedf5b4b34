"""Config policies: what holds where, and how limits are read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from determined_service.base.errors import BadRequest
from determined_service.base.policies import (
    PriorityOrder,
    above,
    limit_priority,
    limit_slots,
    overridden,
    require_change,
)
from determined_service.base.policy import EXPERIMENT, TASKS, Held, Policies
from determined_service.base.settings import Settings

AGENTS, PODS = PriorityOrder("a", False, 42), PriorityOrder("p", True, 50)


def held(*, workload: str = EXPERIMENT, **policies: Any) -> Held:
    """Of workspace 3, ``vision``. ``everywhere``, ``here``: the policies."""
    places = {"everywhere": None, "here": 3}
    known = {(workload, places[name]): json.dumps(one).encode() for name, one in policies.items()}
    return Policies(known).of(workload, 3, "vision")


def test_a_policy_holds_in_its_workspace_for_its_workload() -> None:
    known = {(EXPERIMENT, None): b"{}", (EXPERIMENT, 3): b"{}", (TASKS, 4): b"{}"}
    policies = Policies(known)
    whose = [one.whose for one in policies.of(EXPERIMENT, 3, "vision")]
    assert whose == ["the global config policy", "the config policy of workspace vision"]
    assert [one.whose for one in policies.of(EXPERIMENT, 4, "b")] == whose[:1]
    assert policies.of(TASKS, 3, "vision") == ()
    assert Policies().of(EXPERIMENT, 3, "vision") == ()


def test_what_was_read_later_stays() -> None:
    settings = Settings(db_url="postgresql://x", agent_token="t" * 32, prefect_api_url="http://x")
    copy = settings.model_copy(update={"port": 1})
    first, second = settings.next_turn(), copy.next_turn()
    newer = Policies({(TASKS, None): b"{}"})
    copy.put_policies_in_force(newer, second)
    settings.put_policies_in_force(Policies(), first)
    assert settings.policies is newer
    settings.put_policies_in_force(Policies(), settings.next_turn())
    assert copy.policies.known == {}


def test_the_strongest_policy_that_sets_a_value_is_named() -> None:
    both = held(
        everywhere={"invariant_config": {"a": 1, "c": {"d": 1}}},
        here={"invariant_config": {"a": 2, "b": 2, "c": {"e": 2}}},
    )
    assert above(both) == {"a": 1, "b": 2, "c": {"d": 1, "e": 2}}
    assert overridden(both, {"a": 3, "b": 2, "c": 5, "z": 9}) == [
        "a is 1, not 3: the global config policy says so",
        "c is not as it was given: the global config policy says so",
    ]
    assert overridden((), {"a": 3}) == []


def test_tasks_keep_their_slots() -> None:
    tasks = held(workload=TASKS, here={"invariant_config": {"resources": {"weight": 2}}})
    given = {"resources": {"slots": 4, "weight": 3}}
    assert overridden(tasks, given) == [
        "resources.weight is 2, not 3: the config policy of workspace vision says so"
    ]
    tasks = held(workload=TASKS, here={"invariant_config": {"resources": {"slots": 0}}})
    assert above(tasks)["resources"] == {"slots": 0}
    assert "resources.slots is 0, not 4" in overridden(tasks, given)[0]


@pytest.mark.parametrize(
    ("order", "priority", "expected"),
    [
        (AGENTS, 30, 30),
        (AGENTS, 29, None),
        (AGENTS, 99, 99),
        (PODS, 10, 10),
        (PODS, 11, None),
        (PODS, 1, 1),
        # The stricter limit: 30 with agents, 10 with pods.
        (AGENTS, 15, None),
        (PODS, 20, None),
    ],
)
def test_the_stricter_limit_of_priorities(
    order: PriorityOrder, priority: int, expected: int | None
) -> None:
    both = held(
        everywhere={"constraints": {"priority_limit": 10}},
        here={"constraints": {"priority_limit": 30}},
    )
    if expected is not None:
        assert limit_priority(both, priority, order, "priority") == (expected, [])
        return
    with pytest.raises(BadRequest, match=f"priority: {priority} is more important than"):
        limit_priority(both, priority, order, "priority")


def test_what_sets_no_priority_gets_no_more_important_one_than_the_limit() -> None:
    strict = held(here={"constraints": {"priority_limit": 45}})
    assert limit_priority(strict, None, AGENTS, "priority")[0] == 45
    assert limit_priority(strict, None, PODS, "priority")[0] == 45
    heedless = PriorityOrder("f", False, None)
    assert limit_priority(strict, None, heedless, "priority") == (None, [])
    loose = held(here={"constraints": {"priority_limit": 1}})
    assert limit_priority(loose, None, AGENTS, "priority") == (None, [])


def test_a_trial_without_a_number_of_slots_takes_one() -> None:
    none = held(here={"constraints": {"resources": {"max_slots": 0}}})
    with pytest.raises(BadRequest, match="slots_per_trial: 1 found, at most 0 are allowed"):
        limit_slots(none, {"slots_per_trial": None})
    assert limit_slots(none, {"slots_per_trial": 0})[0]["max_slots"] == 0


def test_a_prescribed_value_cannot_be_changed_later() -> None:
    fixed = held(here={"invariant_config": {"resources": {"resource_pool": "a"}}})
    require_change(fixed, {"resource_pool": "a", "priority": 3})
    with pytest.raises(BadRequest, match="resource_pool: it is 'a' and cannot be 'b'"):
        require_change(fixed, {"resource_pool": "b"})
