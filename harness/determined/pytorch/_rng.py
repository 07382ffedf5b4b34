"""The random generators that training code draws from: python's, numpy's and torch's."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture(device: torch.device | None = None) -> dict[str, Any]:
    """The states, as checkpoints hold them."""
    states: dict[str, Any] = {
        "cpu_rng_state": torch.random.get_rng_state(),
        "np_rng_state": np.random.get_state(),
        "random_rng_state": random.getstate(),
    }
    if device is not None and device.type == "cuda":
        states["gpu_rng_state"] = torch.cuda.get_rng_state(device)
    return states


def restore(states: dict[str, Any], device: torch.device | None = None) -> None:
    """Restore the states of :func:`capture`; a generator without a captured state stays as it is."""
    if "cpu_rng_state" in states:
        torch.random.set_rng_state(states["cpu_rng_state"].cpu())
    if "np_rng_state" in states:
        np.random.set_state(states["np_rng_state"])
    if "random_rng_state" in states:
        random.setstate(states["random_rng_state"])
    if device is not None and device.type == "cuda" and "gpu_rng_state" in states:
        torch.cuda.set_rng_state(states["gpu_rng_state"].cpu(), device)


@contextlib.contextmanager
def kept(device: torch.device | None = None) -> Iterator[None]:
    """Restore the generators after the block, as if nothing had been drawn in it."""
    states = capture(device)
    try:
        yield
    finally:
        restore(states, device)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators (of the CPU) by ``seed`` for the block, and restore them afterwards."""
    with kept():
        random.seed(seed)
        np.random.seed(seed)
        # Not torch.manual_seed(): that seeds the accelerators too.
        torch.default_generator.manual_seed(seed)
        yield
