"""The search space: constants, ranges, choices, and groups of them."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema
from typing_extensions import TypeAliasType

from determined.expconf.base import MEMBER_MARK, Int, Positive, Section, by_choice, member


class ConstHyperparameter(Section):
    """One fixed value."""

    null_fields: ClassVar[frozenset[str]] = frozenset({"val"})

    type: Literal["const"]
    val: Any = Field(description="the value")


class IntHyperparameter(Section):
    """A whole number from ``minval`` to ``maxval``, both included."""

    type: Literal["int"]
    minval: Int = Field(description="smallest value")
    maxval: Int = Field(description="largest value")
    count: Positive | None = Field(None, description="points on a grid")


class DoubleHyperparameter(Section):
    """A number from ``minval`` to ``maxval``."""

    type: Literal["double"]
    minval: float = Field(description="smallest value")
    maxval: float = Field(description="largest value")
    count: Positive | None = Field(None, description="points on a grid")


class LogHyperparameter(Section):
    """``base`` to the power of a number from ``minval`` to ``maxval``."""

    type: Literal["log"]
    base: float = Field(gt=0, description="base of the power, usually 10")
    minval: float = Field(description="smallest exponent")
    maxval: float = Field(description="largest exponent")
    count: Positive | None = Field(None, description="points on a grid")


class CategoricalHyperparameter(Section):
    """One of the values listed."""

    type: Literal["categorical"]
    vals: list[Any] = Field(min_length=1, description="the values to choose from")


TYPES = {
    "const": "ConstHyperparameter",
    "int": "IntHyperparameter",
    "double": "DoubleHyperparameter",
    "log": "LogHyperparameter",
    "categorical": "CategoricalHyperparameter",
}


def _choose(value: Any) -> str | None:
    if isinstance(value, Section):
        return MEMBER_MARK + type(value).__name__
    if not isinstance(value, Mapping):
        return MEMBER_MARK + "value"
    if "type" not in value:
        return MEMBER_MARK + "group"
    name = value["type"]
    return MEMBER_MARK + TYPES[name] if isinstance(name, str) and name in TYPES else None


#: A mapping with ``type`` is a range or choice, one without is a group; all else is a constant.
Hyperparameter = TypeAliasType(  # type: ignore[misc]  # mypy cannot follow the recursion
    "Hyperparameter",
    Annotated[
        Annotated[ConstHyperparameter, member("ConstHyperparameter")]
        | Annotated[IntHyperparameter, member("IntHyperparameter")]
        | Annotated[DoubleHyperparameter, member("DoubleHyperparameter")]
        | Annotated[LogHyperparameter, member("LogHyperparameter")]
        | Annotated[CategoricalHyperparameter, member("CategoricalHyperparameter")]
        | Annotated[
            dict[str, "Hyperparameter"],  # type: ignore[misc]
            member("group"),
            Field(json_schema_extra={"not": {"required": ["type"]}}),
        ]
        | Annotated[Any, member("value"), WithJsonSchema({"not": {"type": "object"}})],
        by_choice(_choose, "type", TYPES),
    ],
)
