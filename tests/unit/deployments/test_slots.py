"""GPUs and CPU slots of a machine."""

import pytest

from determined_deployments.local import slots
from determined_deployments.local.errors import ClusterError


def nvml_of(monkeypatch, devices):
    """NVML shows ``devices``, or raises the error."""

    def device_uuids():
        if isinstance(devices, Exception):
            raise devices
        return devices

    monkeypatch.setattr(slots.nvml, "device_uuids", device_uuids)


def test_parts_of_gpus_are_slots(monkeypatch):
    nvml_of(monkeypatch, ["MIG-1111", "MIG-2222", "GPU-bbbb-2"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    expected = [(0, "MIG-1111"), (1, "MIG-2222"), (2, "GPU-bbbb-2")]
    kind, found = slots.detect()
    assert (kind, [(slot.id, slot.device) for slot in found]) == ("cuda", expected)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-22,GPU-b")
    assert [slot.device for slot in slots.detect()[1]] == ["MIG-2222", "GPU-bbbb-2"]


def test_without_nvidia_ml_py_the_cores_are_offered(monkeypatch, caplog):
    nvml_of(monkeypatch, ImportError("nvidia-ml-py is not installed"))
    assert slots.detect(2)[0] == "cpu"
    assert (
        "GPUs cannot be detected, so no GPU is used: nvidia-ml-py is not installed" in caplog.text
    )
    with pytest.raises(ClusterError, match="no NVIDIA GPU"):
        slots.detect(gpu=True)


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
    assert slots.detect() == ("cpu", [slots.LocalSlot(id=i, device="cpu") for i in range(3)])
    assert slots.detect(0) == ("cpu", [])
    with pytest.raises(ClusterError, match="no NVIDIA GPU"):
        slots.detect(gpu=True)
    with pytest.raises(ClusterError, match="0 or more"):
        slots.detect(-1)
