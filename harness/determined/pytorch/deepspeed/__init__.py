"""What of Determined's DeepSpeed trials does not need DeepSpeed: configurations and places in a topology.

The trial class itself is not in this release; its names say what to use.
"""

from determined._absent import absent
from determined.pytorch.deepspeed._config import overwrite_deepspeed_config
from determined.pytorch.deepspeed._mpu import (
    ModelParallelUnit,
    make_data_parallel_mpu,
    make_deepspeed_mpu,
)

__all__ = [
    "ModelParallelUnit",
    "make_data_parallel_mpu",
    "make_deepspeed_mpu",
    "overwrite_deepspeed_config",
]

_SCRIPT = (
    "write a script with DeepSpeed's engine and the Core API (determined.core, started by "
    "determined.launch.deepspeed), or use transformers' Trainer with its argument deepspeed= and "
    "determined.transformers.DetCallback"
)

__getattr__ = absent(
    "determined.pytorch.deepspeed",
    {
        "DeepSpeedTrial": _SCRIPT,
        "DeepSpeedTrialContext": _SCRIPT,
        "DeepSpeedTrialController": _SCRIPT,
        "Trainer": _SCRIPT,
        "init": _SCRIPT,
    },
)
