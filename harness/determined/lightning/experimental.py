"""A Lightning logger for scripts that run outside of the cluster and report to it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

if TYPE_CHECKING:
    from argparse import Namespace


class DetLogger(Logger):
    """``lightning.Trainer(logger=DetLogger(config=...))``: the values that the module logs become training
    metrics.

    The arguments are those of ``determined.experimental.core_v2.init()``, which is called with the first
    metrics, in the first process only. The end of the training closes it. Training or testing after that
    starts it again; with external ids it is the same trial. After a failed training it stays open until the
    script ends, which then reports the failure.
    """

    def __init__(
        self,
        *,
        defaults: Any | None = None,
        unmanaged: Any | None = None,
        config: Any | None = None,
        client: Any | None = None,
    ) -> None:
        super().__init__()
        given = {
            "defaults": defaults,
            "unmanaged": unmanaged,
            "config": config,
            "client": client,
        }
        self._arguments = {name: value for name, value in given.items() if value is not None}
        self._core: Any = None

    @property
    def experiment(self) -> Any:
        """The module ``core_v2``, initialized; None in processes other than the first."""
        if self._core is None and rank_zero_only.rank == 0:
            core_v2 = importlib.import_module("determined.experimental.core_v2")
            core_v2.init(**self._arguments)
            self._core = core_v2
        return self._core

    @property
    def name(self) -> str:
        return "DetLogger"

    @property
    def version(self) -> str:
        return "0.1"

    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Hyperparameters are part of ``config``."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.experiment.train.report_training_metrics(step or 0, metrics)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if self._core is not None and status != "failed":
            self._core.close()
            self._core = None
            self._core = None
