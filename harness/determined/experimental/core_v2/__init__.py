"""The Core API for scripts that run anywhere, also outside of the cluster (docs/train/unmanaged.md).

::

    from determined.experimental import core_v2

    core_v2.init(config=core_v2.Config(name="on my laptop"))
    core_v2.train.report_training_metrics(steps_completed=1, metrics={"loss": 0.5})
"""

from __future__ import annotations

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

# Set by init().
train: TrainContext | None = None
distributed: DistributedContext | None = None
preempt: PreemptContext | None = None
checkpoint: CheckpointContext | None = None
searcher: SearcherContext | None = None
info: ClusterInfo | None = None
