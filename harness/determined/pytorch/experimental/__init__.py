"""Batch inference: a model goes over a dataset once, in as many processes as the trial has slots.

May change between releases.
"""

from determined.pytorch.experimental._batch_process import torch_batch_process
from determined.pytorch.experimental._processor import (
    TorchBatchProcessor,
    TorchBatchProcessorContext,
    get_default_device,
)

__all__ = [
    "TorchBatchProcessor",
    "TorchBatchProcessorContext",
    "get_default_device",
    "torch_batch_process",
]
