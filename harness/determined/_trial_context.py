"""The part of a trial's context that is the same for every framework."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from determined import core
from determined._experiment_config import ExperimentConfig


class TrialContext:
    """Base of the contexts that trial classes get.

    ``distributed`` is the :class:`core.DistributedContext` of this process. Off-cluster,
    ``exp_conf`` and ``hparams`` are what the script gave, and there is neither trial nor experiment.
    """

    def __init__(
        self,
        core_context: core.Context,
        trial_seed: int | None,
        hparams: dict[str, Any] | None,
        exp_conf: dict[str, Any] | None,
        steps_completed: int = 0,
    ) -> None:
        self._core = core_context
        self.distributed = core_context.distributed
        self._trial_seed = trial_seed
        self._hparams = dict(hparams or {})
        self._exp_conf = ExperimentConfig(exp_conf or {})
        self._steps_completed = steps_completed
        self._stop_requested = False

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """A context off-cluster, with constant hyperparameters as in the configuration."""
        hparams = {
            name: value["val"] if isinstance(value, dict) and "val" in value else value
            for name, value in (config.get("hyperparameters") or {}).items()
        }
        seed = ExperimentConfig(config).experiment_seed()
        off_cluster = core._context._dummy_context(
            core.DummyDistributedContext(), None, core.PreemptMode.WorkersAskChief
        )
        off_cluster.start()
        return cls(off_cluster, seed, hparams, config)

    def get_experiment_config(self) -> dict[str, Any]:
        """The complete experiment configuration; what ``exp_conf`` was given off-cluster."""
        return self._exp_conf

    def get_data_config(self) -> dict[str, Any]:
        """The ``data`` section of the configuration."""
        return self._exp_conf.get("data") or {}

    def get_hparams(self) -> dict[str, Any]:
        """This trial's hyperparameters."""
        return self._hparams

    def get_hparam(self, name: str) -> Any:
        """One hyperparameter. Raises ValueError when there is none of this name."""
        if name not in self._hparams:
            near = difflib.get_close_matches(name, map(str, self._hparams), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            known = ", ".join(map(str, self._hparams)) or "none"
            raise ValueError(f"unknown hyperparameter {name!r}{hint} (known: {known})")
        return self._hparams[name]

    def _trial(self, what: str) -> Any:
        if self._core.info is None:
            raise RuntimeError(f"off-cluster there is no {what}")
        return self._core.info.trial

    def get_experiment_id(self) -> int:
        """Raises RuntimeError off-cluster."""
        return int(self._trial("experiment").experiment_id)

    def get_trial_id(self) -> int:
        """Raises RuntimeError off-cluster."""
        return int(self._trial("trial").trial_id)

    def get_trial_seed(self) -> int:
        """The seed of this trial's randomness, 0 if none was given."""
        return self._trial_seed or 0

    def get_initial_batch(self) -> int:
        """Batches that were trained before this process started."""
        return self._steps_completed

    def get_stop_requested(self) -> bool:
        """True if a callback or the trial has asked the training to stop."""
        return self._stop_requested

    def set_stop_requested(self, stop_requested: bool) -> None:
        """End the training after the current stretch of batches. The stretch is reported, a checkpoint is
        written and the trial is completed, without waiting for metrics that are due at that point.
        """
        if not isinstance(stop_requested, bool):
            raise TypeError(f"set_stop_requested() takes a bool, found {stop_requested!r}")
        self._stop_requested = stop_requested

    def get_tensorboard_path(self) -> Path:
        """A directory for TensorBoard files; on the cluster they are uploaded with checkpoints."""
        return self._core.train.get_tensorboard_path()
