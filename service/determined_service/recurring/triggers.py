"""What has a model trained again besides its schedule: the items of ``on:`` in a plan, checked."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator

from determined.common.wire import limits
from determined_service.base.bounds import Text
from determined_service.recurring.schedules import CHARS, LEAST_INTERVAL_S, MOST_INTERVAL_S

MOST = 10
"""How many a plan may have."""
MOST_VALUES = 1_000
"""Of how many live values a mean may be."""
ALIAS = "^[A-Za-z][A-Za-z_-]{0,60}$"

Line = Annotated[Text, Field(min_length=1, max_length=CHARS)]
Alias = Annotated[str, Field(pattern=ALIAS)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Cooldown = Annotated[float, Field(ge=0, le=MOST_INTERVAL_S)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewData(_Strict):
    """The data's version has changed; looked at every ``every_s`` seconds."""

    every_s: Annotated[float, Field(ge=LEAST_INTERVAL_S, le=MOST_INTERVAL_S)]


class LiveMetric(_Strict):
    """The mean of the ``last`` values reported of the champion is ``below`` or ``above`` a bound."""

    metric: Line
    below: Finite | None = None
    above: Finite | None = None
    last: Annotated[int, Field(ge=1, le=MOST_VALUES)] = 1
    cooldown_s: Cooldown = 3_600.0

    @model_validator(mode="after")
    def _has_one_bound(self) -> LiveMetric:
        if (self.below is None) == (self.above is None):
            raise ValueError("give one of below and above")
        return self


class AliasMoves(_Strict):
    """An alias of another model stands for another version."""

    model: Line
    alias: Alias = "champion"
    cooldown_s: Cooldown = 0.0


class ExperimentEnds(_Strict):
    """An experiment has completed: the one with ``id``, or one of the owner's with the ``label`` or ``name``.

    ``best``: not its end, but each new best checkpoint of the experiment with ``id``.
    """

    id: Annotated[int, Field(ge=1, le=limits.INT32)] | None = None
    label: Line | None = None
    name: Line | None = None
    best: bool = False
    cooldown_s: Cooldown = 0.0

    @model_validator(mode="after")
    def _names_one(self) -> ExperimentEnds:
        if sum(given is not None for given in (self.id, self.label, self.name)) != 1:
            raise ValueError("give one of id, label and name")
        if self.best and self.id is None:
            raise ValueError("best goes with the id of an experiment")
        return self


class Trigger(_Strict):
    """One of the events."""

    new_data: NewData | None = None
    live_metric: LiveMetric | None = None
    alias: AliasMoves | None = None
    experiment: ExperimentEnds | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Trigger:
        events = (self.new_data, self.live_metric, self.alias, self.experiment)
        if sum(given is not None for given in events) != 1:
            raise ValueError("each item of on is one of new_data, live_metric, alias, experiment")
        return self

    @property
    def event(self) -> Any:
        """The one that is given."""
        return self.new_data or self.live_metric or self.alias or self.experiment

    @property
    def key(self) -> str:
        """Under which is noted what was seen of it: when a plan is replaced by one with the same event, that
        goes on from there.
        """
        return orjson.dumps(
            self.model_dump(exclude_none=True), option=orjson.OPT_SORT_KEYS
        ).decode()
