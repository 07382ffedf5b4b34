"""An experiment's configuration as a training script sees it."""

from __future__ import annotations

from typing import Any


class ExperimentConfig(dict[str, Any]):
    """The complete experiment configuration: a dict with properties for the fields that scripts use most.

    Periods are dicts such as ``{"batches": 100}``.
    """

    def _section(self, name: str) -> dict[str, Any]:
        return self.get(name) or {}

    def debug_enabled(self) -> bool:
        return bool(self.get("debug"))

    def scheduling_unit(self) -> int:
        """Batches between reports."""
        return int(self.get("scheduling_unit", 100))

    def native_parallel_enabled(self) -> bool:
        return bool(self._section("resources").get("native_parallel"))

    def average_training_metrics_enabled(self) -> bool:
        return bool(self._section("optimizations").get("average_training_metrics", True))

    def slots_per_trial(self) -> int:
        return int(self._section("resources").get("slots_per_trial", 1))

    def experiment_seed(self) -> int:
        return int(self._section("reproducibility").get("experiment_seed", 0))

    def profiling_enabled(self) -> bool:
        return bool(self._section("profiling").get("enabled"))

    def profiling_interval(self) -> tuple[int, int | None]:
        """(first batch, last batch or None) to profile; (0, 0) when profiling is off."""
        if not self.profiling_enabled():
            return 0, 0
        profiling = self._section("profiling")
        return int(profiling.get("begin_on_batch", 0)), profiling.get("end_after_batch")

    def profiling_sync_timings(self) -> bool:
        return bool(self._section("profiling").get("sync_timings", True))

    def get_records_per_epoch(self) -> int | None:
        records = self.get("records_per_epoch")
        return None if records is None else int(records)

    def get_min_validation_period(self) -> dict[str, int]:
        return self._section("min_validation_period")

    def get_min_checkpoint_period(self) -> dict[str, int]:
        return self._section("min_checkpoint_period")

    def get_searcher_metric(self) -> str:
        """Raises ValueError when the configuration names none."""
        metric = self._section("searcher").get("metric")
        if not isinstance(metric, str):
            raise ValueError(f"searcher.metric must be the name of a metric, found {metric!r}")
        return metric

    def get_optimizations_config(self) -> dict[str, Any]:
        return self._section("optimizations")

    def get_checkpoint_storage(self) -> dict[str, Any]:
        return self._section("checkpoint_storage")

    def get_entrypoint(self) -> str | list[str]:
        """Raises ValueError when it is neither a string nor a list of strings."""
        entrypoint = self.get("entrypoint")
        if isinstance(entrypoint, str):
            return entrypoint
        if isinstance(entrypoint, list) and all(isinstance(word, str) for word in entrypoint):
            return entrypoint
        raise ValueError(f"entrypoint must be a string or a list of strings, found {entrypoint!r}")
