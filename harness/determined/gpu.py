"""The machine's NVIDIA GPUs, by NVML (the package nvidia-ml-py)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple


class GPU(NamedTuple):
    """``load`` and ``memoryUtil`` are shares from 0 to 1."""

    id: int
    uuid: str
    load: float
    memoryUtil: float  # noqa: N815 - upstream's name


class GPUProcess(NamedTuple):
    """A process on a GPU; ``used_memory`` as a text, e.g. "512 MiB"."""

    pid: int
    process_name: str
    gpu_uuid: str
    used_memory: str


def get_gpus() -> tuple[list[GPU], str]:
    """The GPUs, and of which kind: "cuda", or "" where there are none."""
    found = []
    with _nvml() as nvml:
        for index, handle in enumerate(_handles(nvml)):
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            load = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            uuid = nvml.nvmlDeviceGetUUID(handle)
            found.append(GPU(index, uuid, load, memory.used / memory.total))
    return found, "cuda" if found else ""


def get_gpu_uuids() -> list[str]:
    """The GPUs' names."""
    with _nvml() as nvml:
        return [nvml.nvmlDeviceGetUUID(handle) for handle in _handles(nvml)]


def get_gpu_processes() -> list[GPUProcess]:
    """What computes on the GPUs."""
    import psutil

    found = []
    with _nvml() as nvml:
        for handle in _handles(nvml):
            uuid = nvml.nvmlDeviceGetUUID(handle)
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                name = ""
                with contextlib.suppress(psutil.Error):
                    name = psutil.Process(process.pid).name()
                used = f"{(process.usedGpuMemory or 0) >> 20} MiB"
                found.append(GPUProcess(process.pid, name, uuid, used))
    return found


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """The library, None where there is no driver. Raises ImportError without the package."""
    try:
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise ImportError(
            "determined.gpu needs nvidia-ml-py: pip install 'determined-prefect[gpu]'"
        ) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _handles(nvml: Any) -> list[Any]:
    if nvml is None:
        return []
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
