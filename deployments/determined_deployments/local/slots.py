"""Finds the slots of this machine: its GPUs, else its CPU cores."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Literal

from determined.common import nvml
from determined_deployments.local.errors import ClusterError
from determined_deployments.local.state import LocalSlot

logger = logging.getLogger(__name__)


def visible(devices: list[str], environ: Mapping[str, str]) -> list[str]:
    """The ``devices`` that ``CUDA_VISIBLE_DEVICES`` (indices or uuid prefixes) selects, in its order."""
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return devices
    chosen: list[str] = []
    for item in filter(None, (part.strip() for part in wanted.split(","))):
        if item.isdigit():
            match = devices[int(item)] if int(item) < len(devices) else None
        else:
            match = next((d for d in devices if d.startswith(item)), None)
        if match is None:  # CUDA, too, ignores everything from the first unknown device on
            break
        chosen.append(match)
    return chosen


def gpus() -> list[str]:
    """Uuids of the NVIDIA GPUs here, and of the parts of a partitioned one; empty without a driver."""
    try:
        return visible(nvml.device_uuids(), os.environ)
    except ImportError as error:
        logger.warning("GPUs cannot be detected, so no GPU is used: %s", error)
        return []


def detect(
    count: int | None = None, gpu: bool | None = None
) -> tuple[Literal["cpu", "cuda"], list[LocalSlot]]:
    """Slot type and slots. ``count`` limits the GPUs or sets the number of CPU slots. ``gpu``: True
    requires GPUs, False ignores them, None uses them if there are any.

    Raises ClusterError if there are fewer GPUs than ``count``, or none although ``gpu`` is True.
    """
    if count is not None and count < 0:
        raise ClusterError(f"--slots: expected 0 or more, found {count}")
    devices = [] if gpu is False else gpus()
    if gpu and not devices:
        raise ClusterError("--gpu: no NVIDIA GPU found; check that `nvidia-smi -L` lists one")
    if devices:
        if count is not None and count > len(devices):
            raise ClusterError(
                f"--slots {count}: this machine has {len(devices)} GPU(s); "
                "use --no-gpu for CPU slots"
            )
        return "cuda", [LocalSlot(id=i, device=d) for i, d in enumerate(devices[:count])]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    number = count if count is not None else cores or 1
    return "cpu", [LocalSlot(id=i, device="cpu") for i in range(number)]
