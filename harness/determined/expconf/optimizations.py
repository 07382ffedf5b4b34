"""Settings of distributed training (deprecated) and of profiling."""

from typing import Literal

from pydantic import Field

from determined.expconf.base import Natural, Positive, Section


class Optimizations(Section):
    """The ``optimizations`` section (deprecated: the training code decides these things now)."""

    aggregation_frequency: Positive = Field(1, description="batches between gradient exchanges")
    average_aggregated_gradients: bool = Field(True, description="average instead of sum")
    average_training_metrics: bool = Field(True, description="average metrics over processes")
    gradient_compression: bool = Field(False, description="send gradients with half precision")
    grad_updates_size_file: str | None = Field(None, description="where to log gradient sizes")
    mixed_precision: Literal["O0", "O1", "O2", "O3"] = Field("O0", description="precision level")
    tensor_fusion_threshold: Natural = Field(64, description="MiB per fused exchange")
    tensor_fusion_cycle_time: Natural = Field(1, description="ms between fused exchanges")
    auto_tune_tensor_fusion: bool = Field(
        False, description="tune the two tensor fusion settings by trials"
    )


class Profiling(Section):
    """The ``profiling`` section."""

    enabled: bool = Field(False, description="record system metrics while training")
    begin_on_batch: Natural = Field(0, description="first batch to record")
    end_after_batch: Natural | None = Field(None, description="last batch to record")
    sync_timings: bool = Field(True, description="wait for the GPU before each measurement")
