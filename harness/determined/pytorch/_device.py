"""The device of a process; batches: how long they are, and moving them to it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

logger = logging.getLogger("determined.pytorch")


def of_process(local_rank: int, gpus: int) -> torch.device:
    """The GPU of a machine's process ``local_rank`` (from 0), or the CPU where there are none.

    It becomes torch's current device: what asks for no device in particular (``.cuda()``, NCCL's
    barriers) would take the first one's in every process. Raises RuntimeError when there are fewer.
    """
    if not gpus:
        return torch.device("cpu")
    if local_rank >= gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise RuntimeError(
            f"process {local_rank} of this machine (counted from 0) has no GPU of its own: torch sees {gpus}"
            f"{'' if visible is None else f' (CUDA_VISIBLE_DEVICES={visible})'}; start one process per "
            "GPU, or train on the CPU with CUDA_VISIBLE_DEVICES= (empty)"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def data_length(data: Any) -> int:
    """The number of records in a batch: the length of its first tensor or array."""
    if isinstance(data, torch.Tensor | np.ndarray):
        return len(data)
    parts = data.values() if isinstance(data, Mapping) else data
    if isinstance(data, Mapping | list | tuple):
        for part in parts:
            if isinstance(part, torch.Tensor | np.ndarray | Mapping | list | tuple) and len(part):
                return data_length(part) if not isinstance(part, list | tuple) else len(part)
    raise TypeError(
        f"the number of records in a batch of type {type(data).__name__} is not known: "
        "override get_batch_length(batch) of the trial"
    )


def to_device(data: Any, device: torch.device, warned_types: set[type] | None = None) -> Any:
    """``data`` with its tensors on ``device`` and its numpy arrays as tensors there.

    Goes through dicts, lists and (named) tuples; anything else stays, with one warning per type
    in ``warned_types``.
    """
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=True)
    if isinstance(data, tuple):
        parts = [to_device(part, device, warned_types) for part in data]
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
    if isinstance(data, list):
        return [to_device(part, device, warned_types) for part in data]
    if isinstance(data, Mapping):
        return {key: to_device(part, device, warned_types) for key, part in data.items()}
    if isinstance(data, np.ndarray):
        return torch.from_numpy(data).to(device, non_blocking=True)
    if warned_types is None or type(data) not in warned_types:
        if warned_types is not None:
            warned_types.add(type(data))
        logger.warning("values of type %s are not moved to %s", type(data).__name__, device)
    return data
