"""``tpe``: the brackets of ``adaptive_asha``, with trials suggested by a model instead of at random."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from determined.common import installation
from determined_searchers.adaptive_asha import AdaptiveASHA
from determined_searchers.errors import SearcherError
from determined_searchers.events import ExitReason
from determined_searchers.method import BracketStanding, SearchContext, SearchMethod
from determined_searchers.operations import Create, Operation
from determined_searchers.sections import read_section
from determined_searchers.tpe_model import TreeParzenModel


class TPEConfig(BaseModel):
    """Model-based search (tree-structured Parzen estimator) under brackets of successive halving."""

    max_trials: int = Field(ge=1, description="how many trials to make")
    max_concurrent_trials: int = Field(16, ge=0, description="trials at a time; 0 = automatic")
    max_length: Any = Field(None, description="how long the best trials train")
    time_metric: str | None = Field(
        None, description="metric that says how far a trial has trained, such as batches"
    )
    max_time: int | None = Field(
        None, ge=1, description="how long the best trials train, in units of time_metric"
    )
    divisor: float = Field(4.0, gt=1, description="one trial in this many goes on at each rung")
    mode: Literal["aggressive", "standard", "conservative"] = Field(
        "standard", description="how early bad trials are stopped"
    )
    max_rungs: int = Field(5, ge=1, description="largest number of rungs")
    bracket_rungs: list[Annotated[int, Field(ge=1)]] = Field(
        [], description="number of rungs of each halving"
    )
    stop_once: bool = Field(
        False, description="stop trials at a rung instead of pausing them for a later promotion"
    )
    n_startup_trials: int = Field(
        10, ge=1, description="trials measured at a length before the model uses it"
    )
    multivariate: bool = Field(
        True, description="whether hyperparameters are modelled together or each on its own"
    )

    @model_validator(mode="after")
    def _has_a_length(self) -> Self:
        timed = [self.time_metric is not None, self.max_time is not None]
        if not all(timed) and (any(timed) or self.max_length is None):
            raise ValueError(
                "the 'tpe' searcher requires `max_time` and `time_metric` to be set, or a max_length "
                "such as {batches: 100}"
            )
        return self


class TPE(SearchMethod):
    """Brackets decide as in :class:`~determined_searchers.adaptive_asha.AdaptiveASHA`, in both forms and by
    both rules. New hyperparameters come from :class:`TreeParzenModel`, which learns from the trials of all
    brackets.
    """

    config_model = TPEConfig
    needs_metric = True

    def __init__(self, model: TreeParzenModel, brackets: SearchMethod) -> None:
        self.model = model
        self.brackets = brackets

    @classmethod
    def from_config(cls, context: SearchContext) -> Self:
        config = read_section(TPEConfig, context.section)
        if importlib.util.find_spec("optuna") is None:
            raise SearcherError(
                "searcher.name: tpe needs Optuna where the service and the experiments run: "
                f"{installation.command('tpe')}"
            )
        model = TreeParzenModel(context, config.n_startup_trials, config.multivariate)
        suggesting = dataclasses.replace(context, suggest=model.suggest)
        return cls(model, AdaptiveASHA.from_config(suggesting))

    @property
    def invalid_limit(self) -> int | None:
        return self.brackets.invalid_limit

    def initial_operations(self) -> list[Operation]:
        return self._learn(self.brackets.initial_operations())

    def trial_created(self, request_id: str) -> list[Operation]:
        return self._learn(self.brackets.trial_created(request_id))

    def validation_completed(self, request_id: str, metric: Any, length: int) -> list[Operation]:
        self.model.measured(request_id, length, metric)
        return self._learn(self.brackets.validation_completed(request_id, metric, length))

    def trial_reported(
        self, request_id: str, time: float | None, metric: Any, step: int | None
    ) -> list[Operation]:
        if time is not None:
            self.model.measured(request_id, time, metric)
        return self._learn(self.brackets.trial_reported(request_id, time, metric, step))

    def trial_progress(self, request_id: str, progress: float) -> list[Operation]:
        return self._learn(self.brackets.trial_progress(request_id, progress))

    def trial_exited(self, request_id: str, reason: ExitReason) -> list[Operation]:
        self.model.exited(request_id, reason)
        return self._learn(self.brackets.trial_exited(request_id, reason))

    def trial_closed(self, request_id: str, exited: ExitReason | None) -> list[Operation]:
        self.model.closed(request_id)
        return self._learn(self.brackets.trial_closed(request_id, exited))

    def progress(self, open_trials: Mapping[str, float]) -> float:
        return self.brackets.progress(open_trials)

    def standings(self) -> list[BracketStanding]:
        return self.brackets.standings()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state(), "brackets": self.brackets.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.model.load(state["model"])
        self.brackets.load(state["brackets"])

    def _learn(self, operations: list[Operation]) -> list[Operation]:
        for operation in operations:
            if isinstance(operation, Create):
                self.model.created(operation.request_id, operation.hparams)
        return operations
