"""Testing a trial class: one batch of training, one of validation, one checkpoint."""

from __future__ import annotations

import logging
import tempfile
from typing import TYPE_CHECKING, Any

from determined import core

if TYPE_CHECKING:
    from determined._trial import LegacyTrial

logger = logging.getLogger("determined")


def test_one_batch(trial_class: type[LegacyTrial], config: dict[str, Any] | None = None) -> None:
    """Train ``trial_class`` on one batch, validate one, write a checkpoint and delete it.

    ``config`` is an experiment configuration. A hyperparameter with a range gets its lowest value, a
    categorical one its first value. Exceptions of the trial are raised. Raises TypeError for a class
    that is not a PyTorchTrial.
    """
    from determined import pytorch

    if not (isinstance(trial_class, type) and issubclass(trial_class, pytorch.PyTorchTrial)):
        raise TypeError(f"test_one_batch() takes a subclass of PyTorchTrial, found {trial_class!r}")
    config = config or {}
    with tempfile.TemporaryDirectory(prefix="determined-test-") as folder:
        storage = {"type": "directory", "container_path": folder}
        context = pytorch.PyTorchTrialContext(
            core._context._dummy_context(
                core.DummyDistributedContext(),
                core._context.build(storage),
                core.PreemptMode.WorkersAskChief,
            ),
            (config.get("reproducibility") or {}).get("experiment_seed"),
            {name: _one(value) for name, value in (config.get("hyperparameters") or {}).items()},
            slots_per_trial=1,
            num_gpus=_gpus(),
            exp_conf=config,
            enable_tensorboard_logging=False,
        )
        context._core.start()
        trial = trial_class(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(1), test_mode=True)
    logger.info("the test of %s passed", trial_class.__name__)


# The interface prescribes the name; pytest must not collect it as a test.
test_one_batch.__test__ = False  # type: ignore[attr-defined]


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _one(spec: Any) -> Any:
    """One value of a hyperparameter of any kind."""
    if not isinstance(spec, dict):
        return spec
    kind = spec.get("type")
    if kind is None:
        return {name: _one(value) for name, value in spec.items()}
    if kind == "const":
        return spec["val"]
    if kind == "categorical":
        return spec["vals"][0]
    if kind == "log":
        return spec.get("base", 10) ** spec["minval"]
    return spec["minval"]
