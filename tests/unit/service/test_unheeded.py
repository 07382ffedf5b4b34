"""What a configuration asks of its pool's scheduler in vain is said."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from determined.common.cluster_config.scheduler import SchedulerType
from determined_service.scheduling.unheeded import ORDERS, remarks
from determined_service.views.values import SCHEDULER_TYPES

NAMED = {"priority": "resources.priority (7)", "weight": "resources.weight (2.5)"}


@pytest.mark.parametrize(
    ("scheduler", "unheeded"),
    [
        ("priority", ["weight"]),
        ("fair_share", ["priority"]),
        ("round_robin", ["priority", "weight"]),
        ("first_in_first_out", ["priority", "weight"]),
    ],
)
def test_each_scheduler_heeds_its_own_settings(scheduler: str, unheeded: list[str]) -> None:
    found = remarks({"resources": {"priority": 7, "weight": 2.5}}, "gpu", scheduler)
    assert [words.split(" is stored but not heeded: ")[0] for words in found] == [
        NAMED[one] for one in unheeded
    ]
    assert all("resource pool 'gpu' serves " in words for words in found)


@pytest.mark.parametrize("resources", [{}, {"priority": None, "weight": 1.0}])
def test_what_is_not_set_needs_no_remark(resources: dict[str, Any]) -> None:
    assert remarks({"resources": resources}, "gpu", "round_robin") == []


def test_every_scheduler_has_words_and_a_name_in_the_api() -> None:
    types = set(get_args(SchedulerType))
    assert set(ORDERS) == types
    assert set(SCHEDULER_TYPES) == types
