"""GPUs and CPU slots of a machine."""

import pytest

from determined_deployments.local import slots
from determined_deployments.local.errors import ClusterError

TWO_GPUS = """\
GPU 0: NVIDIA H200 (UUID: GPU-aaaa-1)
GPU 1: NVIDIA H200 (UUID: GPU-bbbb-2)
"""
ONE_PARTITIONED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa-1)
  MIG 1g.5gb     Device  0: (UUID: MIG-1111)
  MIG 1g.5gb     Device  1: (UUID: MIG-2222)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb-2)
"""


def test_listing_of_gpus():
    assert slots.parse_nvidia_smi(TWO_GPUS) == ["GPU-aaaa-1", "GPU-bbbb-2"]
    assert slots.parse_nvidia_smi(ONE_PARTITIONED) == ["MIG-1111", "MIG-2222", "GPU-bbbb-2"]
    assert slots.parse_nvidia_smi("No devices were found\n") == []


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, ["GPU-a", "GPU-b", "GPU-c"]),
        ("", []),
        ("2,0", ["GPU-c", "GPU-a"]),
        ("GPU-b", ["GPU-b"]),
        ("1,7,0", ["GPU-b"]),
        ("-1", []),
    ],
)
def test_visible_devices_are_respected(setting, expected):
    environ = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    assert slots.visible(["GPU-a", "GPU-b", "GPU-c"], environ) == expected


def test_gpus_come_before_cores(monkeypatch):
    monkeypatch.setattr(slots, "gpus", lambda: ["GPU-a", "GPU-b"])
    kind, found = slots.detect()
    assert kind == "cuda"
    assert [(slot.id, slot.device) for slot in found] == [(0, "GPU-a"), (1, "GPU-b")]
    assert [slot.device for slot in slots.detect(1)[1]] == ["GPU-a"]
    kind, found = slots.detect(3, gpu=False)
    assert kind == "cpu"
    assert [slot.device for slot in found] == ["cpu"] * 3
    with pytest.raises(ClusterError, match=r"--slots 3: this machine has 2 GPU\(s\)"):
        slots.detect(3)


def test_cores_without_gpus(monkeypatch):
    monkeypatch.setattr(slots, "gpus", list)
    monkeypatch.setattr(slots.os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    assert slots.detect() == ("cpu", [slots.Slot(id=i, device="cpu") for i in range(3)])
    assert slots.detect(0) == ("cpu", [])
    with pytest.raises(ClusterError, match="no NVIDIA GPU"):
        slots.detect(gpu=True)
    with pytest.raises(ClusterError, match="0 or more"):
        slots.detect(-1)
