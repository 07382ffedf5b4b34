"""Training with DeepSpeed's engines: a :class:`DeepSpeedTrial` describes it, a :class:`Trainer` runs it.

::

    class Digits(deepspeed.DeepSpeedTrial): ...

    with deepspeed.init(hparams={"lr": 0.01}) as context:
        deepspeed.Trainer(Digits(context), context).fit(max_length=pytorch.Epoch(10))

Without the package deepspeed only the names for configurations and for places in a topology work. Importing
another name raises an error that says what to install.
"""

import importlib
from typing import TYPE_CHECKING, Any

from determined import _optional
from determined.pytorch.deepspeed._config import overwrite_deepspeed_config
from determined.pytorch.deepspeed._mpu import (
    ModelParallelUnit,
    make_data_parallel_mpu,
    make_deepspeed_mpu,
)

if TYPE_CHECKING:
    from determined.pytorch.deepspeed._context import DeepSpeedTrialContext
    from determined.pytorch.deepspeed._loop import EngineLoop as DeepSpeedTrialController
    from determined.pytorch.deepspeed._trainer import Trainer, init
    from determined.pytorch.deepspeed._trial import DeepSpeedTrial

__all__ = [
    "DeepSpeedTrial",
    "DeepSpeedTrialContext",
    "DeepSpeedTrialController",
    "ModelParallelUnit",
    "Trainer",
    "init",
    "make_data_parallel_mpu",
    "make_deepspeed_mpu",
    "overwrite_deepspeed_config",
]

# Where the names are that are of no use without DeepSpeed.
_WITH_DEEPSPEED = {
    "DeepSpeedTrial": ("_trial", "DeepSpeedTrial"),
    "DeepSpeedTrialContext": ("_context", "DeepSpeedTrialContext"),
    "DeepSpeedTrialController": ("_loop", "EngineLoop"),
    "Trainer": ("_trainer", "Trainer"),
    "init": ("_trainer", "init"),
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_DEEPSPEED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _optional.require("deepspeed", "deepspeed", f"{__name__}.{name}")
    # All of them: the trial class' controller is set by the module of the loop.
    importlib.import_module(f"{__name__}._trainer")
    module, original = _WITH_DEEPSPEED[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), original)
