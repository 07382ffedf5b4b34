"""Training PyTorch models: a :class:`PyTorchTrial` describes the training, a :class:`Trainer` runs it.

::

    class Digits(pytorch.PyTorchTrial): ...

    with pytorch.init(hparams={"lr": 0.01}) as context:
        pytorch.Trainer(Digits(context), context).fit(max_length=pytorch.Epoch(10))

The same script runs on a laptop and as a trial, where the configuration says how long to train.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    from determined.common import installation as _installation

    raise ImportError(
        f"determined.pytorch needs PyTorch: {_installation.command('torch')}"
    ) from error

from determined.pytorch import samplers
from determined.pytorch._callback import PyTorchCallback
from determined.pytorch._context import PyTorchExperimentalContext, PyTorchTrialContext
from determined.pytorch._data import DataLoader, TorchData, adapt_batch_sampler
from determined.pytorch._device import data_length, to_device
from determined.pytorch._load import CheckpointLoadContext, load_trial_from_checkpoint_path
from determined.pytorch._lr_scheduler import LRScheduler
from determined.pytorch._reducer import MetricReducer, Reducer, SimpleMetricReducer
from determined.pytorch._trainer import Trainer, init
from determined.pytorch._trial import PyTorchTrial
from determined.pytorch._units import Batch, Epoch, Record, TrainUnit

__all__ = [
    "Batch",
    "CheckpointLoadContext",
    "DataLoader",
    "Epoch",
    "LRScheduler",
    "MetricReducer",
    "PyTorchCallback",
    "PyTorchExperimentalContext",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Record",
    "Reducer",
    "SimpleMetricReducer",
    "TorchData",
    "TrainUnit",
    "Trainer",
    "adapt_batch_sampler",
    "data_length",
    "init",
    "load_trial_from_checkpoint_path",
    "samplers",
    "to_device",
]
