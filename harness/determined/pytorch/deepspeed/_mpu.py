"""The place of a process when a model is spread over several processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from determined import core


@dataclass
class ModelParallelUnit:
    """One process' part in the training: its share of the data, and whether it reads data and reports
    metrics.

    ``data_parallel_rank`` of ``data_parallel_world_size`` copies of the model; ``should_report_metrics``:
    whether it has the loss; ``should_build_data_loader``: whether it reads data.
    """

    data_parallel_rank: int
    data_parallel_world_size: int
    should_report_metrics: bool
    should_build_data_loader: bool


def make_data_parallel_mpu(dist_context: core.DistributedContext) -> ModelParallelUnit:
    """Every process has a whole model."""
    return ModelParallelUnit(dist_context.rank, dist_context.size, True, True)


def make_deepspeed_mpu(mpu: Any) -> ModelParallelUnit:
    """From DeepSpeed's ``PipelineParallelGrid``: data are read at both ends of the pipeline."""
    stage = mpu.get_pipe_parallel_rank()
    at_an_end = stage in (0, mpu.get_pipe_parallel_world_size() - 1)
    return ModelParallelUnit(
        data_parallel_rank=mpu.get_data_parallel_rank(),
        data_parallel_world_size=mpu.get_data_parallel_world_size(),
        should_report_metrics=True,
        should_build_data_loader=at_an_end and mpu.get_slice_parallel_rank() == 0,
    )
