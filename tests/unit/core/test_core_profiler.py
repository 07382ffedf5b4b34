"""The profiler's samples and reports."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from core_service import FakeService

from determined.core import _profiler
from determined.core._context import Context
from determined.core._profiler import ProfilerContext
from determined.core._reporter import Reporter
from tests.waiting import until

Make = Callable[..., Context]


def reported(service: FakeService) -> dict[str, Any]:
    """The last report of each group."""
    return {report["group"]: report for report in service.reports}


def test_the_machine_at_the_last_step(service: FakeService, make_context: Make) -> None:
    with make_context() as context:
        context.train.report_training_metrics(5, {"x": 1.0})
        with pytest.raises(ValueError, match="sampling_interval"):
            context.profiler.on(sampling_interval=0.01)
        with pytest.raises(ValueError, match="samples_per_report"):
            context.profiler.on(samples_per_report=0)
        context.profiler.on(sampling_interval=0.1, samples_per_report=2)
        context.profiler.on()
        until("the processor", lambda: "cpu" in reported(service))
    found = reported(service)
    assert {"cpu", "memory", "disk", "network"} <= set(found)
    assert found["cpu"]["steps_completed"] == 5
    values = {group: found[group]["metrics"]["agent"] for group in found if group != "training"}
    assert 0 <= values["cpu"]["cpu_util_simple"] <= 100
    # Bytes, not GiB.
    assert values["memory"]["memory_free"] > 1e6
    assert set(values["network"]) == {"net_throughput_sent", "net_throughput_recv"}
    assert 0 < values["disk"]["/"]["disk_util"] <= 100


def test_the_configuration_turns_it_on(service: FakeService, make_context: Make) -> None:
    with make_context({"profiling": {"enabled": True}}) as context:
        context.profiler.off()
        assert "memory" not in reported(service)
        context.train.report_training_metrics(1, {"x": 1.0})
    assert "memory" in reported(service)
    service.reports.clear()
    with make_context({"profiling": {"enabled": False}}):
        pass
    assert reported(service) == {}


def test_one_process_per_machine(service: FakeService, reporter: Reporter) -> None:
    second = types.SimpleNamespace(local_rank=1)
    profiler = ProfilerContext("agent", reporter, second)  # type: ignore[arg-type]
    profiler.on(sampling_interval=0.1, samples_per_report=1)
    profiler.off()
    reporter.close()
    assert service.reports == []


class Nvml(types.ModuleType):
    """The used part of pynvml: two GPUs; the second falls off the bus."""

    class NVMLError(Exception):
        """Any failure of the library."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.lost = False

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        if self.lost:
            raise self.NVMLError("GPU is lost")
        return types.SimpleNamespace(gpu=10 * handle)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return types.SimpleNamespace(free=1000 + handle)


def test_gpus(
    service: FakeService,
    reporter: Reporter,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    alone = types.SimpleNamespace(local_rank=0)
    profiler = ProfilerContext("agent", reporter, alone)  # type: ignore[arg-type]
    profiler.on(sampling_interval=0.1, samples_per_report=1)
    until("the GPUs", lambda: "gpu" in reported(service))
    assert reported(service)["gpu"]["metrics"] == {
        "agent": {
            "GPU-0": {"gpu_util": 0, "gpu_free_memory": 1000},
            "GPU-1": {"gpu_util": 10, "gpu_free_memory": 1001},
        }
    }
    nvml.lost = True
    until("the warning", lambda: "gpu is not sampled any more: NVML: GPU is lost" in caplog.text)
    before = service.last_seq
    service.reports.clear()
    until("the processor", lambda: "cpu" in reported(service))
    profiler.off()
    assert before and "gpu" not in reported(service)


def test_without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert _profiler.gpu_sampler() is None
