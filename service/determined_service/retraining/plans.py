"""What a user asks for, but for the experiment itself: :class:`Plan`."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from determined.common.pipeline.kinds import FUNCTION
from determined.common.promotion import PromotionRule, RuleError
from determined_service.base.errors import BadRequest
from determined_service.recurring.schedules import Line, Schedule, next_after
from determined_service.recurring.triggers import MOST, Alias, Trigger


class Plan(BaseModel):
    """How a model is trained again.

    ``evaluate``, ``data_version``: ``module:function`` of the model definition (docs/automate/retraining.md).
    """

    model_config = ConfigDict(extra="forbid")

    evaluate: Line
    rule: dict[str, Any]
    schedule: Schedule | None = None
    on: Annotated[list[Trigger], Field(max_length=MOST)] = []
    data_version: Line | None = None
    data_files: Annotated[list[Line], Field(max_length=50)] = []
    warm_start: bool = False
    approval: bool = False
    alias: Alias = "champion"

    @field_validator("evaluate", "data_version")
    @classmethod
    def _is_function(cls, name: str | None) -> str | None:
        if name is not None and not FUNCTION.fullmatch(name):
            raise ValueError("expected module:function, both of the model definition")
        return name

    @field_validator("rule")
    @classmethod
    def _is_rule(cls, given: dict[str, Any]) -> dict[str, Any]:
        try:
            return PromotionRule.read(given).to_json()
        except RuleError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _has_one_version(self) -> Plan:
        if self.data_version is not None and self.data_files:
            raise ValueError("give data_version or data_files, not both")
        return self

    @model_validator(mode="after")
    def _can_see_events(self) -> Plan:
        if not self.checks_data and any(one.new_data is not None for one in self.on):
            raise ValueError(
                "on.new_data: give data_version or data_files, so that new data can be told"
            )
        keys = [one.key for one in self.on]
        if len(set(keys)) != len(keys):
            raise ValueError("on: the same event stands there twice")
        return self

    @property
    def checks_data(self) -> bool:
        """Whether the data's version is looked at before anything is trained."""
        return self.data_version is not None or bool(self.data_files)

    def read_rule(self) -> PromotionRule:
        """The rule of promotion."""
        return PromotionRule.read(self.rule)

    def next_after(
        self, moment: datetime.datetime, begun: datetime.datetime, *, stored: bool = False
    ) -> datetime.datetime | None:
        """When the schedule wants the next run; ``stored``: it was taken before. Raises BadRequest."""
        given = None if self.schedule is None else self.schedule.model_dump(exclude_none=True)
        found = next_after(given, moment, begun, stored=stored)
        if given is not None and found is None:
            raise BadRequest("schedule: it never comes true")
        return found
