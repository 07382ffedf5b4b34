"""The Core API for scripts that run anywhere, also outside of the cluster (docs/train/unmanaged.md).

::

    from determined.experimental import core_v2

    core_v2.init(config=core_v2.Config(name="on my laptop"))
    core_v2.train.report_training_metrics(steps_completed=1, metrics={"loss": 0.5})
"""

from __future__ import annotations

from typing import Any

from determined._info import ClusterInfo
from determined.core import (
    CheckpointContext,
    DistributedContext,
    PreemptContext,
    PreemptMode,
    SearcherContext,
    TensorboardMode,
    TrainContext,
)
from determined.experimental.core_v2 import _context
from determined.experimental.core_v2._config import Config, DefaultConfig, UnmanagedConfig
from determined.experimental.core_v2._context import (
    close,
    init,
    init_context,
    url_reverse_webui_exp_view,
)

__all__ = [
    "Config",
    "DefaultConfig",
    "DistributedContext",
    "PreemptMode",
    "TensorboardMode",
    "UnmanagedConfig",
    "checkpoint",
    "close",
    "distributed",
    "info",
    "init",
    "init_context",
    "preempt",
    "searcher",
    "train",
    "url_reverse_webui_exp_view",
]

# Those of the context of init(); None before and after it.
train: TrainContext | None
distributed: DistributedContext | None
preempt: PreemptContext | None
checkpoint: CheckpointContext | None
searcher: SearcherContext | None
info: ClusterInfo | None


def __getattr__(name: str) -> Any:
    if name in ("train", "distributed", "preempt", "checkpoint", "searcher", "info"):
        return getattr(_context.current(), name, None)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
