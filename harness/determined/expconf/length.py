"""Amounts of training: ``{batches: 100}``, ``{records: 50000}``, ``{epochs: 3}``."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_serializer, model_validator

from determined.expconf.base import (
    WHOLE,
    Natural,
    Positive,
    Section,
    broken,
    by_shape,
    member,
)

UNITS = ("batches", "records", "epochs")
_FORM = "{batches: n}, {records: n} or {epochs: n}"


class Length(Section):
    """An amount of training in exactly one unit."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    batches: Natural | None = Field(None, description="how many batches")
    records: Natural | None = Field(None, description="how many records")
    epochs: Natural | None = Field(None, description="how many epochs")

    @model_validator(mode="before")
    @classmethod
    def _needs_a_unit(cls, data: Any) -> Any:
        if isinstance(data, int | float) and not isinstance(data, bool):
            raise broken(f"expected a length with its unit, such as {{batches: {data}}}", _FORM)
        return data

    @model_validator(mode="after")
    def _one_unit(self) -> "Length":
        given = [unit for unit in UNITS if getattr(self, unit) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise broken(
                f"expected exactly one of batches, records and epochs, found {found}", _FORM
            )
        return self

    @model_serializer(mode="plain")
    def _as_written(self) -> dict[str, int]:
        return {self.unit: self.units}

    @property
    def unit(self) -> str:
        """batches, records or epochs."""
        return next(unit for unit in UNITS if getattr(self, unit) is not None)

    @property
    def units(self) -> int:
        """The number of units."""
        return int(getattr(self, self.unit))


class PositiveLength(Length):
    """An amount of training that is not zero."""

    batches: Positive | None = Field(None, description="how many batches")
    records: Positive | None = Field(None, description="how many records")
    epochs: Positive | None = Field(None, description="how many epochs")


#: The length of a searcher; a bare number has no unit.
SearcherLength = Annotated[
    Annotated[PositiveLength, member("PositiveLength")] | Annotated[Positive, member("unitless")],
    by_shape(f"{_FORM}, or a number of at least 1", PositiveLength=(dict, Length), unitless=int),
    WHOLE,
]
