"""A writer of event files for model code that was written for Determined's earlier releases."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from determined._info import get_cluster_info
from determined.core import _tensorboard


class TorchWriter:
    """``writer`` is a ``torch.utils.tensorboard.SummaryWriter`` in the directory of the process' event
    files, which are uploaded. Off the cluster it writes to a temporary directory.

    New code has ``PyTorchTrialContext.get_tensorboard_writer()``, or its own SummaryWriter in
    ``core_context.train.get_tensorboard_path()``. Raises ImportError without the package tensorboard.
    """

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        warnings.warn(
            "TorchWriter is deprecated: use PyTorchTrialContext.get_tensorboard_writer(), or a SummaryWriter "
            "in core_context.train.get_tensorboard_path()",
            FutureWarning,
            stacklevel=2,
        )
        self.writer: Any = SummaryWriter(log_dir=str(_directory()))
        _tensorboard.writers.add(self.writer)

    def add_scalar(self, name: str, value: Any, step: int) -> None:
        """A point of the chart ``name``; ``value``: a number, or a scalar of numpy or torch."""
        self.writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Write the points that were added so far to the file."""
        self.writer.flush()

    def reset(self) -> None:
        """Close the file; later points go to a new file."""
        self.writer.close()


def _directory() -> Path:
    info = get_cluster_info()
    if info is None:
        return _tensorboard.temporary_directory()
    rank = os.environ.get("RANK") or os.environ.get("HOROVOD_RANK") or "0"
    return _tensorboard.local_directory(info.allocation_id, int(rank))
