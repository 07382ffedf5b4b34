"""The class that users subclass for batch inference, and its context."""

from __future__ import annotations

import abc
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from determined import core
from determined._info import get_cluster_info
from determined.pytorch import _device
from determined.pytorch._reducer import MetricReducer, Reducers


def get_default_device(core_context: core.Context) -> torch.device:
    """This process' GPU (by its rank on the machine), or the CPU if there is no GPU."""
    return _device.of_process(core_context.distributed.local_rank, torch.cuda.device_count())


class TorchBatchProcessorContext:
    """A :class:`TorchBatchProcessor`'s access to the cluster; ``device`` is its process' device.

    ``storage_path``: where :meth:`upload_path` stores files, relative to the checkpoint storage.
    """

    def __init__(self, core_context: core.Context, storage_path: str) -> None:
        self.device = get_default_device(core_context)
        self._core_context = core_context
        self._storage_path = storage_path
        self._uploaded = False
        self._reducers = Reducers(core_context.distributed.allgather)
        self._warned_types: set[type] = set()

    def get_hparams(self) -> dict[str, Any]:
        """The trial's hyperparameters. Raises RuntimeError off the cluster, where there are none."""
        info = get_cluster_info()
        if info is None or info.task_type != "TRIAL":
            raise RuntimeError(
                "this process has no hyperparameters, because it does not belong to a trial"
            )
        return info.trial.hparams

    def to_device(self, data: Any, warned_types: set[type] | None = None) -> Any:
        """``data`` on the device; see :func:`determined.pytorch.to_device`."""
        types = self._warned_types if warned_types is None else warned_types
        return _device.to_device(data, self.device, types)

    def prepare_model_for_inference(self, model: nn.Module) -> nn.Module:
        """``model`` on the device, in evaluation mode."""
        model.eval()
        return model.to(self.device)

    @contextlib.contextmanager
    def upload_path(self) -> Iterator[Path]:
        """An empty directory; files that the block writes there are stored when the block ends well.

        All files of this process go to ``<output id>/rank_<rank>`` in the checkpoint storage. A file
        replaces one of the same name. Name files by the batch, because batches since the last checkpoint
        are processed again after a crash. Raises errors.StorageError.
        """
        with tempfile.TemporaryDirectory(prefix="determined-output-") as folder:
            root = Path(folder)
            yield root
            storage = self._core_context.checkpoint._storage
            for file in sorted(path for path in root.rglob("*") if path.is_file()):
                storage.put(f"{self._storage_path}/{file.relative_to(root).as_posix()}", file)
            self._uploaded = True

    def wrap_reducer(
        self,
        reducer: Callable[[list[Any]], Any] | MetricReducer,
        name: str | None = None,
        for_training: bool = False,
        for_validation: bool = True,
    ) -> MetricReducer:
        """A metric of all batches and processes, reported as a validation metric at the end.

        As :meth:`determined.pytorch.PyTorchTrialContext.wrap_reducer`. It covers the batches since this
        start of the process.
        """
        return self._reducers.wrap(reducer, name, for_training, for_validation)

    def reset_reducers(self) -> None:
        """Reset all reducers."""
        self._reducers.reset()

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """As ``core_context.train.report_metrics()``; let only one process report."""
        self._core_context.train.report_metrics(group, steps_completed, metrics)

    def report_task_using_model_version(self, model_version: Any) -> None:
        """Tell the service that this task uses the SDK's ``model_version``."""
        self._core_context.experimental.report_task_using_model_version(model_version)

    def report_task_using_checkpoint(self, checkpoint: Any) -> None:
        """Tell the service that this task uses the SDK's ``checkpoint``."""
        self._core_context.experimental.report_task_using_checkpoint(checkpoint)

    def get_tensorboard_path(self) -> Path:
        """A local directory to write TensorBoard event files to."""
        return self._core_context.train.get_tensorboard_path()

    def get_distributed_rank(self) -> int:
        """This process among all; 0 is the chief."""
        return self._core_context.distributed.rank

    def get_distributed_size(self) -> int:
        """The number of processes."""
        return self._core_context.distributed.size


class TorchBatchProcessor(metaclass=abc.ABCMeta):
    """The work on the data. Every process calls the methods in this order::

        __init__
          process_batch ...                     batch after batch
          on_checkpoint_start                   every checkpoint_interval batches, and after the last
        on_finish

    After a pause or a crash the process begins with ``__init__`` again, and with the first batch after the
    last checkpoint. So ``on_checkpoint_start`` must store the results of all batches before it.
    """

    @abc.abstractmethod
    def __init__(self, context: TorchBatchProcessorContext) -> None:
        """Load the model and open files."""

    @abc.abstractmethod
    def process_batch(self, batch: Any, batch_idx: int) -> None:
        """``batch_idx`` counts the batches of this process from 0, also after a resume."""

    def on_checkpoint_start(self) -> None:  # noqa: B027 - may be left out
        """Store the results of the batches so far: these batches are not processed again."""

    def on_finish(self) -> None:  # noqa: B027
        """Called when all batches of this process are processed and a checkpoint has recorded it."""
