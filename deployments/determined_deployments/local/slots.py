"""How many slots this machine offers: its GPUs, else its CPU cores."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Literal

from determined_deployments.local.errors import ClusterError
from determined_deployments.local.state import Slot

GPU_LINE = re.compile(r"^GPU \d+: .*\(UUID: (?P<uuid>GPU-[^)]+)\)")
MIG_LINE = re.compile(r"^\s+MIG .*\(UUID: (?P<uuid>MIG-[^)]+)\)")


def parse_nvidia_smi(listing: str) -> list[str]:
    """Device uuids in the output of ``nvidia-smi -L``; a partitioned GPU counts as its parts."""
    devices: list[str] = []
    whole: str | None = None  # the GPU above, while no part of it was seen
    for line in listing.splitlines():
        if found := GPU_LINE.match(line):
            if whole:
                devices.append(whole)
            whole = found["uuid"]
        elif found := MIG_LINE.match(line):
            whole = None
            devices.append(found["uuid"])
    return [*devices, whole] if whole else devices


def visible(devices: list[str], environ: Mapping[str, str]) -> list[str]:
    """``devices`` that ``CUDA_VISIBLE_DEVICES`` (indices or uuid prefixes) leaves, in its order."""
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
    """Uuids of the NVIDIA GPUs here, by ``nvidia-smi``; empty without a driver."""
    program = shutil.which("nvidia-smi")
    if not program:
        return []
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return visible(parse_nvidia_smi(done.stdout), os.environ) if done.returncode == 0 else []


def detect(
    count: int | None = None, gpu: bool | None = None
) -> tuple[Literal["cpu", "cuda"], list[Slot]]:
    """Slot type and slots. ``count`` limits the GPUs or sets the number of CPU slots; ``gpu``: True
    insists on GPUs, False ignores them, None takes them when there are any.

    Raises ClusterError for a count the GPUs cannot meet, or when there are none and they must be.
    """
    if count is not None and count < 0:
        raise ClusterError(f"--slots: expected 0 or more, found {count}")
    devices = [] if gpu is False else gpus()
    if gpu and not devices:
        raise ClusterError("--gpu: no NVIDIA GPU found (`nvidia-smi -L` lists none)")
    if devices:
        if count is not None and count > len(devices):
            raise ClusterError(
                f"--slots {count}: this machine has {len(devices)} GPU(s); "
                "use --no-gpu for CPU slots"
            )
        return "cuda", [Slot(id=i, device=d) for i, d in enumerate(devices[:count])]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    number = count if count is not None else cores or 1
    return "cpu", [Slot(id=i, device="cpu") for i in range(number)]
