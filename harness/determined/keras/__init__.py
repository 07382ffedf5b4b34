"""Keras on the cluster: ``model.fit(callbacks=[DeterminedCallback(core_context, ...)])``.

For Keras 3 with any of its backends; ``KERAS_BACKEND=torch`` needs no TensorFlow.
"""

from __future__ import annotations

from typing import Any

from determined._optional import require

require("keras", "keras", "determined.keras")

from determined.keras._callback import DeterminedCallback  # noqa: E402
from determined.keras._old_names import NAMES, refusal  # noqa: E402
from determined.keras._tensorboard import TensorBoard  # noqa: E402

__all__ = ["DeterminedCallback", "TensorBoard"]


def __getattr__(name: str) -> Any:
    if name in NAMES:
        raise refusal(name)
    raise AttributeError(f"module 'determined.keras' has no attribute {name!r}")
