"""The names of the machine's GPUs."""

from __future__ import annotations

import re

import pytest
from fake_nvml import FakeNvml, NVMLError, install

from determined import gpu
from determined.common import installation, nvml


def test_gpus_in_the_order_of_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml({"GPU-b": None, "GPU-a": None})
    install(monkeypatch, library)
    assert nvml.device_uuids() == ["GPU-b", "GPU-a"]
    assert gpu.get_gpu_uuids() == ["GPU-b", "GPU-a"]
    assert library.open == 0


def test_the_parts_of_a_gpu_stand_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvml({"GPU-a": ["MIG-1", None, "MIG-2", None], "GPU-b": None}))
    assert nvml.device_uuids() == ["MIG-1", "MIG-2", "GPU-b"]


def test_mig_mode_from_the_next_reset_on_changes_nothing_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, FakeNvml({"GPU-a": ["MIG-1"]}, mig_off=True))
    assert nvml.device_uuids() == ["GPU-a"]


def test_a_gpu_that_no_program_could_use_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpus = {"GPU-a": [None, None], "GPU-b": NVMLError("GPU is lost"), "GPU-c": None}
    install(monkeypatch, FakeNvml(gpus))
    assert nvml.device_uuids() == ["GPU-c"]
    assert [record.getMessage() for record in caplog.records] == [
        "GPU 0 is left out: its MIG mode is on, but it has no parts; create some with nvidia-smi",
        "GPU 1 is left out, because NVML cannot read it: GPU is lost",
    ]


def test_without_a_driver_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvml({}, driver=False))
    assert nvml.device_uuids() == []
    assert gpu.get_gpus() == ([], "")


def test_without_the_package_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    with pytest.raises(ImportError, match=re.escape(installation.command("gpu"))):
        gpu.get_gpu_uuids()


def test_cuda_counts_whole_gpus_in_the_order_of_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvml({"GPU-a": None, "GPU-b": None, "GPU-c": None}))
    assert nvml.cuda_names(["GPU-c", "GPU-a"]) == ["2", "0"]


def test_a_gpu_that_has_gone_gives_no_other_ones_number(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvml({"GPU-b": None, "GPU-c": None}))
    assert nvml.cuda_names(["GPU-a", "GPU-b"]) == ["GPU-a", "GPU-b"]


@pytest.mark.parametrize("other", [["MIG-1"], [None], NVMLError("GPU is lost")])
def test_uuids_name_the_gpus_if_cudas_order_is_unknown(
    monkeypatch: pytest.MonkeyPatch, other: object
) -> None:
    install(monkeypatch, FakeNvml({"GPU-a": other, "GPU-b": None}))
    assert nvml.cuda_names(["GPU-b"]) == ["GPU-b"]
