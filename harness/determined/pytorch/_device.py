"""The device of a process, the length of batches, and moving batches to the device."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch

logger = logging.getLogger("determined.pytorch")


def of_process(local_rank: int, gpus: int) -> torch.device:
    """The GPU of a machine's process ``local_rank`` (from 0), or the CPU where there are none.

    It becomes torch's current device. Otherwise calls that name no device (``.cuda()``, NCCL's barriers)
    would use the first GPU in every process. Raises RuntimeError when there are fewer GPUs than processes.
    """
    if not gpus:
        return torch.device("cpu")
    if local_rank >= gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise RuntimeError(
            f"process {local_rank} of this machine (counted from 0) has no GPU to itself: torch sees {gpus}"
            f"{'' if visible is None else f' (CUDA_VISIBLE_DEVICES={visible})'}; start one process per "
            "GPU, or train on the CPU with CUDA_VISIBLE_DEVICES= (empty)"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def data_length(data: Any) -> int:
    """The number of records in a batch: the length of its first tensor, array or list.

    A list or tuple without any of these (of texts, of numbers) is one record per element. Raises ValueError
    for an empty batch, TypeError for one without a length.
    """
    if isinstance(data, torch.Tensor | np.ndarray):
        return len(data)
    if isinstance(data, Mapping | list | tuple):
        if not data:
            raise ValueError(
                f"the batch is an empty {type(data).__name__}, so the number of its records is not "
                "known: check the values that the dataset and collate_fn return"
            )
        for part in data.values() if isinstance(data, Mapping) else data:
            if isinstance(part, list | tuple) and part:
                return len(part)
            if isinstance(part, Mapping) and part:
                return data_length(part)
            if isinstance(part, torch.Tensor | np.ndarray) and part.ndim and len(part):
                return len(part)
        if not isinstance(data, Mapping):
            return len(data)
    raise TypeError(
        f"the number of records in a batch of type {type(data).__name__} is not known: "
        "override get_batch_length(batch) of the trial"
    )


def mapped(
    data: Any, change: Callable[[Any], Any], whole: Callable[[Any], bool] = lambda _: False
) -> Any:
    """``data`` with ``change(part)`` in place of each part that is not a dict, list or (named) tuple.

    ``whole``: returns whether such a container is changed as a whole, too.
    """
    if whole(data):
        return change(data)
    if isinstance(data, tuple):
        parts = [mapped(part, change, whole) for part in data]
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
    if isinstance(data, list):
        return [mapped(part, change, whole) for part in data]
    if isinstance(data, Mapping):
        changed = {key: mapped(part, change, whole) for key, part in data.items()}
        if type(data) is dict or not isinstance(data, MutableMapping):
            return changed
        # Some have attributes for their keys.
        twin = copy.copy(data)
        for key, part in changed.items():
            twin[key] = part
        return twin
    return change(data)


def to_device(data: Any, device: torch.device, warned_types: set[type] | None = None) -> Any:
    """``data`` with its tensors on ``device`` and its numpy arrays as tensors there.

    It goes through dicts, lists and (named) tuples. An object with a method ``to`` (Hugging Face's
    BatchEncoding, packed sequences) is replaced by the result of ``to(device)``. Other values, such as
    arrays of texts, stay, with one warning per type, noted in ``warned_types``.
    """

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device, non_blocking=True)
        if _moves_itself(value):
            return value.to(device)
        if isinstance(value, np.ndarray):
            with contextlib.suppress(TypeError):  # it may hold something else than numbers
                return torch.from_numpy(value).to(device, non_blocking=True)
        if warned_types is None or type(value) not in warned_types:
            if warned_types is not None:
                warned_types.add(type(value))
            logger.warning("values of type %s are not moved to %s", type(value).__name__, device)
        return value

    return mapped(data, move, _moves_itself)


def _moves_itself(value: Any) -> bool:
    # A class has the method, too, of its objects.
    return callable(getattr(value, "to", None)) and not isinstance(value, type)
