"""A TensorBoard. What it starts (TensorBoard) is not here yet: none can be launched."""

from __future__ import annotations

from determined.expconf.tasks import TensorboardConfig
from determined_service.lifecycle.kinds.launched import LaunchedKind
from determined_service.state import task_kinds


class Tensorboard(LaunchedKind):
    """``det tensorboard``."""

    name = task_kinds.TENSORBOARD
    noun = "tensorboard"
    title = "TensorBoard"
    config_class = TensorboardConfig
    launches = False
