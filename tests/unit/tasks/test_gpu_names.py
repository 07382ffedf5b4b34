"""The variables that tell a leg's process its GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from determined.common import nvml
from determined.common.wire.legs import LegSpec
from determined_tasks import task_environment
from determined_tasks.context_dir import ContextDir
from determined_tasks.task_environment import AgentSide
from tests.unit.tasks.test_container_plan import leg

UUIDS = {0: "GPU-a", 1: "GPU-b", 2: "GPU-c"}


def built(order: LegSpec, uuids: dict[int, str] | None) -> dict[str, str]:
    place = AgentSide(Path("/work"), "http://m:1", "token", "agent-1", "cuda", device_uuids=uuids)
    return task_environment.build(order, place, ContextDir(Path("/work/a"), Path("/tmp/a")))


def test_numbers_at_the_moment_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ["GPU-a", "GPU-b", "GPU-c"]
    monkeypatch.setattr(nvml, "cuda_names", lambda given: [str(there.index(one)) for one in given])
    found = built(leg(slot_ids=[2, 1]), UUIDS)
    assert (found["CUDA_VISIBLE_DEVICES"], found["CUDA_DEVICE_ORDER"]) == ("2,1", "PCI_BUS_ID")
    # A GPU was put in before these.
    there.insert(0, "GPU-new")
    assert built(leg(slot_ids=[2, 1]), UUIDS)["CUDA_VISIBLE_DEVICES"] == "3,2"


def test_slots_that_are_only_counted_are_numbers_as_they_are() -> None:
    assert built(leg(slot_ids=[1, 2]), None)["CUDA_VISIBLE_DEVICES"] == "1,2"


def test_no_user_reorders_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "cuda_names", lambda given: ["0" for _ in given])
    chosen = leg(environment_variables=["CUDA_DEVICE_ORDER=FASTEST_FIRST"], slot_ids=[0])
    assert built(chosen, UUIDS)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_pod_has_its_own_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # The device plugin has said which, and numbers begin at 0 in the pod.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "from-the-pod")
    place = AgentSide(Path("/work"), "http://m:1", "token", "agent-1", "cuda", in_pod=True)
    folder = ContextDir(Path("/work/a"), Path("/tmp/a"))
    found = task_environment.build(leg(slot_ids=[5, 6]), place, folder)
    assert found["CUDA_VISIBLE_DEVICES"] == "from-the-pod"
    assert "CUDA_DEVICE_ORDER" not in found
    assert found["DET_RESOURCES_TYPE"] == "kubernetes-job"
    assert json.loads(found["DET_SLOT_IDS"]) == [5, 6]
