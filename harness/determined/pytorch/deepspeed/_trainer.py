"""``deepspeed.init()`` and the Trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from determined import core
from determined.pytorch import _trainer
from determined.pytorch.deepspeed import _backend
from determined.pytorch.deepspeed._context import DeepSpeedTrialContext
from determined.pytorch.deepspeed._loop import EngineLoop
from determined.pytorch.deepspeed._trial import DeepSpeedTrial


@contextlib.contextmanager
def init(
    *,
    hparams: dict[str, Any] | None = None,
    exp_conf: dict[str, Any] | None = None,
    distributed: core.DistributedContext | None = None,
    enable_tensorboard_logging: bool = True,
) -> Iterator[DeepSpeedTrialContext]:
    """``with deepspeed.init(hparams={…}) as context:`` the context for a trial and its Trainer.

    The arguments are those of :func:`determined.pytorch.init`. In the block ``deepspeed.initialize()``
    finds a process group, in one process and in several, on GPUs and on CPUs.
    """
    with _trainer.session(hparams, exp_conf, distributed, _backend.process_group) as given:
        yield DeepSpeedTrialContext(
            **given,
            num_gpus=_backend.gpus(),
            enable_tensorboard_logging=enable_tensorboard_logging,
        )


class Trainer(_trainer.Trainer):
    """Trains a :class:`DeepSpeedTrial`; ``fit`` is that of :class:`determined.pytorch.Trainer`."""

    _loop_class = EngineLoop

    def __init__(self, trial: DeepSpeedTrial, context: DeepSpeedTrialContext) -> None:
        self._take(trial, context, DeepSpeedTrial)
