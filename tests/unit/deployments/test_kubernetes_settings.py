"""The settings of agents on Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from determined_deployments.agent.config import AgentConfig
from tests.unit.deployments.kubernetes_legs import agent


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"kubernetes": {"name_space": "x"}}, "name_space"),
        ({"kubernetes": {"namespace": "Not_A_Name"}}, "namespace"),
        ({"kubernetes": {"unplaced_after": 0}}, "unplaced_after"),
        ({"kubernetes": {"termination_grace": 0}}, "expected 1 second or more, found 0: a pod"),
        ({"kubernetes": {"slot_resources": {"memory": "16 GB"}}}, "memory"),
        ({"kubernetes": {"priority_classes": {100: "x"}}}, "priority_classes"),
        ({"kubernetes": {"queueing": {"by": "kueue"}}}, "kueue needs the name of a LocalQueue"),
        ({"kubernetes": {"queueing": {"by": "coscheduling", "queue": "q"}}}, "leave queue out"),
        (
            {"kubernetes": {"pod_spec": {"metadata": {"name": "x"}}}},
            "metadata.name: the platform chooses",
        ),
        (
            {"slots": 4},
            "slots: not of launcher 'kubernetes', where they are counted from the nodes",
        ),
        (
            {"limits": {"memory": "1G"}},
            "limits: not of launcher 'kubernetes', where kubernetes.slot",
        ),
        ({"compiled_code": 0}, "compiled_code: not of launcher 'kubernetes'"),
        ({"container": {"network_mode": "host"}}, "container.network_mode: not of launcher"),
        (
            {"security": {"containers": {"devices": ["/dev/fuse"]}}},
            "security.containers.devices: not of launcher 'kubernetes', where device plugins",
        ),
        ({"launcher": "docker", "slots": 1}, "kubernetes: only launcher 'kubernetes' has it"),
        ({"master_url": "http://127.0.0.1:8080"}, "container.master_url: required, because pods"),
    ],
)
def test_what_is_refused(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as error:
        agent(**sections)
    assert words in str(error.value)


@pytest.mark.parametrize("launcher", ["kubernetes", "docker"])
@pytest.mark.parametrize("nulls", [(), ("slots",), ("kubernetes",)])
def test_settings_that_were_written_as_a_whole_are_read_again(
    launcher: str, nulls: tuple[str, ...]
) -> None:
    given: dict[str, Any] = {"agent_id": "a", "master_url": "http://m:1", "agent_token": "t"}
    given |= {"work_dir": "/w", "launcher": launcher}
    if launcher == "docker":
        given["slots"] = 2
    made = AgentConfig.model_validate(given)
    written = made.model_dump(mode="json") | {"agent_token": "t"}
    written |= {name: None for name in nulls if name not in given}
    assert AgentConfig.model_validate(written).model_dump() == made.model_dump()


def test_slots_are_required_elsewhere() -> None:
    given = {"agent_id": "a", "master_url": "http://m:1", "agent_token": "t", "work_dir": "/w"}
    with pytest.raises(ValidationError, match="slots: required field is missing"):
        AgentConfig.model_validate(given)
    with pytest.raises(ValidationError, match="'rocm' is for launcher 'kubernetes'"):
        AgentConfig.model_validate({**given, "slots": 1, "slot_type": "rocm"})
    assert agent(launcher="my_package:Mine").is_on_kubernetes


def test_priority_classes_by_the_greatest_number_reached() -> None:
    settings = agent(kubernetes={"priority_classes": {10: "low", 50: "normal"}}).kubernetes
    assert [settings.priority_class(number) for number in (9, 10, 49, 50, 99)] == [
        None,
        "low",
        "low",
        "normal",
        "normal",
    ]
