"""Batches: how long they are, and moving them to a device."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

logger = logging.getLogger("determined.pytorch")


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
