"""The machine's NVIDIA GPUs, by NVML. Each function raises ImportError without nvidia-ml-py."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from determined.common import nvml


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
    """The GPUs and their kind: "cuda", or "" if there are none."""
    found = []
    with nvml.opened() as library:
        for index, handle in enumerate(nvml.handles(library)):
            memory = library.nvmlDeviceGetMemoryInfo(handle)
            load = library.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            uuid = library.nvmlDeviceGetUUID(handle)
            found.append(GPU(index, uuid, load, memory.used / memory.total))
    return found, "cuda" if found else ""


def get_gpu_uuids() -> list[str]:
    """The GPUs' names."""
    with nvml.opened() as library:
        return [library.nvmlDeviceGetUUID(handle) for handle in nvml.handles(library)]


def get_gpu_processes() -> list[GPUProcess]:
    """The processes that compute on the GPUs."""
    import psutil

    found = []
    with nvml.opened() as library:
        for handle in nvml.handles(library):
            uuid = library.nvmlDeviceGetUUID(handle)
            for process in library.nvmlDeviceGetComputeRunningProcesses(handle):
                name = ""
                with contextlib.suppress(psutil.Error):
                    name = psutil.Process(process.pid).name()
                used = f"{(process.usedGpuMemory or 0) >> 20} MiB"
                found.append(GPUProcess(process.pid, name, uuid, used))
    return found
