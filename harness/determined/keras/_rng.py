"""The random generators that a training with Keras uses. Those of its layers are part of the model."""

from __future__ import annotations

import random
from typing import Any

import keras
import numpy as np


def capture() -> dict[str, Any]:
    """The states of python, of numpy, and of torch if it is the backend."""
    if keras.backend.backend() == "torch":
        from determined.pytorch import _rng

        return _rng.capture()
    return {"np_rng_state": np.random.get_state(), "random_rng_state": random.getstate()}


def restore(states: dict[str, Any]) -> None:
    """Restore the states of :func:`capture`."""
    if keras.backend.backend() == "torch":
        from determined.pytorch import _rng

        _rng.restore(states)
        return
    np.random.set_state(states["np_rng_state"])
    random.setstate(states["random_rng_state"])
